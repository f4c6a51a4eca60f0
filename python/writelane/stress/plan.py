"""What a run is asked to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["DURABILITIES", "Plan"]

DURABILITIES = ("off", "normal", "full", "extra")

#: Sessions for every thread that writes: some turns of different agents meet in one session, most do not.
SESSIONS_PER_THREAD = 2


@dataclass(frozen=True)
class Plan:
    """The fleet, its load and what disturbs it. The same plan and seed give every driver the same turns."""

    processes: int = 8
    turns: int = 40
    """Turns of each writing thread."""
    threads: int = 1
    """Writing threads of each process."""
    size_mb: float = 64.0
    """Size of the database before the clock starts."""
    durability: str = "normal"
    think_ms: float = 10.0
    """Mean pause of an agent before each of the parts of a turn."""
    hold_seconds: float = 0.0
    """How long a foreign process holds the write lock, each time."""
    holds: int = 0
    """How often it does."""
    foreign_writers: int = 0
    """Processes that write with the standard module and its default time-out of five seconds."""
    deadline: float = 60.0
    """Seconds a write of writelane waits at most."""
    seed: int = 1
    prefix: str = "writelane_stress_"
    """What the names of the tables begin with."""

    def __post_init__(self) -> None:
        for name, least in (("processes", 1), ("turns", 1), ("threads", 1), ("holds", 0), ("foreign_writers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        for name in ("size_mb", "think_ms", "hold_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name.split('_')[0]} must be a number from 0, not {getattr(self, name)}")
        if not 0 < self.deadline < float("inf"):
            raise ValueError(f"deadline must be a number of seconds over 0, not {self.deadline}")
        if self.durability not in DURABILITIES:
            raise ValueError(f"durability must be one of {', '.join(DURABILITIES)}, not {self.durability!r}")

    @property
    def writers(self) -> int:
        """Writing threads of the whole fleet."""
        return self.processes * self.threads

    @property
    def sessions(self) -> int:
        """Sessions the agents share."""
        return self.writers * SESSIONS_PER_THREAD

    @property
    def all_turns(self) -> int:
        """Turns of the whole fleet."""
        return self.writers * self.turns

    def table(self, name: str) -> str:
        """Return the name of one of the tables."""
        return self.prefix + name

    def with_prefix(self, prefix: str) -> Plan:
        """Return the same plan with other table names."""
        return replace(self, prefix=prefix)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the plan as one line, for a child process."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_json(line: str) -> Plan:
        """Return the plan of :meth:`to_json`."""
        return Plan(**json.loads(line))

    def __str__(self) -> str:
        text = f"{self.processes} processes"
        text += f" x {self.threads} threads" if self.threads > 1 else ""
        text += f", {self.turns} turns each, durability {self.durability}, seed {self.seed}"
        if self.holds:
            text += f"; a foreign process holds the lock {self.holds} x {self.hold_seconds:g} s"
        if self.foreign_writers:
            text += f"; {self.foreign_writers} foreign writers"
        return text
