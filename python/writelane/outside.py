"""A database as a bystander sees it: who holds its lock, who waits, how long its log is.

Nothing here opens the database, its log or its shared memory, so nobody's locks can be dropped by it; and it works
while every writer is stuck.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from writelane import _native

__all__ = ["look"]


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def look(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return who is on the database right now, as plain dictionaries, lists, strings and numbers.

    ``holder`` (``pid``, ``command``, ``statement``, ``seconds``, ``stopped``; ``None`` if it is free or cannot be told,
    see ``locked``), ``waiters`` in the order they will be served, ``members`` (processes of writelane), ``foreign``
    (other processes that have it open), ``foreign_readers``, ``checkpoint`` (``running``, ``foreign_pid``), and
    ``database_bytes``, ``log_bytes``. Raises ``FileNotFoundError``.
    """
    real = os.path.realpath(path)
    size = os.stat(real).st_size
    seen = _native.look(Path(real))
    checkpoint = {"running": seen.pop("checkpointing"), "foreign_pid": seen.pop("foreign_checkpoint")}
    holder = seen["holder"]
    # A checkpoint of ours is known by the statement that whoever runs it publishes.
    if holder and holder["statement"] and "wal_checkpoint" in holder["statement"]:
        checkpoint["running"] = True
    return {
        "database": real,
        "at": time.time(),
        **seen,
        "checkpoint": checkpoint,
        "database_bytes": size,
        "log_bytes": _size(real + "-wal"),
    }
