"""``writelane checkpoint``: copy the log into the database now, and say how far that came."""

from __future__ import annotations

import argparse
import os

from writelane import processes
from writelane.cli.outcome import Outcome
from writelane.database import open
from writelane.errors import OperationalError

__all__ = ["configure", "run"]

MODES = ("passive", "full", "truncate")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="passive",
        help="passive waits for nobody, full waits for readers of old snapshots, truncate likewise and cuts the log "
        "file to nothing (default: passive)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the turn and for readers (default: 30)",
    )


def run(arguments: argparse.Namespace) -> Outcome:
    """Checkpoint in turn. 0: all of the log is in the database; 1: something was in the way."""
    path = arguments.database
    if not os.path.exists(path):
        raise OperationalError(f"{path} does not exist")
    with open(path, journal="keep", warn_after=None, telemetry=False) as db:
        busy, log, checkpointed = db.checkpoint(arguments.mode, deadline=arguments.timeout)
        left = bool(busy) or checkpointed < log
        # Looked up before this process lets the file go, while whoever was in the way most likely still is.
        readers = _readers(path) if left else []
    document = {
        "database": path,
        "mode": arguments.mode,
        "busy": bool(busy),
        "log": log,
        "checkpointed": checkpointed,
        "readers": readers,
    }
    return Outcome("checkpoint", 1 if left else 0, document, _text(path, bool(busy), log, checkpointed, readers))


def _readers(path: str) -> list[int]:
    """Return the processes of other programs that read the log, as far as this user can see them."""
    held = processes.locks(path)
    return sorted({lock.pid for lock in held if lock.kind == "read" and not lock.waiting and lock.pid > 0})


def _text(path: str, busy: bool, log: int, checkpointed: int, readers: list[int]) -> str:
    if log < 0 and not busy:
        return f"{path}: there is no write-ahead log"
    if log < 0:
        return f"{path}: another checkpoint is running"
    text = f"{path}: {log} pages in the log, {checkpointed} of them in the database"
    if not busy and checkpointed >= log:
        return text
    named = ", ".join(f"process {pid}" for pid in readers)
    return f"{text}; " + (f"readers of the log: {named}" if named else "a reader or another checkpoint is in the way")
