"""What is told of the waits is what was waited, and one commit serves many threads."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import writelane

#: A write of some milliseconds.
LONG = (
    "INSERT INTO t WITH c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 20000) "
    "SELECT i FROM c WHERE i % 100 = 0"
)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_sixteen_threads_share_their_commits_with_full_durability(tmp_path: Path) -> None:
    with writelane.open(tmp_path / "app.db", durability="full") as db:
        db.execute("CREATE TABLE t(x)")
        db.reset_telemetry()

        def work(name: int) -> None:
            for number in range(100):
                db.execute("INSERT INTO t VALUES (?)", (name * 1000 + number,))

        in_threads(16, work)
        groups = db.telemetry().groups
        assert groups["jobs"] == 1600
        assert groups["count"] < 400
        assert db.execute("SELECT count(DISTINCT x) FROM t").rows == [(1600,)]


def test_the_phases_of_a_job_add_up_to_its_latency(tmp_path: Path) -> None:
    with writelane.open(tmp_path / "app.db", durability="full") as db:
        db.execute("CREATE TABLE t(x)")
        shares: list[float] = []

        def work(name: int) -> None:
            for _ in range(25):
                # Long enough that the way from Python and back is small beside it.
                began = time.perf_counter()
                result = db.execute(LONG)
                took = time.perf_counter() - began
                told = sum(result.waited.values())
                assert told <= took
                shares.append(told / took)

        in_threads(4, work)
        assert statistics.median(shares) > 0.95


def test_totals_over_statements_equal_totals_over_jobs(tmp_path: Path) -> None:
    with writelane.open(tmp_path / "app.db") as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
        db.reset_telemetry()
        totals = dict.fromkeys(["queue", "lock", "run", "commit"], 0.0)
        lock = threading.Lock()
        failed = 0

        def work(name: int) -> None:
            nonlocal failed
            for number in range(50):
                try:
                    waited = db.execute("INSERT INTO t VALUES (?)", (number,)).waited
                except writelane.IntegrityError as error:
                    waited = dict(error.waited)
                    with lock:
                        failed += 1
                with lock:
                    for phase, seconds in waited.items():
                        totals[phase] += seconds

        in_threads(6, work)
        (entry,) = [entry for entry in db.telemetry().statements if entry["sql"].startswith("INSERT")]
        assert entry["count"] == 300
        assert entry["errors"] == {"SQLITE_CONSTRAINT_UNIQUE": failed}
        assert failed == 250
        for phase, name in [("queue", "queue_wait"), ("lock", "lock_wait"), ("run", "run"), ("commit", "commit")]:
            assert abs(entry[name]["sum"] - totals[phase]) < 1e-3
