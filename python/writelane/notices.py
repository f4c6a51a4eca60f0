"""What is told at once: waits, holds and snapshots that are longer than somebody asked to hear of, and a log that is
pinned.

Whoever measures them, the writer thread above all, never enters the interpreter: it puts them into a bounded ring and
rings a bell. One thread of this process, started when somebody listens and ended when nobody does, takes them from
there, calls callbacks, logs and writes the telemetry file.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from writelane import _native
from writelane.plain_text import one_line, printable

__all__ = ["Listening", "Notice", "every", "line", "listen", "logger", "stop", "warn"]

#: Where warnings go; also what this thread itself could not do.
logger = logging.getLogger("writelane")

#: The characters of a statement that a log line shows.
SHOWN = 200

#: How long the exit waits for callbacks that are running.
EXIT_SECONDS = 5.0


@dataclass(frozen=True)
class Notice:
    """A wait, or a hold of the lock, that was long; a snapshot that is open for long; a log that cannot shrink, or be
    copied."""

    #: ``"wait"`` or ``"hold"``; ``"snapshot"``: this process has had one open for long, and still has; ``"pinned"``: a
    #: reader keeps the log from shrinking; ``"unpinned"``: no longer; ``"checkpoint_failed"``: the log could not be
    #: copied, and is tried again (``error`` says why; if ``SQLITE_BUSY``, ``holder`` has been at it for long);
    #: ``"checkpoint_recovered"``: it could be, after ``seconds``.
    kind: str
    #: When it ended, or when the snapshot or the pinned log was found, in seconds since the epoch.
    at: float
    #: The database file, links resolved.
    path: str
    #: The statement that waited, or with which the transaction began that held the lock, or the snapshot; empty for a
    #: pinned log.
    sql: str
    #: ``"queue"``, ``"lock"``, ``"hold"``, ``"snapshot"`` or ``"log"``: where most of the time went.
    phase: str
    #: How long, in seconds: in the queue and for the lock together, or holding it, or open or pinned so far.
    seconds: float
    #: Seconds by phase, as in a result.
    waited: dict[str, float]
    #: How often the lock was busy, or the transaction was run again.
    retries: int
    #: Jobs in the transaction.
    group: int
    #: Who held the lock, as in a result.
    holder: dict[str, Any] | None
    #: Everybody who held it meanwhile, with seconds.
    held_by: list[dict[str, Any]]
    #: The name of the error it ended with.
    error: str | None
    #: The place in the code that began a transaction which held the lock, or the snapshot.
    location: str | None
    #: Of a pinned log: ``since`` (seconds since the epoch), ``seconds``, ``over``, ``pages`` that are kept from being
    #: reused, ``after`` which page of the log the oldest snapshot ends, ``marks`` (the read marks that were held, 1 to
    #: 4) and ``readers`` (``pid``, ``command``), as far as they can be seen.
    pinned: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain dictionaries, lists, strings and numbers."""
        return dict(vars(self))


def line(notice: Notice) -> str:
    """Return one line that says it all."""
    if notice.pinned is not None:
        return _pinned(notice, notice.pinned)
    sql = one_line(notice.sql, SHOWN)
    if notice.kind == "hold":
        text = f"{notice.path}: held the lock for {notice.seconds:.3f} s: {sql}"
        return text + (f" (begun at {notice.location})" if notice.location else "")
    if notice.kind == "checkpoint_failed":
        why = f"{notice.error}; {_holder(notice.holder)}" if notice.error == "SQLITE_BUSY" else notice.error
        text = f"{notice.path}: the log could not be copied into the database ({why}): nothing is lost, it is tried "
        return text + "again, and grows meanwhile"
    if notice.kind == "checkpoint_recovered":
        return f"{notice.path}: the log can be copied again; it could not for {notice.seconds:.3f} s"
    if notice.kind == "snapshot":
        text = f"{notice.path}: a snapshot has been open for {notice.seconds:.3f} s, and keeps the log from shrinking: "
        return text + sql + (f" (begun at {notice.location})" if notice.location else "")
    where = "in the queue" if notice.phase == "queue" else "for the lock"
    text = f"{notice.path}: waited {notice.seconds:.3f} s {where}: {sql} (retries {notice.retries}"
    text += f", {notice.error}" if notice.error else ""
    return text + f"; {_holder(notice.holder)})"


def _pinned(notice: Notice, pinned: dict[str, Any]) -> str:
    pages, seconds = pinned["pages"], notice.seconds
    if notice.kind == "unpinned":
        return f"{notice.path}: the log can shrink again; it was pinned for {seconds:.3f} s, {pages} pages at most"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(pinned["since"]))
    text = f"{notice.path}: a reader has pinned the log for {seconds:.3f} s, since {since}: {pages} pages after page "
    text += f"{pinned['after']} cannot be reused"
    marks = ", ".join(map(str, pinned["marks"]))
    text += f" (read mark {marks})" if marks else ""
    readers = [
        f"process {who['pid']}" + (f" ({who['command']})" if who["command"] else "") for who in pinned["readers"]
    ]
    return f"{text}; readers: {', '.join(readers) or 'unknown'}"


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "holder unknown"
    text = f"held by process {holder['pid']}{', which is stopped' if holder['stopped'] else ''}"
    text += f" ({holder['command']})" if holder["command"] else ""
    text += f" for {holder['seconds']:.3f} s" if holder["seconds"] is not None else ""
    return text + (f" with {one_line(holder['statement'], SHOWN)!r}" if holder["statement"] else "")


