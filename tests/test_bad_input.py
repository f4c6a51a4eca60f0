"""Bad input gets a clear error of the right class, and leaves everything usable."""

from __future__ import annotations

import copy
import math
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane import errors


@pytest.fixture
def db(tmp_path: Path) -> Iterator[writelane.Database]:
    with writelane.open(tmp_path / "app.db") as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x NOT NULL)")
        yield db


def assert_usable(db: writelane.Database) -> None:
    before = db.execute("SELECT count(*) FROM t").rows[0][0]
    assert db.execute("INSERT INTO t(x) VALUES (1)").rowcount == 1
    assert db.submit("INSERT INTO t(x) VALUES (2)").result().rowcount == 1
    assert db.execute("SELECT count(*) FROM t").rows == [(before + 2,)]


OPENINGS: list[tuple[Callable[[Path], Any], dict[str, Any], type[BaseException], str]] = [
    (lambda folder: folder, {}, writelane.OperationalError, "directory"),
    (lambda folder: folder / "missing" / "app.db", {}, writelane.OperationalError, "create it first"),
    (lambda folder: folder / "none.db", {"readonly": True}, writelane.OperationalError, "does not exist"),
    (lambda folder: f"{folder}/a\0b", {}, ValueError, "null byte"),
    (lambda folder: folder / ("n" * 300), {}, writelane.OperationalError, "unable to open"),
    (lambda folder: "", {}, writelane.ProgrammingError, "without a file"),
    (lambda folder: ":memory:", {}, writelane.ProgrammingError, "dbapi"),
    (lambda folder: 7, {}, TypeError, "path"),
    (lambda folder: None, {}, TypeError, "path"),
    (lambda folder: folder / "app.db", {"durability": "paranoid"}, ValueError, "durability"),
    (lambda folder: folder / "app.db", {"journal": "memory"}, ValueError, "journal"),
    (lambda folder: folder / "app.db", {"access": "mine"}, ValueError, "access"),
    (lambda folder: folder / "app.db", {"deadline": math.nan}, ValueError, "deadline"),
    (lambda folder: folder / "app.db", {"deadline": "soon"}, TypeError, "deadline"),
    (lambda folder: folder / "app.db", {"queue_size": 0}, ValueError, "queue_size"),
    (lambda folder: folder / "app.db", {"queue_size": -1}, (OverflowError, ValueError), "negative|queue_size"),
    (lambda folder: folder / "app.db", {"colour": "red"}, TypeError, "colour"),
]


@pytest.mark.parametrize(("path", "options", "error", "text"), OPENINGS)
def test_what_cannot_be_opened_says_why(
    tmp_path: Path, path: Callable[[Path], Any], options: dict[str, Any], error: type[BaseException], text: str
) -> None:
    with pytest.raises(error) as caught:
        writelane.open(path(tmp_path), **options)
    # Before 3.11 an exception cannot carry the note that names the argument.
    if error is not TypeError or sys.version_info >= (3, 11):
        caught.match(text)


