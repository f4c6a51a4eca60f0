"""What a call means: deadlines, cancellation, order, isolation, back-pressure, closing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import gc
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import writelane

INSERT = "INSERT INTO t(x) VALUES (?)"
#: Longer than anything here takes: a wait of this length is a hang.
HANG = 100.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def db(path: Path) -> Iterator[writelane.Database]:
    with writelane.open(path, deadline=HANG) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x UNIQUE)")
        yield db


@contextlib.contextmanager
def foreign_holder(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock through the standard module."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield holder
    finally:
        if holder.in_transaction:
            holder.execute("ROLLBACK")
        holder.close()


def content(db: writelane.Database) -> list[object]:
    return [row[0] for row in db.execute("SELECT x FROM t ORDER BY id").rows]


# Deadlines


def test_a_deadline_is_kept_while_a_stranger_holds_the_lock(db: writelane.Database, path: Path) -> None:
    with foreign_holder(path):
        for call in (
            lambda: db.execute(INSERT, (1,), deadline=0.2),
            lambda: db.submit(INSERT, (2,), deadline=0.2).result(),
            lambda: db.executemany(INSERT, [(3,)], deadline=0.2),
            lambda: db.begin("x", deadline=0.2),
            lambda: db.execute("VACUUM", deadline=0.2),
            lambda: asyncio.run(db.aexecute(INSERT, (4,), deadline=0.2)),
        ):
            with pytest.raises(writelane.WriteTimeout) as caught:
                call()
            assert sum(caught.value.waited.values()) >= 0.19
            assert caught.value.sqlite_errorname == "SQLITE_BUSY"
    db.execute(INSERT, (5,))
    assert content(db) == [5]


def test_a_deadline_is_kept_in_the_queue(db: writelane.Database) -> None:
    with db.transaction():
        late = db.submit(INSERT, (1,), deadline=0.1)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with pytest.raises(writelane.WriteTimeout):
                pool.submit(late.result, HANG).result()
            with pytest.raises(writelane.WriteTimeout):
                pool.submit(db.execute, INSERT, (2,), deadline=0.1).result()
    assert content(db) == []


def test_a_stranger_of_any_length_is_waited_out(db: writelane.Database, path: Path) -> None:
    with foreign_holder(path) as holder:
        futures = [db.submit(INSERT, (number,), deadline=None) for number in range(50)]
        assert not concurrent.futures.wait(futures, timeout=0.3).done
        holder.execute("COMMIT")
        assert not concurrent.futures.wait(futures, timeout=HANG).not_done
    assert content(db) == list(range(50))
    assert all(future.result().waited["lock"] > 0 for future in futures[:1])


def test_a_commit_that_a_reader_holds_up_keeps_each_jobs_own_deadline(path: Path) -> None:
    with writelane.open(path, journal="delete", deadline=HANG) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        reader = sqlite3.connect(path, isolation_level=None)
        with foreign_holder(path):
            patient = db.submit(INSERT, (1,), deadline=None)
            hasty = db.submit(INSERT, (2,), deadline=1)
            # A snapshot: no COMMIT gets past it in this mode.
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM t").fetchall()
        with pytest.raises(writelane.WriteTimeout):
            hasty.result(HANG)
        assert not patient.done()
        reader.execute("COMMIT")
        assert patient.result(HANG).rowcount == 1
        reader.close()
        assert content(db) == [1]


# Cancellation


def test_a_cancelled_future_never_runs_though_the_writer_waits_for_the_lock(db: writelane.Database, path: Path) -> None:
    with foreign_holder(path):
        # The first is in the writer's hand, the others are queued behind it.
        futures = [db.submit(INSERT, (number,)) for number in range(5)]
        assert not concurrent.futures.wait(futures, timeout=0.2).done
        assert futures[0].cancel()
        assert futures[3].cancel()
        assert futures[0].cancelled()
        for cancelled in (futures[0], futures[3]):
            with pytest.raises(concurrent.futures.CancelledError):
                cancelled.result(HANG)
    assert not concurrent.futures.wait(futures, timeout=HANG).not_done
    assert content(db) == [1, 2, 4]
    assert not futures[1].cancel()


def test_a_cancelled_task_never_writes_what_has_not_started(db: writelane.Database, path: Path) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(db.aexecute(INSERT, (number,))) for number in range(4)]
        await asyncio.sleep(0.1)
        tasks[0].cancel()
        tasks[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(db.aexecute(INSERT, (9,)), 0.1)
        holder.execute("ROLLBACK")
        await asyncio.gather(tasks[1], tasks[3])

    with foreign_holder(path) as holder:
        asyncio.run(main())
    assert content(db) == [1, 3]


def test_futures_work_with_concurrent_futures(db: writelane.Database) -> None:
    with db.transaction() as tx:
        tx.execute(INSERT, (-1,))
        futures = [db.submit(INSERT, (number % 8,)) for number in range(10)]
        gone = db.submit(INSERT, (99,))
        called: list[object] = []
        gone.add_done_callback(called.append)
        twin = copy.copy(futures[0])
        assert not twin.done()
        assert gone.cancel()
    assert not concurrent.futures.wait([*futures, gone, twin], timeout=HANG).not_done
    assert twin.result().rowcount == 1
    done = list(concurrent.futures.as_completed(futures, timeout=HANG))
    assert len(done) == 10
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors[8:]] == [writelane.IntegrityError] * 2
    assert errors[:8] == [None] * 8
    event = threading.Event()
    futures[0].add_done_callback(lambda future: event.set())
    assert event.wait(HANG)
    assert called == [gone]


def test_futures_are_looked_at_by_many_threads_at_once(db: writelane.Database) -> None:
    for _ in range(20):
        with db.transaction():
            future = db.submit(INSERT, (None,))
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                start = threading.Barrier(8)

                def look(future: writelane.WriteFuture = future, start: threading.Barrier = start) -> bool:
                    start.wait()
                    return bool(concurrent.futures.wait([future], timeout=HANG).done)

                looking = [pool.submit(look) for _ in range(8)]
                while start.n_waiting:
                    pass
                gone = future.cancel()
                assert gone
                assert all(one.result(HANG) for one in looking)


def test_a_future_can_be_awaited_and_waited_for_inside_a_loop(db: writelane.Database) -> None:
    async def main() -> None:
        assert (await asyncio.wrap_future(db.submit(INSERT, (1,)))).rowcount == 1
        assert db.submit(INSERT, (2,)).result(HANG).rowcount == 1
        with pytest.raises(writelane.IntegrityError):
            await asyncio.wrap_future(db.submit(INSERT, (2,)))

    asyncio.run(main())


def test_a_loop_that_ends_before_the_answer_loses_only_the_answer(db: writelane.Database, path: Path) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(db.aexecute(INSERT, (1,)))
        await asyncio.sleep(0.05)
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.stop)
        kept.append(task)

    kept: list[asyncio.Future[object]] = []
    with foreign_holder(path):
        loop = asyncio.new_event_loop()
        kept.append(loop.create_task(main()))
        loop.run_forever()
        for task in kept:
            # It is left pending on purpose.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        kept.clear()
        del loop
        gc.collect()
    db.execute(INSERT, (2,))
    assert content(db)[-1] == 2
    assert asyncio.run(db.aexecute("SELECT 3")).rows == [(3,)]


# Interrupts

INTERRUPTED = textwrap.dedent(
    """
    import os, signal, sqlite3, sys, threading, time
    import writelane
    path, how = sys.argv[1:]
    db = writelane.open(path, deadline=None)
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    sent = 0.0
    def interrupt():
        global sent
        time.sleep(0.3)
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    calls = {
        "execute": lambda: db.execute("INSERT INTO t(x) VALUES (1)"),
        "executemany": lambda: db.executemany("INSERT INTO t(x) VALUES (?)", [(1,), (2,)]),
        "begin": lambda: db.begin("x"),
        "future": lambda: db.submit("INSERT INTO t(x) VALUES (1)").result(),
        "flush": lambda: (db.submit("INSERT INTO t(x) VALUES (1)"), db.flush()),
        "close": lambda: (db.submit("INSERT INTO t(x) VALUES (1)"), db.close()),
    }
    try:
        calls[how]()
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - sent < 5)
    holder.execute("ROLLBACK")
    if how not in ("close",):
        db.flush()
        db.execute("INSERT INTO t(x) VALUES (7)")
    """
)


@pytest.mark.parametrize("how", ["execute", "executemany", "begin", "future", "flush", "close"])
def test_an_interrupt_ends_the_wait_and_the_job_ran_or_never_does(path: Path, how: str) -> None:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path), how], text=True, capture_output=True, timeout=HANG
    )
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "True"]), done.stderr
    with contextlib.closing(sqlite3.connect(path)) as plain:
        rows = [row[0] for row in plain.execute("SELECT x FROM t ORDER BY x")]
    # A submitted write goes on without whoever waited for it; the others never ran.
    assert rows == ([1] if how == "close" else [1, 7] if how in ("future", "flush") else [7])


# Back-pressure


def test_a_full_queue_holds_callers_up_and_then_says_so(path: Path) -> None:
    with writelane.open(path, queue_size=2, deadline=HANG) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        with foreign_holder(path):
            # One in the writer's hand, two in the queue.
            futures = [db.submit(INSERT, (1,), deadline=None) for _ in range(3)]
            with pytest.raises(writelane.QueueFull) as caught:
                db.submit(INSERT, (2,), deadline=0.1)
            assert not isinstance(caught.value, TimeoutError)
            with pytest.raises((writelane.QueueFull, writelane.WriteTimeout)):
                asyncio.run(db.aexecute(INSERT, (2,), deadline=0.1))
            assert db.offer(INSERT, (3,)) is True
        concurrent.futures.wait(futures, timeout=HANG)
        db.flush()
        assert content(db) == [1, 1, 1, 3]


def test_submit_raises_whoever_finds_first_that_the_queue_stayed_full(path):
    """The writer looks for jobs that are late, too, and may be a moment before the caller."""
    futures = []
    with writelane.open(path, queue_size=1, warn_after=None) as db:

        def fill():
            db.submit("SELECT 1")
            for _ in range(300):
                try:
                    futures.append(db.submit("SELECT 2", deadline=0.003))
                except writelane.QueueFull:
                    pass

        with db.transaction():
            filling = threading.Thread(target=fill)
            filling.start()
            filling.join()
    assert futures == []


def test_offers_are_behind_required_work_and_dropped_in_order(path: Path) -> None:
    with writelane.open(path, queue_size=4, deadline=HANG) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        with db.transaction():
            assert all(db.offer(INSERT, (f"offer {number}",)) for number in range(7))
            required = [db.submit(INSERT, (f"required {number}",)) for number in range(3)]
        concurrent.futures.wait(required, timeout=HANG)
        db.flush()
        expected = [f"required {number}" for number in range(3)] + [f"offer {number}" for number in (3, 4, 5, 6)]
        assert content(db) == expected
        assert db.telemetry().queue["dropped"] == 3


def test_a_flush_pushes_no_offer_out_and_none_pushes_it_out(path: Path) -> None:
    with writelane.open(path, queue_size=3, deadline=HANG) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with db.transaction():
                for number in range(3):
                    db.offer(INSERT, (number,))
                flushing = pool.submit(db.flush)
                assert not concurrent.futures.wait([flushing], timeout=0.2).done
                assert db.telemetry().queue["dropped"] == 0
                for number in range(3, 6):
                    db.offer(INSERT, (number,))
            flushing.result(HANG)
        db.flush()
        assert content(db) == [3, 4, 5]


# Order and sight


def test_a_threads_writes_keep_their_order_and_all_threads_see_them(db: writelane.Database) -> None:
    def work(name: int) -> None:
        for number in range(40):
            if number % 3 == 0:
                db.submit(INSERT, (f"{name}/{number:03}",))
            else:
                db.execute(INSERT, (f"{name}/{number:03}",))
                found = db.execute("SELECT count(*) FROM t WHERE x = ?", (f"{name}/{number:03}",)).rows
                assert found == [(1,)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, name) for name in range(8)]:
            done.result(HANG)
    db.flush()
    rows = content(db)
    assert len(rows) == 320
    for name in range(8):
        own = [row for row in rows if str(row).startswith(f"{name}/")]
        assert own == sorted(map(str, own))


def test_a_group_that_is_run_again_hurts_no_innocent(db: writelane.Database) -> None:
    db.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY)")
    db.execute("CREATE TABLE child(p REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    db.execute("PRAGMA foreign_keys=ON")
    db.execute(
        "CREATE TRIGGER no_thirteen BEFORE INSERT ON t WHEN NEW.x = 13 BEGIN SELECT RAISE(ROLLBACK, 'thirteen'); END"
    )
    with db.transaction() as tx:
        tx.execute(INSERT, (0,))
        good = [db.submit(INSERT, (number,)) for number in range(1, 6)]
        bad = [
            db.submit("INSERT OR ROLLBACK INTO t(x) VALUES (0)"),
            db.submit(INSERT, (13,)),
            db.submit("INSERT INTO child VALUES (5)"),
            db.submitmany(INSERT, [(20,), (0,)]),
            db.submit("INSERT OR FAIL INTO t(x) SELECT value FROM json_each('[30, 0]')"),
        ]
        good += [db.submit(INSERT, (number,)) for number in range(6, 10)]
    assert [future.exception(HANG) for future in good] == [None] * 9
    errors = [future.exception(HANG) for future in bad]
    assert all(isinstance(error, writelane.IntegrityError) for error in errors), errors
    assert "thirteen" in str(errors[1])
    assert content(db) == list(range(10))
    assert db.execute("SELECT count(*) FROM child").rows == [(0,)]
    assert db.telemetry().groups["reruns"] > 0


def test_a_full_database_fails_only_what_does_not_fit(db: writelane.Database) -> None:
    pages = db.execute("PRAGMA page_count").rows[0][0]
    db.execute(f"PRAGMA max_page_count={pages + 5}")
    with db.transaction() as tx:
        tx.execute(INSERT, (0,))
        small = [db.submit(INSERT, (number,)) for number in (1, 2)]
        large = db.submit(INSERT, ("x" * 200_000,))
        small += [db.submit(INSERT, (number,)) for number in (3, 4)]
    assert [future.exception(HANG) for future in small] == [None] * 4
    error = large.exception(HANG)
    assert isinstance(error, writelane.OperationalError)
    assert error.sqlite_errorname == "SQLITE_FULL"
    assert content(db) == [0, 1, 2, 3, 4]


def test_settings_reach_every_reader_and_outlive_a_refusal(db: writelane.Database) -> None:
    db.execute("PRAGMA case_sensitive_like=ON")
    with pytest.raises(writelane.ProgrammingError):
        db.execute("PRAGMA reverse_unordered_selects=ON; DROP TABLE t")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [pool.submit(db.execute, "SELECT 'a' LIKE 'A'").result().rows for _ in range(12)]
    assert found == [[(0,)]] * 12
    assert db.submit("SELECT 'a' LIKE 'A'").result().rows == [(0,)]


# A transaction and its own thread


def test_a_thread_does_not_wait_for_its_own_transaction(db: writelane.Database) -> None:
    with db.transaction() as tx:
        tx.execute(INSERT, (1,))
        future = db.submit(INSERT, (2,))
        for call in (
            lambda: db.execute(INSERT, (3,)),
            lambda: db.executemany(INSERT, [(3,)]),
            lambda: db.run_batch([(INSERT, (3,))]),
            lambda: db.begin("inner"),
            lambda: db.execute("VACUUM"),
            db.checkpoint,
            db.flush,
            db.close,
            future.result,
        ):
            with pytest.raises(writelane.ProgrammingError, match=r"db\.transaction"):
                call()
        # A reader sees what was there before; another thread waits its turn.
        assert content(db) == []
    assert future.result(HANG).rowcount == 1
    assert content(db) == [1, 2]


def test_a_task_does_not_wait_for_its_own_transaction_and_others_do(db: writelane.Database) -> None:
    async def other() -> None:
        await db.aexecute(INSERT, (2,))

    async def main() -> None:
        with db.transaction() as tx:
            tx.execute(INSERT, (1,))
            with pytest.raises(writelane.ProgrammingError, match=r"db\.transaction"):
                await db.aexecute(INSERT, (3,))
            task = asyncio.create_task(other())
            await asyncio.sleep(0.05)
            assert not task.done()
        await task

    asyncio.run(main())
    assert content(db) == [1, 2]


# One writer for each file


def test_every_name_of_a_file_has_one_writer_and_a_hard_link_is_refused(db: writelane.Database, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with writelane.open(link) as same, writelane.open(os.path.relpath(path)) as again:
        before = db.telemetry().groups["jobs"]
        same.execute(INSERT, (1,))
        again.execute(INSERT, (2,))
        assert db.telemetry().groups["jobs"] == before + 2
    assert content(db) == [1, 2]
    hard = path.with_name("hard.db")
    hard.hardlink_to(path)
    with pytest.raises(writelane.UnsafeFilesystem, match="hard links"):
        writelane.open(hard)


def test_opening_and_closing_at_once_never_gives_a_dead_database(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")

    def work(name: int) -> None:
        for number in range(25):
            if number % 5 == 4:
                # Let go without closing: the collector closes it.
                writelane.open(path, deadline=HANG).execute(INSERT, (name,))
            else:
                with writelane.open(path, deadline=HANG) as db:
                    db.execute(INSERT, (name,))

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, name) for name in range(6)]:
            done.result(HANG)
    with writelane.open(path) as db:
        assert db.execute("SELECT x, count(*) FROM t GROUP BY x").rows == [(name, 25) for name in range(6)]


@pytest.mark.parametrize("how", ["deleted", "replaced", "renamed"])
def test_a_file_that_is_gone_is_not_written(path: Path, how: str) -> None:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x)")
        db.execute(INSERT, (1,))
        db.checkpoint("truncate")
        if how == "deleted":
            path.unlink()
        else:
            path.rename(path.with_name("other.db"))
        if how == "replaced":
            with contextlib.closing(sqlite3.connect(path)) as plain:
                plain.execute("CREATE TABLE u(x)")
        with pytest.raises(writelane.OperationalError, match="deleted, replaced or renamed"):
            db.execute(INSERT, (2,))
        with pytest.raises(writelane.OperationalError, match="deleted, replaced or renamed"):
            db.submit(INSERT, (3,)).result()
    for leftover in path.parent.glob("app.db-*"):
        leftover.unlink()
    with writelane.open(path) as again:
        again.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, x)")
        again.execute(INSERT, (4,))
        assert content(again) == [4]
