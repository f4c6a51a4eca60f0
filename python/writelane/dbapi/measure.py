"""Which statements of this process waited for the write lock, how long, and for whom."""

from __future__ import annotations

from typing import Any

from writelane import _native
from writelane.plain_text import one_line

#: Statements shown in a report; the rest is one line.
SHOWN = 20


def lock_waits() -> list[dict[str, Any]]:
    """Return what `telemetry()` has, and the file's `path`, for every statement that waited: the longest wait first.

    Durations are in seconds. A statement waited where its `lock_waits` is not 0: for a millisecond or longer. All files
    that this process has open are asked, and of those it had open the latest few.
    """
    waits = [
        {"path": str(file.path), **entry}
        for file in _native.FileTelemetry.all()
        for entry in file.snapshot()["statements"]
        if entry["lock_waits"]
    ]
    return sorted(waits, key=lambda entry: -float(entry["lock_wait"]["sum"]))


def report() -> str:
    """Return the waits as a text for people."""
    waits = lock_waits()
    if not waits:
        return "writelane: no statement waited for a lock"
    count = sum(entry["lock_waits"] for entry in waits)
    total = sum(entry["lock_wait"]["sum"] for entry in waits)
    lines = [f"writelane: {count} statement{'s' * (count > 1)} waited for a lock, {total:.3f} s in all"]
    for entry in waits[:SHOWN]:
        wait = entry["lock_wait"]
        sql = one_line(entry["sql"], 80)
        line = f"  {entry['lock_waits']} x, {wait['sum']:.3f} s, longest {wait['max']:.3f} s: {sql}"
        if entry["errors"]:
            line += "; failed: " + ", ".join(f"{name} {number}" for name, number in entry["errors"].items())
        for holder in entry["held_by"][:3]:
            pid, who = holder["pid"], holder["command"] or "somebody unknown"
            who = who if pid is None else f"process {pid} ({who})"
            line += f"\n      behind {one_line(who, 80)}, {holder['seconds']:.3f} s"
            if holder["statement"]:
                line += f", with {one_line(holder['statement'], 80)}"
        lines.append(line)
    if len(waits) > SHOWN:
        lines.append(f"  and {len(waits) - SHOWN} other statements")
    return "\n".join(lines)
