"""Bookkeeping never fails work: an offer may be dropped, and is counted then; it never raises and never goes first."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import writelane

INSERT = "INSERT INTO t(x) VALUES (?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def dropped(db: writelane.Database, sql: str) -> dict[str, int]:
    for statement in db.telemetry().statements:
        if statement["sql"] == sql:
            counts: dict[str, int] = statement["dropped"]
            return counts
    return {}


def values(db: writelane.Database) -> list[Any]:
    return [row[0] for row in db.execute("SELECT x FROM t ORDER BY id").rows]


def make(path: Path, **options: Any) -> writelane.Database:
    db = writelane.open(path, **options)
    db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x UNIQUE)")
    return db


def test_an_offer_is_written_and_seen_after_a_flush(path: Path) -> None:
    with make(path) as db:
        assert db.offer(INSERT, (1,))
        assert db.offer("INSERT INTO t(x) VALUES (:x)", {"x": 2})
        db.flush()
        assert values(db) == [1, 2]


def test_a_full_share_of_the_queue_drops_the_oldest_and_counts_each_by_statement(path: Path) -> None:
    with make(path, queue_size=10) as db:
        with db.transaction():
            assert all(db.offer(INSERT, (number,)) for number in range(25))
            # The share of required work is its own.
            future = db.submit(INSERT, ("required",))
        assert future.result().rowcount == 1
        db.flush()
        assert values(db) == ["required", *range(15, 25)]
        assert dropped(db, INSERT) == {"displaced": 15}
        assert db.telemetry().queue["dropped"] == 15


def test_of_offers_with_one_key_the_latest_is_written(path: Path) -> None:
    with make(path) as db:
        with db.transaction():
            for number in range(5):
                assert db.offer(INSERT, (number,), coalesce="usage")
            assert db.offer(INSERT, ("other",), coalesce="facts")
        db.flush()
        assert values(db) == [4, "other"]
        assert dropped(db, INSERT) == {"coalesced": 4}


def test_a_write_error_of_an_offer_is_counted_and_not_raised(path: Path) -> None:
    with make(path) as db:
        assert db.offer(INSERT, (1,))
        assert db.offer(INSERT, (1,))
        assert db.offer("INSERT INTO missing VALUES (1)")
        db.flush()
        assert values(db) == [1]
        assert dropped(db, INSERT) == {"SQLITE_CONSTRAINT_UNIQUE": 1}
        assert dropped(db, "INSERT INTO missing VALUES (1)") == {"SQLITE_ERROR": 1}


def test_an_offer_larger_than_the_queue_is_dropped_at_once(path: Path) -> None:
    with make(path, queue_bytes=4096) as db:
        assert not db.offer(INSERT, ("x" * 5000,))
        assert dropped(db, INSERT) == {"full": 1}


def test_an_offer_neither_waits_nor_raises_while_another_process_holds_the_lock(path: Path) -> None:
    with make(path) as db:
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        assert db.offer(INSERT, (1,))
        foreign.execute("COMMIT")
        foreign.close()
        db.flush()
        assert values(db) == [1]


def test_what_is_wrong_whatever_the_state_of_the_file_is_raised(path: Path) -> None:
    db = make(path)
    with pytest.raises(writelane.ProgrammingError, match="not supported"):
        db.offer(INSERT, (object(),))
    with pytest.raises(writelane.ProgrammingError):
        db.offer("BEGIN")
    db.close()
    with pytest.raises(writelane.Closed):
        db.offer(INSERT, (1,))


def test_offers_to_a_file_that_was_moved_away_are_dropped(path: Path) -> None:
    db = make(path)
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(writelane.OperationalError):
        db.execute(INSERT, (1,))
    assert not db.offer(INSERT, (2,))
    assert dropped(db, INSERT) == {"SQLITE_READONLY_DBMOVED": 1}
    db.close()


def test_required_work_goes_ahead_of_any_storm_of_offers(path: Path) -> None:
    with make(path, queue_size=2000) as db:
        with db.transaction():
            for number in range(1500):
                db.offer(INSERT, (number,))
            future = db.submit(INSERT, ("required",))
        assert future.result().group == 1
        db.flush()
        assert values(db)[0] == "required"


def test_required_work_waits_for_no_more_than_the_group_of_offers_that_runs(path: Path) -> None:
    with make(path, queue_size=2000) as db:
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        # The writer takes the first offer, and waits for the lock with it.
        db.offer(INSERT, ("running",))
        reached = threading.Event()
        while db.telemetry().queue["depth"] > 0:
            reached.wait(0.001)
        for number in range(1500):
            db.offer(INSERT, (number,))
        future = db.submit(INSERT, ("required",))
        foreign.execute("COMMIT")
        foreign.close()
        future.result()
        db.flush()
        assert values(db)[:2] == ["running", "required"]
        assert db.telemetry().queue["dropped"] == 0


def test_a_block_makes_offers_of_its_writes(path: Path) -> None:
    with make(path) as db:
        with db.transaction():
            with db.best_effort():
                result = db.execute(INSERT, (1,))
                assert (result.rows, result.rowcount, result.lastrowid) == ([], -1, None)
                assert db.executemany(INSERT, [(2,), (3,)]).rowcount == -1
                future = db.submit(INSERT, (4,))
                assert future.done()
                assert future.result().rows == []
                assert db.submitmany(INSERT, [(5,)]).exception() is None
                with db.batch() as batch:
                    batch.execute(INSERT, (6,))
                    batch.execute(INSERT, (7,))
                assert [result.rowcount for result in batch.results] == [-1, -1]
                # A read is no offer.
                assert db.execute("SELECT count(*) FROM t").rows == [(0,)]
            assert db.telemetry().queue["depth"] == 5
        db.flush()
        assert values(db) == [1, 2, 3, 4, 5, 6, 7]


def test_a_block_swallows_write_errors_and_ends_with_it(path: Path) -> None:
    with make(path) as db:
        with db.best_effort():
            db.execute(INSERT, (1,))
            db.execute(INSERT, (1,))
        db.flush()
        assert dropped(db, INSERT) == {"SQLITE_CONSTRAINT_UNIQUE": 1}
        with pytest.raises(writelane.IntegrityError):
            db.execute(INSERT, (1,))


def test_a_block_holds_for_its_own_thread_task_and_database(path: Path) -> None:
    with make(path) as db, writelane.open(path) as other:
        results: list[int] = []
        with db.best_effort():
            thread = threading.Thread(target=lambda: results.append(db.execute(INSERT, (1,)).rowcount))
            thread.start()
            thread.join()
            assert other.execute(INSERT, (2,)).rowcount == 1
        assert results == [1]

        async def bookkeeping(entered: asyncio.Event, left: asyncio.Event) -> int:
            with db.best_effort():
                entered.set()
                await left.wait()
                return (await db.aexecute(INSERT, (3,))).rowcount + (await db.aexecutemany(INSERT, [(4,)])).rowcount

        async def work() -> tuple[int, int]:
            entered, left = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(bookkeeping(entered, left))
            await entered.wait()
            required = (await db.aexecute(INSERT, (5,))).rowcount
            left.set()
            return required, await task

        assert asyncio.run(work()) == (1, -2)
        db.flush()
        assert sorted(values(db)) == [1, 2, 3, 4, 5]


def test_flush_is_no_error_when_newer_offers_push_its_mark_out(path: Path) -> None:
    with make(path, queue_size=1) as db:
        ended = threading.Event()

        def storm() -> None:
            while not ended.is_set():
                db.offer("INSERT INTO t(x) VALUES (NULL)")

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            for _ in range(200):
                db.flush()
        finally:
            ended.set()
            thread.join()
