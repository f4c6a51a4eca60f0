"""At the start of many processes at once, each migration is applied once, wholly or not at all."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import writelane

#: `make soak` runs the sizes of the promise.
PROCESSES, TIMES = (12, 20) if os.environ.get("WRITELANE_SOAK") else (6, 2)

STEPS = [
    "CREATE TABLE sessions(id TEXT PRIMARY KEY, title); CREATE TABLE applied(step, process)",
    "CREATE TABLE messages(session REFERENCES sessions(id), seq, body); CREATE INDEX im ON messages(session)",
    "ALTER TABLE sessions ADD COLUMN version INTEGER DEFAULT 0",
    """-- A trigger has semicolons inside; so has this comment;
       CREATE TRIGGER count_messages AFTER INSERT ON messages BEGIN
         UPDATE sessions SET version = version + 1 WHERE id = new.session;
       END;
       /* and here ; */ INSERT INTO sessions(id, title) VALUES ('s;1', 'first; session') ; """,
    "INSERT INTO messages VALUES ('s;1', 1, 'hello')",
]

START = """
import os, sys, writelane
steps = eval(sys.argv[2])

def record(tx):
    tx.execute("INSERT INTO applied VALUES (5, ?)", (os.getpid(),))

print("ready", flush=True)
sys.stdin.readline()
db = writelane.open(sys.argv[1], migrations=[*steps, record])
assert db.execute("SELECT count(*) FROM applied").rows == [(1,)]
db.execute("INSERT INTO messages VALUES ('s;1', 2, ?)", (os.getpid(),))
db.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def test_an_empty_file_gets_every_step_and_a_later_open_only_the_new_ones(path: Path) -> None:
    with writelane.open(path, migrations=STEPS[:2]) as db:
        assert db.execute("SELECT count(*) FROM messages").rows == [(0,)]
    assert version(path) == 2
    with writelane.open(path, migrations=STEPS) as db:
        assert db.execute("SELECT id, title, version FROM sessions").rows == [("s;1", "first; session", 1)]
    with writelane.open(path, migrations=STEPS) as db:
        assert db.execute("SELECT count(*) FROM messages").rows == [(1,)]
    assert version(path) == 5


def test_a_step_may_be_a_callable_that_gets_the_transaction(path: Path) -> None:
    def copy_titles(tx: writelane.Transaction) -> None:
        tx.execute("CREATE TABLE titles(title)")
        for (title,) in tx.execute("SELECT title FROM sessions").rows:
            tx.execute("INSERT INTO titles VALUES (?)", (title.upper(),))

    with writelane.open(path, migrations=[*STEPS, copy_titles]) as db:
        assert db.execute("SELECT title FROM titles").rows == [("FIRST; SESSION",)]


def test_a_step_that_fails_is_rolled_back_wholly_and_named(path: Path) -> None:
    def fails(tx: writelane.Transaction) -> None:
        tx.execute("CREATE TABLE half_done(x)")
        raise RuntimeError("out of luck")

    for bad, message, cause in [
        (
            "CREATE TABLE half_done(x); INSERT INTO missing VALUES (1)",
            "no such table: missing",
            sqlite3.OperationalError,
        ),
        ("CREATE TABLE half_done(x); COMMIT", "COMMIT", sqlite3.ProgrammingError),
        (fails, "out of luck", RuntimeError),
    ]:
        with pytest.raises(
            writelane.MigrationFailed, match=f"migration 3 of 4 .*stays at version 2: .*{message}"
        ) as raised:
            writelane.open(path, migrations=[*STEPS[:2], bad, "SELECT 1"])
        assert raised.value.step == 3
        assert isinstance(raised.value.__cause__, cause)
        with writelane.open(path) as db:
            assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'half_done'").rows == []
        assert version(path) == 2


def test_a_file_of_a_newer_program_is_refused_unchanged(path: Path) -> None:
    writelane.open(path, migrations=STEPS).close()
    with pytest.raises(writelane.NewerSchema, match="schema version 5, and this program knows 2"):
        writelane.open(path, migrations=STEPS[:2])
    assert version(path) == 5


def test_what_is_no_migration_is_refused_before_anything_runs(path: Path) -> None:
    with pytest.raises(TypeError, match="migration 2 must be SQL text or a callable"):
        writelane.open(path, migrations=["CREATE TABLE t(x)", 7])  # type: ignore[list-item]
    assert version(path) == 0


def test_a_file_opened_to_read_must_be_up_to_date(path: Path) -> None:
    writelane.open(path, migrations=STEPS[:2]).close()
    writelane.open(path, migrations=STEPS[:2], readonly=True).close()
    with pytest.raises(writelane.OperationalError, match="readonly"):
        writelane.open(path, migrations=STEPS, readonly=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("time", range(TIMES))
def test_many_processes_that_start_at_once_apply_each_step_once(path: Path, time: int) -> None:
    command = [sys.executable, "-c", START, str(path), repr(STEPS[:4])]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * PROCESSES
    assert version(path) == 5
    with writelane.open(path) as db:
        assert db.execute("SELECT count(*) FROM applied").rows == [(1,)]
        assert db.execute("SELECT version FROM sessions").rows == [(PROCESSES,)]
