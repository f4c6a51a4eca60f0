"""The telemetry file: JSON lines that many processes write, for ``writelane waits`` and for whatever reads logs.

One object a line, each written by a single ``write`` at the end of the file, so that lines of several processes never
mix. Kinds, all with ``pid``, ``path`` (the database) and ``at`` (seconds since the epoch):

``wait``, ``hold`` and ``snapshot``
    one wait, hold or snapshot of at least :data:`OVER` seconds, as :class:`~writelane.notices.Notice`; a snapshot when
    it is as old, and still open;
``pinned`` and ``unpinned``
    the beginning and the end of a time in which a reader kept the log from shrinking, likewise;
``checkpoint_failed`` and ``checkpoint_recovered``
    the beginning and the end of a time in which the log could not be copied, likewise;
``statement``
    what was counted of one statement in the last ``seconds``: ``count``, ``errors``, ``retries``, seconds by phase
    (``queue``, ``lock``, ``run``, ``commit``) and ``held_by``;
``state``
    ``log_bytes``, the size of the write-ahead log, and ``snapshots`` and ``oldest`` of this process.

When the file grows past :data:`BYTES_MAX` it is renamed to ``FILE.1`` (and what was there goes), so that both together
never take much more than twice that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from writelane import _native, notices
from writelane.notices import Notice
from writelane.plain_text import printable

__all__ = [
    "BYTES_MAX",
    "EVERY",
    "OVER",
    "SIZE_VARIABLE",
    "VARIABLE",
    "WARN_VARIABLE",
    "TelemetryFile",
    "attach",
    "flush",
    "observe",
]

#: The environment variable that names the telemetry file of a whole process and its children.
VARIABLE = "WRITELANE_TELEMETRY"

#: The environment variable that sets, for connections, from how many seconds on a wait, hold or snapshot is logged.
WARN_VARIABLE = "WRITELANE_WARN_AFTER"

#: The environment variable that sets another :data:`BYTES_MAX`.
SIZE_VARIABLE = "WRITELANE_TELEMETRY_BYTES"

#: The size past which the file is put aside: a day of a busy machine, and still opened by an editor.
BYTES_MAX = 16 << 20

#: Waits, holds and snapshots from so many seconds on have a line of their own.
OVER = 0.05

#: Seconds between two lines of what was counted.
EVERY = 5.0


_Number = TypeVar("_Number", int, float)


class TelemetryFile:
    """One telemetry file of this process."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        #: The end of the file may be a part of a line of ours.
        self._torn = False
        self._failing = False

    def write(self, records: Iterable[dict[str, Any]]) -> int:
        """Write each record as a line, up to the first that cannot be, and return how many were. Blocks on the disk.

        Bookkeeping fails nobody's work: that the file cannot be written is logged once, as is that it can again.
        """
        written = 0
        with self._lock:
            try:
                for record in records:
                    self._write_line({"pid": os.getpid(), **record})
                    written += 1
            except OSError as error:
                if not self._failing:
                    notices.logger.error("telemetry could not be written: %s", error)
                self._failing = True
            else:
                if self._failing and written:
                    notices.logger.info("telemetry can be written again: %s", printable(self.path))
                    self._failing = False
        return written

    def _write_line(self, record: dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":"), default=str) + "\n"
        if self._torn:
            text = "\n" + text
        # One write a line, or lines of several processes could mix. ASCII, so that each character is a byte.
        written = os.write(self._open(len(text)), text.encode("ascii"))
        self._torn = written != len(text)
        if self._torn:
            raise OSError(errno.ENOSPC, f"only {written} bytes of a line could be written", self.path)

    def _open(self, length: int) -> int:
        """Return the descriptor of the file that has the name, put aside first if the next line would not fit."""
        while True:
            if self._descriptor is None:
                # A pipe that nobody reads is an error and no wait.
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
                self._descriptor = os.open(self.path, flags, 0o644)
            mine = os.fstat(self._descriptor)
            if not self._has_name(mine):
                self.close()
            elif mine.st_size > 0 and mine.st_size + length > self._bytes_max:
                # Whoever gets the lock looks again: another process may have put the file aside meanwhile. Nobody waits
                # for it, since who has it may be stopped: then the line goes where the others' lines go.
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return self._descriptor
                try:
                    if self._has_name(mine):
                        os.replace(self.path, self.path + ".1")
                finally:
                    # A child that was forked meanwhile would keep it locked.
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                    self.close()
            else:
                return self._descriptor

    def _has_name(self, mine: os.stat_result) -> bool:
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Give the descriptor back; the next line opens the file again."""
        # Forgotten first: a child that is forked in between must not close what has its number by then.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Account:
    """What has been written of one database, so that only what is new is written next."""

    def __init__(self, file: TelemetryFile, telemetry: _native.FileTelemetry) -> None:
        self._file, self._telemetry = file, telemetry
        self._written: dict[str, dict[str, Any]] = {}
        self._since = time.time()
        self._path = os.fspath(telemetry.path)
        self._lock = threading.Lock()

    def tell(self, notice: Notice) -> None:
        self._file.write([notice.to_dict()])

    def write(self) -> None:
        """Write what was counted since the last time."""
        with self._lock:
            snapshot = self._telemetry.snapshot()
            now = time.time()
            records = []
            counted: dict[str, dict[str, Any]] = {}
            for entry in snapshot["statements"]:
                counted[entry["sql"]] = entry
                change = _change(entry, self._written.get(entry["sql"]))
                if change is not None:
                    records.append({**self._head("statement", now), "seconds": now - self._since, **change})
            if records or not self._written:
                readers = snapshot["readers"]
                state = {"snapshots": readers["snapshots"], "oldest": readers["oldest"]}
                records.append({**self._head("state", now), "log_bytes": _log_bytes(self._path), **state})
            written = self._file.write(records)
            if written == len(records):
                self._written, self._since = counted, now
            else:
                # The rest is written the next time, for the time since the last.
                self._written.update((record["sql"], counted[record["sql"]]) for record in records[:written])

    def _head(self, kind: str, now: float) -> dict[str, Any]:
        return {"kind": kind, "at": now, "path": self._path}


def _log_bytes(path: str) -> int | None:
    try:
        # Asked of the file system: to open the log and close it would drop this process's locks.
        return os.stat(path + "-wal").st_size
    except FileNotFoundError:
        return 0  # Taken away with the last connection, or never there.
    except OSError:
        return None


#: Names of the phases in a line, and in a snapshot.
_PHASES = {"queue": "queue_wait", "lock": "lock_wait", "run": "run", "commit": "commit"}


def _change(entry: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what is new of one statement, or ``None``."""
    if before is None or before["count"] > entry["count"]:
        before = None
    if before is not None and before["count"] == entry["count"]:
        return None

    def less(now: dict[Any, float], then: dict[Any, float]) -> dict[Any, float]:
        return {name: value - then.get(name, 0) for name, value in now.items() if value > then.get(name, 0)}

    def held(one: dict[str, Any]) -> dict[Any, float]:
        return {(by["pid"], by["command"], by["statement"]): by["seconds"] for by in one["held_by"]}

    change: dict[str, Any] = {"sql": entry["sql"], "count": entry["count"] - (before["count"] if before else 0)}
    change["errors"] = less(entry["errors"], before["errors"] if before else {})
    change["retries"] = entry["retries"] - (before["retries"] if before else 0)
    for short, name in _PHASES.items():
        change[short] = entry[name]["sum"] - (before[name]["sum"] if before else 0.0)
    change["held_by"] = [
        {"pid": pid, "command": command, "statement": statement, "seconds": seconds}
        for (pid, command, statement), seconds in less(held(entry), held(before) if before else {}).items()
    ]
    return change


