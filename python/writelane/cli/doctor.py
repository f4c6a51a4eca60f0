"""``writelane doctor``: what is the matter with this database?"""

from __future__ import annotations

import argparse

from writelane.cli.outcome import Outcome, ProgressLine
from writelane.doctor import Diagnosis, diagnose

__all__ = ["configure", "run"]

SIGNS = {"ok": "   ", "info": " i ", "warning": " ! ", "error": "!! "}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument("--full", action="store_true", help="also compare indexes with their tables")
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="how long to wait for a lock (default: 5)"
    )
    parser.add_argument("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Look at everything. 0: all is well; 1: there are warnings; 2: there are errors."""
    line = ProgressLine(arguments.progress)
    try:
        found = diagnose(
            arguments.database,
            full=arguments.full,
            timeout=arguments.timeout,
            progress=lambda progress: line(str(progress)),
        )
    finally:
        line.close()
    return Outcome("doctor", found.status, found.to_dict(), _text(found))


def _text(found: Diagnosis) -> str:
    lines = [f"{found.path}: {found.severity}"]
    for finding in found.findings:
        lines.append(f"{SIGNS[finding.severity]}{finding.topic}: {finding.summary}")
        if finding.next_step and finding.severity != "ok":
            lines.append(f"     next: {finding.next_step}")
    return "\n".join(lines)
