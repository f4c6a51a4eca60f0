"""What the measured has to reach, and whether it does. A goal whose workloads were not run is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GOALS", "results", "text"]

#: Rows of the table by workload and driver.
Rows = Mapping[tuple[str, str], Mapping[str, Any]]
#: The bound of `writelane.open(queue_bytes=...)` that the backlog is measured with, in MB.
QUEUE_MB = (64 << 20) / 1e6


@dataclass(frozen=True)
class Goal:
    """One number of the table, and what it has to reach."""

    workload: str
    what: str
    measure: Callable[[Rows], float | None]
    reach: float
    unit: str = "x"
    at_most: bool = False


def _ours(workload: str, key: str, scale: float = 1.0) -> Callable[[Rows], float | None]:
    """Return a number of our own row."""

    def measure(rows: Rows) -> float | None:
        found = rows.get((workload, "writelane"), {}).get(key)
        return None if found is None else float(found) * scale

    return measure


def _to_standard(workload: str, key: str) -> Callable[[Rows], float | None]:
    """Return a number of our own row over that of the standard module."""

    def measure(rows: Rows) -> float | None:
        pair = [rows.get((workload, driver), {}).get(key) for driver in ("writelane", "sqlite3")]
        return pair[0] / pair[1] if pair[0] and pair[1] else None

    return measure


def _later(rows: Rows) -> float | None:
    """Return by how many milliseconds our first write is done later than that of the standard module."""
    pair = [rows.get(("open-normal", driver), {}).get("seconds") for driver in ("writelane", "sqlite3")]
    return (pair[0] - pair[1]) * 1e3 if pair[0] and pair[1] else None


def _scaling(rows: Rows) -> float | None:
    """Return our throughput with 64 processes over that with 4."""
    pair = [rows.get((f"processes-{count}-full", "writelane"), {}).get("rate") for count in (64, 4)]
    return pair[0] / pair[1] if pair[0] and pair[1] else None


def _rate(workload: str, reach: float, to: str = "to_best_rival", whose: str = "best rival") -> Goal:
    return Goal(workload, f"rows/s, to {whose}", _ours(workload, to), reach)


def _wait(workload: str, reach: float) -> Goal:
    return Goal(workload, "worst wait, to sqlite3", _to_standard(workload, "longest"), reach, at_most=True)


def _log(workload: str) -> tuple[Goal, ...]:
    """Return what is promised of the log: beside automatic checkpoints it is short, and its copying not felt."""
    return (
        Goal(workload, "log at its largest, of all trials", _ours(workload, "log_most", 1e-6), 32.0, " MB", True),
        Goal(workload, "p99.9, to sqlite3", _to_standard(workload, "p999"), 0.5, at_most=True),
    )


def _fair(workload: str) -> Goal:
    return Goal(workload, "fewest over most writes", _ours(workload, "fairness"), 0.9, "")


GOALS = (
    _rate("threads-16-full", 5.0),
    _wait("threads-16-full", 0.1),
    _rate("threads-16-normal", 1.0),
    _fair("threads-16-normal"),
    _rate("stream-normal", 4.0),
    _rate("stream-normal", 0.6, "to_limit", "limit"),
    _rate("single-normal", 0.95, "to_sqlite3", "sqlite3"),
    *_log("single-normal"),
    _rate("processes-8-full", 1.0),
    _fair("processes-8-full"),
    _wait("processes-8-full", 0.02),
    _rate("processes-8-normal", 0.9),
    _rate("processes-8-normal", 0.95, "to_sqlite3", "sqlite3"),
    _wait("processes-8-normal", 0.2),
    *_log("processes-8-normal"),
    Goal("processes-64-full", "rows/s, to 4 processes", _scaling, 0.8),
    *(_rate(f"fetch-{table}", 1.2) for table in ("rows", "wide", "text", "blob")),
    _rate("executemany-normal", 1.1),
    Goal("open-normal", "first write done, after sqlite3", _later, 5.0, " ms", True),
    Goal("backlog-normal", "memory grown", _ours("backlog-normal", "bytes", 1e-6), QUEUE_MB, " MB", True),
    Goal("backlog-normal", "the caller waits (1: yes)", _ours("backlog-normal", "waits"), 1.0, ""),
    Goal("telemetry-normal", "lost with telemetry on", _ours("telemetry-normal", "cost", 100.0), 3.0, " %", True),
)


def results(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a mapping for each goal that was measured, of which ``met`` says whether it was reached."""
    rows = {(row["workload"], row["driver"]): row for row in table}
    found = []
    for goal in GOALS:
        value = goal.measure(rows)
        if value is not None:
            found.append(
                {
                    "workload": goal.workload,
                    "what": goal.what,
                    "value": value,
                    "reach": goal.reach,
                    "unit": goal.unit,
                    "at_most": goal.at_most,
                    "met": value <= goal.reach if goal.at_most else value >= goal.reach,
                }
            )
    return found


def shown(value: float, unit: str) -> str:
    """Return a number with its unit, with three digits that count."""
    digits = 3 if abs(value) < 0.1 else 2 if abs(value) < 10 else 0
    return f"{value:,.{digits}f}{unit}"


def bound(result: Mapping[str, Any]) -> str:
    """Return what a result has to reach."""
    return f"{'at most' if result['at_most'] else 'at least'} {result['reach']:.3g}{result['unit']}"


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the goals for people."""
    lines = ["", f"{'goal':<20}{'':<36}{'reach':>18}{'reached':>12}"]
    for result in found:
        mark = "pass" if result["met"] else "MISS"
        value = shown(result["value"], result["unit"])
        lines.append(f"{result['workload']:<20}{result['what']:<36}{bound(result):>18}{value:>12}  {mark}")
    lines.append(f"{sum(result['met'] for result in found)} of {len(found)} goals that were measured are reached")
    return "\n".join(lines)
