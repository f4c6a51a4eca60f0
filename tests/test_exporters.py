"""Telemetry reaches Prometheus and OpenTelemetry, whole and under the names of the conventions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import writelane
import writelane.dbapi
from test_checkpoints import Reader
from writelane.opentelemetry import instrument
from writelane.prometheus import Collector

INSERT = "INSERT INTO t(x) VALUES (?)"
UNIQUE = "SQLITE_CONSTRAINT_UNIQUE"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[writelane.Database]:
    with writelane.open(tmp_path / "app.db") as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
        db.reset_telemetry()
        yield db


def work(db: writelane.Database, first: int) -> None:
    for number in range(first, first + 5):
        db.execute(INSERT, (number,))
    with pytest.raises(writelane.IntegrityError):
        db.execute(INSERT, (first,))
    db.execute("SELECT * FROM t")


def scraped(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read: by sample name and labels."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_what_the_snapshot_says(db: writelane.Database) -> None:
    registry = CollectorRegistry()
    registry.register(Collector(db))
    work(db, 0)
    found, snapshot = scraped(registry), db.telemetry().to_dict()
    database = ("database", str(db.path.resolve()))

    def value(name: str, **labels: str) -> float:
        return found[f"writelane_{name}", tuple(sorted([database, *labels.items()]))]

    assert value("statements_total", statement=INSERT) == 6
    assert value("statement_errors_total", statement=INSERT, code=UNIQUE) == 1
    for entry in snapshot["statements"]:
        for phase, name in (("queue", "queue_wait"), ("lock", "lock_wait"), ("run", "run"), ("commit", "commit")):
            seconds = value("statement_seconds_total", statement=entry["sql"], phase=phase)
            assert seconds == pytest.approx(entry[name]["sum"])
    assert value("phase_seconds_bucket", phase="run", le="+Inf") == 7
    assert value("phase_seconds_count", phase="run") == 7
    assert value("transactions_total") == snapshot["groups"]["count"]
    assert value("queue_capacity") == 1024
    assert value("lane_turns_total") == snapshot["lane"]["turns"]
    assert value("sqlite_info", version=writelane.sqlite_version) == 1
    work(db, 10)
    assert scraped(registry)["writelane_statements_total", (database, ("statement", INSERT))] == 12


def test_prometheus_series_are_bounded_and_monotonic(db: writelane.Database) -> None:
    registry = CollectorRegistry()
    registry.register(Collector(db, limit=10))
    for number in range(40):
        db.execute(f"SELECT {number}")
    first = scraped(registry)
    for number in reversed(range(40)):
        for _ in range(number):
            db.execute(f"SELECT {number}")
    second = scraped(registry)
    counts = {key: value for key, value in second.items() if key[0] == "writelane_statements_total"}
    assert len(counts) == 11
    assert sum(counts.values()) == 40 + sum(range(40))
    assert all(value >= first[key] for key, value in counts.items())


def test_prometheus_reads_a_file_that_only_connections_use(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = writelane.dbapi.connect(path)
    connection.execute("CREATE TABLE t(x)")
    registry = CollectorRegistry()
    registry.register(Collector(path))
    connection.execute(INSERT, (1,))
    connection.commit()
    connection.close()
    labels = (("database", str(path.resolve())), ("statement", INSERT))
    assert scraped(registry)["writelane_statements_total", labels] == 1


@pytest.fixture
def pinned(tmp_path: Path) -> Iterator[tuple[writelane.Database, Reader]]:
    """A database whose log a foreign process keeps from shrinking."""
    path = tmp_path / "pinned.db"
    with writelane.open(path, checkpoints=writelane.Checkpoints(idle=3600, pinned_after=0)) as db:
        db.execute("CREATE TABLE t(x)")
        reader = Reader(path)
        try:
            db.execute(INSERT, (1,))
            db.checkpoint()
            db.checkpoint()
            yield db, reader
        finally:
            reader.kill()


def test_prometheus_reads_who_pins_the_log_until_it_is_over(pinned: tuple[writelane.Database, Reader]) -> None:
    db, reader = pinned
    registry = CollectorRegistry()
    registry.register(Collector(db))
    database = ("database", str(db.path.resolve()))

    def by(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> list[str]:
        return [dict(labels)["pid"] for name, labels in found if name == "writelane_log_pinned_by"]

    found = scraped(registry)
    assert found["writelane_log_pinned_total", (database,)] == 1
    assert found["writelane_log_pinned_seconds", (database,)] > 0
    assert found["writelane_log_pinned_pages", (database,)] >= 1
    assert by(found) == [str(reader.process.pid)]
    reader.end()
    db.checkpoint()
    found = scraped(registry)
    assert found["writelane_log_pinned_total", (database,)] == 1
    assert found["writelane_log_pinned_seconds", (database,)] == 0
    assert found["writelane_log_pinned_pages", (database,)] == 0
    assert by(found) == []


def test_opentelemetry_has_a_pinned_log_until_it_is_over(pinned: tuple[writelane.Database, Reader]) -> None:
    db, foreign = pinned
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument(db, meter=provider.get_meter("test"))
    found = collected(reader)
    assert found["writelane.log.pinned"][0].value == 1
    assert found["writelane.log.pinned.time"][0].value > 0
    assert found["writelane.log.pinned.pages"][0].value >= 1
    foreign.end()
    db.checkpoint()
    found = collected(reader)
    assert found["writelane.log.pinned"][0].value == 1
    assert found["writelane.log.pinned.time"][0].value == 0
    assert found["writelane.log.pinned.pages"][0].value == 0
    provider.shutdown()


def collected(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The data points by instrument."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in metrics}


def test_opentelemetry_has_the_names_of_the_conventions(db: writelane.Database) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument(db, meter=provider.get_meter("test"))
    work(db, 0)
    found = collected(reader)
    common = {"db.system.name": "sqlite", "db.namespace": str(db.path.resolve())}
    operations = {point.attributes["db.query.text"]: point for point in found["db.client.operation.duration"]}
    assert set(operations) == {INSERT, "SELECT * FROM t"}
    inserts = operations[INSERT]
    assert dict(inserts.attributes) == {**common, "db.operation.name": "INSERT", "db.query.text": INSERT}
    assert inserts.count == 6
    entry = next(entry for entry in db.telemetry().statements if entry["sql"] == INSERT)
    assert inserts.sum == pytest.approx(entry["latency"]["sum"], rel=0.01)
    assert inserts.explicit_bounds[0] == 0.001
    (failed,) = found["writelane.statement.errors"]
    assert (failed.value, failed.attributes["error.type"]) == (1, UNIQUE)
    states = {point.attributes["db.client.connection.state"]: point for point in found["db.client.connection.count"]}
    assert set(states) == {"used", "idle"}
    assert states["idle"].value == 1
    assert found["db.client.connection.max"][0].value == 8
    times = {
        (point.attributes["db.query.text"], point.attributes["writelane.phase"]): point.value
        for point in found["writelane.statement.time"]
    }
    assert times[INSERT, "commit"] == pytest.approx(entry["commit"]["sum"])
    provider.shutdown()


def test_opentelemetry_records_every_operation_once(db: writelane.Database) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument(db, meter=provider.get_meter("test"))
    for first in (0, 10, 20):
        work(db, first)
        points = collected(reader)["db.client.operation.duration"]
    counts = {point.attributes["db.query.text"]: point.count for point in points}
    assert counts == {INSERT: 18, "SELECT * FROM t": 3}
    db.reset_telemetry()
    work(db, 30)
    points = collected(reader)["db.client.operation.duration"]
    counts = {point.attributes["db.query.text"]: point.count for point in points}
    assert counts == {INSERT: 24, "SELECT * FROM t": 4}
    provider.shutdown()


def test_opentelemetry_keeps_texts_to_itself_when_asked(db: writelane.Database) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument(db, meter=provider.get_meter("test"), texts=False)
    work(db, 0)
    db.execute("INSERT INTO t(x) VALUES ('literal')")
    found = collected(reader)
    assert "literal" not in repr(found)
    counts = {point.attributes["db.operation.name"]: point.value for point in found["writelane.statements"]}
    assert counts == {"INSERT": 7, "SELECT": 1}
    provider.shutdown()
