"""``writelane waits``: the statements that lost time to waiting, and who was in the way."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from writelane.cli.outcome import Outcome
from writelane.plain_text import one_line, printable
from writelane.report import Blocker, Pinned, Report, Statement, from_file, watched
from writelane.telemetry_file import VARIABLE

__all__ = ["configure", "run", "text"]

#: The characters of the longest bar.
BAR = 24

#: The characters of a statement that fit a line.
WIDTH = 72

#: Statements, and holders, that people are shown.
SHOWN = 15


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "source",
        nargs="?",
        default=os.environ.get(VARIABLE),
        metavar="FILE|DB",
        help=f"a telemetry file (default: that of {VARIABLE}), or a database to watch from outside for a while",
    )
    parser.add_argument(
        "--for", dest="seconds", type=float, default=5.0, metavar="SECONDS", help="how long to watch (default: 5)"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with plots, which opens without network")


def run(arguments: argparse.Namespace) -> Outcome:
    """Make the report."""
    if not arguments.source:
        raise ValueError(f"name a telemetry file or a database, or set {VARIABLE}")
    source = arguments.source
    report = watched(source, arguments.seconds) if is_database(source) else from_file(source)
    shown = text(report)
    if arguments.html:
        from writelane.report_page import page

        Path(arguments.html).write_text(page(report), encoding="utf-8")
        shown += f"\n\nplots: {arguments.html}"
    return Outcome("waits", 0, report.to_dict(), shown)


def is_database(path: str) -> bool:
    """Say whether a file is a database and no telemetry file."""
    # What stands beside a database in use tells without opening it, which would drop locks that this process may have.
    if any(os.path.exists(path + ending) for ending in ("-wal", "-journal", "-shm", "-lane")):
        return True
    with open(path, "rb") as file:
        start = file.read(16)
    return start.startswith(b"SQLite format 3\0") or not start


def text(report: Report) -> str:
    """Describe the report to people."""
    lines = [printable(_head(report))]
    statements = [one for one in report.by_loss() if one.lost > 0 or report.how == "file"]
    lines += _by_statement(statements) if statements else ["nobody waited"]
    blockers = report.by_blame()
    if blockers:
        lines += ["", "in the way:"]
        worst = max(one.seconds for one in blockers) or 1.0
        lines += [_blocker(one, worst) for one in blockers[:SHOWN]]
    if report.pinned:
        lines += ["", "the log could not shrink, because of a reader:"]
        lines += [_pinned(one) for one in report.pinned[-SHOWN:]]
    if report.unread:
        lines += ["", f"{report.unread} lines could not be read"]
    return "\n".join(lines)


def _by_statement(statements: list[Statement]) -> list[str]:
    worst = max(one.lost for one in statements) or 1.0
    lines = ["", f"{'lost s':>9} {'count':>8} {'longest':>9} {'queue':>8} {'lock':>8}  statement"]
    for one in statements[:SHOWN]:
        lines += [_row(one), "  " + _bar(one.lost / worst) + _notes(one)]
    if len(statements) > SHOWN:
        lines.append(f"... and {len(statements) - SHOWN} more statements")
    return lines


def _head(report: Report) -> str:
    if report.how == "outside":
        span = (report.ended or 0) - (report.began or 0)
        return (
            f"{report.source}: watched from outside for {span:.1f} s; waits between processes only. For all statements "
            f"and phases, set {VARIABLE} for the processes and read that file."
        )
    if report.began is None or report.ended is None:
        return f"{report.source}: nothing yet"
    began, ended = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (report.began, report.ended))
    return f"{report.source}: {began} to {ended}, {len(report.processes)} processes, {len(report.databases)} databases"


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest]).ljust(BAR)[:BAR]


def _short(words: str | None) -> str:
    return one_line(words, WIDTH)


def _row(one: Statement) -> str:
    longest = f"{one.longest:9.3f}" if one.longest else f"{'':9}"
    seconds = one.seconds
    return f"{one.lost:9.3f} {one.count:8} {longest} {seconds['queue']:8.3f} {seconds['lock']:8.3f}  {_short(one.sql)}"


def _notes(one: Statement) -> str:
    notes = [f"{count} {name}" for name, count in sorted(one.errors.items())]
    notes += [f"{one.retries} retries"] if one.retries else []
    return "  " + ", ".join(notes) if notes else ""


def _blocker(one: Blocker, worst: float) -> str:
    who = f"process {one.pid}" if one.pid is not None else "unknown"
    what = f" with {_short(one.statement)!r}" if one.statement else ""
    return f"{one.seconds:9.3f} s {_bar(one.seconds / worst)} {who} {_short(one.command)}{what}"


def _pinned(one: Pinned) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.since))
    line = f"{one.seconds:9.3f} s since {since}{', and was not seen to end' if one.watchers else ''}: {one.pages} pages"
    who = ", ".join(f"process {pid} {_short(command)}".rstrip() for pid, command in sorted(one.readers.items()))
    return f"{line} of {printable(one.database)}, read by {who or 'somebody unknown'}"
