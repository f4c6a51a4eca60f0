"""A database as the text of the SQL that makes it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from writelane.errors import OperationalError


def quoted_name(name: str) -> str:
    """Return a name as SQL has it, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as SQL has it, in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def _has_violations(cursor: Any) -> bool:
    try:
        return cursor.execute("PRAGMA foreign_key_check").fetchone() is not None
    except OperationalError:
        # A reference to columns that cannot be referred to: then nothing is checked when rows are inserted either.
        return False


def iterdump(connection: Any, *, filter: str | None = None) -> Iterator[str]:
    """Yield the statements that make the database again; with `filter` only the objects whose names are LIKE it."""
    cursor = connection.cursor()
    # The names and the statements are wanted as they are, whatever the application makes of its own rows.
    cursor.row_factory = None
    condition, parameters = ("", ()) if filter is None else (" AND name LIKE ?", (filter,))
    tables: list[tuple[str, str, str]] = cursor.execute(
        f"SELECT name, type, sql FROM sqlite_master WHERE sql NOT NULL AND type == 'table'{condition} ORDER BY name",
        parameters,
    ).fetchall()

    if _has_violations(cursor):
        # What is not as it should be must be made again all the same.
        yield "PRAGMA foreign_keys=OFF;"
    yield "BEGIN TRANSACTION;"

    sequences: list[str] = []
    schema_is_writable = False
    for name, _, sql in tables:
        if name == "sqlite_sequence":
            rows = cursor.execute('SELECT "name", "seq" FROM "sqlite_sequence"').fetchall()
            sequences = ['DELETE FROM "sqlite_sequence"']
            sequences += [f'INSERT INTO "sqlite_sequence" VALUES({quoted_text(row[0])},{row[1]})' for row in rows]
            continue
        if name == "sqlite_stat1":
            yield 'ANALYZE "sqlite_master";'
        elif name.startswith("sqlite_"):
            continue
        elif sql.startswith("CREATE VIRTUAL TABLE"):
            if not schema_is_writable:
                schema_is_writable = True
                yield "PRAGMA writable_schema=ON;"
            # Its own tables hold its rows, so it is entered in the schema without being made anew.
            yield (
                "INSERT INTO sqlite_master(type,name,tbl_name,rootpage,sql)"
                f"VALUES('table',{quoted_text(name)},{quoted_text(name)},0,{quoted_text(sql)});"
            )
            continue
        else:
            yield f"{sql};"
        columns = [row[1] for row in cursor.execute(f"PRAGMA table_info({quoted_name(name)})").fetchall()]
        values = " || ',' || ".join(f"quote({quoted_name(column)})" for column in columns)
        start = quoted_text(f"INSERT INTO {quoted_name(name)} VALUES(")
        for row in cursor.execute(f"SELECT {start} || {values} || ')' FROM {quoted_name(name)}"):
            yield f"{row[0]};"

    others = cursor.execute(
        "SELECT name, type, sql FROM sqlite_master"
        f" WHERE sql NOT NULL AND type IN ('index', 'trigger', 'view'){condition}",
        parameters,
    ).fetchall()
    for _, _, sql in others:
        yield f"{sql};"
    if schema_is_writable:
        yield "PRAGMA writable_schema=OFF;"
    for statement in sequences:
        yield f"{statement};"
    yield "COMMIT;"
