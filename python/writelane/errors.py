"""The exceptions of writelane.

Those of the standard library's ``sqlite3`` are re-exported, not copied, so ``except sqlite3.IntegrityError`` in
untouched code goes on working; our own derive from them.

Exceptions raised by a :class:`writelane.Database` carry, beside ``sqlite_errorcode`` and ``sqlite_errorname``:
``waited`` (a mapping of ``queue``, ``lock``, ``run`` and ``commit`` to seconds), ``retries``, ``holder`` (who held the
lock, a mapping with ``pid``, ``command``, ``statement``, ``seconds`` and ``stopped``, or ``None``), ``statement`` (the
SQL text, without parameters) and ``position`` (which call of a batch or row of many, from 0). Those of a constraint
say ``table`` and ``columns`` too (a tuple of names; empty for CHECK and foreign keys), and never a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from sqlite3 import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from typing import TypeVar

__all__ = [
    "Closed",
    "CommitUncertain",
    "Conflict",
    "DataError",
    "DatabaseError",
    "Error",
    "ForkError",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "MigrationFailed",
    "NewerSchema",
    "NotSupportedError",
    "OperationalError",
    "OwnedElsewhere",
    "Poisoned",
    "ProgrammingError",
    "QueueFull",
    "UnsafeFilesystem",
    "Warning",
    "WriteTimeout",
]


class WriteTimeout(OperationalError, TimeoutError):
    """The deadline passed before the write ran; nothing of it is in the database."""

    waited: Mapping[str, float]
    holder: Mapping[str, object] | None


class QueueFull(OperationalError):
    """The write queue stayed full until the deadline; nothing was queued."""


class CommitUncertain(OperationalError):
    """COMMIT, or the flush after it, failed so that nobody knows what a crash of the machine would leave of the write.

    It may be visible already. Look for it before you write it again.
    """


class Closed(ProgrammingError):
    """The database object was closed."""


class ForkError(ProgrammingError):
    """The object was made by the parent of this process; open the database again after a fork."""


class Poisoned(InternalError):
    """The writer thread died; a write under way may or may not be committed."""


class Conflict(IntegrityError):
    """The rows to be rewritten are not as expected; nothing was written. ``table`` and ``columns`` say where."""

    table: str
    columns: tuple[str, ...]


class MigrationFailed(OperationalError):
    """A migration failed and was rolled back; ``step`` says which, from 1, and ``__cause__`` why."""

    step: int


class NewerSchema(OperationalError):
    """The file has had more migrations than the program knows."""


class UnsafeFilesystem(OperationalError):
    """The file lies where SQLite's locks or its shared memory cannot be trusted."""


class OwnedElsewhere(OperationalError):
    """Another process owns the file exclusively."""


_Raised = TypeVar("_Raised", bound=Error)


def with_code(error: _Raised, code: int, name: str) -> _Raised:
    """Give an error of ours the result code that it stands for. (Only Python 3.11 knows these attributes.)"""
    error.sqlite_errorcode = code  # type: ignore[attr-defined]
    error.sqlite_errorname = name  # type: ignore[attr-defined]
    return error
