"""Numbers for rows: dense, each given once, also across processes and crashes.

The next number of a sequence is kept in the table ``writelane_sequences`` and counted up in the transaction that uses
it. A transaction that comes to nothing gives its number back with everything else it did, so no gap is left, and a
number that was committed is never given again, even after its row is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from writelane import _native
from writelane.errors import OperationalError

if TYPE_CHECKING:
    from writelane.database import Batch

__all__ = ["CREATE", "NEXT", "Key", "NextId", "next_id", "next_in", "prepare"]

#: What a sequence may be of: one of SQLite's own types. Text and numbers are kept apart, NULL is the empty text.
Key = str | int | float | bytes | None

CREATE = (
    "CREATE TABLE IF NOT EXISTS writelane_sequences("
    "name TEXT NOT NULL, key BLOB NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (name, key)) WITHOUT ROWID"
)
NEXT = (
    "INSERT INTO writelane_sequences(name, key, value) VALUES (?, ?, 1) "
    "ON CONFLICT (name, key) DO UPDATE SET value = value + 1 RETURNING value"
)


class _Runs(Protocol):
    def execute(self, sql: str, parameters: tuple[object, ...] = ..., /) -> _native.Result: ...


class NextId(_native.Earlier):
    """The number that a batch will take from a sequence: a parameter for the statements after it in the same batch."""

    _batch: Batch

    @property
    def value(self) -> int:
        """The number, once the batch has been committed; ``RuntimeError`` before."""
        if not self._batch.results:
            raise RuntimeError("the number is known when the batch has been committed")
        rows = self._batch.results[self.call].rows
        if not rows:
            raise RuntimeError("the batch was offered, and nobody is told what became of it")
        value: int = rows[0][0]
        return value

    def __int__(self) -> int:
        return self.value


def _parameters(name: str, key: Key) -> tuple[str, str | int | float | bytes]:
    return (name, "" if key is None else key)


def _is_missing_table(error: OperationalError) -> bool:
    return "no such table: writelane_sequences" in str(error)


def next_in(runs: _Runs, name: str, key: Key = None) -> int:
    """Return the next number, taken by whatever has an ``execute``: a database or an open transaction."""
    try:
        rows = runs.execute(NEXT, _parameters(name, key)).rows
    except OperationalError as error:
        if not _is_missing_table(error):
            raise
        runs.execute(CREATE)
        rows = runs.execute(NEXT, _parameters(name, key)).rows
    value: int = rows[0][0]
    return value


class _Required:
    """A database whose writes are required, also inside a best-effort block: a number cannot be given later."""

    def __init__(self, database: _native.Database) -> None:
        self._database = database

    def execute(self, sql: str, parameters: tuple[object, ...] = (), /) -> _native.Result:
        return _native.Database.execute(self._database, sql, parameters)


def next_id(database: _native.Database, name: str, key: Key = None) -> int:
    """Take the next number in a transaction of its own. Blocks and raises as a write."""
    return next_in(_Required(database), name, key)


def prepare(database: _native.Database) -> None:
    """Create the table where it is missing; a batch cannot do it when it finds out."""
    sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'writelane_sequences'"
    if not _native.Database.execute(database, sql).rows:
        _native.Database.execute(database, CREATE)


def next_in_batch(batch: Batch, name: str, key: Key) -> NextId:
    """Add the taking of a number to a batch and return its placeholder."""
    number = NextId(len(batch))
    number._batch = batch
    batch.execute(NEXT, _parameters(name, key))
    return number
