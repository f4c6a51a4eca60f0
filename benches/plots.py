"""Draw what `make bench` has measured: ``python benches/plots.py BENCH.json FOLDER``.

A plot without its data is left out. The colours are told apart by the colour-blind, and everything is readable on a
light page and on a dark one: the background is transparent, and lines, marks and text have a middle tone.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

#: After Okabe and Ito, in tones that have contrast on white and on near black.
COLOURS = {
    "writelane": "#0a8f6a",
    "sqlite3": "#d0590a",
    "apsw": "#3f86c6",
    "sqliteq": "#b5679a",
    "aiosqlite": "#a8870f",
    "limit": "#808890",
}
INK = "#7d8590"
Trials = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "writelane",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 10,
    "text.color": INK,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": INK,
    "grid.alpha": 0.25,
    "axes.grid": True,
    "axes.axisbelow": True,
}


def width(driver: str) -> float:
    return 2.6 if driver == "writelane" else 1.5


def named(value: float, _: object = None) -> str:
    """Return seconds as people say them."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale * 0.9999:
            return f"{value / scale:g} {unit}"
    return f"{value:g} s"


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], gap: float) -> None:
    """Name lines at their right ends, moved apart by at least ``gap`` of the height of a logarithmic axis."""
    axes.figure.canvas.draw()
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((x, y))[1]), driver) for x, y, driver in ends)
    heights = [height for height, _ in placed]
    for _ in range(200):
        for i in range(len(heights) - 1):
            if (lack := gap - (heights[i + 1] - heights[i])) > 0:
                heights[i] -= lack / 2
                heights[i + 1] += lack / 2
    for height, (_, driver) in zip(heights, placed, strict=True):
        weight = "bold" if driver == "writelane" else "normal"
        axes.text(1.02, height, driver, transform=axes.transAxes, color=COLOURS[driver], va="center", weight=weight)


def tails(trials: Trials) -> Figure | None:
    """Return how long the slowest one in so many writes takes."""
    panels = {
        "threads-16-full": "16 threads, full",
        "threads-16-normal": "16 threads, normal",
        "processes-8-full": "8 processes, full",
        "processes-8-normal": "8 processes, normal",
    }
    panels = {workload: title for workload, title in panels.items() if (workload, "writelane") in trials}
    if not panels:
        return None
    rows = (len(panels) + 1) // 2
    figure, grid = plt.subplots(rows, 2, figsize=(10, 3.4 * rows), squeeze=False, layout="constrained")
    for axes, (workload, title) in zip(grid.flat, panels.items(), strict=False):
        ends = []
        for driver in COLOURS:
            found = [dict(trial["tail"]) for trial in trials.get((workload, driver), ()) if trial["tail"]]
            if not found:
                continue
            many = sorted(set.intersection(*(set(each) for each in found)) - {1})
            seconds = [statistics.median(each[one] for each in found) for one in many]
            axes.plot(many, seconds, color=COLOURS[driver], linewidth=width(driver))
            ends.append((many[-1], seconds[-1], driver))
        axes.set(xscale="log", yscale="log", title=title, xlabel="slowest one in so many writes")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(named))
        axes.minorticks_off()
        label_ends(axes, ends, 0.075)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle("A write takes (lower is better)", x=0.01, ha="left", weight="bold")
    return figure


def fairness(trials: Trials) -> Figure | None:
    """Return each writer's share of the writes, over an equal share, from the least served to the most."""
    panels = {"processes-8-full": "8 processes, full", "threads-16-full": "16 threads, full"}
    panels = {workload: title for workload, title in panels.items() if (workload, "writelane") in trials}
    if not panels:
        return None
    figure, grid = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.4), squeeze=False, layout="constrained")
    for axes, (workload, title) in zip(grid.flat, panels.items(), strict=True):
        drivers = [driver for driver in COLOURS if (workload, driver) in trials and driver != "limit"]
        for place, driver in enumerate(drivers):
            ordered = sorted(trials[workload, driver], key=lambda trial: trial["fairness"])
            counts = ordered[len(ordered) // 2]["counts"]
            mean = sum(counts) / len(counts) or 1.0
            # A writer that got nothing has no place on a logarithmic axis: it stands at its foot.
            shares = [max(count / mean, 1e-3) for count in counts]
            axes.plot([min(shares), max(shares)], [place, place], color=COLOURS[driver], linewidth=width(driver))
            axes.scatter(shares, [place] * len(shares), s=32, color=COLOURS[driver], alpha=0.75, linewidths=0, zorder=3)
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xscale="log", title=title, xlabel="writes of each, over an equal share", xlim=(7e-4, 30))
        axes.set_xticks([1e-3, 1e-2, 0.1, 1, 10], ["≤ 1/1000", "1/100", "1/10", "equal", "10 x"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(drivers)), drivers)
        for tick, driver in zip(axes.get_yticklabels(), drivers, strict=True):
            tick.set(color=COLOURS[driver], weight="bold" if driver == "writelane" else "normal")
        axes.grid(axis="y", visible=False)
        axes.set_ylim(len(drivers) - 0.5, -0.5)
    figure.suptitle("Who gets to write (close together is better)", x=0.01, ha="left", weight="bold")
    return figure


def scaling(trials: Trials, what: str, workload: Mapping[int, str]) -> Figure | None:
    """Return throughput and worst wait over the number of writers."""
    counts = [count for count, name in workload.items() if (name, "writelane") in trials]
    if len(counts) < 2:
        return None
    figure, grid = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axes, (key, title) in zip(grid, {"rate": "rows/s", "longest": "worst wait"}.items(), strict=True):
        ends = []
        for driver in ("writelane", "sqlite3"):
            measured = [
                [
                    trial["rows"] / trial["seconds"] if key == "rate" else trial[key]
                    for trial in trials.get((workload[count], driver), ())
                ]
                for count in counts
            ]
            points = [(count, each) for count, each in zip(counts, measured, strict=True) if each]
            if not points:
                continue
            xs = [count for count, _ in points]
            medians = [statistics.median(each) for _, each in points]
            axes.plot(xs, medians, color=COLOURS[driver], linewidth=width(driver), marker="o", markersize=5)
            lows, highs = [min(each) for _, each in points], [max(each) for _, each in points]
            axes.fill_between(xs, lows, highs, color=COLOURS[driver], alpha=0.18, linewidth=0)
            ends.append((xs[-1], medians[-1], driver))
        axes.set(xscale="log", yscale="log", title=title, xlabel=what)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if key == "rate" else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(named if key == "longest" else lambda value, _: f"{value:,.0f}"))
        axes.minorticks_off()
        label_ends(axes, ends, 0.08)
    figure.suptitle(f"By {what}, full durability, each waits for its write", x=0.01, ha="left", weight="bold")
    return figure


def main() -> None:
    """Draw all plots that there is data for."""
    measured = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    trials: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for trial in measured["trials"]:
        trials.setdefault((trial["workload"], trial["driver"]), []).append(trial)
    with plt.rc_context(STYLE):
        by_threads = {1: "single-full", **{n: f"threads-{n}-full" for n in (2, 4, 8, 16, 32)}}
        # One process is one thread too.
        by_processes = {1: "single-full", **{n: f"processes-{n}-full" for n in (2, 4, 8, 16, 32, 64)}}
        drawn = {
            "tails": tails(trials),
            "fairness": fairness(trials),
            "processes": scaling(trials, "processes", by_processes),
            "threads": scaling(trials, "threads", by_threads),
        }
        for name, figure in drawn.items():
            if figure is not None:
                figure.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})
                print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
