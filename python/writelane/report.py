"""What was lost to waiting, by statement and by who was in the way: from a telemetry file, or seen from outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from writelane.outside import look

__all__ = ["Report", "Statement", "from_file", "watched"]

#: Single waits kept for the plots: the longest.
EVENTS_MAX = 5_000

#: Points of the log's size kept for the plot.
POINTS_MAX = 5_000

#: Seconds between two looks from outside.
LOOK_EVERY = 0.02

#: A process that is seen again so soon with the same statement is in the same wait.
SAME_WAIT = 0.25

PHASES = ("queue", "lock", "run", "commit")


@dataclass
class Statement:
    """What is known of one SQL text."""

    sql: str
    count: int = 0
    retries: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    #: The longest single wait that has a line of its own.
    longest: float = 0.0

    @property
    def lost(self) -> float:
        """Seconds in the queue and for the lock."""
        return self.seconds["queue"] + self.seconds["lock"]


@dataclass
class Blocker:
    """Somebody who held the lock while others waited."""

    pid: int | None
    command: str | None
    statement: str | None
    #: Seconds that each statement waited for it.
    victims: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds that all waited for it."""
        return sum(self.victims.values())


@dataclass
class Pinned:
    """A time in which readers kept the log of a database from shrinking, as one or more processes saw it."""

    database: str
    since: float
    until: float
    #: The most pages that were kept from being reused.
    pages: int = 0
    #: Who read: the command by pid.
    readers: dict[int, str | None] = field(default_factory=dict)
    #: The processes that have seen it begin, and not end.
    watchers: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """How long it lasted, or has been seen to last so far."""
        return self.until - self.since