def warn(notice: Notice) -> None:
    """Log it as a warning; that a log can shrink, or be copied, again, as information."""
    over = notice.kind in ("unpinned", "checkpoint_recovered")
    logger.log(logging.INFO if over else logging.WARNING, "%s", printable(line(notice)))


class Listening:
    """What somebody asked to hear; :meth:`close` ends it. A context manager."""

    def __init__(
        self,
        desk: _Desk,
        telemetry: _native.FileTelemetry,
        over: float,
        tell: Callable[[Notice], None],
        snapshots: bool,
    ) -> None:
        self.telemetry, self.over, self.tell, self.snapshots = telemetry, over, tell, snapshots
        self.closed = False
        self._desk = desk

    def close(self) -> None:
        """Hear no more. What has happened before is still told."""
        if not self.closed:
            self.closed = True
            self._desk.wake()

    def hears(self, notice: Notice, told: float | None) -> bool:
        """Say whether it is for them: of a snapshot, which was told of when it was ``told`` seconds old, only once."""
        if notice.kind == "snapshot":
            return self.snapshots and (told is None or told < self.over) and notice.seconds >= self.over
        return notice.phase == "log" or notice.seconds >= self.over

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class _Chore:
    """Something the thread does now and then."""

    seconds: float
    work: Callable[[], None]
    due: float = field(default_factory=time.monotonic)


class _Desk:
    """The thread, and what it has to tell to whom."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._listening: list[Listening] = []
        self._chores: list[_Chore] = []
        self._events: _native.Events | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False

    def listen(
        self, telemetry: _native.FileTelemetry, over: float, tell: Callable[[Notice], None], snapshots: bool
    ) -> Listening:
        listening = Listening(self, telemetry, over, tell, snapshots)
        with self._lock:
            self._listening.append(listening)
            self._start()
            self._set_threshold(telemetry)
        return listening

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        with self._lock:
            self._chores.append(_Chore(seconds, work))
            self._start()
        self.wake()

    def wake(self) -> None:
        events = self._events
        if events is not None and self.pid == os.getpid():
            events.wake()

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._events = _native.Events()
            self._thread = threading.Thread(target=self._run, args=(self._events,), name="wl-telemetry", daemon=True)
            self._thread.start()

    def _set_threshold(self, telemetry: _native.FileTelemetry) -> None:
        listening = [one for one in self._listening if one.telemetry.number == telemetry.number]
        telemetry.publish_over(min((one.over for one in listening), default=None))
        telemetry.publish_snapshots_over([one.over for one in listening if one.snapshots])

    def _run(self, events: _native.Events) -> None:
        _native.stay_awake()
        while True:
            with self._lock:
                dues = [chore.due for chore in self._chores]
            timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
            if not self._stopping:
                select.select([events], [], [], timeout)
            stopping = self._stopping
            # Who is gone by now is still told what has happened by now.
            with self._lock:
                listening = list(self._listening)
                gone = [one for one in listening if one.closed]
            self._tell(events, listening)
            self._do_chores()
            with self._lock:
                self._listening = [one for one in self._listening if one not in gone]
                for one in gone:
                    self._set_threshold(one.telemetry)
                if stopping or not (self._listening or self._chores):
                    events.close()
                    self._events = self._thread = None
                    return

    def _tell(self, events: _native.Events, listening: list[Listening]) -> None:
        happened, dropped = events.drain()
        if dropped:
            logger.warning("%d events were not told: more came than could be handled", dropped)
        for event in happened:
            number, told = event.pop("file"), event.pop("told")
            notice = Notice(**event)
            for one in listening:
                if one.telemetry.number == number and one.hears(notice, told):
                    try:
                        one.tell(notice)
                    except BaseException:  # Whoever raises SystemExit here means their callback, and not all telemetry.
                        logger.exception("a callback of telemetry failed")

    def _do_chores(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [chore for chore in self._chores if chore.due <= now]
        for chore in due:
            chore.due = now + chore.seconds
            try:
                chore.work()
            except BaseException:  # As above.
                logger.exception("telemetry could not be written")

    def stop(self) -> None:
        """Tell what has happened, and end the thread."""
        thread = self._thread
        self._stopping = True
        self.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(EXIT_SECONDS)


_desk = _Desk()


def listen(
    telemetry: _native.FileTelemetry, over: float, tell: Callable[[Notice], None], *, snapshots: bool = False
) -> Listening:
    """Have ``tell`` called, on a thread of its own, for every wait and hold of at least ``over`` seconds, for the
    beginning and the end of each time in which the log is pinned or cannot be copied, and, if ``snapshots`` are asked
    for, once for each one that is open for as long."""
    if not over >= 0:
        raise ValueError(f"a threshold must be a number of seconds, not {over!r}")
    return _desk.listen(telemetry, over, tell, snapshots)


def every(seconds: float, work: Callable[[], None]) -> None:
    """Have ``work`` called every so many seconds, on the same thread, until the process ends."""
    _desk.every(seconds, work)


def stop() -> None:
    """Tell what has happened, and end the thread. For the exit of the interpreter."""
    if _desk.pid == os.getpid():
        _desk.stop()


def _renew() -> None:
    # The thread stayed in the parent, and may have held the lock.
    global _desk
    _desk = _Desk()


os.register_at_fork(after_in_child=_renew)
