"""``writelane stress``: a fleet of agents against one file, with this library and with the standard module."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from writelane.cli.outcome import Outcome, ProgressLine
from writelane.stress import rehearse
from writelane.stress.drivers import DRIVERS
from writelane.stress.measures import Run
from writelane.stress.plan import DURABILITIES, Plan
from writelane.stress.report import text

__all__ = ["configure", "run"]

#: What `--compare` disturbs the fleet with unless it is told: longer than the standard module's time-out, twice.
COMPARE_HOLD_SECONDS, COMPARE_HOLDS = 6.5, 2
BAR_CHARACTERS = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    plan = Plan()
    add = parser.add_argument
    add("--compare", action="store_true", help="run the same fleet with plain sqlite3 first, and show both")
    add("--driver", choices=sorted(DRIVERS), default="writelane", help="what the agents use (default: writelane)")
    add("--processes", type=int, default=plan.processes, metavar="N", help="agents (default: %(default)s)")
    add("--threads", type=int, default=plan.threads, metavar="N", help="writing threads of each (default: %(default)s)")
    add("--turns", type=int, default=plan.turns, metavar="N", help="turns of each thread (default: %(default)s)")
    add("--size", type=float, default=plan.size_mb, metavar="MB", help="fill the database first (default: %(default)g)")
    add("--think", type=float, default=plan.think_ms, metavar="MS", help="mean pause in a turn (default: %(default)g)")
    add("--durability", choices=DURABILITIES, default=plan.durability, help="of both drivers (default: %(default)s)")
    add("--deadline", type=float, default=plan.deadline, metavar="SECONDS", help="of a write (default: %(default)g)")
    add("--hold", type=float, metavar="SECONDS", help="a foreign process holds the write lock this long")
    add("--holds", type=int, metavar="N", help="so often")
    add("--foreign-writers", type=int, default=0, metavar="N", help="plain sqlite3 processes that write meanwhile")
    add("--seed", type=int, default=plan.seed, metavar="N", help="of sizes, sessions and pauses (default: %(default)s)")
    add("--real", type=Path, metavar="FILE", help="work on a copy of this database; the file itself is only read")
    add("--keep", type=Path, metavar="DIR", help="make the files in this empty folder and keep them")
    add("--quiet", action="store_true", help="print nothing but errors; the exit status tells")
    add("--progress", action="store_true", default=None, help="show progress also off a terminal")


def run(arguments: argparse.Namespace) -> Outcome:
    """Run the fleet. Status 0: no error with the driver that is judged, and every acknowledged row is there once."""
    hold, holds = arguments.hold, arguments.holds
    if arguments.compare and hold is None and holds is None:
        hold, holds = COMPARE_HOLD_SECONDS, COMPARE_HOLDS
    if hold is None:
        hold = COMPARE_HOLD_SECONDS if holds else 0.0
    plan = Plan(
        processes=arguments.processes,
        turns=arguments.turns,
        threads=arguments.threads,
        size_mb=arguments.size,
        durability=arguments.durability,
        think_ms=arguments.think,
        hold_seconds=hold,
        holds=(1 if hold else 0) if holds is None else holds,
        foreign_writers=arguments.foreign_writers,
        deadline=arguments.deadline,
        seed=arguments.seed,
    )
    drivers = ["sqlite3", "writelane"] if arguments.compare else [arguments.driver]
    line = ProgressLine(False if arguments.quiet else arguments.progress)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        result = rehearse(
            plan,
            drivers,
            real=arguments.real,
            keep=arguments.keep,
            progress=lambda what, done, total: line(bar(what, done, total)),
        )
    finally:
        line.close()
        signal.signal(signal.SIGTERM, before)
    judged = result.runs[-1]
    told = "" if arguments.quiet else f"{text(result.plan, result.size / 1e6, result.runs)}\n\n{verdict(judged)}"
    if result.kept and told:
        told += f"\nthe files are in {result.kept}"
    return Outcome("stress", 0 if judged.clean else 1, result.to_dict(), told)


def _terminate(signum: int, frame: object) -> None:
    # As Ctrl-C: the children are ended, the files removed, and the one document is printed.
    raise KeyboardInterrupt(f"signal {signum}")


def bar(what: str, done: float, total: float) -> str:
    """Return a progress bar."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(share * BAR_CHARACTERS)
    return f"{what} [{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {done:.0f}/{total:.0f}"


def verdict(run: Run) -> str:
    """Say in one line what came of the run that is judged."""
    if run.clean:
        return f"{run.driver}: no error, and each of {run.verification.acknowledged} acknowledged rows is there once"
    faults = [
        f"{count} {what}"
        for what, count in (
            ("turns died", run.turns_dead),
            ("rows missing", run.verification.missing),
            ("rows doubled", run.verification.doubled),
            ("rows that nobody acknowledged", run.verification.unacknowledged),
            ("deliveries torn", run.verification.torn),
            ("updates lost", run.verification.lost_updates),
        )
        if count
    ]
    faults += [] if run.verification.integrity == ["ok"] else [run.verification.integrity[0]]
    return f"{run.driver}: {', '.join(faults) or 'errors'}"
