"""One shared SQLite file, many writers, and no write that dies of contention.

>>> import writelane
>>> db = writelane.open("app.db")
>>> db.execute("CREATE TABLE IF NOT EXISTS t(x)")
>>> db.execute("INSERT INTO t(x) VALUES (?)", (1,)).waited
"""

from __future__ import annotations

import writelane.exit  # noqa: F401  (registers what is done at the interpreter's exit)
from writelane._native import Result, Transaction, sqlite_version, uuid7
from writelane.checkpoints import Checkpoints
from writelane.database import Batch, Database, open
from writelane.errors import (
    Closed,
    CommitUncertain,
    Conflict,
    DatabaseError,
    DataError,
    Error,
    ForkError,
    IntegrityError,
    InterfaceError,
    InternalError,
    MigrationFailed,
    NewerSchema,
    NotSupportedError,
    OperationalError,
    OwnedElsewhere,
    Poisoned,
    ProgrammingError,
    QueueFull,
    UnsafeFilesystem,
    Warning,
    WriteTimeout,
)
from writelane.futures import WriteFuture
from writelane.history import Replaced
from writelane.notices import Notice
from writelane.retention import Pruned
from writelane.schedule import JobStatus, Schedule
from writelane.sequences import NextId
from writelane.substitution import install
from writelane.telemetry import Telemetry

__all__ = [
    "Batch",
    "Checkpoints",
    "Closed",
    "CommitUncertain",
    "Conflict",
    "DataError",
    "Database",
    "DatabaseError",
    "Error",
    "ForkError",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "JobStatus",
    "MigrationFailed",
    "NewerSchema",
    "NextId",
    "NotSupportedError",
    "Notice",
    "OperationalError",
    "OwnedElsewhere",
    "Poisoned",
    "ProgrammingError",
    "Pruned",
    "QueueFull",
    "Replaced",
    "Result",
    "Schedule",
    "Telemetry",
    "Transaction",
    "UnsafeFilesystem",
    "Warning",
    "WriteFuture",
    "WriteTimeout",
    "install",
    "open",
    "sqlite_version",
    "uuid7",
]
