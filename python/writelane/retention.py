"""Delete many rows in the gaps between required work.

Rows are looked for on a reader, which holds nobody up, and deleted by their own key in chunks, each a best-effort job:
it runs when no required work waits, and its size is fitted to a short hold: 1 ms while others work on the file, 20 ms
while nobody does. Between two chunks there
is a pause, so that processes that know nothing of the lane get in, and the writer's usual checkpoints keep the log
small. What is deleted is deleted: a run that was killed is continued by the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from writelane import _native
from writelane.errors import Error, OperationalError
from writelane.stopping import Stop
from writelane.tables import Table, quoted

__all__ = ["Pruned", "count", "prune"]

#: How long a chunk should hold the lock while others work, in seconds: hardly longer than their own transactions.
HOLD_BUSY = 0.001
#: While nobody does: as long as the writer holds it for a group of required work.
HOLD_QUIET = 0.02
#: The pause after a chunk, as a part of its hold: whoever polls for the lock must find it free often enough.
PAUSE_QUIET = 0.75
#: The same while others work: so long that hardly one in fifty of their transactions meets a chunk.
PAUSE_BUSY = 50.0
#: While others work, a chunk waits for a gap: this often nobody committed anything, looked at so many seconds apart ...
GAP_LOOKS, GAP_LOOK = 3, 0.002
#: ... and at most this many seconds.
GAP_WAIT = 0.5
#: Pages in the log that retention copies into the database itself, on its own thread and in its pause: half of what
#: would make the writer do it while callers wait.
COPY_PAGES = 450
#: Pages in the log after which it is made to begin again, by copying what came meanwhile in turn.
LOG_PAGES = 1500
#: How long after the last sign of others it counts as quiet again, in seconds.
QUIET_AFTER = 2.0
#: A chunk is not made smaller than this to shorten its commit, which has a price of its own.
ROWS_MIN = 16
#: Rows of the first chunk, before it is known how long they take.
FIRST_CHUNK = 64
#: The most rows of a chunk, which bounds the memory and the job.
CHUNK_MAX = 10_000
#: How long it is watched whether others work before the first chunk, in seconds.
FIRST_LOOK = 0.01
#: The longest pause that is chosen by itself, in seconds.
PAUSE_MAX = 0.25
#: A chunk that was pushed out of the queue is offered again after this many seconds.
AGAIN = 0.02
#: How often a wait looks whether it should end, in seconds.
SLICE = 0.2
#: Past this size of the log, in bytes, it is made sure that it can shrink before more is deleted.
LOG_MAX = 32 << 20
#: How long a log that a reader pins is waited for, in seconds, before the rest is left for another run.
PINNED_MAX = 60.0

_SMALLEST = -(1 << 63)


@dataclass(frozen=True)
class Pruned:
    """What :meth:`writelane.Database.prune` has done."""

    table: str
    #: Rows deleted from the table itself; those that triggers and foreign keys deleted elsewhere are not counted.
    deleted: int = 0
    #: Transactions with a chunk in them.
    chunks: int = 0
    #: From the call on, in seconds.
    seconds: float = 0.0
    #: Of those, with the lock held.
    held: float = 0.0
    #: Whether all rows that were meant are gone; if not, call again.
    finished: bool = False
    #: Why not.
    reason: str | None = None


class _Condition:
    """Which rows are meant, as SQL with parameters of one style."""

    def __init__(
        self,
        table: Table,
        older_than: Mapping[str, Any],
        where: str | None,
        parameters: Sequence[Any] | Mapping[str, Any],
    ) -> None:
        if not older_than and where is None:
            raise ValueError('say which rows: older_than={"column": cutoff} or where="..." ("1" for all of them)')
        if where is None and len(parameters):
            raise ValueError("parameters belong to where=, which is missing")
        if where is not None and not where.strip():
            raise ValueError("where is empty")
        self._named = isinstance(parameters, Mapping)
        self._parameters: dict[str, Any] = dict(parameters) if isinstance(parameters, Mapping) else {}
        self._sequence: list[Any] = [] if isinstance(parameters, Mapping) else list(parameters)
        # On a line of its own, in case it ends in a comment.
        terms = [] if where is None else [f"({where}\n)"]
        for position, (column, cutoff) in enumerate(older_than.items()):
            if cutoff is None:
                raise ValueError(f"the cutoff of column {column!r} is None: nothing is older than NULL")
            name = quoted(table.spelling(column))
            terms.append(f"{name} < {self._mark(f'writelane_cutoff_{position}', cutoff)}")
            if not isinstance(cutoff, (int, float)):
                # To SQLite every number is less than any text: a date as text would empty a column of numbers.
                terms.append(f"typeof({name}) = typeof({self._mark(f'writelane_kind_{position}', cutoff)})")
        self.sql = " AND ".join(terms)

    def _mark(self, name: str, value: Any) -> str:
        if self._named:
            self._parameters[name] = value
            return f":{name}"
        self._sequence.append(value)
        return "?"

    def marks(self, values: Sequence[Any], name: str) -> tuple[str, ...]:
        """Return a mark for each of some more values."""
        return tuple(f":{name}_{place}" if self._named else "?" for place in range(len(values)))

    def with_values(self, name: str, values: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
        """Return all parameters, those more values last."""
        if self._named:
            return {**self._parameters, **{f"{name}_{place}": value for place, value in enumerate(values)}}
        return [*self._sequence, *values]


class _Finder:
    """Finds the rows that are meant, a chunk at a time, on a reader."""

    def __init__(self, database: _native.Database, table: Table, condition: _Condition) -> None:
        self._database = database
        self._table = table
        self._condition = condition
        self._columns = ", ".join(table.identity)
        self._after: tuple[Any, ...] | None = None
        # An index finds what is left anew each time. Without one the table is walked, and walked once.
        self.walks = not self._has_index()

    def _has_index(self) -> bool:
        sql = f"EXPLAIN QUERY PLAN SELECT {self._columns} FROM {self._table.quoted} WHERE {self._condition.sql}"
        plan = self._read(sql, self._condition.with_values("", ()))
        return any(str(row[3]).startswith("SEARCH") for row in plan)

    def _read(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return _native.Database.execute(self._database, sql, parameters).rows

    def next(self, count: int) -> list[tuple[Any, ...]]:
        """Return the keys of up to ``count`` rows that are still to be deleted; none at the end."""
        condition, values = self._condition.sql, [count]
        if not self.walks:
            limit = self._condition.marks(values, "writelane_more")[0]
            sql = f"SELECT {self._columns} FROM {self._table.quoted} WHERE {condition} LIMIT {limit}"
            return self._read(sql, self._condition.with_values("writelane_more", values))
        if self._after is not None:
            values = [*self._after, count]
            *marks, limit = self._condition.marks(values, "writelane_more")
            condition += f" AND ({self._columns}) > ({', '.join(marks)})"
        else:
            limit = self._condition.marks(values, "writelane_more")[0]
        sql = (
            f"SELECT {self._columns} FROM {self._table.quoted} WHERE {condition} ORDER BY {self._columns} LIMIT {limit}"
        )
        keys = self._read(sql, self._condition.with_values("writelane_more", values))
        if keys:
            self._after = keys[-1]
        return keys


class _Run:
    """One call of prune."""

    def __init__(self, database: _native.Database, table: Table, condition: _Condition, stop: Stop) -> None:
        self._database = database
        self._condition = condition
        self._stop = stop
        marks = condition.marks(table.identity, "writelane_key")
        matches = " AND ".join(f"{column} = {mark}" for column, mark in zip(table.identity, marks, strict=True))
        # Asked again: the row may have changed since it was found.
        self._sql = f"DELETE FROM {table.quoted} WHERE {condition.sql} AND {matches}"
        self._log = os.path.realpath(database.path) + "-wal"
        self._log_size = LOG_MAX

    def delete(self, keys: Sequence[tuple[Any, ...]]) -> _native.Result | None:
        """Delete a chunk when there is a gap for it; ``None``: it was stopped before it ran."""
        rows = [self._condition.with_values("writelane_key", key) for key in keys]
        while True:
            ticket = self._database.queue_offered(self._sql, rows)
            if ticket is None:
                raise OperationalError("the chunk does not fit into the queue: give a smaller chunk=")
            while not ticket.wait(SLICE):
                if self._stop.reason() and ticket.cancel():
                    return None
            try:
                result: _native.Result = ticket.result()
                return result
            except OperationalError as error:
                # Newer offers pushed it out.
                if getattr(error, "sqlite_errorname", None) != "SQLITE_INTERRUPT":
                    raise
            if self._stop.wait(AGAIN):
                return None

    def keep_log_small(self, busy: bool) -> str | None:
        """Copy the log if others work, and wait until one that has grown can be reused; return why it cannot."""
        # Where nobody waits for the writer, it copies the log itself, and would only be in the way of this.
        done = self._database.checkpoint_aside(COPY_PAGES) if busy else None
        if done is not None and done[2] < done[1] > LOG_PAGES:
            self._database.run_checkpoint("passive", deadline=None)
        try:
            size = os.stat(self._log).st_size
        except FileNotFoundError:
            return None
        if size <= self._log_size:
            return None
        patience = time.monotonic() + PINNED_MAX
        while True:
            _, log, copied = self._database.run_checkpoint("passive", deadline=None)
            if log <= copied:
                # It starts again from its beginning; the file keeps its size.
                self._log_size = size
                return None
            if time.monotonic() >= patience:
                return f"the log has {log} pages and cannot shrink, since a reader holds an old snapshot"
            if self._stop.wait(SLICE):
                return self._stop.reason()


def fitted(rows: int, ran: float, held: float, hold: float, most: int) -> int:
    """Return how many rows to delete next, so that the lock is held for about ``hold`` seconds.

    ``ran``: how long the last ``rows`` took, ``held``: the same with their commit.
    """
    by_all, by_run = (int(rows * hold / max(seconds, 1e-6)) for seconds in (held, ran))
    return max(1, min(max(by_all, min(by_run, ROWS_MIN)), rows * 2, most))


class _Others:
    """Watches whether anybody else works on the file."""

    def __init__(self, database: _native.Database) -> None:
        self._database = database
        self._before = database.activity()
        self._busy_until = 0.0

    def look(self, own: int) -> bool:
        """Say whether anybody has worked on the file lately; ``own``: jobs of ours since the last look."""
        jobs, waits = self._database.activity()
        if jobs != self._before[0] + own or waits != self._before[1]:
            self._busy_until = time.monotonic() + QUIET_AFTER
        self._before = jobs, waits
        return time.monotonic() < self._busy_until

    def wait_for_gap(self, stop: Stop) -> bool:
        """Wait until nobody seems to be at it, and say whether to stop instead."""
        until = time.monotonic() + GAP_WAIT
        last, quiet = self._database.activity(), 0
        while quiet < GAP_LOOKS and time.monotonic() < until:
            if stop.wait(GAP_LOOK):
                return True
            now = self._database.activity()
            last, quiet = now, quiet + 1 if now == last else 0
        return False


def _chunks(
    run: _Run, finder: _Finder, others: _Others, stop: Stop, most: int, pause: float | None
) -> Iterator[tuple[int, float, bool]]:
    """Delete chunk after chunk; yield the rows deleted, the seconds the lock was held, and whether others work."""
    free_until, busy = 0.0, stop.wait(FIRST_LOOK) or others.look(own=0)
    size = min(ROWS_MIN if busy else FIRST_CHUNK, most)
    # The next rows are looked for in the pause.
    while keys := finder.next(size):
        if stop.wait(max(0.0, free_until - time.monotonic())):
            return
        if busy and pause is None and others.wait_for_gap(stop):
            return
        result = run.delete(keys)
        if result is None:
            return
        ran = result.waited["run"]
        held = ran + result.waited["commit"]
        if result.rowcount <= 0 and not finder.walks:
            # A trigger keeps these rows, or others were quicker; a walk comes to an end all the same.
            finder.walks = True
        busy = others.look(own=1)
        size = fitted(len(keys), ran, held, HOLD_BUSY if busy else HOLD_QUIET, most)
        wanted = held * (PAUSE_BUSY if busy else PAUSE_QUIET)
        free_until = time.monotonic() + (min(max(wanted, 0.001), PAUSE_MAX) if pause is None else pause)
        yield max(result.rowcount, 0), held, busy


def count(
    database: _native.Database,
    table: str,
    *,
    older_than: Mapping[str, Any] | None,
    where: str | None,
    parameters: Sequence[Any] | Mapping[str, Any],
) -> int:
    """Count the rows that :func:`prune` would delete."""
    found = Table.find(database, table)
    condition = _Condition(found, older_than or {}, where, parameters)
    sql = f"SELECT count(*) FROM {found.quoted} WHERE {condition.sql}"
    rows: int = _native.Database.execute(database, sql, condition.with_values("", ())).rows[0][0]
    return rows


def prune(
    database: _native.Database,
    table: str,
    *,
    older_than: Mapping[str, Any] | None,
    where: str | None,
    parameters: Sequence[Any] | Mapping[str, Any],
    chunk: int | None,
    pause: float | None,
    progress: Callable[[Pruned], object] | None,
    deadline: float | None,
) -> Pruned:
    """Do the work of :meth:`writelane.Database.prune`."""
    if chunk is not None and chunk < 1:
        raise ValueError("chunk must be at least 1 row")
    started = time.monotonic()
    stop = Stop(None if deadline is None else started + deadline)
    found = Table.find(database, table)
    condition = _Condition(found, older_than or {}, where, parameters)
    run = _Run(database, found, condition, stop)
    done = Pruned(found.name)
    try:
        most = min(chunk or CHUNK_MAX, CHUNK_MAX)
        finder, others = _Finder(database, found, condition), _Others(database)
        for deleted, held, busy in _chunks(run, finder, others, stop, most, pause):
            done = replace(
                done,
                deleted=done.deleted + deleted,
                chunks=done.chunks + 1,
                held=done.held + held,
                seconds=time.monotonic() - started,
            )
            if progress is not None:
                progress(done)
            reason = run.keep_log_small(busy) or stop.reason()
            if reason:
                return replace(done, seconds=time.monotonic() - started, reason=reason)
    except Error as error:
        error.pruned = done  # type: ignore[attr-defined]
        raise
    reason = stop.reason()
    return replace(done, seconds=time.monotonic() - started, finished=reason is None, reason=reason)
