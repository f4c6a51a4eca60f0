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
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
]
