"""Telemetry for OpenTelemetry; needs the extra ``writelane[opentelemetry]``, and a MeterProvider of the application's.

>>> from writelane.opentelemetry import instrument
>>> instrument(writelane.open("app.db"))

Where the semantic conventions for database clients have a name, it is theirs: ``db.client.operation.duration`` with
``db.system.name``, ``db.namespace``, ``db.operation.name`` and ``db.query.text``, and ``db.client.connection.*`` for
the readers. What they have no name for (phases, holders, the queue, the lane, checkpoints) is ``writelane.*``.
Source: https://opentelemetry.io/docs/specs/semconv/database/database-metrics/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, get_meter

from writelane.export import PHASES, Source, Target, less, pinned

__all__ = ["instrument"]

#: Statements, and holders, of one database that have attributes of their own.
LIMIT = 100

#: The bounds that the conventions advise for ``db.client.operation.duration``, in seconds.
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)

Values = Iterator[tuple[float, dict[str, Any]]]


def instrument(
    *targets: Target, meter: Meter | None = None, limit: int = LIMIT, texts: bool = True, durations: bool = True
) -> None:
    """Have telemetry of the targets (open databases, connections, paths) collected with every collection of metrics.

    ``meter``: where, by default the global provider's. ``limit``: the statements, and the processes waited for, that
    have attributes of their own, by their first appearance; the rest is ``(other)``. ``texts``: say the statements'
    texts, which never hold parameter values but literals that are written in them. ``durations``: record
    ``db.client.operation.duration``, which costs a microsecond for each statement that was run since, at the time of
    the collection.
    """
    _Instruments(
        [Source(target, limit) for target in targets], meter or get_meter("writelane"), texts=texts, durations=durations
    )


class _Instruments:
    """The instruments of one call of :func:`instrument`; their meter keeps them."""

    def __init__(self, sources: list[Source], meter: Meter, *, texts: bool, durations: bool) -> None:
        self._sources, self._texts = sources, texts
        self._recorded: dict[tuple[int, str], dict[float, int]] = {}
        self._snapshots: dict[int, dict[str, Any]] = {}
        self._durations: Histogram | None = None
        if durations:
            self._durations = meter.create_histogram(
                "db.client.operation.duration",
                unit="s",
                description="Duration of database client operations.",
                explicit_bucket_boundaries_advisory=BOUNDS,
            )

        def counter(name: str, unit: str, text: str, values: Callable[[Source, dict[str, Any]], Values]) -> None:
            meter.create_observable_counter(name, callbacks=[self._callback(values)], unit=unit, description=text)

        def gauge(name: str, unit: str, text: str, values: Callable[[Source, dict[str, Any]], Values]) -> None:
            meter.create_observable_up_down_counter(
                name, callbacks=[self._callback(values)], unit=unit, description=text
            )

        counter("writelane.statements", "{statement}", "Statements that were answered.", self._count)
        counter("writelane.statement.errors", "{statement}", "Statements that failed.", self._errors)
        counter("writelane.statement.retries", "{retry}", "How often the lock was busy.", self._retries)
        counter("writelane.statement.time", "s", "Where the time of statements went.", self._time)
        counter("writelane.held_by.time", "s", "Waits for the lock by who held it.", self._holders)
        counter("writelane.transactions", "{transaction}", "Transactions of the writer.", _transactions)
        counter("writelane.transaction.jobs", "{job}", "Jobs in them.", _jobs)
        counter("writelane.transaction.reruns", "{transaction}", "Transactions that were run again.", _reruns)
        counter("writelane.transaction.hold.time", "s", "How long the writer held the lock.", _hold)
        counter("writelane.queue.dropped", "{job}", "Jobs that were refused or pushed out.", _dropped)
        counter("writelane.lane.turns", "{turn}", "Turns between processes.", _turns)
        counter("writelane.log.pinned", "{time}", "Times in which a reader kept the log from shrinking.", _pinned)
        counter("writelane.checkpoints", "{checkpoint}", "Checkpoints.", _checkpoints)
        gauge("writelane.queue.depth", "{job}", "Jobs in the queue.", _depth)
        gauge("writelane.log.pages", "{page}", "Pages in the log at the last checkpoint.", _log)
        gauge("writelane.log.pinned.time", "s", "How long a reader has kept the log from shrinking.", _pinned_time)
        gauge("writelane.log.pinned.pages", "{page}", "Pages that cannot be reused for it.", _pinned_pages)
        gauge("db.client.connection.count", "{connection}", "Connections by their state.", _connections)
        gauge("db.client.connection.max", "{connection}", "The most connections there may be.", _connections_max)

    def _callback(
        self, values: Callable[[Source, dict[str, Any]], Values]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for source in self._sources:
                for value, attributes in values(source, self._look(source, anew=values == self._count)):
                    yield Observation(value, {**_database(source), **attributes})

        return observe

    def _look(self, source: Source, anew: bool) -> dict[str, Any]:
        """Return the snapshot of this collection, which the first instrument took."""
        snapshot = self._snapshots.get(source.counts.number)
        if snapshot is None or anew:
            snapshot = self._snapshots[source.counts.number] = source.snapshot()
        return snapshot

    def _statement(self, sql: str) -> dict[str, Any]:
        return {**_operation(sql), **({"db.query.text": sql} if self._texts else {})}

    def _count(self, source: Source, snapshot: dict[str, Any]) -> Values:
        if self._durations is not None:
            self._record_durations(source)
        for sql, sums in self._by_attributes(source, snapshot):
            yield sums["count"], sql

    def _by_attributes(
        self, source: Source, snapshot: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Give the sums of each set of attributes once: without texts, many statements have the same."""
        merged: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        for sql, sums in source.statements(snapshot).items():
            attributes = self._statement(sql)
            _, known = merged.setdefault(repr(attributes), (attributes, _nothing()))
            known["count"] += sums["count"]
            known["retries"] += sums["retries"]
            for name in ("errors", "seconds"):
                for key, value in sums[name].items():
                    known[name][key] = known[name].get(key, 0) + value
        yield from merged.values()

    def _errors(self, source: Source, snapshot: dict[str, Any]) -> Values:
        for attributes, sums in self._by_attributes(source, snapshot):
            for code, count in sums["errors"].items():
                yield count, {**attributes, "error.type": code, "db.response.status_code": code}

    def _retries(self, source: Source, snapshot: dict[str, Any]) -> Values:
        for attributes, sums in self._by_attributes(source, snapshot):
            yield sums["retries"], attributes

    def _time(self, source: Source, snapshot: dict[str, Any]) -> Values:
        for attributes, sums in self._by_attributes(source, snapshot):
            for phase, seconds in sums["seconds"].items():
                yield seconds, {**attributes, "writelane.phase": phase}

    def _holders(self, source: Source, snapshot: dict[str, Any]) -> Values:
        for (pid, command), seconds in source.holders(snapshot).items():
            yield seconds, {"writelane.holder.pid": pid, "writelane.holder.command": command}

    def _record_durations(self, source: Source) -> None:
        """Record the operations since the last time, each with a duration at most 1 % away from its own.

        An instrument that is observed can be no histogram, so what was counted meanwhile is recorded one by one.
        """
        assert self._durations is not None
        for sql, buckets in source.counts.latencies():
            key = (source.counts.number, sql)
            now = dict(buckets)
            attributes = {**_database(source), **self._statement(source.statement(sql))}
            for seconds, count in less(now, self._recorded.get(key, {})).items():
                for _ in range(count):
                    self._durations.record(seconds, attributes)
            self._recorded[key] = now


