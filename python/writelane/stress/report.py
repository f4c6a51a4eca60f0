"""A run, or several side by side, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from writelane.stress.measures import Run
from writelane.stress.plan import Plan

__all__ = ["text"]

#: Characters shown of a statement or of an error, and kinds of errors shown.
SHOWN_CHARACTERS = 70
SHOWN_ERRORS = 3

Row = tuple[str, Callable[[Run], str]]

ROWS: list[Row] = [
    ("turns done", lambda run: str(run.turns_done)),
    ("turns dead", lambda run: str(run.turns_dead)),
    ('"database is locked"', lambda run: str(run.locked)),
    ("other errors", lambda run: str(run.errors)),
    ("seconds", lambda run: f"{run.seconds:.1f}"),
    ("commits", lambda run: str(run.commits)),
    ("commits/s", lambda run: f"{run.commits_per_second:.0f}"),
    ("a write took, p50", lambda run: duration(run.p50)),
    ("a write took, p99", lambda run: duration(run.p99)),
    ("a write took, longest", lambda run: duration(run.longest)),
    ("fairness (fewest/most commits)", lambda run: f"{run.fairness:.2f}"),
    ("log, largest", lambda run: size(run.log_peak)),
    ("log, at the end", lambda run: size(run.log_end)),
    ("usage facts written/offered", lambda run: f"{run.verification.facts_written}/{run.facts_offered}"),
    ("agent kept by a fact, longest", lambda run: duration(run.longest_offer)),
]
HOLDS: list[Row] = [("foreign holds", lambda run: f"{run.holds} ({run.held:.1f} s)")]
FOREIGN: list[Row] = [
    ("foreign commits", lambda run: str(run.foreign_commits)),
    ('foreign "database is locked"', lambda run: str(run.foreign_locked)),
    ("foreign write took, longest", lambda run: duration(run.foreign_longest)),
]
CHECKS: list[Row] = [
    ("rows acknowledged", lambda run: str(run.verification.acknowledged)),
    ("  of these missing", lambda run: str(run.verification.missing)),
    ("rows there twice", lambda run: str(run.verification.doubled)),
    ("rows not acknowledged", lambda run: str(run.verification.unacknowledged)),
    ("deliveries torn", lambda run: str(run.verification.torn)),
    ("lost updates", lambda run: str(run.verification.lost_updates)),
    ("integrity_check", lambda run: "ok" if run.verification.integrity == ["ok"] else "NOT OK"),
]


def duration(seconds: float) -> str:
    """Return a time with its unit."""
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.1f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} us"
    )


def size(bytes_: int) -> str:
    """Return a size in megabytes."""
    return f"{bytes_ / 1e6:.1f} MB"


def cut(line: str) -> str:
    """Return one line that fits."""
    line = " ".join(line.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 3] + "..."


def text(plan: Plan, size_mb: float, runs: Sequence[Run]) -> str:
    """Return the tables."""
    rows = ROWS + (HOLDS if plan.holds else []) + (FOREIGN if plan.foreign_writers else []) + CHECKS
    width = max(len(name) for name, _ in rows)
    lines = [f"{plan}; {size_mb:.0f} MB", "", " " * width + "".join(f"{run.driver:>14}" for run in runs)]
    lines += [name.ljust(width) + "".join(f"{value(run):>14}" for run in runs) for name, value in rows]
    for run in runs:
        if run.messages:
            lines += ["", f"what {run.driver} said when turns died:"]
            shown = list(run.messages.items())[:SHOWN_ERRORS]
            lines += [f"  {count:>5} x {cut(message)}" for message, count in shown]
            if len(run.messages) > SHOWN_ERRORS:
                lines.append(f"        and {len(run.messages) - SHOWN_ERRORS} other messages")
        if run.waiters:
            lines += ["", f"what waited longest with {run.driver}, and for whom:"]
        for waiter in run.waiters:
            often = f"{waiter.count} times, {duration(waiter.total)} in all"
            lines.append(f"  {duration(waiter.longest):>9}  {cut(waiter.sql)} ({often})")
            lines += [f"             {duration(seconds):>9} for {cut(who)}" for who, seconds in waiter.held_by]
    return "\n".join(lines)
