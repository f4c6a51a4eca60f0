"""Put what `make bench` has measured into the documents: ``python benches/figures.py BENCH.json``, or `make figures`.

A document marks the place of a block by a pair of comments, ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``;
what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from goals import bound, shown
from table import cells, heads
from workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/performance.md")
BLOCK = re.compile(
    r"(?P<begin><!-- figures: (?P<name>\w+) -->\n)(?P<old>.*?)(?P<end><!-- end of figures -->)", re.DOTALL
)
PLOTS = {
    "tails": "How long the slowest writes take, by driver",
    "fairness": "Writes of each process and each thread over an equal share, by driver",
    "processes": "Throughput and worst wait by the number of processes",
    "threads": "Throughput and worst wait by the number of threads",
}
PHASES = ("queue", "lock", "run", "commit", "call")


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def machine(measured: dict[str, Any], folder: Path) -> str:
    """Return on what, when and how it was measured."""
    cpu = measured["machine_info"].get("cpu", {}).get("brand_raw", "a processor that does not tell its name")
    lines = (
        f"Measured on {measured['datetime'][:10]} by `make bench`: {measured['cores']} cores ({cpu}), Python "
        f"{measured['machine_info']['python_version']}, medians over {measured['rounds']} trials of "
        f"{measured['seconds']:g} seconds.\n"
    )
    if disk := measured["disk"]:
        lines += (
            f"A flush of a log frame (`fdatasync`) takes {disk['appended'] * 1e6:.0f} µs appended and "
            f"{disk['overwritten'] * 1e6:.0f} µs overwritten, in the median.\n"
        )
    return lines


def reached(measured: dict[str, Any], folder: Path) -> str:
    """Return the goals and whether they are reached."""
    rows = [
        [
            f"{WORKLOADS[goal['workload']].about}, `{WORKLOADS[goal['workload']].durability}`"
            if goal["workload"] in WORKLOADS
            else "16 threads, telemetry switched on and off, `normal`",
            goal["what"],
            bound(goal),
            shown(goal["value"], goal["unit"]),
            "yes" if goal["met"] else "**no**",
        ]
        for goal in measured["goals"]
    ]
    return markdown(["workload", "what", "aim", "measured", "reached"], rows)


def drivers(measured: dict[str, Any], folder: Path) -> str:
    """Return every driver with every workload."""
    parts = []
    for name, workload in WORKLOADS.items():
        found = [row for row in measured["table"] if row["workload"] == name]
        if found:
            parts.append(f"**{name}**: {workload.about}, durability `{workload.durability}`\n")
            parts.append(markdown(["driver", *heads(workload)], [[r["driver"], *cells(workload, r)] for r in found]))
    return "\n".join(parts)


def phases(measured: dict[str, Any], folder: Path) -> str:
    """Return where the time of a write goes."""
    rows = []
    for row in measured["table"]:
        if spent := row.get("phases"):
            rows.append([row["workload"], *(f"{spent[phase] * 1e6:,.1f}" for phase in PHASES), f"{row['group']:.1f}"])
    return markdown(["mean µs of a write", *PHASES, "jobs a commit"], rows)


def plots(measured: dict[str, Any], folder: Path) -> str:
    """Return the plots that were drawn."""
    drawn = ROOT / "docs/plots"
    found = [name for name in PLOTS if (drawn / f"{name}.svg").exists()]
    return "\n".join(f"![{PLOTS[name]}]({(drawn / name).relative_to(folder)}.svg)\n" for name in found)


BLOCKS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "machine": machine,
    "goals": reached,
    "drivers": drivers,
    "phases": phases,
    "plots": plots,
}


def filled(text: str, measured: dict[str, Any], folder: Path) -> str:
    """Return a document with its blocks made anew."""

    def block(found: re.Match[str]) -> str:
        return f"{found['begin']}\n{BLOCKS[found['name']](measured, folder)}\n{found['end']}"

    return BLOCK.sub(block, text)


def main() -> None:
    """Fill every block of every document."""
    measured = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for name in DOCUMENTS:
        document = ROOT / name
        text = filled(document.read_text(encoding="utf-8"), measured, document.parent)
        document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
