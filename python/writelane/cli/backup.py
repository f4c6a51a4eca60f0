"""``writelane backup``: a consistent copy of a database that is being written."""

from __future__ import annotations

import argparse

from writelane.backup import SUFFIXES, backup
from writelane.cli.outcome import Outcome, ProgressLine

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument("destination", help="the file to make, or a folder, where it gets a name with the time in it")
    parser.add_argument("--force", action="store_true", help="replace the destination")
    parser.add_argument("--verify", action="store_true", help="run the full check on the copy before it gets its name")
    parser.add_argument(
        "--compress", nargs="?", const="gzip", choices=sorted(SUFFIXES), help="compress the copy (default: gzip)"
    )
    parser.add_argument("--keep", type=int, metavar="N", help="in a folder, keep only the N newest copies")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="how long to wait for a lock (default: 30)"
    )
    parser.add_argument("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Make the copy."""
    line = ProgressLine(arguments.progress)
    try:
        made = backup(
            arguments.database,
            arguments.destination,
            force=arguments.force,
            verify=arguments.verify,
            compress=arguments.compress,
            keep=arguments.keep,
            timeout=arguments.timeout,
            progress=lambda done, total: line(f"copied {done} of {total} pages ({100 * done // max(total, 1)} %)"),
        )
    finally:
        line.close()
    text = f"{made.path}: {made.pages} pages, {made.size / 1e6:.1f} MB in {made.seconds:.1f} s"
    text += ", checked" if made.verified else ""
    text += f", {len(made.removed)} older removed" if made.removed else ""
    return Outcome("backup", 0, {"database": arguments.database, "backup": made.to_dict()}, text)
