"""An error of a constraint says where, and of which statement, and never with which value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import writelane

SECRET = "correct horse battery staple"


@pytest.fixture
def db(tmp_path: Path) -> writelane.Database:
    db = writelane.open(tmp_path / "app.db")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE parent(id TEXT PRIMARY KEY)")
    db.execute(
        "CREATE TABLE child(a TEXT, b TEXT NOT NULL, p TEXT REFERENCES parent, "
        "n INTEGER CONSTRAINT small CHECK (n < 10), UNIQUE (a, b))"
    )
    db.execute("INSERT INTO child(a, b) VALUES (?, ?)", (SECRET, SECRET))
    return db


CASES: list[tuple[str, tuple[Any, ...], str, tuple[str, ...]]] = [
    (
        "INSERT INTO child(a, b) VALUES (?, ?)",
        (SECRET, SECRET),
        "UNIQUE constraint failed: child.a, child.b",
        ("a", "b"),
    ),
    ("INSERT INTO child(a) VALUES (?)", (SECRET,), "NOT NULL constraint failed: child.b", ("b",)),
    ("UPDATE child SET n = 11 WHERE a = ?", (SECRET,), "CHECK constraint failed: small .*table child", ()),
    ("INSERT INTO child(b, p) VALUES ('', ?)", (SECRET,), "FOREIGN KEY constraint failed .*table child", ()),
]


@pytest.mark.parametrize(("sql", "parameters", "message", "columns"), CASES)
@pytest.mark.parametrize("how", ["execute", "batch", "many", "transaction"])
def test_table_columns_and_statement_are_named(
    db: writelane.Database, sql: str, parameters: Any, message: str, columns: tuple[str, ...], how: str
) -> None:
    with pytest.raises(writelane.IntegrityError, match=message) as raised:
        if how == "execute":
            db.execute(sql, parameters)
        elif how == "many":
            db.executemany(sql, [parameters])
        elif how == "batch":
            with db.batch() as batch:
                batch.execute("INSERT INTO parent VALUES ('other')")
                batch.execute(sql, parameters)
        else:
            with db.transaction() as tx:
                tx.execute(sql, parameters)
    error: Any = raised.value
    assert (error.table, error.columns, error.statement) == ("child", columns, sql)
    assert error.position == {"execute": None, "many": 0, "batch": 1, "transaction": None}[how]
    if how == "batch":
        assert "call 1 of the batch" in str(error)
    assert SECRET not in str(error)
    assert error.retries == 0
    assert db.execute("SELECT count(*) FROM parent").rows == [(0,)]
    db.close()


def test_other_errors_name_no_table(db: writelane.Database) -> None:
    with pytest.raises(writelane.OperationalError) as raised:
        db.execute("INSERT INTO missing VALUES (1)")
    assert not hasattr(raised.value, "table")
    db.close()
