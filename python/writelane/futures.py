"""Futures of submitted writes.

The writer thread never enters the interpreter, so it cannot complete a Python future itself. A :class:`WriteFuture`
asks the native side when it is looked at; only when somebody wants to be called back (``add_done_callback``,
``concurrent.futures.wait``, ``as_completed``) does one thread of this process collect the answers and complete the
futures, a whole group at each wake-up.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from writelane import _native

if TYPE_CHECKING:
    Future = concurrent.futures.Future[Any]
else:
    Future = concurrent.futures.Future

__all__ = ["WriteFuture"]


#: What ``concurrent.futures`` sets on a future and looks at from outside.
_OF_THE_BASE = frozenset({"_condition", "_done_callbacks", "_exception", "_result", "_state", "_waiters"})


class WriteFuture(Future):
    """The future of one submitted write.

    ``result()`` gives the write's :class:`~writelane.Result` (a list of them for a batch) once it is committed.
    ``cancel()`` succeeds until the write has started; then it never runs. The write's own deadline ends it with
    :class:`~writelane.WriteTimeout`; the ``timeout`` of ``result()`` ends only the wait.
    """

    def __init__(self, ticket: _native.Ticket) -> None:
        # The base class is set up when somebody needs its condition: most futures are only ever asked for a result.
        self._ticket = ticket

    def __getattr__(self, name: str) -> Any:
        # Reached once, for the first attribute of the base class that anybody looks at.
        if name not in _OF_THE_BASE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        with _lock:
            fresh = "_condition" not in self.__dict__
            if fresh:
                super().__init__()
        if fresh:
            _collector().watch(self._ticket, self._complete)
        return self.__dict__[name]

    def __copy__(self) -> WriteFuture:
        return WriteFuture(self._ticket)

    def __reduce__(self) -> Any:
        raise TypeError("a WriteFuture cannot be pickled: it belongs to the queue of this process")

    def _complete(self) -> None:
        """Bring the state of the base class up to the ticket's. Called once, by the collector."""
        if self._ticket.state == "cancelled":
            if super().cancel():
                self.set_running_or_notify_cancel()
            return
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._ticket.result()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        """Cancel the write if it has not started. True: it will never run."""
        return self._ticket.cancel()

    def cancelled(self) -> bool:
        """Say whether the write was cancelled."""
        return self._ticket.state == "cancelled"

    def running(self) -> bool:
        """Say whether the write has started and is not answered."""
        return self._ticket.state == "running"

    def done(self) -> bool:
        """Say whether the write is answered or cancelled."""
        return self._ticket.state in ("answered", "cancelled")

    def _wait(self, timeout: float | None) -> None:
        if not self._ticket.wait(timeout):
            raise concurrent.futures.TimeoutError
        if self._ticket.state == "cancelled":
            raise concurrent.futures.CancelledError

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the write, up to ``timeout`` seconds, and return its result or raise its error."""
        self._wait(timeout)
        return self._ticket.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the write, up to ``timeout`` seconds, and return its error, or ``None``."""
        self._wait(timeout)
        try:
            self._ticket.result()
        except BaseException as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<WriteFuture at {id(self):#x} {self._ticket.state}>"


class _Offered:
    """The ticket of an offer: it was answered at once, with nothing."""

    state = "answered"

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def result(self) -> _native.Result:
        return _native.Result()

    def cancel(self) -> bool:
        return False


class OfferedFuture(WriteFuture):
    """The future of a write that was submitted in a best-effort block: done at once, with an empty result."""

    def __init__(self) -> None:
        concurrent.futures.Future.__init__(self)
        self._ticket = _Offered()  # type: ignore[assignment]
        self._watched = True
        self.set_result(_native.Result())


class _Collector:
    """The thread that calls back."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._completions = _native.Completions()
        self._tokens = itertools.count()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="wl-callbacks", daemon=True)
        self._thread.start()

    def watch(self, ticket: _native.Ticket, complete: Callable[[], None]) -> None:
        token = next(self._tokens)
        self._waiting[token] = complete
        ticket.notify(self._completions, token)

    def _run(self) -> None:
        _native.stay_awake()
        while not self._stopping:
            select.select([self._completions], [], [])
            for token in self._completions.drain():
                self._waiting.pop(token)()

    def stop(self) -> None:
        """Complete what is answered, and end the thread."""
        self._stopping = True
        self._completions.wake()
        self._thread.join()
        for token in self._completions.drain():
            self._waiting.pop(token)()


_lock = threading.Lock()
_current: _Collector | None = None


def _collector() -> _Collector:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Collector()
        return _current


def stop_collector() -> None:
    """Complete the futures whose writes are answered, and end the thread. For the exit of the interpreter."""
    global _current
    with _lock:
        collector, _current = _current, None
    if collector is not None and collector.pid == os.getpid():
        collector.stop()


def _renew_lock() -> None:
    # A thread of the parent may have held it.
    global _lock, _current
    _lock = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_renew_lock)