@dataclass
class Report:
    """Everything a telemetry file tells, added up over processes and time."""

    source: str
    #: How it was come by: ``"file"`` or ``"outside"``.
    how: str = "file"
    statements: dict[str, Statement] = field(default_factory=dict)
    blockers: dict[tuple[int | None, str | None, str | None], Blocker] = field(default_factory=dict)
    #: Single waits and holds: mappings with ``kind``, ``at``, ``sql``, ``phase``, ``seconds``, ``pid``, ``holder``.
    events: list[dict[str, Any]] = field(default_factory=list)
    #: The size of the log over time: (seconds since the epoch, bytes), by database.
    log: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    pinned: list[Pinned] = field(default_factory=list)
    processes: set[int] = field(default_factory=set)
    databases: set[str] = field(default_factory=set)
    began: float | None = None
    ended: float | None = None
    #: Lines that were no records of telemetry.
    unread: int = 0

    def statement(self, sql: str) -> Statement:
        """Return the entry of a text."""
        return self.statements.setdefault(sql, Statement(sql))

    def blame(self, by: dict[str, Any], sql: str, seconds: float) -> None:
        """Put a wait of a statement down to somebody."""
        key = (by.get("pid"), by.get("command"), by.get("statement"))
        victims = self.blockers.setdefault(key, Blocker(*key)).victims
        victims[sql] = victims.get(sql, 0.0) + seconds

    def by_loss(self) -> list[Statement]:
        """Return the statements, the one that lost most time first."""
        return sorted(self.statements.values(), key=lambda one: (-one.lost, -one.count, one.sql))

    def by_blame(self) -> list[Blocker]:
        """Return who was in the way, the worst first."""
        return sorted(self.blockers.values(), key=lambda one: -one.seconds)

    def seen(self, at: float) -> None:
        """Note that something happened at a time."""
        self.began = at if self.began is None else min(self.began, at)
        self.ended = at if self.ended is None else max(self.ended, at)

    def add_event(self, event: dict[str, Any]) -> None:
        """Keep a single wait, if it is among the longest."""
        self.events.append(event)
        if len(self.events) >= 2 * EVENTS_MAX:
            self.events.sort(key=lambda one: -one["seconds"])
            del self.events[EVENTS_MAX:]

    def add_pinned(self, record: dict[str, Any]) -> None:
        """Note that a process saw the log pinned, or no longer so."""
        told = record["pinned"]
        since, until = float(told["since"]), float(told["since"]) + float(told["seconds"])
        readers = {int(who["pid"]): who["command"] for who in told["readers"]}
        same = (one for one in self.pinned if one.database == record["path"])
        one = next((one for one in same if since <= one.until and until >= one.since), None)
        if one is None:
            one = Pinned(record["path"], since, until)
            self.pinned.append(one)
        one.since, one.until = min(one.since, since), max(one.until, until)
        one.pages = max(one.pages, int(told["pages"]))
        one.readers.update(readers)
        (one.watchers.discard if told["over"] else one.watchers.add)(int(record["pid"]))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain dictionaries, lists, strings and numbers."""
        return {
            "source": self.source,
            "how": self.how,
            "began": self.began,
            "ended": self.ended,
            "processes": sorted(self.processes),
            "databases": sorted(self.databases),
            "unread": self.unread,
            "statements": [
                {
                    "sql": one.sql,
                    "count": one.count,
                    "errors": one.errors,
                    "retries": one.retries,
                    "lost": one.lost,
                    "longest": one.longest,
                    **one.seconds,
                }
                for one in self.by_loss()
            ],
            "blockers": [
                {
                    "pid": one.pid,
                    "command": one.command,
                    "statement": one.statement,
                    "seconds": one.seconds,
                    "victims": [{"sql": sql, "seconds": seconds} for sql, seconds in one.victims.items()],
                }
                for one in self.by_blame()
            ],
            "pinned": [
                {
                    "database": one.database,
                    "since": one.since,
                    "seconds": one.seconds,
                    "over": not one.watchers,
                    "pages": one.pages,
                    "readers": [{"pid": pid, "command": command} for pid, command in sorted(one.readers.items())],
                }
                for one in self.pinned
            ],
        }


def from_file(path: str | os.PathLike[str]) -> Report:
    """Read a telemetry file, and the one that was put aside before it."""
    report = Report(os.fspath(path))
    for record in _records(os.fspath(path), report):
        try:
            _add(report, record)
        except (KeyError, TypeError, ValueError, AttributeError):
            report.unread += 1
    return report


def _records(path: str, report: Report) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as newest:
        # Opened before the older one, so that lines that are put aside meanwhile are read twice at most, never lost.
        if os.path.exists(path + ".1"):
            with open(path + ".1", "rb") as older:
                yield from _parsed(older, report)
        yield from _parsed(newest, report)


def _parsed(lines: Iterable[bytes], report: Report) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line == b"\n":
            # Whoever could write a line only in part begins the next one anew.
            continue
        try:
            record = json.loads(line)
        except ValueError:
            # A line of a process that was killed while it wrote.
            report.unread += 1
            continue
        if isinstance(record, dict):
            yield record
        else:
            report.unread += 1


def _add(report: Report, record: dict[str, Any]) -> None:
    kind, at = record["kind"], float(record["at"])
    if kind == "statement":
        one = report.statement(record["sql"])
        for name, count in record["errors"].items():
            one.errors[name] = one.errors.get(name, 0) + int(count)
        for phase in PHASES:
            one.seconds[phase] += float(record[phase])
        one.count += int(record["count"])
        one.retries += int(record["retries"])
        for by in record["held_by"]:
            report.blame(by, one.sql, float(by["seconds"]))
    elif kind in ("wait", "hold"):
        seconds = float(record["seconds"])
        report.add_event({**record, "seconds": seconds})
        if kind == "wait":
            one = report.statement(record["sql"])
            one.longest = max(one.longest, seconds)
    elif kind in ("pinned", "unpinned"):
        report.add_pinned(record)
    elif kind in ("snapshot", "checkpoint_failed", "checkpoint_recovered"):
        pass  # Nobody waited.
    elif kind == "state":
        if record["log_bytes"] is not None:
            points = report.log.setdefault(record["path"], [])
            points.append((at, int(record["log_bytes"])))
            if len(points) >= 2 * POINTS_MAX:
                del points[::2]
    else:
        raise ValueError(kind)
    report.processes.add(int(record["pid"]))
    report.databases.add(record["path"])
    report.seen(at)


def watched(path: str | os.PathLike[str], seconds: float) -> Report:
    """Look at a database from outside for a while, and add up who is seen to wait for whom.

    Only waits between processes are seen, and only those that last longer than the time between two looks; a wait is
    counted with the part of it that was watched.
    """
    report = Report(os.path.realpath(path), "outside")
    report.databases.add(report.source)
    waiting: dict[tuple[int, str], float] = {}
    ends = time.monotonic() + seconds
    before = time.monotonic()
    while True:
        seen = look(path)
        now = time.monotonic()
        passed, before = now - before, now
        report.seen(seen["at"])
        for waiter in seen["waiters"]:
            key = (waiter["pid"], waiter["statement"])
            one = report.statement(waiter["statement"])
            # A wait changes its place in the lane, and may be in none for a moment.
            if now - waiting.get(key, -SAME_WAIT) >= SAME_WAIT:
                one.count += 1
            waiting[key] = now
            lost = min(passed, waiter["seconds"]) * waiter["threads"]
            one.seconds["lock"] += lost
            one.longest = max(one.longest, waiter["seconds"])
            report.processes.add(waiter["pid"])
            if seen["holder"]:
                report.blame(seen["holder"], one.sql, lost)
        if seen["log_bytes"] is not None:
            report.log.setdefault(report.source, []).append((seen["at"], seen["log_bytes"]))
        if now >= ends:
            return report
        time.sleep(min(LOOK_EVERY, max(0.0, ends - now)))
