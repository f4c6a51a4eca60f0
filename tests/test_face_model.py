"""The face of an open database against a model of it, by steps that nobody would write down."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import writelane

SOAK = bool(os.environ.get("WRITELANE_SOAK"))
HANG = 100.0
INSERT = "INSERT INTO t(k, v) VALUES (?, ?)"
CONFLICTS = ["ABORT", "FAIL", "IGNORE", "REPLACE", "ROLLBACK"]

keys = st.integers(0, 12)
rows = st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=3))), max_size=4)
Table = dict[int, Any]


class Refused(Exception):
    """The model says that a job breaks a constraint."""


def insert(table: Table, key: int, value: Any, conflict: str = "ABORT") -> int:
    """Insert into the model; return the number of rows changed."""
    if value is None:
        # NOT NULL without a default: REPLACE cannot replace it.
        if conflict == "IGNORE":
            return 0
        raise Refused
    if key in table and conflict != "REPLACE":
        if conflict == "IGNORE":
            return 0
        raise Refused
    table[key] = value
    return 1


class Face(RuleBasedStateMachine):
    """One database, opened under one or two names, and a dictionary that must always agree with it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "app.db"
        self.link = self.path.with_name("link.db")
        self.link.symlink_to(self.path)
        self.table: Table = {}
        self.names: list[writelane.Database] = [writelane.open(self.path, deadline=HANG)]
        self.names[0].execute("CREATE TABLE t(k INTEGER PRIMARY KEY, v NOT NULL)")

    @property
    def db(self) -> writelane.Database:
        return self.names[-1]

    def teardown(self) -> None:
        try:
            for name in self.names:
                name.close()
            with contextlib.closing(sqlite3.connect(self.path)) as plain:
                assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert dict(plain.execute("SELECT k, v FROM t")) == self.table
        finally:
            shutil.rmtree(self.folder)

    def apply(self, job: list[tuple[int, Any]], conflict: str = "ABORT") -> int | None:
        """Apply a job to the model, whole or not at all; None: it is refused."""
        copy = dict(self.table)
        try:
            changed = sum(insert(copy, key, value, conflict) for key, value in job)
        except Refused:
            return None
        self.table = copy
        return changed

    @invariant()
    def every_name_shows_the_table(self) -> None:
        for name in self.names:
            assert dict(name.execute("SELECT k, v FROM t").rows) == self.table

    @rule(key=keys, value=st.one_of(st.none(), st.integers()), conflict=st.sampled_from(CONFLICTS))
    def execute(self, key: int, value: Any, conflict: str) -> None:
        if value is not None:
            value = max(min(value, 2**63 - 1), -(2**63))
        expected = self.apply([(key, value)], conflict)
        sql = f"INSERT OR {conflict} INTO t(k, v) VALUES (?, ?)"
        if expected is None:
            with pytest.raises(writelane.IntegrityError):
                self.db.execute(sql, (key, value))
        else:
            assert self.db.execute(sql, (key, value)).rowcount == expected

    @rule(rows=rows, conflict=st.sampled_from(CONFLICTS))
    def executemany(self, rows: list[tuple[int, Any]], conflict: str) -> None:
        expected = self.apply(rows, conflict)
        sql = f"INSERT OR {conflict} INTO t(k, v) VALUES (?, ?)"
        if expected is None:
            with pytest.raises(writelane.IntegrityError) as caught:
                self.db.executemany(sql, rows)
            assert 0 <= caught.value.position < len(rows)
        else:
            assert max(self.db.executemany(sql, rows).rowcount, 0) == expected

    @rule(rows=rows)
    def batch(self, rows: list[tuple[int, Any]]) -> None:
        expected = self.apply(rows)
        failing = pytest.raises(writelane.IntegrityError) if expected is None else contextlib.nullcontext()
        with failing, self.db.batch() as batch:
            for row in rows:
                batch.execute(INSERT, row)
        if rows and expected is not None:
            assert [result.rowcount for result in batch.results] == [1] * len(rows)

    @rule(rows=rows, ending=st.sampled_from(["commit", "raise", "rollback"]))
    def transaction(self, rows: list[tuple[int, Any]], ending: str) -> None:
        before = dict(self.table)
        with contextlib.suppress(ZeroDivisionError), self.db.transaction() as tx:
            for row in rows:
                # A statement that fails is undone alone; the transaction lives.
                if self.apply([row]) is None:
                    with pytest.raises(writelane.IntegrityError):
                        tx.execute(INSERT, row)
                else:
                    tx.execute(INSERT, row)
            assert dict(tx.execute("SELECT k, v FROM t").rows) == self.table
            assert dict(self.db.execute("SELECT k, v FROM t").rows) == before
            if ending == "raise":
                raise ZeroDivisionError
            if ending == "rollback":
                tx.execute("INSERT OR IGNORE INTO t(k, v) VALUES (99, 99)")
                tx.rollback()
        if ending != "commit":
            self.table = before

    @rule(key=keys)
    def transaction_that_sqlite_ends(self, key: int) -> None:
        self.apply([(key, "there")], "IGNORE")
        self.db.execute("INSERT OR IGNORE INTO t(k, v) VALUES (?, 'there')", (key,))
        with pytest.raises(writelane.Error), self.db.transaction() as tx:
            tx.execute("INSERT OR IGNORE INTO t(k, v) VALUES (77, 77)")
            with pytest.raises(writelane.IntegrityError):
                tx.execute("INSERT OR ROLLBACK INTO t(k, v) VALUES (?, 0)", (key,))
            with pytest.raises(writelane.ProgrammingError):
                tx.execute("INSERT INTO t(k, v) VALUES (78, 78)")

    @rule(jobs=st.lists(st.tuples(rows, st.booleans()), min_size=1, max_size=6), offered=rows)
    def together(self, jobs: list[tuple[list[tuple[int, Any]], bool]], offered: list[tuple[int, Any]]) -> None:
        """Several at once behind a transaction, so that they share the next; some are cancelled."""
        with self.db.transaction():
            futures = [self.db.submitmany(INSERT, job) for job, _ in jobs]
            for row in offered:
                assert self.db.offer(INSERT, row)
            for future, (_, cancelled) in zip(futures, jobs, strict=True):
                if cancelled:
                    assert future.cancel()
        assert not concurrent.futures.wait(futures, timeout=HANG).not_done
        for future, (job, cancelled) in zip(futures, jobs, strict=True):
            if cancelled:
                assert future.cancelled()
            elif self.apply(job) is None:
                assert isinstance(future.exception(), writelane.IntegrityError)
            else:
                assert future.exception() is None
        self.db.flush()
        for row in offered:
            self.apply([row])

    @rule(writers=st.lists(st.tuples(rows, keys), min_size=2, max_size=4))
    def threads(self, writers: list[tuple[list[tuple[int, Any]], int]]) -> None:
        """Threads that write keys of their own at once; what each says is what there is."""

        def write(number: int, job: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
            done = []
            for key, value in job:
                own = 1000 + 100 * number + key
                with contextlib.suppress(writelane.IntegrityError):
                    self.names[number % len(self.names)].execute(INSERT, (own, value))
                    done.append((own, value))
            return done

        with concurrent.futures.ThreadPoolExecutor(len(writers)) as pool:
            running = [pool.submit(write, number, job) for number, (job, _) in enumerate(writers)]
        for future in running:
            for own, value in future.result():
                assert own not in self.table
                self.table[own] = value

    @rule(key=keys)
    def delete(self, key: int) -> None:
        expected = 0 if self.table.pop(key, None) is None else 1
        assert self.db.execute("DELETE FROM t WHERE k = ?", (key,)).rowcount == expected

    @rule(mode=st.sampled_from(["passive", "full", "truncate"]))
    def checkpoint(self, mode: str) -> None:
        busy, log, copied = self.db.checkpoint(mode)
        assert busy == 0
        assert log == copied

    @rule()
    def vacuum(self) -> None:
        self.db.execute("VACUUM")

    @rule(sql=st.sampled_from(["SELEKT 1", "INSERT INTO missing VALUES (1)", "COMMIT", "SELECT 1; SELECT 2", "\0"]))
    def nonsense(self, sql: str) -> None:
        with pytest.raises(writelane.Error):
            self.db.execute(sql)

    @precondition(lambda self: len(self.names) < 3)
    @rule(linked=st.booleans(), durability=st.sampled_from(["normal", "full", "off"]))
    def open_again(self, linked: bool, durability: str) -> None:
        self.names.append(writelane.open(self.link if linked else self.path, durability=durability, deadline=HANG))

    @precondition(lambda self: len(self.names) > 1)
    @rule()
    def close_one(self) -> None:
        name = self.names.pop()
        future = name.submit("INSERT OR REPLACE INTO t(k, v) VALUES (50, 'last')")
        name.close()
        with pytest.raises(writelane.Closed):
            name.execute("SELECT 1")
        assert future.result(HANG).rowcount == 1
        self.table[50] = "last"

    @rule()
    def close_all_and_reopen(self) -> None:
        futures = [name.submit("INSERT OR REPLACE INTO t(k, v) VALUES (51, 'drained')") for name in self.names]
        for name in self.names:
            name.close()
        assert all(future.done() and future.exception() is None for future in futures)
        self.table[51] = "drained"
        self.names = [writelane.open(self.path, deadline=HANG)]

    @rule()
    def read_only(self) -> None:
        with writelane.open(self.path, readonly=True) as reader:
            assert dict(reader.execute("SELECT k, v FROM t").rows) == self.table
            with pytest.raises(writelane.OperationalError, match="readonly"):
                reader.execute("DELETE FROM t")


# The long form takes minutes.
TestFace = pytest.mark.timeout(1800 if SOAK else 180)(Face.TestCase)
TestFace.settings = settings(
    max_examples=1000 if SOAK else 40,
    stateful_step_count=60 if SOAK else 25,
    deadline=None,
    derandomize=not SOAK,
    suppress_health_check=list(HealthCheck),
)
