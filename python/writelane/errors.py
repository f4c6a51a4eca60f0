"""The exceptions of writelane.

Those of the standard library's ``sqlite3`` are re-exported, not copied, so ``except sqlite3.IntegrityError`` in
untouched code goes on working; our own derive from them.
"""

from __future__ import annotations

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

__all__ = [
    "DataError",
    "DatabaseError",
    "Error",
    "ForkError",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "WriteTimeout",
]


class WriteTimeout(OperationalError, TimeoutError):
    """The write lock did not come free in time; nothing of the statement was done.

    `waited` is in seconds; `holder` says who held the lock (`pid`, `command`, `statement`, `seconds`), or is None.
    """

    waited: float = 0.0
    holder: dict[str, object] | None = None


class ForkError(ProgrammingError):
    """An object was inherited through a fork; the child must make its own."""