def _nothing() -> dict[str, Any]:
    return {"count": 0, "retries": 0, "errors": {}, "seconds": dict.fromkeys(PHASES, 0.0)}


def _database(source: Source) -> dict[str, Any]:
    return {"db.system.name": "sqlite", "db.namespace": source.database}


def _operation(sql: str) -> dict[str, Any]:
    words = sql.split(None, 1)
    # A label of a transaction, or a comment, is no operation.
    return {"db.operation.name": words[0].upper()} if words and words[0].isalpha() and len(words[0]) < 12 else {}


def _transactions(_: Source, snapshot: dict[str, Any]) -> Values:
    yield snapshot["groups"]["count"], {}


def _jobs(_: Source, snapshot: dict[str, Any]) -> Values:
    yield snapshot["groups"]["jobs"], {}


def _reruns(_: Source, snapshot: dict[str, Any]) -> Values:
    for cause, count in snapshot["groups"]["rerun_causes"].items():
        yield count, {"writelane.cause": cause}


def _hold(_: Source, snapshot: dict[str, Any]) -> Values:
    yield snapshot["groups"]["hold"]["sum"], {}


def _dropped(_: Source, snapshot: dict[str, Any]) -> Values:
    for kind, counts in snapshot["queue"].get("classes", {}).items():
        for reason, count in counts.items():
            yield count, {"writelane.class": kind, "writelane.reason": reason}


def _turns(_: Source, snapshot: dict[str, Any]) -> Values:
    if snapshot["lane"]:
        yield snapshot["lane"]["turns"], {}


def _checkpoints(_: Source, snapshot: dict[str, Any]) -> Values:
    if snapshot["checkpoints"]:
        yield snapshot["checkpoints"]["count"], {}


def _depth(_: Source, snapshot: dict[str, Any]) -> Values:
    if snapshot["queue"]:
        yield snapshot["queue"]["depth"], {}


def _log(_: Source, snapshot: dict[str, Any]) -> Values:
    if snapshot["checkpoints"]:
        yield snapshot["checkpoints"]["log"], {}


def _pinned(_: Source, snapshot: dict[str, Any]) -> Values:
    if snapshot["checkpoints"]:
        yield snapshot["checkpoints"]["episodes"], {}


def _pinned_time(_: Source, snapshot: dict[str, Any]) -> Values:
    now = pinned(snapshot)
    if snapshot["checkpoints"]:
        yield now["seconds"] if now else 0.0, {}


def _pinned_pages(_: Source, snapshot: dict[str, Any]) -> Values:
    now = pinned(snapshot)
    if snapshot["checkpoints"]:
        yield now["pages"] if now else 0, {}


def _pool(source: Source) -> dict[str, Any]:
    return {"db.client.connection.pool.name": source.database}


def _connections(source: Source, snapshot: dict[str, Any]) -> Values:
    readers = snapshot["readers"]
    if "open" in readers:
        yield readers["reading"], {**_pool(source), "db.client.connection.state": "used"}
        yield readers["open"] - readers["reading"], {**_pool(source), "db.client.connection.state": "idle"}


def _connections_max(source: Source, snapshot: dict[str, Any]) -> Values:
    if "max" in snapshot["readers"]:
        yield snapshot["readers"]["max"], _pool(source)
