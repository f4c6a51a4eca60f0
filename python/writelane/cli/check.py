"""``writelane check``: is this database sound?"""

from __future__ import annotations

import argparse

from writelane.cli.outcome import Outcome, ProgressLine
from writelane.integrity import Examination, examine

__all__ = ["configure", "run"]

#: What people are shown; the JSON document has all that were kept.
SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument("--quick", action="store_true", help="do not compare indexes with their tables")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="how long to wait for a lock (default: 30)"
    )
    parser.add_argument("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Check the database and say what is wrong with it."""
    line = ProgressLine(arguments.progress)
    try:
        found = examine(
            arguments.database, quick=arguments.quick, timeout=arguments.timeout, progress=lambda p: line(str(p))
        )
    finally:
        line.close()
    return Outcome("check", status(found), found.to_dict(), text(found), failed=not found.looked)


def status(found: Examination) -> int:
    """Return the exit status: 0 sound, 1 unsound, 2 could not be looked at."""
    return 0 if found.sound else 1 if found.looked else 2


def text(found: Examination) -> str:
    """Describe an examination to people."""
    lines = [f"{found.path}: {found.summary}"]
    lines += [f"  {problem.kind}: {problem.message}" for problem in found.problems[:SHOWN]]
    if found.problems_found > SHOWN:
        lines.append(f"  ... and {found.problems_found - SHOWN} more")
    if found.next_step:
        lines.append(f"next: {found.next_step}")
    return "\n".join(lines)
