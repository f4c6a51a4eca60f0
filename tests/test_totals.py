"""Totals over statements are totals over jobs: each is counted once, with what its caller was told of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import writelane
from test_telemetry import INSERT, statement
from writelane import _native

PHASES = {"queue": "queue_wait", "lock": "lock_wait", "run": "run", "commit": "commit"}


class Ledger:
    """What callers were told, to be compared with what was counted."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: dict[str, int] = {}
        self.retries = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._lock = threading.Lock()

    def note(self, fared: Any, name: str | None = None) -> None:
        """Note how one job fared: its result, or its error and what that is counted under."""
        with self._lock:
            self.count += 1
            self.retries += fared.retries
            for phase, seconds in fared.waited.items():
                self.seconds[phase] += seconds
            if name is not None:
                self.errors[name] = self.errors.get(name, 0) + 1

    def fails(self, call: Callable[[], object], name: str) -> None:
        """Run a job that fails."""
        with pytest.raises(writelane.Error) as raised:
            call()
        self.note(raised.value, name)

    def check(self, snapshot: dict[str, Any]) -> None:
        """Compare."""
        entries = snapshot["statements"]
        assert sum(entry["count"] for entry in entries) == self.count
        assert sum(entry["retries"] for entry in entries) == self.retries
        errors: dict[str, int] = {}
        for entry in entries:
            for name, count in entry["errors"].items():
                errors[name] = errors.get(name, 0) + count
        assert errors == self.errors
        for phase, name in PHASES.items():
            assert sum(entry[name]["sum"] for entry in entries) == pytest.approx(self.seconds[phase], abs=1e-6), phase
        for entry in entries:
            assert {entry[name]["count"] for name in (*PHASES.values(), "latency")} == {entry["count"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
        db.reset_telemetry()
    return path


def test_jobs_of_every_kind(path: Path) -> None:
    ledger = Ledger()
    with writelane.open(path) as db:
        ledger.note(db.execute(INSERT, (1,)))
        ledger.note(db.execute("SELECT x FROM t"))
        ledger.note(db.executemany(INSERT, [(2,), (3,)]))
        ledger.note(db.submit(INSERT, (4,)).result())
        ledger.note(db.submit("SELECT x FROM t").result())
        ledger.note(db.submitmany(INSERT, [(5,), (6,)]).result())
        ledger.note(asyncio.run(db.aexecute(INSERT, (7,))))
        ledger.note(asyncio.run(db.aexecutemany(INSERT, [(8,)])))
        ledger.note(db.execute("VACUUM"))
        ledger.note(db.execute("PRAGMA cache_size = 100"))
        with db.batch() as batch:
            batch.execute(INSERT, (9,))
            batch.execute("UPDATE t SET x = x")
        # All its statements are one job.
        assert batch.results[0].waited == batch.results[1].waited
        ledger.note(batch.results[0])
        ledger.check(db.telemetry().to_dict())
        assert statement(db.telemetry().to_dict(), INSERT)["count"] == 7


def test_jobs_of_every_kind_that_fail(path: Path) -> None:
    unique = "SQLITE_CONSTRAINT_UNIQUE"
    ledger = Ledger()

    def batch() -> None:
        with db.batch() as batch:
            batch.execute(INSERT, (2,))
            batch.execute(INSERT, (1,))

    with writelane.open(path) as db:
        ledger.note(db.execute(INSERT, (1,)))
        ledger.fails(lambda: db.execute(INSERT, (1,)), unique)
        ledger.fails(lambda: db.executemany(INSERT, [(2,), (1,)]), unique)
        ledger.fails(lambda: db.submit(INSERT, (1,)).result(), unique)
        ledger.fails(lambda: db.submitmany(INSERT, [(2,), (1,)]).result(), unique)
        ledger.fails(lambda: asyncio.run(db.aexecute(INSERT, (1,))), unique)
        ledger.fails(batch, unique)
        ledger.fails(lambda: db.execute("INSERT OR ROLLBACK INTO t(x) VALUES (1)"), unique)
        ledger.fails(lambda: db.execute(INSERT, (1, 2)), "SQLITE_MISUSE")
        ledger.fails(lambda: db.execute("SELECT * FROM nothing"), "SQLITE_ERROR")
        ledger.fails(lambda: db.execute("VACUUM INTO '/nonexistent/folder/x.db'"), "SQLITE_CANTOPEN")
        ledger.check(db.telemetry().to_dict())


def test_jobs_that_wait_together(path: Path) -> None:
    ledger = Ledger()
    with writelane.open(path) as db:

        def work(worker: int) -> None:
            for number in range(60):
                call = (db.execute, lambda *job: db.submit(*job).result())[number % 2]
                try:
                    ledger.note(call(INSERT, (f"{worker % 3}/{number}",)))
                except writelane.IntegrityError as error:
                    ledger.note(error, "SQLITE_CONSTRAINT_UNIQUE")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ledger.check(db.telemetry().to_dict())
    assert ledger.count == 8 * 60


def test_a_transaction_with_its_statements(path: Path) -> None:
    ledger = Ledger()
    with writelane.open(path) as db:
        with db.transaction(label="import") as tx:
            told = [tx.execute(INSERT, (1,)), tx.executemany(INSERT, [(2,), (3,)]), tx.execute("SELECT x FROM t")]
            with pytest.raises(writelane.IntegrityError) as raised:
                tx.execute(INSERT, (1,))
            assert tx.waited["run"] >= sum(one.waited["run"] for one in told)
        with pytest.raises(KeyError), db.transaction(label="import") as abandoned:
            again = abandoned.execute(INSERT, (4,))
            raise KeyError
        snapshot = db.telemetry().to_dict()
    assert statement(snapshot, INSERT)["count"] == 4
    assert statement(snapshot, "import")["count"] == 2
    told += [raised.value, again]
    assert all(one.waited["run"] > 0 for one in told)
    for one in told:
        ledger.note(one)
    # The transaction's own run is the time between its statements.
    for transaction in (tx, abandoned):
        ledger.count += 1
        for phase, seconds in transaction.waited.items():
            ledger.seconds[phase] += seconds
    ledger.seconds["run"] -= sum(one.waited["run"] for one in told)
    ledger.errors["SQLITE_CONSTRAINT_UNIQUE"] = 1
    # When the abandoned one was undone, two clocks are read one after the other.
    for phase, name in PHASES.items():
        counted = sum(entry[name]["sum"] for entry in snapshot["statements"])
        assert counted == pytest.approx(ledger.seconds[phase], rel=0.05, abs=1e-4), phase
    assert sum(entry["count"] for entry in snapshot["statements"]) == ledger.count
    assert tx.waited["commit"] > 0
    assert abandoned.waited["commit"] == 0


def test_jobs_that_come_too_late(path: Path) -> None:
    ledger = Ledger()
    with writelane.open(path, queue_size=2) as db:
        with db.transaction(label="import") as tx:

            def behind() -> None:
                ledger.fails(lambda: db.execute(INSERT, (1,), deadline=0.05), "SQLITE_BUSY")
                ledger.fails(lambda: db.execute(INSERT, (1,), deadline=0), "SQLITE_BUSY")
                ledger.fails(lambda: db.submit(INSERT, (1,), deadline=0.05).result(), "SQLITE_BUSY")
                full = [db.submit(INSERT, (number,)) for number in (2, 3)]
                ledger.fails(lambda: db.submit(INSERT, (4,), deadline=0.05), "QUEUE_FULL")
                ledger.fails(lambda: db.execute(INSERT, (4,), deadline=0.05), "QUEUE_FULL")
                futures.extend(full)

            futures: list[Any] = []
            thread = threading.Thread(target=behind)
            thread.start()
            thread.join()
        for future in futures:
            ledger.note(future.result())
        snapshot = db.telemetry().to_dict()
        assert snapshot["queue"]["classes"]["required"]["refused"] == 2
    ledger.note(Told(tx.waited))
    ledger.check(snapshot)


class Told:
    """How a transaction without statements fared."""

    def __init__(self, waited: dict[str, float]) -> None:
        self.waited, self.retries = waited, 0


def test_what_never_runs_is_not_counted_but_as_dropped(path: Path) -> None:
    ledger = Ledger()
    with writelane.open(path, queue_size=4) as db:
        with db.transaction(label="import") as tx:
            cancelled = db.submit(INSERT, ("cancelled",))
            assert cancelled.cancel()
            for number in range(6):
                db.offer("DELETE FROM t WHERE x = ?", (number,))
        db.flush()
        with pytest.raises(CancelledError):
            cancelled.result()
        # What can be no job of anybody's is none: it is told at once.
        for sql in ("BEGIN", "SELECT 1; SELECT 2"):
            with pytest.raises(writelane.ProgrammingError):
                db.execute(sql)
        db.execute("")
        snapshot = db.telemetry().to_dict()
    ledger.note(Told(tx.waited))
    offered = statement(snapshot, "DELETE FROM t WHERE x = ?")
    assert offered["dropped"] == {"displaced": 2}
    assert offered["count"] == 4
    assert {entry["sql"]: entry["count"] for entry in snapshot["statements"]} == {
        "import": 1,
        "DELETE FROM t WHERE x = ?": 4,
    }
    assert snapshot["groups"]["jobs"] == 4


def test_calls_that_a_closed_or_a_lost_database_refuses(path: Path) -> None:
    for lost in (False, True):
        ledger = Ledger()
        db = writelane.open(path)
        counts = db.file_telemetry()
        counts.reset()
        if lost:
            os.rename(path, path.with_suffix(".gone"))
            ledger.fails(lambda db=db: db.execute(INSERT, (1,)), "SQLITE_READONLY_DBMOVED")  # type: ignore[misc]
        else:
            db.close()
        name = "SQLITE_READONLY_DBMOVED" if lost else "CLOSED"
        for call in (db.execute, db.submit):
            ledger.fails(lambda call=call: call(INSERT, (1,)), name)  # type: ignore[misc]
        ledger.fails(lambda db=db: db.executemany(INSERT, [(1,)]), name)  # type: ignore[misc]
        ledger.fails(lambda db=db: db.begin("import"), name)  # type: ignore[misc]
        ledger.check(counts.snapshot())
        db.close()


def test_ctrl_c_tells_what_was_waited_and_the_job_is_counted_once(path: Path) -> None:
    long = (
        "INSERT INTO t(x) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000000) "
        "SELECT count(*) FROM n"
    )
    begun = threading.Event()
    with writelane.open(path, warn_after=None) as db:

        def interrupt() -> None:
            with db.transaction(label="import"):
                begun.set()
                while db.telemetry().queue["depth"] == 0:
                    pass
                time.sleep(0.2)
            while (_native.look(path)["holder"] or {}).get("statement") != long:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        begun.wait()
        with pytest.raises(KeyboardInterrupt) as raised:
            db.execute(long)
        thread.join()
        told: Any = raised.value
        assert told.statement == long
        assert told.waited["queue"] + told.waited["lock"] > 0.1
        assert told.waited["run"] > 0
        # It is in the database, and counted for what it took.
        db.flush()
        entry = statement(db.telemetry().to_dict(), long)
        assert (entry["count"], entry["errors"]) == (1, {})
        assert db.execute("SELECT count(*) FROM t").rows == [(1,)]
