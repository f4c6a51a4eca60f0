"""``writelane top``: who holds a database's lock, and who waits for it, live and from outside."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from writelane.cli.outcome import Outcome
from writelane.outside import look
from writelane.plain_text import one_line, printable

__all__ = ["configure", "run", "text"]

#: The characters of a statement or a command that fit a line.
WIDTH = 70


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")
    parser.add_argument("--once", action="store_true", help="look once and end; so does --json, and a pipe")
    parser.add_argument(
        "--interval", type=float, default=0.5, metavar="SECONDS", help="time between two looks (default: 0.5)"
    )


def run(arguments: argparse.Namespace) -> Outcome | int:
    """Look once, or until Ctrl-C."""
    if arguments.once or arguments.json or not sys.stdout.isatty():
        seen = look(arguments.database)
        return Outcome("top", 0, seen, text(seen))
    try:
        while True:
            lines = text(look(arguments.database)).split("\n")
            # From the corner, each line to its end, then everything below: nothing flickers and nothing stays.
            screen = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in [*lines, "", "Ctrl-C ends"]) + "\x1b[J"
            sys.stdout.write(screen)
            sys.stdout.flush()
            time.sleep(max(0.05, arguments.interval))
    except KeyboardInterrupt:
        return 0


def _short(words: str | None) -> str:
    return one_line(words, WIDTH)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _bytes(count: int | None) -> str:
    if count is None:
        return "none"
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def text(seen: dict[str, Any]) -> str:
    """Describe what was seen to people."""
    lines = [
        f"{printable(seen['database'])}   {time.strftime('%H:%M:%S', time.localtime(seen['at']))}",
        f"database {_bytes(seen['database_bytes'])}, log {_bytes(seen['log_bytes'])}, checkpoint {_checkpoint(seen)}",
        _open_by(seen),
        "",
        f"{'':8} {'pid':>8} {'for':>9}  {'statement':{WIDTH}}  command",
    ]
    holder = seen["holder"]
    if holder:
        state = "stopped" if holder["stopped"] else "holds"
        lines.append(_row(state, holder["pid"], holder["seconds"], holder["statement"], holder["command"]))
    else:
        lines.append("nobody holds the lock" if seen["locked"] is False else "who holds the lock cannot be told")
    for waiter in seen["waiters"]:
        state = "stopped" if waiter["stopped"] else "next" if waiter["in_front"] else "waits"
        more = f" (and {waiter['threads'] - 1} more threads)" if waiter["threads"] > 1 else ""
        lines.append(_row(state, waiter["pid"], waiter["seconds"], waiter["statement"], waiter["command"] + more))
    if seen["trouble"]:
        lines += ["", f"the lane file cannot be read, so processes of writelane are not named: {seen['trouble']}"]
    return "\n".join(lines)


def _row(state: str, pid: int | None, seconds: float | None, statement: str | None, command: str | None) -> str:
    shown = _short(statement) if statement else "(not told: a process outside writelane)"
    return f"{state:8} {pid or '?':>8} {_seconds(seconds):>9}  {shown:{WIDTH}}  {_short(command)}"


def _checkpoint(seen: dict[str, Any]) -> str:
    pid = seen["checkpoint"]["foreign_pid"]
    return f"run by process {pid}" if pid else "running" if seen["checkpoint"]["running"] else "idle"


def _open_by(seen: dict[str, Any]) -> str:
    def pids(numbers: list[int]) -> str:
        return ", ".join(map(str, numbers)) or "none"

    line = f"writers of writelane: {pids(seen['members'])}; other processes: {pids(seen['foreign'])}"
    return line + (f", of which read: {pids(seen['foreign_readers'])}" if seen["foreign_readers"] else "")