@pytest.mark.parametrize("content", [b"this is no database, but it is long enough to be looked at" * 40, b"short"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "app.db"
    path.write_bytes(content)
    with pytest.raises(writelane.DatabaseError) as caught:
        writelane.open(path)
    assert caught.value.sqlite_errorname == "SQLITE_NOTADB"
    assert path.read_bytes() == content
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["app.db"]


def as_nobody(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code as a user who may not do everything."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], text=True, capture_output=True, check=False
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_that_cannot_be_written_is_refused_and_can_be_read(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "app.db"
    with writelane.open(path, journal="delete") as db:
        db.execute("CREATE TABLE t(x)")
        db.execute("INSERT INTO t VALUES (7)")
    for parent in [folder, *folder.parents]:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    path.chmod(0o444 if what == "file" else 0o666)
    folder.chmod(0o777 if what == "file" else 0o555)
    # Modules are loaded before the privileges go: the checkout may be another user's.
    done = as_nobody(
        """
        import os, sys, writelane
        import writelane.database
        os.setgid(65534); os.setuid(65534)
        try:
            with writelane.open(sys.argv[1], deadline=5) as db:
                db.execute("INSERT INTO t VALUES (8)")
        except writelane.OperationalError as error:
            print(type(error).__name__, error)
        else:
            print("written")
        with writelane.open(sys.argv[1], readonly=True) as db:
            print(db.execute("SELECT x FROM t").rows)
        """,
        str(path),
    )
    assert done.returncode == 0, done.stderr
    said, rows = done.stdout.strip().splitlines()
    assert said.startswith("OperationalError "), said
    assert rows == "[(7,)]"


def test_a_readonly_database_says_what_is_wrong_with_a_text(tmp_path: Path, db: writelane.Database) -> None:
    with writelane.open(tmp_path / "app.db", readonly=True) as reader:
        with pytest.raises(writelane.OperationalError, match="no such table: missing"):
            reader.execute("SELECT * FROM missing")
        with pytest.raises(writelane.OperationalError, match="syntax error"):
            reader.execute("SELEKT 1")
        with pytest.raises(writelane.OperationalError, match="readonly") as caught:
            reader.execute("INSERT INTO t(x) VALUES (1)")
        assert caught.value.sqlite_errorname == "SQLITE_READONLY"
        for call in (lambda: reader.submit("DELETE FROM t"), lambda: reader.begin("x"), reader.checkpoint):
            with pytest.raises(writelane.OperationalError, match="readonly"):
                call()
        assert reader.execute("SELECT count(*) FROM t").rows == [(0,)]


def rows_that_break() -> Iterator[tuple[int]]:
    yield (1,)
    raise RuntimeError("the rows broke")


INSERT = "INSERT INTO t(x) VALUES (?)"
CALLS: list[tuple[str, Callable[[writelane.Database], Any], Any, str]] = [
    ("unbound", lambda db: db.execute(INSERT), writelane.ProgrammingError, "uses 1, and there are 0"),
    ("surplus", lambda db: db.execute(INSERT, (1, 2)), writelane.ProgrammingError, "uses 1, and there are 2"),
    ("surplus in a read", lambda db: db.execute("SELECT ?", (1, 2)), writelane.ProgrammingError, "uses 1"),
    ("missing name", lambda db: db.execute("INSERT INTO t(x) VALUES (:x)", {"y": 1}), writelane.ProgrammingError, ":x"),
    ("a name for a mark", lambda db: db.execute(INSERT, {"x": 1}), writelane.ProgrammingError, "has no name"),
    (
        "a mix",
        lambda db: db.execute("INSERT INTO t(id, x) VALUES (?, :x)", {"x": 1}),
        writelane.ProgrammingError,
        "has no name",
    ),
    ("a name that is none", lambda db: db.execute(INSERT, {7: 1}), writelane.ProgrammingError, "names"),
    ("a string for parameters", lambda db: db.execute(INSERT, "x"), writelane.ProgrammingError, "string"),
    ("bytes for parameters", lambda db: db.execute(INSERT, b"x"), writelane.ProgrammingError, "string"),
    ("a number for parameters", lambda db: db.execute(INSERT, 5), writelane.ProgrammingError, "unsupported type"),
    ("a set for parameters", lambda db: db.execute(INSERT, {1}), writelane.ProgrammingError, "unsupported type"),
    ("a type without an adapter", lambda db: db.execute(INSERT, (object(),)), writelane.ProgrammingError, "object"),
    ("a number too large", lambda db: db.execute(INSERT, (2**63,)), OverflowError, "too large"),
    ("a number too small", lambda db: db.execute(INSERT, (-(2**63) - 1,)), OverflowError, "too large"),
    ("a lone surrogate", lambda db: db.execute(INSERT, ("\ud800",)), UnicodeEncodeError, "surrogate"),
    ("a lone surrogate in the text", lambda db: db.execute("SELECT '\ud800'"), UnicodeEncodeError, "surrogate"),
    ("text that is no text", lambda db: db.execute(7), TypeError, "str"),
    ("text that is bytes", lambda db: db.execute(b"SELECT 1"), TypeError, "str"),
    ("a NUL in a write", lambda db: db.execute(INSERT + "\0", (1,)), writelane.ProgrammingError, "null character"),
    ("a NUL in a read", lambda db: db.execute("SELECT 1\0 garbage"), writelane.ProgrammingError, "null character"),
    ("a NUL in a submit", lambda db: db.submit("DELETE\0 FROM t"), writelane.ProgrammingError, "null character"),
    ("no such table", lambda db: db.execute("INSERT INTO u VALUES (1)"), writelane.OperationalError, "no such table"),
    ("a syntax error", lambda db: db.execute("INSERT INTO"), writelane.OperationalError, "incomplete"),
    ("two statements", lambda db: db.execute("DELETE FROM t; DELETE FROM t"), writelane.ProgrammingError, "one stat"),
    (
        "a setting with a tail",
        lambda db: db.execute("PRAGMA cache_size=10; DROP TABLE t"),
        writelane.ProgrammingError,
        "one statement",
    ),
    ("a NULL", lambda db: db.execute(INSERT, (None,)), writelane.IntegrityError, "NOT NULL"),
    ("an empty step", lambda db: db.executemany(" ", [()]), writelane.ProgrammingError, "empty"),
    ("rows that are none", lambda db: db.executemany(INSERT, 5), TypeError, "iterable"),
    ("a row that is none", lambda db: db.executemany(INSERT, [(1,), 5]), writelane.ProgrammingError, "unsupported"),
    ("rows that break", lambda db: db.executemany(INSERT, rows_that_break()), RuntimeError, "the rows broke"),
    ("a bad row among good", lambda db: db.executemany(INSERT, [(1,), (None,), (3,)]), writelane.IntegrityError, "t.x"),
    ("a deadline that is none", lambda db: db.execute(INSERT, (1,), deadline=math.nan), ValueError, "NaN"),
    ("a deadline of text", lambda db: db.execute(INSERT, (1,), deadline="1"), TypeError, "deadline"),
    ("an option that is none", lambda db: db.execute(INSERT, (1,), patience=3), TypeError, "patience"),
    ("a mode that is none", lambda db: db.checkpoint("restart"), ValueError, "mode"),
    ("BEGIN", lambda db: db.execute("BEGIN"), writelane.ProgrammingError, "db.transaction"),
    ("COMMIT in a batch", lambda db: db.run_batch([("COMMIT", ())]), writelane.ProgrammingError, "db.transaction"),
    ("ATTACH", lambda db: db.execute("ATTACH 'x' AS y"), writelane.ProgrammingError, "ATTACH"),
    ("a journal mode", lambda db: db.execute("PRAGMA journal_mode=DELETE"), writelane.ProgrammingError, "journal"),
    ("VACUUM in a batch", lambda db: db.run_batch([("VACUUM", ())]), writelane.ProgrammingError, "by itself"),
    (
        "a deep expression",
        lambda db: db.execute("SELECT " + "(" * 5000 + "1" + ")" * 5000),
        writelane.Error,
        "depth|overflow|limit",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_a_wrong_call_is_refused_and_nothing_is_written(
    db: writelane.Database, call: Callable[[writelane.Database], Any], error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        call(db)
    assert db.execute("SELECT count(*) FROM t").rows == [(0,)]
    assert_usable(db)


def test_a_time_out_that_is_none_does_not_lose_the_future(db: writelane.Database) -> None:
    future = db.submit(INSERT, (1,))
    with pytest.raises(ValueError, match="timeout"):
        future.result(math.nan)
    assert future.result().rowcount == 1


def test_the_same_mistakes_in_a_transaction_leave_it_alive(db: writelane.Database) -> None:
    with db.transaction() as tx:
        tx.execute(INSERT, (1,))
        for call, error in [
            (lambda: tx.execute(INSERT), writelane.ProgrammingError),
            (lambda: tx.execute(INSERT, (None,)), writelane.IntegrityError),
            (lambda: tx.execute("COMMIT"), writelane.ProgrammingError),
            (lambda: tx.execute("DELETE FROM t\0"), writelane.ProgrammingError),
            (lambda: tx.execute("PRAGMA foreign_keys=ON"), writelane.ProgrammingError),
            (lambda: tx.executemany(INSERT, [(2,), (None,)]), writelane.IntegrityError),
            (lambda: tx.executemany(INSERT, rows_that_break()), RuntimeError),
        ]:
            with pytest.raises(error):
                call()
        assert tx.execute("SELECT x FROM t").rows == [(1,)]
    with pytest.raises(writelane.ProgrammingError, match="ended"):
        tx.execute(INSERT, (3,))
    assert_usable(db)


def test_extremes_that_are_good_input_are_stored(db: writelane.Database) -> None:
    values = [2**63 - 1, -(2**63), "a\0b", b"\0", "", b"", math.inf, True, bytearray(b"x"), memoryview(b"y")]
    for value in values:
        db.execute(INSERT, (value,))
    stored = [row[0] for row in db.execute("SELECT x FROM t ORDER BY id").rows]
    assert stored == [2**63 - 1, -(2**63), "a\0b", b"\0", "", b"", math.inf, 1, b"x", b"y"]
    with pytest.raises(writelane.IntegrityError):
        db.execute(INSERT, (math.nan,))  # NaN is NULL to SQLite


def test_a_hundred_thousand_parameters_are_bound(db: writelane.Database) -> None:
    count = 100_000
    marks = ",".join(["(?)"] * count)
    assert db.execute(f"INSERT INTO t(x) VALUES {marks}", list(range(count))).rowcount == count
    assert db.execute("SELECT sum(x) FROM t").rows == [(count * (count - 1) // 2,)]
    # Fewer by name: SQLite looks through all names for each while it prepares.
    few = 5_000
    names = ",".join(f"(:n{index})" for index in range(few))
    named = {f"n{index}": index for index in range(few)}
    assert db.execute(f"INSERT INTO t(x) VALUES {names}", named).rowcount == few
    assert db.execute("SELECT count(*) FROM t").rows == [(count + few,)]
    with pytest.raises(writelane.OperationalError, match="too many SQL variables"):
        db.execute("SELECT " + ",".join("?" * 300_000), [0] * 300_000)
    assert_usable(db)


def test_a_huge_text_is_run(db: writelane.Database) -> None:
    text = "x" * 5_000_000
    assert db.execute(f"INSERT INTO t(x) VALUES ('{text}') RETURNING length(x)").rows == [(5_000_000,)]
    assert_usable(db)


@pytest.mark.parametrize("deadline", [math.inf, 1e300, 86_400 * 31, 2**62])
def test_a_very_long_deadline_is_no_error(db: writelane.Database, deadline: float) -> None:
    assert db.execute(INSERT, (1,), deadline=deadline).rowcount == 1
    assert db.submit(INSERT, (1,), deadline=deadline).result(timeout=deadline).rowcount == 1
    with db.transaction(deadline=deadline) as tx:
        tx.execute(INSERT, (1,))


@pytest.mark.parametrize("deadline", [0, -1, -math.inf, 0.0])
def test_no_deadline_at_all_runs_what_nothing_is_in_the_way_of(db: writelane.Database, deadline: float) -> None:
    assert db.execute(INSERT, (1,), deadline=deadline).rowcount == 1
    assert db.submit(INSERT, (2,), deadline=deadline).result().rowcount == 1
    with db.transaction(deadline=deadline) as tx:
        tx.execute(INSERT, (3,))
    assert db.checkpoint("full", deadline=deadline)[0] == 0
    db.execute("VACUUM", deadline=deadline)
    with db.transaction(), pytest.raises(writelane.WriteTimeout):
        db.submit(INSERT, (4,), deadline=deadline).result()
    assert db.execute("SELECT x FROM t ORDER BY x").rows == [(1,), (2,), (3,)]


def test_a_closed_database_refuses_every_call(tmp_path: Path) -> None:
    db = writelane.open(tmp_path / "app.db")
    db.execute("CREATE TABLE t(x)")
    db.close()
    db.close()
    assert db.closed
    for call in (
        lambda: db.execute("SELECT 1"),
        lambda: db.execute("INSERT INTO t VALUES (1)"),
        lambda: db.executemany("INSERT INTO t VALUES (?)", [(1,)]),
        lambda: db.submit("INSERT INTO t VALUES (1)"),
        lambda: db.offer("INSERT INTO t VALUES (1)"),
        lambda: db.run_batch([("DELETE FROM t", ())]),
        lambda: db.begin("x"),
        db.flush,
        db.checkpoint,
    ):
        with pytest.raises(writelane.Closed, match="closed database"):
            call()
    with writelane.open(tmp_path / "app.db") as again:
        again.execute("INSERT INTO t VALUES (1)")


OURS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles_with_what_it_carries(kind: type[Exception], protocol: int) -> None:
    error = kind("what happened")
    carried = {"sqlite_errorcode": 5, "waited": {"lock": 1.5}, "holder": {"pid": 7}, "statement": "INSERT"}
    for name, value in carried.items():
        setattr(error, name, value)
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert again.args == error.args
        assert str(again) == "what happened"
        assert {name: getattr(again, name) for name in carried} == carried


def test_a_raised_error_is_the_standard_modules_and_pickles(db: writelane.Database) -> None:
    with pytest.raises(sqlite3.IntegrityError) as caught:
        db.execute(INSERT, (None,))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.sqlite_errorname == "SQLITE_CONSTRAINT_NOTNULL"
    assert again.statement == INSERT
    assert set(again.waited) == {"queue", "lock", "run", "commit"}
    with db.transaction(), pytest.raises(sqlite3.OperationalError) as late:
        db.submit(INSERT, (1,), deadline=0).result()
    assert isinstance(late.value, TimeoutError)
    assert isinstance(pickle.loads(pickle.dumps(late.value)), writelane.WriteTimeout)
