"""Jobs that run once per interval, whichever of the processes on the file runs them.

What is due is kept in the table ``writelane_jobs``. A process claims a due job in a transaction and holds it by a
lease that it renews while the job runs. The claim of a process that was killed is taken over at once where the kernel
can say that it is gone, and when its lease runs out where it cannot.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import re
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from writelane import _native
from writelane.errors import Closed, ForkError
from writelane.stopping import stopping

if TYPE_CHECKING:
    from writelane.database import Database

__all__ = ["Interval", "JobStatus", "Schedule", "jobs", "seconds"]

#: Seconds, a text such as ``"30m"`` or ``"1h30m"``, or a timedelta.
Interval: TypeAlias = str | float | timedelta

#: How long a claim is good without being renewed, in seconds; renewed three times as often.
LEASE = 30.0
#: The longest between two looks at the table, in seconds: by then another process may have died.
LOOK = 2.0
#: After a first failure a job is tried again after this many seconds, after each further one twice as long.
RETRY_FIRST = 1.0
#: How long the end of a running job is waited for when its database is closed, in seconds.
CLOSE_WAIT = 5.0
#: How long the scheduler's own statements wait, in seconds.
DEADLINE = 30.0
#: Characters of a result or an error that are kept.
KEPT = 500

_log = logging.getLogger("writelane.schedule")

_CREATE = (
    "CREATE TABLE IF NOT EXISTS writelane_jobs("
    "name TEXT NOT NULL PRIMARY KEY, every REAL NOT NULL, next_run REAL NOT NULL, runs INTEGER NOT NULL DEFAULT 0, "
    "failures INTEGER NOT NULL DEFAULT 0, last_start REAL, last_end REAL, last_result TEXT, last_error TEXT, "
    "owner TEXT, lease_until REAL) WITHOUT ROWID"
)
_REGISTER = (
    "INSERT INTO writelane_jobs(name, every, next_run) VALUES (:name, :every, 0) "
    "ON CONFLICT (name) DO UPDATE SET every = excluded.every WHERE every <> excluded.every"
)
# The time is that of the transaction: one that was read before it may be older than the last run. A next run or a
# lease much further away than it can be was written before the clock was set back.
_CLAIM = (
    "UPDATE writelane_jobs SET owner = :owner, lease_until = unixepoch('subsec') + :lease, "
    "last_start = unixepoch('subsec') WHERE name = :name AND CASE WHEN owner IS NULL "
    "THEN next_run <= unixepoch('subsec') OR next_run > unixepoch('subsec') + every + :lease "
    "ELSE owner = :dead OR lease_until <= unixepoch('subsec') OR lease_until > unixepoch('subsec') + 2 * :lease END "
    "RETURNING last_start"
)
_RENEW = "UPDATE writelane_jobs SET lease_until = :now + :lease WHERE name = :name AND owner = :owner"
_DONE = (
    "UPDATE writelane_jobs SET owner = NULL, lease_until = NULL, next_run = :next, last_end = :now, runs = runs + 1, "
    "failures = 0, last_result = :text, last_error = NULL WHERE name = :name AND owner = :owner"
)
_FAILED = (
    "UPDATE writelane_jobs SET owner = NULL, lease_until = NULL, next_run = :next, last_end = :now, runs = runs + 1, "
    "failures = failures + 1, last_error = :text WHERE name = :name AND owner = :owner"
)
_STATUS = (
    "SELECT name, every, next_run, runs, failures, last_start, last_end, last_result, last_error, owner, lease_until "
    "FROM writelane_jobs"
)


def seconds(interval: Interval) -> float:
    """Return an interval in seconds. ``ValueError`` for what is none, or not positive."""
    if isinstance(interval, timedelta):
        value = interval.total_seconds()
    elif isinstance(interval, str):
        units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", interval)
        if not parts or re.sub(r"\d+(?:\.\d+)?\s*(?:ms|[smhdw])", "", interval).strip():
            raise ValueError(
                f"an interval is a number of seconds or a text like '30m', '1h30m' or '2d', not {interval!r}"
            )
        value = sum(float(number) * units[unit] for number, unit in parts)
    else:
        value = float(interval)
    if not 0 < value < float("inf"):
        raise ValueError(f"an interval must be longer than nothing, not {interval!r}")
    return value


@dataclass(frozen=True)
class JobStatus:
    """What is known of one scheduled job. Times are those of ``time.time()``, in seconds."""

    name: str
    #: The interval, in seconds.
    every: float
    #: When it is due; in the past: as soon as a process looks.
    next_run: float
    #: How often it ended, well or not.
    runs: int
    #: How often in a row it failed.
    failures: int
    last_start: float | None
    last_end: float | None
    #: The ``repr`` of what it returned last, cut short.
    last_result: str | None
    #: What it raised last, if its last run failed.
    last_error: str | None
    #: The process that runs it now.
    running: int | None


def jobs(database: _native.Database) -> list[JobStatus]:
    """Return the status of every job that was ever scheduled on the file, by name."""
    known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'writelane_jobs'"
    if not _native.Database.execute(database, known, deadline=DEADLINE).rows:
        return []
    rows = _native.Database.execute(database, f"{_STATUS} ORDER BY name", deadline=DEADLINE).rows
    now = time.time()
    names = [field.name for field in fields(JobStatus)][:-1]
    return [JobStatus(**dict(zip(names, row, strict=False)), running=_running(row[9], row[10], now)) for row in rows]


def _running(owner: str | None, lease_until: float | None, now: float) -> int | None:
    if owner is None or lease_until is None or lease_until <= now or _is_dead(owner):
        return None
    return int(owner.split(" ")[2])


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks since boot; empty: there is none."""
    # After the name, which may hold anything: state, then 18 more fields. Source: proc_pid_stat(5).
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _place() -> str:
    """Return where process numbers mean the same: this boot of this host, and its namespace of processes."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    boot = _read("/proc/sys/kernel/random/boot_id")
    return f"{boot or socket.gethostname()}{namespace}".replace(" ", "_")


def _new_owner() -> str:
    """Return a text for a claim of this process that no other claim has."""
    pid = os.getpid()
    return f"{uuid.uuid4()} {_place()} {pid} {_started(pid)}"


def _is_dead(owner: str) -> bool:
    """Say whether the process of a claim is known to be gone."""
    parts = owner.split(" ")
    if len(parts) != 4 or not parts[3] or parts[1] != _place():
        return False
    return _started(int(parts[2])) != parts[3]


class Schedule:
    """One job that this process takes part in running; made by :meth:`writelane.Database.every`."""

    def __init__(self, database: Database, name: str, every: float, job: Callable[..., object]) -> None:
        self.name = name
        #: The interval, in seconds.
        self.every = every
        self._database = database
        self._job = job
        self._wants_database = _wants_argument(job)
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wl-every-{name}"[:15], daemon=True)

    def start(self) -> None:
        """Put the job into the file's table and begin to look for it. Blocks and raises as a write."""
        self._write(_CREATE)
        self._write(_REGISTER, name=self.name, every=self.every)
        _running_schedules.add(self)
        self._thread.start()

    def status(self) -> JobStatus:
        """Return what is known of the job, over all processes."""
        return next(job for job in jobs(self._database) if job.name == self.name)

    def cancel(self) -> None:
        """Take part no more. A run of the job that has begun goes on to its end. Never blocks."""
        # In a forked child the thread is not there, and the event's lock may be held for ever.
        if self._pid == os.getpid():
            self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, and say whether it has."""
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _write(self, sql: str, **parameters: Any) -> int:
        # Of the native class: a schedule is kept also where its database is used in a best-effort block.
        return _native.Database.execute(self._database, sql, parameters or None, deadline=DEADLINE).rowcount

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self._turn()
            except (Closed, ForkError):
                return
            except Exception:
                _log.exception("the schedule of job %r could not be read or written; trying again", self.name)
                pause = LOOK
        _running_schedules.discard(self)

    def _turn(self) -> float:
        """Run the job if it is due, and return how long to wait before the next look, in seconds."""
        sql = "SELECT every, next_run, owner, lease_until FROM writelane_jobs WHERE name = ?"
        rows = _native.Database.execute(self._database, sql, (self.name,), deadline=DEADLINE).rows
        if not rows:
            # Somebody has emptied the table.
            self._write(_REGISTER, name=self.name, every=self.every)
            return 0.0
        every, next_run, owner, lease_until = rows[0]
        now = time.time()
        dead = owner if owner is not None and _is_dead(owner) else None
        if owner is None and now < next_run <= now + every + LEASE:
            return float(min(next_run - now, LOOK))
        if owner is not None and dead is None and now < lease_until <= now + 2 * LEASE:
            return float(min(lease_until - now, every, LOOK))
        mine = _new_owner()
        parameters = {"name": self.name, "owner": mine, "lease": LEASE, "dead": dead}
        claimed = _native.Database.execute(self._database, _CLAIM, parameters, deadline=DEADLINE).rows
        if claimed:
            self._run_claimed(mine, claimed[0][0])
            return 0.0
        # Somebody was quicker.
        return 0.001

    def _run_claimed(self, owner: str, started: float) -> None:
        done = threading.Event()
        renewer = threading.Thread(target=self._renew, args=(owner, done), name="wl-lease", daemon=True)
        renewer.start()
        token = stopping.set(self._stop)
        failure: BaseException | None = None
        result: object = None
        try:
            result = self._job(self._database) if self._wants_database else self._job()
        except BaseException as error:
            # Also an exit: it is the job's own, and neither the thread's nor the interpreter's.
            failure = error
        finally:
            stopping.reset(token)
            done.set()
            renewer.join()
        now = time.time()
        if failure is None:
            recorded = self._write(
                _DONE, name=self.name, owner=owner, now=now, next=started + self.every, text=_short(repr(result))
            )
        else:
            if isinstance(failure, Closed) and self._stop.is_set():
                raise failure
            pause = min(self.every, RETRY_FIRST * 2.0 ** min(self.status().failures, 30))
            _log.error("job %r failed; it is tried again in %.0f s", self.name, pause, exc_info=failure)
            text = _short(f"{type(failure).__name__}: {failure}")
            recorded = self._write(_FAILED, name=self.name, owner=owner, now=now, next=now + pause, text=text)
        if not recorded:
            _log.warning(
                "job %r ran longer than its lease could be renewed; another process may have run it", self.name
            )

    def _renew(self, owner: str, done: threading.Event) -> None:
        while not done.wait(LEASE / 3):
            try:
                if not self._write(_RENEW, name=self.name, owner=owner, now=time.time(), lease=LEASE):
                    return
            except (Closed, ForkError):
                return
            except Exception:
                _log.exception("the lease of job %r could not be renewed; trying again", self.name)

    def __repr__(self) -> str:
        return f"<writelane.Schedule {self.name!r} every {self.every:g} s>"


def _short(text: str) -> str:
    return text if len(text) <= KEPT else text[: KEPT - 3] + "..."


def _wants_argument(job: Callable[..., object]) -> bool:
    """Say whether a job must be called with the database."""
    try:
        inspect.signature(job).bind()
    except TypeError:
        return True
    except ValueError:
        # A builtin that does not say.
        return False
    return False


_running_schedules: weakref.WeakSet[Schedule] = weakref.WeakSet()


def stop(schedules: list[Schedule], timeout: float = CLOSE_WAIT) -> None:
    """End schedules: none begins a run any more, and those that run are waited for, up to ``timeout`` seconds."""
    schedules = [schedule for schedule in schedules if schedule._pid == os.getpid()]
    for schedule in schedules:
        schedule.cancel()
    until = time.monotonic() + timeout
    for schedule in schedules:
        if not schedule.join(max(0.0, until - time.monotonic())):
            _log.warning("job %r still runs while its database is closed", schedule.name)


# Registered after writelane.exit, so that it runs before it: the last results are still written.
atexit.register(lambda: stop(list(_running_schedules)))
