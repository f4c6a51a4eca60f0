"""Retention deletes what it should, in small pieces, in the gaps between required work."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane.retention import fitted

#: `make soak` runs the sizes of the promise: 400 MB under ten threads, a million indexed rows beside a foreign writer.
SOAK = bool(os.environ.get("WRITELANE_SOAK"))
STORE_ROWS = 800_000 if SOAK else 4_000
ROUNDS = 200 if SOAK else 20
BIG_ROWS = 1_000_000 if SOAK else 30_000

THREADS = 10

#: A process of the standard library's that writes every 10 ms until it is told to stop, and prints its longest wait.
FOREIGN_WRITER = """
import sqlite3, sys, threading, time
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
worst, count = 0.0, 0
print("writing", flush=True)
while not told.wait(0.01):
    begun = time.monotonic()
    connection.execute("INSERT INTO t(ts, a, b) VALUES (9e9, 'live', 'live')")
    worst, count = max(worst, time.monotonic() - begun), count + 1
print(worst, count)
"""

PRUNE = """
import sys, writelane
db = writelane.open(sys.argv[1])
db.prune("t", older_than={"ts": float(sys.argv[2])}, chunk=50, progress=lambda done: print(done.deleted, flush=True))
"""


def fill(path: Path, rows: int, *indexes: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, ts, a, b)")
    connection.execute(
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?) "
        "INSERT INTO t(ts, a, b) SELECT i, hex(randomblob(16)), hex(randomblob(16)) FROM c",
        (rows,),
    )
    for column in indexes:
        connection.execute(f"CREATE INDEX i{column} ON t({column})")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.fixture
def db(tmp_path: Path) -> writelane.Database:
    fill(tmp_path / "app.db", 1000, "a")
    return writelane.open(tmp_path / "app.db")


def count(db: writelane.Database, where: str = "1") -> int:
    found: int = db.execute(f"SELECT count(*) FROM t WHERE {where}").rows[0][0]
    return found


@pytest.mark.parametrize("indexed", [False, True])
def test_exactly_the_older_rows_go(db: writelane.Database, indexed: bool) -> None:
    if indexed:
        db.execute("CREATE INDEX its ON t(ts)")
    db.execute("UPDATE t SET ts = NULL WHERE ts = 7")
    pruned = db.prune("t", older_than={"ts": 901})
    assert (pruned.table, pruned.deleted, pruned.finished, pruned.reason) == ("t", 899, True, None)
    assert pruned.chunks > 1
    assert 0 < pruned.held < pruned.seconds
    assert db.execute("SELECT min(ts), count(*) FROM t").rows == [(901, 101)]
    assert db.prune("t", older_than={"ts": 901}).deleted == 0
    db.close()


@pytest.mark.parametrize(
    ("where", "parameters"),
    [("ts % ? = 0 -- even", (2,)), ("ts % ?1 = 0 OR ts < ?1 - ?1", (2,)), ("ts % :n = 0", {"n": 2})],
)
def test_a_condition_with_parameters_chooses_the_rows(db: writelane.Database, where: str, parameters: Any) -> None:
    pruned = db.prune("t", older_than={"ts": 501, "id": 401}, where=where, parameters=parameters, chunk=7)
    assert pruned.deleted == 200
    assert pruned.chunks >= 200 / 7
    assert count(db, "ts % 2 = 0") == 300
    db.close()


def test_a_table_without_rowid_is_pruned_by_its_primary_key(db: writelane.Database) -> None:
    db.execute('CREATE TABLE "w t"("a b" TEXT COLLATE NOCASE, n, x, PRIMARY KEY (n DESC, "a b")) WITHOUT ROWID')
    db.execute('INSERT INTO "w t" SELECT CASE id % 3 WHEN 0 THEN a ELSE lower(a) END, id % 10, id FROM t')
    assert db.prune("w t", older_than={"x": 601}, chunk=50).deleted == 600
    assert db.execute('SELECT min(x), count(*) FROM "w t"').rows == [(601, 400)]
    db.close()


def test_columns_that_take_the_rowids_names_are_left_alone(db: writelane.Database) -> None:
    db.execute("CREATE TABLE odd(rowid, _rowid_, x)")
    db.execute("INSERT INTO odd SELECT 1, 1, id FROM t")
    assert db.prune("odd", older_than={"x": 11}).deleted == 10
    db.execute("CREATE TABLE odder(rowid, _rowid_, oid)")
    with pytest.raises(writelane.OperationalError, match="hides its rowid"):
        db.prune("odder", where="1")
    db.close()


def test_what_is_not_there_is_named(db: writelane.Database) -> None:
    db.execute("CREATE VIEW v AS SELECT * FROM t")
    for table, column, message in [
        ("missing", "ts", "no such table: missing"),
        ("t", "when", "table t has no column named when; it has id, ts, a, b"),
        ("v", "ts", "v is a view"),
    ]:
        with pytest.raises(writelane.OperationalError, match=message):
            db.prune(table, older_than={column: 1})
    with pytest.raises(ValueError, match="which rows"):
        db.prune("t")
    with pytest.raises(ValueError, match="older than NULL"):
        db.prune("t", older_than={"ts": None})
    assert count(db) == 1000
    db.close()


def test_a_date_as_text_does_not_empty_a_column_of_numbers(db: writelane.Database) -> None:
    assert db.prune("t", older_than={"ts": "2024-01-01"}).deleted == 0
    db.execute("UPDATE t SET ts = '2023-12-31' WHERE id <= 10")
    assert db.prune("t", older_than={"ts": "2024-01-01"}).deleted == 10
    db.close()


def test_triggers_and_cascades_act(db: writelane.Database) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE part(t REFERENCES t(id) ON DELETE CASCADE)")
    db.execute("CREATE INDEX ipart ON part(t)")
    db.execute("CREATE TABLE gone(id)")
    db.execute("CREATE TRIGGER note AFTER DELETE ON t BEGIN INSERT INTO gone VALUES (old.id); END")
    db.execute("INSERT INTO part SELECT id FROM t")
    assert db.prune("t", older_than={"ts": 101}).deleted == 100
    assert db.execute("SELECT (SELECT count(*) FROM part), (SELECT count(*) FROM gone)").rows == [(900, 100)]
    db.close()


def test_a_row_that_a_foreign_key_holds_is_an_error_that_names_the_table(db: writelane.Database) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE part(t REFERENCES t(id))")
    db.execute("INSERT INTO part VALUES (500)")
    with pytest.raises(writelane.IntegrityError, match="table t") as raised:
        db.prune("t", older_than={"ts": 1000}, chunk=100)
    assert raised.value.pruned.deleted == 1000 - count(db)  # type: ignore[attr-defined]
    assert count(db, "id = 500") == 1
    db.close()


@pytest.mark.parametrize("indexed", [False, True])
def test_rows_that_a_trigger_keeps_do_not_keep_it_from_ending(db: writelane.Database, indexed: bool) -> None:
    if indexed:
        db.execute("CREATE INDEX its ON t(ts)")
    db.execute("CREATE TRIGGER keep BEFORE DELETE ON t WHEN old.id <= 300 BEGIN SELECT RAISE(IGNORE); END")
    assert db.prune("t", older_than={"ts": 901}, chunk=64).deleted == 600
    assert count(db, "ts < 901") == 300
    db.close()


def test_it_ends_unfinished_at_its_deadline_and_goes_on_when_called_again(db: writelane.Database) -> None:
    first = db.prune("t", older_than={"ts": 901}, chunk=10, deadline=0.0)
    assert (first.finished, first.reason) == (False, "the deadline passed")
    assert first.deleted <= 10
    assert first.deleted + db.prune("t", older_than={"ts": 901}).deleted == 900
    db.close()


def test_a_chunk_is_fitted_to_its_hold_in_steps() -> None:
    # Half the time: twice the rows; ten times the time: a tenth.
    assert fitted(100, 0.001, 0.002, 0.004, 10_000) == 200
    assert fitted(1000, 0.02, 0.04, 0.004, 10_000) == 100
    assert fitted(100, 0.00001, 0.00002, 0.004, 10_000) == 200
    assert fitted(100, 0.001, 0.002, 0.004, 150) == 150
    # A commit that is slow for itself is shared by some rows; rows that are slow themselves are not.
    assert fitted(64, 0.001, 0.1, 0.004, 10_000) == 16
    assert fitted(64, 1.0, 1.1, 0.004, 10_000) == 1


def test_the_log_is_copied_aside_while_others_hold_the_lock(db: writelane.Database) -> None:
    db.executemany("INSERT INTO t(b) VALUES (?)", [("x" * 3000,)] * 500)
    with db.transaction() as tx:
        tx.execute("UPDATE t SET a = 'held' WHERE id = 1")
        done = db.checkpoint_aside(100)
        # The writer thread copies an idle log too, and may have been first.
        if done is not None:
            busy, log, copied = done
            assert (busy, copied) == (False, log)
            assert log > 500
        assert db.checkpoint_aside(1) is None
    assert db.execute("SELECT a FROM t WHERE id = 1").rows == [("held",)]
    db.close()


def test_progress_is_told_after_each_chunk(db: writelane.Database) -> None:
    seen: list[writelane.Pruned] = []
    pruned = db.prune("t", older_than={"ts": 901}, chunk=100, pause=0.0, progress=seen.append)
    assert [step.chunks for step in seen] == list(range(1, pruned.chunks + 1))
    assert seen[-1].deleted == pruned.deleted == 900
    assert not seen[-1].finished
    db.close()


def test_a_killed_run_is_continued_by_the_next(db: writelane.Database) -> None:
    process = subprocess.Popen([sys.executable, "-c", PRUNE, str(db.path), "901"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = count(db, "ts < 901")
    assert left <= 900 - told
    assert db.prune("t", older_than={"ts": 901}).deleted == left
    assert db.execute("PRAGMA integrity_check").rows == [("ok",)]
    db.close()


def test_chunks_run_only_when_no_required_work_waits(db: writelane.Database) -> None:
    transaction = db.begin("test")
    results: list[writelane.Pruned] = []
    prune = threading.Thread(target=lambda: results.append(db.prune("t", older_than={"ts": 901})))
    prune.start()
    pause = threading.Event()
    while db.telemetry().queue["depth"] < 1:
        pause.wait(0.001)
    futures = [db.submit("INSERT INTO t(ts, a) SELECT 9e9, count(*) FROM t WHERE ts < 901") for _ in range(20)]
    transaction.commit()
    assert {future.result().group for future in futures} == {20}
    prune.join()
    assert results[0].deleted == 900
    # Each saw all the old rows: the chunk that was there first ran after them.
    assert db.execute("SELECT DISTINCT a FROM t WHERE ts > 1e9").rows == [(900,)]
    db.close()


@pytest.mark.timeout(1800)
def test_ten_threads_that_finish_together_share_transactions_that_retention_has_no_part_in(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    fill(path, STORE_ROWS, "ts", "a")
    if SOAK:
        with writelane.open(path) as wide:
            wide.execute("UPDATE t SET b = hex(randomblob(200))", deadline=None)
            wide.checkpoint("full", deadline=None)
        assert path.stat().st_size > 400e6
    db = writelane.open(path)
    db.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, body)")
    before = db.telemetry().groups
    chunks: list[writelane.Pruned] = []
    ended: list[writelane.Pruned] = []
    prune = threading.Thread(
        target=lambda: ended.append(
            db.prune("t", older_than={"ts": STORE_ROWS}, chunk=50, pause=0.0, progress=chunks.append)
        )
    )
    groups: list[int] = []
    together = threading.Barrier(THREADS + 1)

    def agent() -> None:
        for _ in range(ROUNDS):
            together.wait()
            groups.append(db.execute("INSERT INTO messages(body) VALUES ('done')").group)

    agents = [threading.Thread(target=agent) for _ in range(THREADS)]
    prune.start()
    for thread in agents:
        thread.start()
    pause = threading.Event()
    for _ in range(ROUNDS):
        # That they finish together is made so here, and not left to the machine: all ten wait before any is served.
        with db.transaction():
            together.wait()
            done = len(chunks)
            # A chunk of retention waits in the same queue, and must not be taken for one of the ten.
            while db.telemetry().queue["depth"] < THREADS + prune.is_alive():
                pause.wait(0.0005)
        # Between two rounds there is a gap, which retention finds.
        while len(chunks) == done and prune.is_alive():
            pause.wait(0.0005)
    for thread in agents:
        thread.join()
    done_meanwhile = len(chunks)
    prune.join()
    after = db.telemetry().groups
    assert count(db, f"ts < {STORE_ROWS}") == 0
    assert done_meanwhile >= min(ROUNDS, ended[0].chunks)
    jobs = THREADS * ROUNDS
    # The chunks are transactions of their own, so what is left is those of the agents.
    transactions = after["count"] - before["count"] - ended[0].chunks
    assert after["jobs"] - before["jobs"] == jobs + ended[0].chunks
    assert len(groups) == jobs
    assert max(groups) <= THREADS
    assert transactions * 4 <= jobs
    db.close()


@pytest.mark.skipif(not SOAK, reason="it compares times, and takes minutes: make soak")
@pytest.mark.timeout(1800)
def test_retention_at_most_doubles_the_longest_waits_of_required_work(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    fill(path, STORE_ROWS, "ts", "a")
    db = writelane.open(path)
    db.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, body)")

    def finish_together() -> list[float]:
        waits: list[float] = []
        together = threading.Barrier(THREADS)

        def agent() -> None:
            for _ in range(5 * ROUNDS):
                together.wait()
                begun = time.perf_counter()
                db.execute("INSERT INTO messages(body) VALUES ('done')")
                waits.append(time.perf_counter() - begun)

        agents = [threading.Thread(target=agent) for _ in range(THREADS)]
        for thread in agents:
            thread.start()
        for thread in agents:
            thread.join()
        return waits

    def p99(waits: list[float]) -> float:
        return sorted(waits)[len(waits) * 99 // 100]

    finish_together()
    without: list[float] = []
    beside: list[float] = []
    # In turn, so that what else the machine does is in both.
    for _ in range(10):
        without += finish_together()
        schedule = db.every("1h", "prune", lambda: db.prune("t", older_than={"ts": STORE_ROWS}))
        while schedule.status().running is None:
            time.sleep(0.001)
        beside += finish_together()
        # Ends the prune at its next chunk.
        schedule.cancel()
        assert schedule.join(60)
        assert "finished=False" in str(schedule.status().last_result)
        db.execute("DELETE FROM writelane_jobs")
    assert p99(beside) <= 2 * p99(without)
    db.close()


@pytest.mark.timeout(1800)
def test_a_foreign_process_gets_in_between_and_the_log_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    fill(path, BIG_ROWS, "a", "b")
    db = writelane.open(path)
    writer = subprocess.Popen(
        [sys.executable, "-c", FOREIGN_WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    log = path.with_name("app.db-wal")
    sizes: list[int] = []
    pruned = db.prune("t", older_than={"ts": BIG_ROWS * 0.9}, progress=lambda _: sizes.append(log.stat().st_size))
    worst, written = writer.communicate()[0].split()
    assert pruned.finished
    assert pruned.deleted == BIG_ROWS * 0.9 - 1
    assert max(sizes) < 64 << 20
    assert int(written) > 0
    if SOAK:
        assert float(worst) < 1.0
    assert count(db, "ts = 9e9") == int(written)
    db.close()


def test_a_log_that_a_reader_pins_is_not_made_to_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writelane.retention.LOG_MAX", 1 << 20)
    monkeypatch.setattr("writelane.retention.PINNED_MAX", 0.5)
    path = tmp_path / "app.db"
    fill(path, 20_000, "a", "b")
    db = writelane.open(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()
    pruned = db.prune("t", older_than={"ts": 20_000}, chunk=500)
    assert not pruned.finished
    assert pruned.reason is not None
    assert "cannot shrink" in pruned.reason
    assert path.with_name("app.db-wal").stat().st_size < 16 << 20
    reader.close()
    assert pruned.deleted + db.prune("t", older_than={"ts": 20_000}).deleted == 19_999
    db.close()
