"""One trial: fresh processes, a fresh file, and a count of the rows at its end."""

from __future__ import annotations

import array
import importlib.util
import os
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads import BODY, Workload
from writelane.stress.fleet import Child
from writelane.stress.measures import quantile

__all__ = ["Sizes", "Trial", "missing", "run"]

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "worker.py"
LIMIT = ROOT / "target/release/examples/limit"
#: Seconds between the word to begin and the beginning.
HEADSTART_SECONDS = 0.05
#: Seconds that a process has to close what it has open.
LEAVING_SECONDS = 60.0
#: Seconds between two looks at the size of the log.
LOOK_SECONDS = 0.02
#: The slowest one in so many writes, of which the tail is made.
TAIL = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
#: The modules that drivers are of, where it is another one than theirs.
MODULES = {"sqliteq": "playhouse"}
WIDE_COLUMNS = 40
#: The wide table has a tenth of the rows of the others.
WIDE_SHARE = 10


@dataclass(frozen=True)
class Sizes:
    """How long a trial is."""

    seconds: float
    rows: int
    """Rows to fetch, the most rows to insert at once, and jobs to queue."""


@dataclass
class Trial:
    """What one trial has measured. Times in seconds, sizes in bytes."""

    rows: int
    seconds: float
    p50: float
    p99: float
    p999: float
    longest: float
    fairness: float
    log: int
    group: float
    bytes: int = 0
    waits: bool = False
    counts: list[int] = field(default_factory=list)
    """The writes of each writer."""
    tail: list[tuple[int, float]] = field(default_factory=list)
    """One in so many writes takes at least so long."""
    phases: dict[str, float] = field(default_factory=dict)
    """Where the time of a write goes, in the mean; only of writelane."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


def missing(driver: str) -> str:
    """Return what has to be installed or built for a driver; nothing if all is there."""
    if driver == "limit":
        return "" if LIMIT.exists() else str(LIMIT.relative_to(ROOT))
    module = MODULES.get(driver, driver)
    return "" if importlib.util.find_spec(module) else module


def run(workload: Workload, driver: str, sizes: Sizes, folder: Path, group: float) -> Trial:
    """Run one trial. ``group`` is how many rows share a transaction of ``limit``.

    Raises AssertionError if not every row that was answered is in the file.
    """
    database = folder / "bench.db"
    _fill(database, workload, sizes)
    if driver == "limit":
        return _limit(database, workload, sizes, group)
    order: dict[str, Any] = {
        "kind": workload.kind,
        "driver": driver,
        "database": str(database),
        "durability": workload.durability,
        "threads": workload.threads,
        "table": workload.table,
        "seconds": sizes.seconds,
        "rows": min(workload.rows, sizes.rows) if workload.kind == "many" else min(workload.rows, 10 * sizes.rows),
        "body": BODY,
    }
    children: list[Child] = []
    log = 0
    try:
        for number in range(workload.processes):
            times = folder / f"worker-{number}.times"
            command = [sys.executable, str(WORKER)]
            children.append(Child(f"worker-{number}", command, {**order, "times": str(times)}, folder))
        for child in children:
            while not child.ready:
                _hear(child)
        with _stuck(database, workload.kind == "backlog"):
            begin = time.monotonic() + HEADSTART_SECONDS
            for child in children:
                child.tell(repr(begin))
            for child in children:
                while child.report is None:
                    # Looked at while all are at work: the last one to close empties it.
                    if select.select([child.output], [], [], LOOK_SECONDS)[0]:
                        _hear(child)
                    log = max(log, _log_size(database))
            for child in children:
                child.tell("leave")
            for child in children:
                child.process.wait(LEAVING_SECONDS)
    finally:
        for child in children:
            child.end()
    reports = [child.report or {} for child in children]
    written = sum(report["rows"] for report in reports)
    if workload.kind in ("loop", "stream", "many", "open"):
        with closing(sqlite3.connect(database)) as connection:
            (there,) = connection.execute("SELECT count(*) FROM rows").fetchone()
        assert there == written, f"{driver} has answered {written} rows, and {there} are there"
    everything = array.array("f")
    for number in range(workload.processes):
        path = folder / f"worker-{number}.times"
        if path.exists():
            everything.frombytes(path.read_bytes())
    times_taken = sorted(everything)
    counts = [count for report in reports for count in report["counts"]]
    return Trial(
        rows=written,
        seconds=max(report["seconds"] for report in reports),
        p50=quantile(times_taken, 0.5),
        p99=quantile(times_taken, 0.99),
        p999=quantile(times_taken, 0.999),
        longest=times_taken[-1] if times_taken else 0.0,
        fairness=min(counts) / max(counts) if max(counts) else 0.0,
        log=log,
        group=sum(report["group"] for report in reports) / len(reports),
        bytes=max(report.get("bytes", 0) for report in reports),
        waits=all(report.get("waits", False) for report in reports),
        counts=counts,
        tail=[(many, quantile(times_taken, 1 - 1 / many)) for many in TAIL if many <= len(times_taken)],
        phases=_phases(reports, times_taken),
    )


def _phases(reports: list[dict[str, Any]], times: list[float]) -> dict[str, float]:
    """Return the mean of each phase, and what is left of the whole: the call, the way to another thread and back."""
    means = [report["phases"] for report in reports if report.get("phases")]
    if not means or not times:
        return {}
    phases = {name: sum(mean[name] for mean in means) / len(means) for name in means[0]}
    return {**phases, "call": max(0.0, sum(times) / len(times) - sum(phases.values()))}


def _hear(child: Child) -> None:
    _, alive = child.hear()
    if not alive and child.report is None:
        raise RuntimeError(child.died())


def _log_size(database: Path) -> int:
    try:
        return os.stat(f"{database}-wal").st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _stuck(database: Path, stuck: bool) -> Iterator[None]:
    """Hold the write lock meanwhile, if that is wanted."""
    if not stuck:
        yield
        return
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def _limit(database: Path, workload: Workload, sizes: Sizes, group: float) -> Trial:
    command = [str(LIMIT), str(database), workload.durability, str(group), str(sizes.seconds), BODY]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    rows, seconds = ran.stdout.split()
    return Trial(int(rows), float(seconds), 0, 0, 0, 0, 1.0, _log_size(database), group)


def _fill(database: Path, workload: Workload, sizes: Sizes) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, writer INTEGER, body TEXT)")
        connection.execute("CREATE INDEX rows_of_writer ON rows(writer)")
        connection.execute("BEGIN")
        if workload.table == "plain":
            connection.execute("CREATE TABLE plain(id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT)")
            rows = ((i, i * 7, i / 3, "word") for i in range(sizes.rows))
            connection.executemany("INSERT INTO plain VALUES (?, ?, ?, ?)", rows)
        elif workload.table == "wide":
            columns = ", ".join(f"c{i}" for i in range(WIDE_COLUMNS))
            marks = ", ".join("?" * WIDE_COLUMNS)
            connection.execute(f"CREATE TABLE wide({columns})")
            line = [i if i % 2 else f"value {i}" for i in range(WIDE_COLUMNS)]
            connection.executemany(f"INSERT INTO wide VALUES ({marks})", [line] * (sizes.rows // WIDE_SHARE))
        elif workload.table:
            connection.execute(f"CREATE TABLE {workload.table}(x)")
            value: str | bytes = BODY if workload.table == "texts" else BODY.encode()
            connection.executemany(f"INSERT INTO {workload.table} VALUES (?)", [(value,)] * sizes.rows)
        connection.execute("COMMIT")
