"""What a table is made of, as far as bookkeeping must know it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from writelane import _native
from writelane.errors import OperationalError, with_code

__all__ = ["Table", "quoted"]

#: The names of the rowid, of which a table may have taken some for columns of its own.
_ROWID_NAMES = ("rowid", "_rowid_", "oid")


def quoted(name: str) -> str:
    """Quote a name for SQL. It must be known to exist: SQLite takes an unknown one for a text."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Table:
    """A table of the main database."""

    #: As its schema spells it.
    name: str
    #: Its columns, but no hidden ones.
    columns: tuple[str, ...]
    #: What tells its rows apart, quoted: the rowid, or the columns of the primary key.
    identity: tuple[str, ...]

    @classmethod
    def find(cls, database: _native.Database, name: str) -> Table:
        """Look a table up. Raises ``OperationalError`` for one that is not there or holds no rows of its own."""
        read = _native.Database.execute
        sql = "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)"
        rows = read(database, sql, (name,)).rows
        if not rows:
            raise _error(f"no such table: {name}")
        spelling, kind, without_rowid = rows[0]
        if kind == "view":
            raise _error(f"{spelling} is a view; name the table whose rows are meant")
        described = read(database, "SELECT name, pk, hidden FROM pragma_table_xinfo(?)", (spelling,)).rows
        columns = tuple(column for column, _, hidden in described if hidden != 1)
        if without_rowid:
            key = sorted((place, column) for column, place, _ in described if place)
            return cls(spelling, columns, tuple(quoted(column) for _, column in key))
        taken = {column.lower() for column, _, _ in described}
        free = [rowid for rowid in _ROWID_NAMES if rowid not in taken]
        if not free:
            raise _error(f"table {spelling} hides its rowid behind columns named {', '.join(_ROWID_NAMES)}")
        return cls(spelling, columns, (free[0],))

    @property
    def quoted(self) -> str:
        """The name, quoted for SQL."""
        return quoted(self.name)

    def spelling(self, column: str) -> str:
        """Return a column's name as the schema spells it."""
        for known in self.columns:
            if known.lower() == column.lower():
                return known
        raise _error(f"table {self.name} has no column named {column}; it has {', '.join(self.columns)}")

    def require(self, columns: Iterable[str]) -> None:
        """Raise ``OperationalError`` for a column that the table does not have."""
        for column in columns:
            self.spelling(column)


def _error(message: str) -> OperationalError:
    return with_code(OperationalError(message), 1, "SQLITE_ERROR")
