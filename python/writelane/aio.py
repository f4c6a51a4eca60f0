"""Writes awaited in asyncio.

One event descriptor a loop: the writer thread rings it once for a whole group of jobs, and the loop's own thread
completes their futures. No thread in between, and nothing to call from the writer into the interpreter.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any

from writelane import _native

__all__ = ["answer", "task_number"]


class _Inbox:
    """The answers on their way to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = _native.Completions()
        self._tokens = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], _native.Ticket]] = {}
        self._loop = weakref.ref(loop)
        loop.add_reader(self._completions.fileno(), self._collect)

    def watch(self, ticket: _native.Ticket, future: asyncio.Future[Any]) -> None:
        token = next(self._tokens)
        self._waiting[token] = (future, ticket)
        ticket.notify(self._completions, token)

    def _collect(self) -> None:
        for token in self._completions.drain():
            future, ticket = self._waiting.pop(token)
            if future.done():
                continue
            if ticket.state == "cancelled":
                future.cancel()
                continue
            try:
                result = ticket.result()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


_inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = weakref.WeakKeyDictionary()


def task_number() -> int:
    """Return the number of the running task; 0 where none runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return 0 if task is None else id(task)


async def answer(ticket: _native.Ticket) -> Any:
    """Await the answer of a job and return its result or raise its error.

    A cancelled task cancels the job if it has not started; a job that has started is committed all the same.
    """
    loop = asyncio.get_running_loop()
    inbox = _inboxes.get(loop)
    if inbox is None:
        inbox = _inboxes[loop] = _Inbox(loop)
    future: asyncio.Future[Any] = loop.create_future()
    inbox.watch(ticket, future)
    try:
        return await future
    except asyncio.CancelledError:
        ticket.cancel()
        raise
