"""What the exporters share: targets, and statements in bounded number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

from writelane import _native

__all__ = ["OTHER", "PHASES", "Source", "Target", "less", "pinned"]

#: What telemetry can be exported of: an open database, a connection, or the path of either.
Target: TypeAlias = "_native.Database | _native.Connection | str | os.PathLike[str]"

#: The label of statements, and of holders, past the limit.
OTHER = "(other)"

#: Phases, by their names in a snapshot.
PHASES = {"queue": "queue_wait", "lock": "lock_wait", "run": "run", "commit": "commit"}


class _Admitted:
    """The first so many names, and one for the rest: what was counted under a name stays under it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(name)
        return name


class Source:
    """One target, looked at again and again."""

    def __init__(self, target: Target, limit: int) -> None:
        if isinstance(target, _native.Database):
            self.counts = target.file_telemetry()
            self.snapshot: Callable[[], dict[str, Any]] = target.snapshot
        else:
            self.counts = _native.FileTelemetry(target)
            self.snapshot = self.counts.snapshot
        # What is no UTF-8 in a path would fail the whole scrape.
        self.database = os.fsencode(self.counts.path).decode("utf-8", "replace")
        self.statement = _Admitted(limit)
        self._holder = _Admitted(limit)

    def statements(self, snapshot: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the counts by statement: ``count``, ``retries``, ``errors`` and ``seconds`` by phase, ``dropped``."""
        all_of_them: dict[str, dict[str, Any]] = {}
        for entry in snapshot["statements"]:
            sums = all_of_them.setdefault(
                self.statement(entry["sql"]),
                {"count": 0, "retries": 0, "errors": {}, "dropped": {}, "seconds": dict.fromkeys(PHASES, 0.0)},
            )
            sums["count"] += entry["count"]
            sums["retries"] += entry["retries"]
            for name in ("errors", "dropped"):
                for key, count in entry[name].items():
                    sums[name][key] = sums[name].get(key, 0) + count
            for phase, name in PHASES.items():
                sums["seconds"][phase] += entry[name]["sum"]
        return all_of_them

    def holders(self, snapshot: dict[str, Any]) -> dict[tuple[str, str], float]:
        """Return the seconds that were waited for each process: by (pid, command), both empty where unknown."""
        seconds: dict[tuple[str, str], float] = {}
        commands: dict[str, str] = {}
        for entry in snapshot["statements"]:
            for by in entry["held_by"]:
                pid = self._holder("" if by["pid"] is None else str(by["pid"]))
                # A process keeps its first command, or one series would become two.
                command = commands.setdefault(pid, "" if pid == OTHER else by["command"] or "")
                seconds[(pid, command)] = seconds.get((pid, command), 0.0) + by["seconds"]
        return seconds


def pinned(snapshot: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is known of the time in which a reader keeps the log from shrinking, if that is now."""
    episode: dict[str, Any] | None = snapshot["checkpoints"].get("pinned")
    return episode if episode and not episode["over"] else None


def less(now: dict[float, int], before: dict[float, int]) -> dict[float, int]:
    """Return what was added since; everything where the counts began anew."""
    if any(now.get(value, 0) < count for value, count in before.items()):
        before = {}
    return {value: count - before.get(value, 0) for value, count in now.items() if count > before.get(value, 0)}
