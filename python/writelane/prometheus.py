"""Telemetry for Prometheus; needs the extra ``writelane[prometheus]``.

>>> from prometheus_client import start_http_server
>>> from prometheus_client.core import REGISTRY
>>> from writelane.prometheus import Collector
>>> REGISTRY.register(Collector(writelane.open("app.db")))
>>> start_http_server(9000)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as _Collector

from writelane.export import Source, Target, pinned

__all__ = ["Collector"]

#: The bounds of the histograms, in seconds.
BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: Statements, and holders, of one database that have series of their own.
LIMIT = 100


class Collector(_Collector):
    """The telemetry of databases, read anew at each scrape.

    ``targets``: open databases, connections, or paths. ``limit``: the statements, and the processes waited for, that
    have series of their own, by their first appearance; the rest is ``(other)``.
    """

    def __init__(self, *targets: Target, limit: int = LIMIT) -> None:
        self._sources = [Source(target, limit) for target in targets]

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        families = _Families()
        for source in self._sources:
            families.add(source)
        yield from families.all()

    def describe(self) -> Iterator[Metric]:
        """Give their names without reading anything."""
        yield from _Families().all()


class _Families:
    """All metrics of one scrape."""

    def __init__(self) -> None:
        self._all: dict[str, Any] = {}
        statement = ("database", "statement")
        self._counter("statements", "Statements that were answered", *statement)
        self._counter("statement_errors", "Statements that failed", *statement, "code")
        self._counter("statement_retries", "How often the lock was busy, or a transaction was run again", *statement)
        self._counter("statement_seconds", "Where the time of statements went", *statement, "phase")
        self._counter("statement_dropped", "Best-effort statements that were not run", *statement, "reason")
        self._counter("held_by_seconds", "Waits for the lock by who held it", "database", "pid", "command")
        self._all["phase_seconds"] = HistogramMetricFamily(
            "writelane_phase_seconds", "How long the phases of a statement took", labels=("database", "phase")
        )
        self._counter("transactions", "Transactions of the writer", "database")
        self._counter("transaction_jobs", "Jobs in them", "database")
        self._counter("transaction_reruns", "Transactions that were run again", "database", "cause")
        self._counter("hold_seconds", "How long the writer held the lock", "database")
        for name in ("depth", "high_water", "capacity"):
            self._gauge(f"queue_{name}", f"Jobs in the queue: {name.replace('_', ' ')}", "database")
        self._counter("queue_refused", "Jobs that found no place", "database", "class")
        self._counter("queue_dropped", "Jobs that newer ones pushed out", "database", "class")
        self._counter("lane_turns", "Turns between processes", "database")
        self._counter("lane_waits", "Waits for a turn or the lock", "database")
        self._counter("lane_wait_seconds", "How long they took", "database")
        self._counter("lane_gaps", "Gaps left for writers outside the lane", "database")
        self._counter("checkpoints", "Checkpoints", "database")
        self._counter("checkpoint_errors", "Checkpoints that failed", "database")
        self._counter("checkpoint_seconds", "How long they took", "database")
        self._gauge("log_pages", "Pages in the log at the last checkpoint", "database")
        self._gauge("log_pages_copied", "Pages that the last checkpoint copied", "database")
        self._counter("log_pinned", "Times in which a reader kept the log from shrinking", "database")
        self._gauge("log_pinned_seconds", "How long a reader has kept the log from shrinking; 0: none does", "database")
        self._gauge("log_pinned_pages", "Pages that cannot be reused for it", "database")
        self._gauge("log_pinned_by", "The processes that read the log meanwhile", "database", "pid", "command")
        self._gauge("readers_open", "Connections that read", "database")
        self._gauge("readers_reading", "Those that read now", "database")
        self._gauge("snapshots", "Snapshots that are open", "database")
        self._gauge("snapshot_oldest_seconds", "The age of the oldest", "database")
        self._gauge("sqlite_info", "The SQLite in use", "database", "version")

    def _counter(self, name: str, text: str, *labels: str) -> None:
        self._all[name] = CounterMetricFamily(f"writelane_{name}", text, labels=labels)

    def _gauge(self, name: str, text: str, *labels: str) -> None:
        self._all[name] = GaugeMetricFamily(f"writelane_{name}", text, labels=labels)

    def _set(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._all[name].add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        yield from self._all.values()

    def add(self, source: Source) -> None:
        snapshot, database = source.snapshot(), source.database
        for sql, sums in source.statements(snapshot).items():
            self._set("statements", sums["count"], database, sql)
            self._set("statement_retries", sums["retries"], database, sql)
            for code, count in sums["errors"].items():
                self._set("statement_errors", count, database, sql, code)
            for reason, count in sums["dropped"].items():
                self._set("statement_dropped", count, database, sql, reason)
            for phase, seconds in sums["seconds"].items():
                self._set("statement_seconds", seconds, database, sql, phase)
        for (pid, command), seconds in source.holders(snapshot).items():
            self._set("held_by_seconds", seconds, database, pid, command)
        for phase, buckets in source.counts.phases().items():
            total = sum(entry[phase]["sum"] for entry in snapshot["statements"])
            self._all["phase_seconds"].add_metric((database, phase), _cumulated(buckets), total)
        self._add_writer(snapshot, database)

    def _add_writer(self, snapshot: dict[str, Any], database: str) -> None:
        groups, queue, lane = snapshot["groups"], snapshot["queue"], snapshot["lane"]
        self._set("transactions", groups["count"], database)
        self._set("transaction_jobs", groups["jobs"], database)
        self._set("hold_seconds", groups["hold"]["sum"], database)
        for cause, count in groups["rerun_causes"].items():
            self._set("transaction_reruns", count, database, cause)
        for name in ("depth", "high_water", "capacity"):
            self._set(f"queue_{name}", queue.get(name), database)
        for kind, counts in queue.get("classes", {}).items():
            self._set("queue_refused", counts["refused"], database, kind)
            self._set("queue_dropped", counts["dropped"], database, kind)
        self._set("lane_turns", lane.get("turns"), database)
        self._set("lane_waits", lane.get("waits"), database)
        self._set("lane_wait_seconds", lane.get("waited"), database)
        self._set("lane_gaps", lane.get("gaps"), database)
        checkpoints, readers = snapshot["checkpoints"], snapshot["readers"]
        self._set("checkpoints", checkpoints.get("count"), database)
        self._set("checkpoint_errors", checkpoints.get("errors"), database)
        self._set("checkpoint_seconds", checkpoints.get("total_seconds"), database)
        self._set("log_pages", checkpoints.get("log"), database)
        self._set("log_pages_copied", checkpoints.get("checkpointed"), database)
        self._set("log_pinned", checkpoints.get("episodes"), database)
        now = pinned(snapshot)
        if checkpoints:
            self._set("log_pinned_seconds", now["seconds"] if now else 0.0, database)
            self._set("log_pinned_pages", now["pages"] if now else 0, database)
        for reader in now["readers"] if now else []:
            self._set("log_pinned_by", 1, database, str(reader["pid"]), reader["command"] or "")
        self._set("readers_open", readers.get("open"), database)
        self._set("readers_reading", readers.get("reading"), database)
        self._set("snapshots", readers["snapshots"], database)
        self._set("snapshot_oldest_seconds", readers["oldest"] or 0.0, database)
        self._set("sqlite_info", 1, database, snapshot["sqlite"]["version"])


def _cumulated(buckets: list[tuple[float, int]]) -> list[tuple[str, float]]:
    counts = [sum(count for seconds, count in buckets if seconds <= bound) for bound in BOUNDS]
    return [*zip(map(str, BOUNDS), map(float, counts), strict=True), ("+Inf", float(sum(n for _, n in buckets)))]