_files: dict[str, TelemetryFile] = {}
_accounts: dict[tuple[str, int], _Account] = {}
_warned: set[int] = set()
_misset: set[str] = set()
_guard = threading.Lock()


def attach(path: str | os.PathLike[str], telemetry: _native.FileTelemetry) -> Callable[[], None]:
    """Write this database's telemetry to the file, from now until the process ends; return what writes it at once."""
    name = os.path.abspath(os.fspath(path))
    with _guard:
        key = (name, telemetry.number)
        account = _accounts.get(key)
        if account is None:
            if name not in _files:
                _files[name] = TelemetryFile(name, _setting(SIZE_VARIABLE, int) or BYTES_MAX)
            if not _accounts:
                notices.every(EVERY, flush)
            account = _accounts[key] = _Account(_files[name], telemetry)
            notices.listen(telemetry, OVER, account.tell, snapshots=True)
        return account.write


def observe(connection: object) -> None:
    """Do for a connection, which has no option for it, what the environment asks for: write its file's telemetry, and
    log its long waits, holds and snapshots."""
    if not isinstance(connection, _native.Connection):
        return
    try:
        counts = _native.FileTelemetry(connection)
    except ValueError:
        return  # In memory: there is nobody to wait for.
    file = os.environ.get(VARIABLE)
    if file:
        attach(file, counts)
    seconds = _setting(WARN_VARIABLE, float)
    if seconds is not None:
        with _guard:
            known = counts.number in _warned
            _warned.add(counts.number)
        if not known:
            notices.listen(counts, seconds, notices.warn, snapshots=True)


def _setting(variable: str, kind: Callable[[str], _Number]) -> _Number | None:
    """Return what the environment sets, or ``None``. What is no such number is logged once, and fails nobody's work."""
    value = os.environ.get(variable)
    if not value:
        return None
    try:
        number = kind(value)
        if not number >= 0:
            raise ValueError(value)
    except ValueError:
        if variable not in _misset:
            notices.logger.error("%s is ignored: it must be a number, and not negative, but is %r", variable, value)
        _misset.add(variable)
        return None
    return number


def flush() -> None:
    """Write what was counted of every database since the last time."""
    with _guard:
        accounts = list(_accounts.values())
    for account in accounts:
        account.write()


def _renew() -> None:
    # The descriptors are shared with the parent, whose threads may have held the locks.
    global _files, _accounts, _warned, _guard
    for file in _files.values():
        file.close()
    _files, _accounts, _warned, _guard = {}, {}, set(), threading.Lock()


os.register_at_fork(after_in_child=_renew)
