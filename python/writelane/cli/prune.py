"""``writelane prune``: delete old rows in the gaps between other work."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from typing import Any

from writelane.cli.outcome import Outcome, ProgressLine
from writelane.database import open
from writelane.errors import OperationalError
from writelane.retention import count

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument("table", help="the table whose rows are deleted")
    parser.add_argument(
        "--older-than",
        nargs=2,
        action="append",
        default=[],
        metavar=("COLUMN", "CUTOFF"),
        help="rows whose COLUMN is less than CUTOFF; a number where it looks like one, else a text",
    )
    parser.add_argument("--where", metavar="SQL", help="rows of which this is true, instead or beside")
    parser.add_argument("--chunk", type=int, metavar="N", help="the most rows deleted in one transaction")
    parser.add_argument("--pause", type=float, metavar="SECONDS", help="between two chunks")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="end unfinished after this time")
    parser.add_argument("--foreign-keys", action="store_true", help="enforce foreign keys, and cascade")
    parser.add_argument("--dry-run", action="store_true", help="count the rows and delete none")
    parser.add_argument("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Delete the rows, or count them."""
    older_than = {column: _value(cutoff) for column, cutoff in arguments.older_than}
    if not os.path.exists(arguments.database):
        raise OperationalError(f"{arguments.database} does not exist")
    document: dict[str, Any] = {"database": arguments.database, "table": arguments.table}
    if arguments.dry_run:
        with open(arguments.database, readonly=True) as db:
            rows = count(db, arguments.table, older_than=older_than, where=arguments.where, parameters=())
        text = f"{arguments.database}: {rows} rows of {arguments.table} would be deleted"
        return Outcome("prune", 0, {**document, "would_delete": rows}, text)
    line = ProgressLine(arguments.progress)
    with open(arguments.database, journal="keep") as db:
        if arguments.foreign_keys:
            db.execute("PRAGMA foreign_keys = ON")
        try:
            pruned = db.prune(
                arguments.table,
                older_than=older_than,
                where=arguments.where,
                chunk=arguments.chunk,
                pause=arguments.pause,
                deadline=arguments.deadline,
                progress=lambda so_far: line(f"deleted {so_far.deleted} rows of {so_far.table}"),
            )
        finally:
            line.close()
    text = (
        f"{arguments.database}: deleted {pruned.deleted} rows of {pruned.table} in {pruned.chunks} chunks, "
        f"{pruned.seconds:.1f} s, {pruned.held:.1f} s of them with the lock held"
    )
    if not pruned.finished:
        text += f"\nnot finished: {pruned.reason}; run it again to go on"
    return Outcome("prune", 0 if pruned.finished else 1, {**document, "pruned": dataclasses.asdict(pruned)}, text)


def _value(text: str) -> int | float | str:
    if re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        return float(text)
    return text
