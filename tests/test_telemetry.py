"""Telemetry says which statement waited, in which phase, how long, and for whom."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import writelane
import writelane.dbapi
from writelane import _native

INSERT = "INSERT INTO t(x) VALUES (?)"
OUTSIDER = Path(__file__).with_name("outsider.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    # Nobody listens who would set back what a test asks to be told of.
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
        db.reset_telemetry()
    return path


@contextmanager
def outsider(path: Path, seconds: float) -> Iterator[int]:
    """Have a foreign process hold the write lock, and give its pid."""
    process = subprocess.Popen([sys.executable, OUTSIDER, path, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "locked\n"
        yield process.pid
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def statement(snapshot: dict[str, Any], sql: str) -> dict[str, Any]:
    (found,) = [entry for entry in snapshot["statements"] if entry["sql"] == sql]
    return found


def test_only_the_statement_that_waited_carries_the_wait_and_its_holder(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute("UPDATE t SET x = x")
        with outsider(path, 2.0) as pid:
            result = db.execute(INSERT, ("inside",))
        db.execute("DELETE FROM t WHERE x = 'nothing'")
        snapshot = db.telemetry().to_dict()
    assert 1.0 < result.waited["lock"] < 10
    assert result.waited["queue"] < 1
    assert result.holder is not None
    assert result.holder["pid"] == pid
    assert str(OUTSIDER) in result.holder["command"]
    waited = statement(snapshot, INSERT)
    assert waited["lock_wait"]["sum"] == pytest.approx(result.waited["lock"])
    (held,) = [share for share in waited["held_by"] if share["pid"] == pid]
    assert 1.0 < held["seconds"] <= waited["lock_wait"]["sum"]
    others = [entry for entry in snapshot["statements"] if entry["sql"] != INSERT]
    assert len(others) == 2
    for entry in others:
        assert [share for share in entry["held_by"] if share["pid"] is not None] == []
        assert entry["lock_wait"]["max"] < 0.5
    for entry in snapshot["statements"]:
        shares = sum(share["seconds"] for share in entry["held_by"])
        assert shares == pytest.approx(entry["lock_wait"]["sum"], abs=1e-6)


def test_a_wait_that_times_out_is_counted_for_the_lock_and_its_holder(path: Path) -> None:
    with writelane.open(path) as db:
        with outsider(path, 2.0) as pid, pytest.raises(writelane.WriteTimeout) as raised:
            db.execute(INSERT, (1,), deadline=0.5)
        entry = statement(db.telemetry().to_dict(), INSERT)
    assert raised.value.holder is not None
    assert raised.value.holder["pid"] == pid
    assert raised.value.waited["lock"] > 0.25
    assert entry["errors"] == {"SQLITE_BUSY": 1}
    assert entry["held_by"][0]["pid"] == pid


def test_waits_in_this_process_are_put_down_to_the_transaction_that_caused_them(path: Path) -> None:
    with writelane.open(path) as db:
        with db.transaction(label="nightly job") as tx:
            tx.execute(INSERT, ("in",))
            waiting = db.submit(INSERT, ("out",))
            time.sleep(0.4)
        result = waiting.result()
        entry = statement(db.telemetry().to_dict(), INSERT)
    assert result.waited["lock"] + result.waited["queue"] > 0.3
    assert entry["count"] == 2
    assert entry["held_by"]
    assert {share["pid"] for share in entry["held_by"]} - {None} == {os.getpid()}


def test_a_database_that_this_process_had_open_before_is_seen_as_well_as_a_new_one(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute(INSERT, ("before",))
    # Descriptors are numbered anew from here on: none that the first time had is free.
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
    try:
        with writelane.open(path) as db, db.transaction(label="nightly job") as tx:
            tx.execute(INSERT, ("again",))
            assert _native.look(path)["holder"]["pid"] == os.getpid()
            assert _native.look(path)["holder"]["statement"] == INSERT
    finally:
        for other in others:
            os.close(other)


def test_phases_add_up_to_the_latency_of_each_job(path: Path) -> None:
    # Jobs so long that the caller's own way back to its clock is no part of it, also on a busy machine.
    sql = (
        "INSERT INTO t(x) SELECT ? || count(*) FROM ("
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500000) SELECT i FROM n)"
    )
    measured = list[tuple[float, float]]()

    def behind_a_transaction(db: writelane.Database) -> writelane.Result:
        with db.transaction():
            future = db.submit(INSERT, ("behind",))
            time.sleep(1.5)
        result: writelane.Result = future.result()
        return result

    def measure(call: Callable[[], writelane.Result]) -> None:
        began = time.perf_counter()
        result = call()
        measured.append((sum(result.waited.values()), time.perf_counter() - began))

    with writelane.open(path, warn_after=None) as db:
        # Behind each other, and beside each other in one transaction.
        run_threads(4, lambda worker: measure(lambda: db.execute(sql, (f"together {worker}",))))
        # Alone.
        measure(lambda: db.execute(sql, ("alone",)))
        # Behind a transaction of this process.
        measure(lambda: behind_a_transaction(db))
        # Behind a foreign one.
        with outsider(path, 1.5):
            measure(lambda: db.execute(INSERT, ("behind a foreign one",)))
    assert len(measured) == 7
    for phases, latency in measured:
        assert phases <= latency * 1.01
    # Of all together, since a busy machine may let any one of them wait for its clock.
    assert sum(phases for phases, _ in measured) >= 0.95 * sum(latency for _, latency in measured)


def test_totals_over_statements_equal_totals_over_jobs(path: Path) -> None:
    totals = {"queue": 0.0, "lock": 0.0, "run": 0.0, "commit": 0.0}
    counted = retried = 0
    lock = threading.Lock()
    with writelane.open(path) as db:

        def work(worker: int) -> None:
            nonlocal counted, retried
            for number in range(80):
                sql = (INSERT, "UPDATE t SET x = x WHERE x = ?", "SELECT x FROM t WHERE x = ?")[number % 3]
                try:
                    result = db.execute(sql, (f"{worker % 4}/{number}",))
                    waited, again = result.waited, result.retries
                except writelane.IntegrityError as error:
                    waited, again = error.waited, error.retries  # type: ignore[attr-defined]
                with lock:
                    counted += 1
                    retried += again
                    for phase, seconds in waited.items():
                        totals[phase] += seconds

        run_threads(8, work)
        snapshot = db.telemetry().to_dict()
    statements = snapshot["statements"]
    assert sum(entry["count"] for entry in statements) == counted == 8 * 80
    assert sum(entry["retries"] for entry in statements) == retried
    assert (
        sum(sum(entry["errors"].values()) for entry in statements)
        == statement(snapshot, INSERT)["errors"]["SQLITE_CONSTRAINT_UNIQUE"]
    )
    names = {"queue": "queue_wait", "lock": "lock_wait", "run": "run", "commit": "commit"}
    for phase, seconds in totals.items():
        assert sum(entry[names[phase]]["sum"] for entry in statements) == pytest.approx(seconds, rel=1e-6, abs=1e-6)
    for entry in statements:
        parts = sum(entry[name]["sum"] for name in names.values())
        assert entry["latency"]["sum"] == pytest.approx(parts, rel=1e-6, abs=1e-6)
        assert {entry[name]["count"] for name in (*names.values(), "latency")} == {entry["count"]}


def run_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_groups_are_counted_by_size_and_their_reruns_by_cause(path: Path) -> None:
    with writelane.open(path) as db:
        with db.transaction():
            futures = [db.submit(INSERT, (number,)) for number in range(5)]
            # Takes the whole transaction with it.
            futures.append(db.submit("INSERT OR ROLLBACK INTO t(x) VALUES (0)"))
            futures += [db.submit(INSERT, (number,)) for number in range(5, 9)]
        failed = [future for future in futures if future.exception() is not None]
        groups = db.telemetry().groups
    assert len(failed) == 1
    assert groups["jobs"] == 9
    assert groups["jobs_max"] <= 9
    assert sum(size["count"] for size in groups["sizes"]) == groups["count"]
    assert groups["rerun_causes"] == {"job_error": 1, "snapshot": 0, "commit": 0}
    assert groups["reruns"] == 1


def test_statements_of_an_interactive_transaction_count_by_themselves(path: Path) -> None:
    with writelane.open(path) as db:
        with db.transaction(label="import") as tx:
            tx.execute(INSERT, (1,))
            tx.executemany(INSERT, [(2,), (3,)])
            with pytest.raises(writelane.IntegrityError):
                tx.execute(INSERT, (1,))
        with pytest.raises(KeyError), db.transaction(label="import") as tx:
            tx.execute(INSERT, (4,))
            raise KeyError
        snapshot = db.telemetry().to_dict()
    assert statement(snapshot, INSERT)["count"] == 4
    assert statement(snapshot, INSERT)["errors"] == {"SQLITE_CONSTRAINT_UNIQUE": 1}
    assert statement(snapshot, "import")["count"] == 2
    assert statement(snapshot, "import")["commit"]["sum"] > 0


def test_a_connection_counts_with_the_database_of_the_same_file(path: Path) -> None:
    select = "SELECT x FROM t"
    with writelane.open(path) as db:
        connection = writelane.dbapi.connect(path)
        connection.execute(INSERT, (1,))
        connection.commit()
        connection.executemany(INSERT, [(2,), (3,)])
        connection.commit()
        with pytest.raises(writelane.IntegrityError):
            connection.execute(INSERT, (1,))
        connection.rollback()
        connection.execute(select).fetchall()
        db.execute(INSERT, (4,))
        snapshot = db.telemetry().to_dict()
        alone = writelane.dbapi.telemetry(connection).to_dict()
        connection.close()
    for found in (snapshot, alone, writelane.dbapi.telemetry(path).to_dict()):
        assert statement(found, INSERT)["count"] == 4
        assert statement(found, INSERT)["errors"] == {"SQLITE_CONSTRAINT_UNIQUE": 1}
        assert statement(found, "COMMIT")["count"] == 2
        assert statement(found, "COMMIT")["commit"]["sum"] > 0
        assert statement(found, "ROLLBACK")["count"] == 1
        assert statement(found, select)["count"] == 1


def test_a_connection_s_wait_names_the_holder(path: Path) -> None:
    connection = writelane.dbapi.connect(path, timeout=60)
    with outsider(path, 1.5) as pid:
        connection.execute(INSERT, (1,))
    connection.commit()
    found = writelane.dbapi.telemetry(connection).to_dict()
    connection.close()
    waited = statement(found, INSERT)
    assert waited["lock_wait"]["max"] > 0.7
    # In the moments when the lock changes hands, it may be unknown who has it.
    assert waited["held_by"][0]["pid"] == pid
    assert waited["held_by"][0]["seconds"] > 0.7
    assert {share["pid"] for share in waited["held_by"]} <= {pid, None, os.getpid()}
    assert statement(found, "COMMIT")["lock_wait"]["max"] < 0.5


def test_a_file_that_only_connections_use_has_its_turns_and_checkpoints_counted(path: Path) -> None:
    counts = _native.FileTelemetry(path)
    before = counts.snapshot()
    with outsider(path, 0.3), closing(writelane.dbapi.connect(path, timeout=60)) as connection:
        with connection:
            connection.execute(INSERT, (1,))
        connection.execute("PRAGMA wal_checkpoint")
        with connection:
            connection.executemany(INSERT, [(f"{number} of those that fill the log",) for number in range(100_000)])
        open_still = writelane.dbapi.telemetry(connection)
    del connection
    closed = writelane.dbapi.telemetry(path)
    for found in (open_still, closed):
        assert found.lane["turns"] >= before["lane"]["turns"] + 2
        assert found.lane["waits"] > before["lane"]["waits"]
        assert found.lane["waited"] > before["lane"]["waited"] + 0.1
        assert found.lane["waiting"] == 0
        assert found.checkpoints["count"] > before["checkpoints"].get("count", 0)
        assert found.checkpoints["total_seconds"] > 0
    assert found.queue == {}
    # Opened again, the counts go on.
    with closing(writelane.dbapi.connect(path)) as connection, connection:
        connection.execute("DELETE FROM t")
        again = writelane.dbapi.telemetry(connection)
    assert again.lane["turns"] > closed.lane["turns"]
    assert again.checkpoints["count"] >= closed.checkpoints["count"]
    counts.reset()


def test_a_database_in_memory_has_no_telemetry() -> None:
    connection = writelane.dbapi.connect(":memory:")
    with pytest.raises(ValueError, match="in memory"):
        writelane.dbapi.telemetry(connection)
    connection.close()


def test_a_transaction_held_long_is_known_by_the_place_that_began_it(path: Path) -> None:
    with writelane.open(path) as db:
        begun = sys._getframe().f_lineno + 1
        with db.transaction(label="slow") as tx:
            tx.execute(INSERT, (1,))
            time.sleep(1.2)
        connection = writelane.dbapi.connect(path)
        written = sys._getframe().f_lineno + 1
        connection.execute(INSERT, (2,))
        time.sleep(1.2)
        connection.commit()
        connection.close()
        long = db.telemetry().long_transactions
    assert {entry["location"] for entry in long} == {f"{__file__}:{begun}", f"{__file__}:{written}"}
    for entry in long:
        assert entry["count"] == 1
        assert entry["max"] >= 1.2


def test_many_places_that_write_are_told_apart(path: Path) -> None:
    connection = writelane.dbapi.connect(path)
    # Every transaction counts as long.
    _native.FileTelemetry(connection).publish_over(0.0)
    write = "connection.execute('INSERT OR REPLACE INTO t(x) VALUES (1)')"
    code = f"def write(connection):\n    {write}\n    connection.commit()\n"
    code += f"def also(connection):\n    {write}; connection.execute('COMMIT')\n"
    places: list[dict[str, Any]] = [{} for _ in range(12)]
    for number, place in enumerate(places):
        exec(compile(code, f"place-{number}.py", "exec"), place)
    for _ in range(3):
        for place in places:
            place["write"](connection)
            place["also"](connection)
    long = writelane.dbapi.telemetry(connection).long_transactions
    connection.close()
    expected = {(f"place-{number}.py:{line}", 3) for number in range(12) for line in (2, 5)}
    assert {(entry["location"], entry["count"]) for entry in long} == expected


def test_an_open_snapshot_is_seen_with_its_age(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute(INSERT, (1,))
        connection = writelane.dbapi.connect(path)
        connection.execute("BEGIN DEFERRED")
        connection.execute("SELECT x FROM t").fetchall()
        time.sleep(0.1)
        readers = db.telemetry().readers
        assert readers["snapshots"] == 1
        assert readers["oldest"] >= 0.1
        connection.rollback()
        readers = db.telemetry().readers
        assert readers["snapshots"] == 0
        assert readers["oldest"] is None
        connection.execute("BEGIN DEFERRED")
        connection.execute("SELECT x FROM t").fetchone()
        connection.close()
        assert db.telemetry().readers["snapshots"] == 0


def test_dropped_offers_are_counted_by_statement_and_reason(path: Path) -> None:
    with writelane.open(path, queue_size=4) as db:
        with db.transaction():
            for number in range(10):
                db.offer(INSERT, (number,))
            for _ in range(3):
                db.offer("DELETE FROM t WHERE x = 'heartbeat'", coalesce="heartbeat")
        db.flush()
        snapshot = db.telemetry().to_dict()
    dropped = statement(snapshot, INSERT)["dropped"]["displaced"]
    assert statement(snapshot, "DELETE FROM t WHERE x = 'heartbeat'")["dropped"] == {"coalesced": 2}
    assert statement(snapshot, INSERT)["count"] == 10 - dropped
    assert snapshot["queue"]["dropped"] == dropped
    assert snapshot["queue"]["classes"]["offered"]["coalesced"] == 2


def test_memory_is_bounded_by_the_number_of_texts(path: Path) -> None:
    with writelane.open(path) as db:
        for number in range(700):
            db.execute(f"SELECT {number}")
        statements = db.telemetry().statements
    assert len(statements) == 501
    assert sum(entry["count"] for entry in statements) == 700


def test_parameter_values_are_never_kept(path: Path) -> None:
    secret = "hunter2hunter2"
    with writelane.open(path) as db:
        db.execute(INSERT, (secret,))
        with pytest.raises(writelane.IntegrityError):
            db.execute(INSERT, (secret,))
        assert secret not in repr(db.telemetry().to_dict())


def test_counts_outlive_the_database_and_reset_begins_anew(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute(INSERT, (1,))
    with writelane.open(path) as db:
        db.execute(INSERT, (2,))
        assert statement(db.telemetry().to_dict(), INSERT)["count"] == 2
        db.reset_telemetry()
        assert db.telemetry().statements == []
        assert db.telemetry().groups["count"] == 0


def test_the_snapshot_has_the_names_that_were_promised(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute(INSERT, (1,))
        snapshot = db.telemetry().to_dict()
    assert {"statements", "queue", "groups", "lane", "checkpoints", "readers", "sqlite"} <= set(snapshot)
    (entry,) = snapshot["statements"]
    assert {"sql", "count", "errors", "retries", "held_by"} <= set(entry)
    for phase in ("queue_wait", "lock_wait", "run", "commit"):
        assert set(entry[phase]) == {"count", "sum", "max", "p50", "p90", "p99", "p999"}
    assert {"depth", "high_water", "capacity", "refused", "dropped"} <= set(snapshot["queue"])
    assert {"count", "jobs", "hold", "reruns"} <= set(snapshot["groups"])
    assert {"turns", "waits", "waited", "gaps"} <= set(snapshot["lane"])
    assert snapshot["lane"]["turns"] >= 1
    assert snapshot["sqlite"]["version"] == writelane.sqlite_version
    assert "THREADSAFE=1" in snapshot["sqlite"]["compile_options"] or "THREADSAFE=2" in str(snapshot["sqlite"])


def test_what_is_off_counts_nothing(path: Path) -> None:
    with writelane.open(path, telemetry=False) as db:
        result = db.execute(INSERT, (1,))
        assert sum(result.waited.values()) > 0
        assert db.telemetry().statements == []
    assert _native.FileTelemetry(path).on is False
    with writelane.open(path) as db:
        db.execute(INSERT, (2,))
        assert statement(db.telemetry().to_dict(), INSERT)["count"] == 1
