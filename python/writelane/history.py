"""Rewrite part of a table as one transaction, without losing what others appended meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from writelane import _native
from writelane.errors import Conflict, IntegrityError, with_code
from writelane.tables import Table, quoted

__all__ = ["Replaced", "Row", "replace"]

#: A row as a mapping of column to value. Columns of the key may be left out.
Row: TypeAlias = Mapping[str, Any]

#: The result codes (their low byte is SQLITE_CONSTRAINT) of a row whose place is taken.
#: Source: https://www.sqlite.org/rescode.html#constraint_unique
_TAKEN = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"}


@dataclass(frozen=True)
class Replaced:
    """What :meth:`writelane.Database.replace` did."""

    #: Rows that are new.
    inserted: int
    #: Rows that were there as expected and are gone.
    deleted: int
    #: Rows that were there already, equal in every column given.
    kept: int


def _matches(row: Row) -> str:
    return " AND ".join(f"{quoted(column)} IS ?" for column in row) or "1"


class _Rewrite:
    """One rewrite inside its transaction."""

    def __init__(self, transaction: _native.Transaction, table: Table, key: Row) -> None:
        self._run = transaction.execute
        self._table = table
        self._key = key

    def seen(self, count: int) -> list[dict[str, Any]]:
        """Return the first ``count`` rows of the key, in the order of the table's own key."""
        identity = self._table.identity
        order = ", ".join(identity)
        columns = ", ".join(map(quoted, self._table.columns))
        sql = f"SELECT {columns} FROM {self._table.quoted} WHERE {_matches(self._key)}"
        result = self._run(f"{sql} ORDER BY {order} LIMIT ?", (*self._key.values(), count))
        if len(result.rows) < count:
            raise self._conflict(f"{count} rows were expected and {len(result.rows)} are there: others removed some")
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]

    def has(self, row: Row) -> bool:
        sql = f"SELECT 1 FROM {self._table.quoted} WHERE {_matches(row)} LIMIT 1"
        return bool(self._run(sql, tuple(row.values())).rows)

    def delete(self, row: Row) -> None:
        """Delete one row that must be there unchanged."""
        identity = ", ".join(self._table.identity)
        chosen = f"SELECT {identity} FROM {self._table.quoted} WHERE {_matches(row)} LIMIT 1"
        sql = f"DELETE FROM {self._table.quoted} WHERE ({identity}) = ({chosen})"
        if self._run(sql, tuple(row.values())).rowcount != 1:
            raise self._conflict("a row that was to be replaced was changed or removed by others")

    def insert(self, row: Row) -> bool:
        """Insert a row; false if an equal one is there."""
        columns = ", ".join(map(quoted, row))
        marks = ", ".join("?" for _ in row)
        # ABORT, whatever the table's own constraints say: the transaction must outlive the refusal.
        sql = f"INSERT OR ABORT INTO {self._table.quoted}({columns}) VALUES ({marks})"
        try:
            self._run(sql, tuple(row.values()))
        except IntegrityError as error:
            if getattr(error, "sqlite_errorname", None) not in _TAKEN:
                raise
            if self.has(row):
                return False
            unique: tuple[str, ...] = getattr(error, "columns", ())
            raise self._conflict("a different row has the place of one of the new rows", unique) from error
        return True

    def _conflict(self, what: str, columns: tuple[str, ...] = ()) -> Conflict:
        where = f" ({', '.join(columns)})" if columns else ""
        conflict = Conflict(
            f"conflict in table {self._table.name}{where}, key columns {', '.join(self._key)}: {what}; nothing was "
            "written: read again and decide"
        )
        conflict.table = self._table.name
        conflict.columns = columns
        return with_code(conflict, 19, "SQLITE_CONSTRAINT")


def _completed(rows: Sequence[Row], key: Row, table: Table, what: str) -> list[dict[str, Any]]:
    completed = []
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"{what}[{position}] must be a mapping of column to value, not {type(row).__name__}")
        table.require(row)
        # By the table's own spelling, so that "ID" and "id" are one column.
        whole = {table.spelling(column): value for column, value in key.items()}
        for column, value in row.items():
            column = table.spelling(column)
            if column in whole and whole[column] != value:
                raise ValueError(f"{what}[{position}] has another value than the key in column {column!r}")
            whole[column] = value
        completed.append(whole)
    return completed


def replace(
    database: _native.Database,
    table: str,
    key: Row,
    rows: Sequence[Row],
    expected: Sequence[Row] | int | None,
    **options: Any,
) -> Replaced:
    """Do the work of :meth:`writelane.Database.replace`."""
    found = Table.find(database, table)
    if not key:
        raise ValueError("key must name at least one column: it says which rows are meant")
    found.require(key)
    new = _completed(rows, key, found, "rows")
    if expected is not None and not isinstance(expected, int):
        expected = _completed(expected, key, found, "expected")
    elif isinstance(expected, int) and expected < 0:
        raise ValueError("expected must not be negative")
    transaction = database.begin(f"replace in {found.name}", **options)
    try:
        rewrite = _Rewrite(transaction, found, {found.spelling(column): value for column, value in key.items()})
        old: list[dict[str, Any]] = (
            [] if expected is None else rewrite.seen(expected) if isinstance(expected, int) else list(expected)
        )
        kept = 0
        for row in list(old):
            # Rewriting a row by itself would only fire triggers and move its rowid.
            if row in new:
                if not rewrite.has(row):
                    raise rewrite._conflict("a row that was to stay was changed or removed by others")
                old.remove(row)
                new.remove(row)
                kept += 1
        for row in old:
            rewrite.delete(row)
        inserted = sum(rewrite.insert(row) for row in new)
        transaction.commit()
    finally:
        transaction.rollback()
    return Replaced(inserted, len(old), kept + len(new) - inserted)
