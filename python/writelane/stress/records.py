"""What every process writes down, at once and to a file of its own, so that it outlives the process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Kind", "Log", "Outcome", "Record", "first_mark", "read_log"]

#: Bits of a mark that number the rows of one writing thread; those above number the writer.
SERIAL_BITS = 32


class Kind(IntEnum):
    """What was done."""

    TURN = 0
    DELIVER = 1
    EVENT = 2
    FACT = 3
    HOLD = 4
    FOREIGN = 5


class Outcome(IntEnum):
    """How it went."""

    DONE = 0
    CONTENTION = 1
    """It failed because somebody else had the lock."""
    ERROR = 2
    """It failed of something else."""
    DROPPED = 3
    """Best-effort work that was given up."""


class Record(NamedTuple):
    """One thing that was done."""

    kind: int
    outcome: int
    session: int
    mark: int
    """The mark of its first row; the others have the following ones."""
    rows: int
    end: float
    """When it was over, on the clock that all processes of a host share (``time.monotonic``)."""
    seconds: float


# Kind, outcome, session, mark, rows, end, seconds.
LAYOUT = struct.Struct("<BBiqIdd")


def first_mark(writer: int) -> int:
    """Return the first of the marks of a writer, which no other writer uses."""
    return (writer + 1) << SERIAL_BITS


class Log:
    """The file that one process appends its records to; for any thread of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, record: Record) -> None:
        """Append a record. It is in the file when this returns."""
        os.write(self._descriptor, LAYOUT.pack(*record))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_log(path: Path) -> Iterator[Record]:
    """Return the records of a file, without one that was cut short by the end of its process."""
    content = path.read_bytes()
    whole = len(content) - len(content) % LAYOUT.size
    return (Record(*fields) for fields in LAYOUT.iter_unpack(content[:whole]))
