"""The table of a run: medians of the trials, and what they are to those of the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trial import Trial
from workloads import WORKLOADS, Workload

__all__ = ["cells", "heads", "rows", "text"]

Cells = Mapping[tuple[str, str], Sequence[Trial]]
#: Those that are no rivals.
OURS = ("writelane", "limit")


def rows(cells: Cells) -> list[dict[str, Any]]:
    """Return one mapping for each workload and driver: medians over the trials, and ratios."""
    found = []
    for (name, driver), trials in cells.items():
        row: dict[str, Any] = {"workload": name, "driver": driver, "trials": len(trials)}
        for measure in ("rate", "seconds", "p50", "p99", "p999", "longest", "fairness", "log", "group", "bytes"):
            row[measure] = statistics.median(getattr(trial, measure) for trial in trials)
        row["log_most"] = max(trial.log for trial in trials)
        row["waits"] = all(trial.waits for trial in trials)
        phases = [trial.phases for trial in trials if trial.phases]
        row["phases"] = {part: statistics.median(each[part] for each in phases) for part in phases[0]} if phases else {}
        row["rates"] = [trial.rate for trial in trials]
        found.append(row)
    for row in found:
        workload = WORKLOADS[row["workload"]]
        same = [other for other in found if other["workload"] == row["workload"]]
        rivals = [other for other in same if other["driver"] not in OURS]
        row["to_best_rival"] = _ratio(workload, row, rivals)
        row["to_sqlite3"] = _ratio(workload, row, [other for other in same if other["driver"] == "sqlite3"])
        row["to_limit"] = _ratio(workload, row, [other for other in same if other["driver"] == "limit"])
    return found


def _worth(workload: Workload, row: Mapping[str, Any]) -> float:
    """Return a number that is larger where the driver is better."""
    if workload.by_rate:
        return float(row["rate"])
    measure = row["bytes"] if workload.kind == "backlog" else row["seconds"]
    return 1 / measure if measure else 0.0


def _ratio(workload: Workload, row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> float | None:
    best = max((_worth(workload, other) for other in others), default=0.0)
    return _worth(workload, row) / best if best else None


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the table for people."""
    lines = []
    for name in dict.fromkeys(row["workload"] for row in found):
        workload = WORKLOADS[name]
        lines += ["", f"{name}: {workload.about}, durability {workload.durability}"]
        titles = ["driver", *heads(workload), "x sqlite3", "x best rival", "x limit"]
        lines.append("".join(title.rjust(13) for title in titles))
        for row in found:
            if row["workload"] == name:
                line = [row["driver"], *cells(workload, row)]
                line += [_factor(row[ratio]) for ratio in ("to_sqlite3", "to_best_rival", "to_limit")]
                lines.append("".join(cell.rjust(13) for cell in line))
    return "\n".join(lines)


def heads(workload: Workload) -> list[str]:
    """Return what is told of each driver with a workload."""
    if workload.kind == "loop":
        return ["rows/s", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", "fairness", "log MB"]
    if workload.kind == "open":
        return ["ms"]
    if workload.kind == "backlog":
        return ["MB", "caller waits"]
    return ["rows/s", "log MB"] if workload.kind in ("stream", "many") else ["rows/s"]


def cells(workload: Workload, row: Mapping[str, Any]) -> list[str]:
    """Return that of one driver."""
    if workload.kind == "open":
        return [f"{row['seconds'] * 1e3:.2f}"]
    if workload.kind == "backlog":
        return [f"{row['bytes'] / 1e6:.0f}", "yes" if row["waits"] else "no"]
    found = [f"{row['rate']:,.0f}"]
    if workload.kind == "loop":
        shown = [row[measure] * 1e3 for measure in ("p50", "p99", "p999", "longest")]
        found += ["-"] * 5 if row["driver"] == "limit" else [f"{ms:.2f}" for ms in shown] + [f"{row['fairness']:.2f}"]
    if workload.kind != "fetch":
        found.append("-" if row["driver"] == "limit" else f"{row['log'] / 1e6:.1f}")
    return found


def _factor(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
