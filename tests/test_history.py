"""A rewritten history keeps what others appended, and says so when it is not what its writer had read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import writelane


def message(seq: int, body: str) -> dict[str, Any]:
    return {"seq": seq, "body": body}


OLD = [message(number, f"m{number}") for number in range(1, 6)]
KEY = {"session": "s"}


@pytest.fixture
def db(tmp_path: Path) -> writelane.Database:
    db = writelane.open(tmp_path / "app.db")
    db.execute("CREATE TABLE messages(session TEXT, seq INTEGER, body TEXT, PRIMARY KEY (session, seq))")
    db.replace("messages", key=KEY, rows=OLD)
    db.replace("messages", key={"session": "other"}, rows=[message(1, "theirs")])
    return db


def history(db: writelane.Database) -> list[tuple[int, str]]:
    return [
        (seq, body) for seq, body in db.execute("SELECT seq, body FROM messages WHERE session = 's' ORDER BY seq").rows
    ]


def append(db: writelane.Database, seq: int) -> None:
    """Append a row as a foreign process would."""
    connection = sqlite3.connect(db.path)
    with connection:
        connection.execute("INSERT INTO messages VALUES ('s', ?, 'appended')", (seq,))
    connection.close()


@pytest.mark.parametrize("expected", [OLD, 5])
def test_what_others_appended_meanwhile_survives(db: writelane.Database, expected: Any) -> None:
    append(db, 6)
    new = [OLD[0], message(2, "summary")]
    replaced = db.replace("messages", key=KEY, rows=new, expected=expected)
    assert (replaced.inserted, replaced.deleted, replaced.kept) == (1, 4, 1)
    assert history(db) == [(1, "m1"), (2, "summary"), (6, "appended")]
    assert db.execute("SELECT count(*) FROM messages WHERE session = 'other'").rows == [(1,)]
    db.close()


def test_only_the_tail_that_is_named_is_rewritten(db: writelane.Database) -> None:
    db.replace("messages", key=KEY, rows=[message(4, "shorter")], expected=OLD[3:])
    assert history(db) == [(1, "m1"), (2, "m2"), (3, "m3"), (4, "shorter")]
    db.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE messages SET body = 'edited' WHERE seq = 3 AND session = 's'", OLD),
        ("DELETE FROM messages WHERE seq = 3 AND session = 's'", OLD),
        ("DELETE FROM messages WHERE seq = 3 AND session = 's'", 5),
        # A row that would stay as it is must be as it was, too.
        ("UPDATE messages SET body = 'edited' WHERE seq = 1 AND session = 's'", OLD),
    ],
)
def test_what_others_changed_or_removed_is_a_conflict_and_nothing_is_written(
    db: writelane.Database, change: str, expected: Any
) -> None:
    db.execute(change)
    before = history(db)
    with pytest.raises(writelane.Conflict, match=r"by others|others removed") as raised:
        db.replace("messages", key=KEY, rows=[OLD[0], message(2, "summary")], expected=expected)
    assert isinstance(raised.value, sqlite3.IntegrityError)
    assert raised.value.table == "messages"
    assert history(db) == before
    db.close()


def test_rows_that_are_there_already_are_no_error_when_equal(db: writelane.Database) -> None:
    replaced = db.replace("messages", key=KEY, rows=[*OLD, message(6, "new")])
    assert (replaced.inserted, replaced.deleted, replaced.kept) == (1, 0, 5)
    # Equal as the table stores it: a text of digits in a column of integers.
    assert db.replace("messages", key=KEY, rows=[{"SEQ": "6", "body": "new"}]).kept == 1
    db.close()


def test_a_different_row_in_the_same_place_is_a_conflict_that_names_no_value(db: writelane.Database) -> None:
    append(db, 6)
    with pytest.raises(writelane.Conflict, match=r"table messages \(session, seq\)") as raised:
        db.replace("messages", key=KEY, rows=[message(1, "secret"), message(6, "secret")], expected=OLD)
    assert raised.value.columns == ("session", "seq")
    assert "secret" not in str(raised.value)
    assert len(history(db)) == 6
    db.close()


def test_other_constraints_are_raised_as_they_are(db: writelane.Database) -> None:
    db.execute("CREATE TABLE strict_messages(session, body NOT NULL ON CONFLICT ROLLBACK)")
    with pytest.raises(writelane.IntegrityError, match="NOT NULL") as raised:
        db.replace("strict_messages", key=KEY, rows=[{"body": "a"}, {"body": None}])
    assert not isinstance(raised.value, writelane.Conflict)
    assert db.execute("SELECT count(*) FROM strict_messages").rows == [(0,)]
    db.close()


def test_equal_rows_of_a_table_without_a_key_are_counted_apart(db: writelane.Database) -> None:
    db.execute("CREATE TABLE log(session, body)")
    db.executemany("INSERT INTO log VALUES ('s', ?)", [("a",), ("a",), ("b",)])
    replaced = db.replace("log", key=KEY, rows=[], expected=[{"body": "a"}])
    assert replaced.deleted == 1
    assert db.execute("SELECT body FROM log ORDER BY body").rows == [("a",), ("b",)]
    db.close()


def test_what_is_wrong_with_the_call_is_said(db: writelane.Database) -> None:
    with pytest.raises(writelane.OperationalError, match="no column named sess"):
        db.replace("messages", key={"sess": 1}, rows=[])
    with pytest.raises(writelane.OperationalError, match="no column named text"):
        db.replace("messages", key=KEY, rows=[{"text": 1}])
    with pytest.raises(ValueError, match=r"rows\[0\] has another value than the key in column 'session'"):
        db.replace("messages", key=KEY, rows=[{"session": "t", "seq": 1}])
    with pytest.raises(ValueError, match="at least one column"):
        db.replace("messages", key={}, rows=[])
    with pytest.raises(TypeError, match=r"rows\[0\] must be a mapping"):
        db.replace("messages", key=KEY, rows=[("s", 1)])  # type: ignore[list-item]
    db.close()
