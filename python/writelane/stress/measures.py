"""What the records of a run amount to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from writelane.stress.records import Kind, Outcome, Record
from writelane.stress.verification import Verification

__all__ = ["Run", "Waiter", "fairness", "quantile", "waiters"]

#: Statements that are told of, by how long they waited.
WAITERS = 5
#: Holders that are told of for each.
HOLDERS = 3
#: What counts as a write that an agent waits for.
WRITES = (Kind.DELIVER, Kind.EVENT)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of sorted values that at least ``share`` of them do not exceed; 0 without any."""
    return values[max(0, -int(-share * len(values) // 1) - 1)] if values else 0.0


def fairness(commits: Sequence[Sequence[float]]) -> float:
    """Return the fewest over the most commits of a process until the first was done, given their times.

    After that the others have it easier, and count no more. 1 where no process has any.
    """
    until = min((times[-1] for times in commits if times), default=0.0)
    counts = [sum(time <= until for time in times) for times in commits]
    return min(counts, default=0) / max(counts) if any(counts) else 1.0


@dataclass(frozen=True)
class Waiter:
    """A statement, how long it waited in the whole fleet, and for whom."""

    sql: str
    count: int
    total: float
    """Seconds in the queue and for the lock, summed over the fleet."""
    longest: float
    held_by: list[tuple[str, float]]
    """Who held the lock, and for how many of the seconds."""


def waiters(telemetries: Sequence[dict[str, Any]]) -> list[Waiter]:
    """Merge the telemetry of the processes; the statement that waited longest comes first."""
    merged: dict[str, list[dict[str, Any]]] = {}
    for telemetry in telemetries:
        for statement in telemetry["statements"]:
            # A flush is a job without a statement.
            if statement["sql"]:
                merged.setdefault(statement["sql"], []).append(statement)
    found = []
    for sql, parts in merged.items():
        holders: dict[str, float] = {}
        for part in parts:
            for holder in part["held_by"]:
                who = _describe(holder)
                holders[who] = holders.get(who, 0.0) + holder["seconds"]
        waits = [part[phase] for part in parts for phase in ("queue_wait", "lock_wait")]
        found.append(
            Waiter(
                sql,
                sum(part["count"] for part in parts),
                sum(wait["sum"] for wait in waits),
                max(wait["max"] for wait in waits),
                sorted(holders.items(), key=lambda item: item[1], reverse=True)[:HOLDERS],
            )
        )
    return sorted(found, key=lambda waiter: waiter.longest, reverse=True)[:WAITERS]


def _describe(holder: dict[str, Any]) -> str:
    command, statement = holder.get("command"), holder.get("statement")
    # Without the folders, which fill the line and tell nothing.
    who = (
        " ".join(os.path.basename(word) or word for word in str(command).split())
        if command
        else f"process {holder['pid']}"
        if holder.get("pid")
        else "unknown"
    )
    return f"{who}: {statement}" if statement else who


@dataclass
class Run:
    """The measures of one driver's run."""

    driver: str
    seconds: float
    turns_done: int
    turns_dead: int
    locked: int
    """Of the dead turns, those that others' locks killed."""
    errors: int
    """Of the dead turns, those that anything else killed."""
    messages: dict[str, int]
    """What the errors said, and how often."""
    commits: int
    p50: float
    p99: float
    longest: float
    fairness: float
    log_peak: int
    log_end: int
    facts_offered: int
    facts_dropped: int
    longest_offer: float
    holds: int
    held: float
    foreign_commits: int
    foreign_locked: int
    foreign_longest: float
    verification: Verification
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def commits_per_second(self) -> float:
        """Commits of agents that were acknowledged, for each second of the run."""
        return self.commits / self.seconds if self.seconds else 0.0

    @property
    def clean(self) -> bool:
        """Whether no turn died, so that no write failed, and every acknowledged row is there once."""
        return not self.turns_dead and self.verification.sound

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON; times in seconds, sizes in bytes."""
        document = {name: value for name, value in vars(self).items() if name not in ("verification", "waiters")}
        document["commits_per_second"] = self.commits_per_second
        document["clean"] = self.clean
        document["verification"] = self.verification.to_dict()
        document["waiters"] = [
            {**vars(waiter), "held_by": [{"holder": who, "seconds": s} for who, s in waiter.held_by]}
            for waiter in self.waiters
        ]
        return document

    @staticmethod
    def of(
        driver: str,
        begun: float,
        by_agent: Sequence[Sequence[Record]],
        of_foreigners: Sequence[Record],
        reports: Sequence[dict[str, Any]],
        log: tuple[int, int],
        verification: Verification,
    ) -> Run:
        """Measure a run by its records."""
        records = [record for agent in by_agent for record in agent]
        turns = [record for record in records if record.kind == Kind.TURN]
        writes = [record for record in records if record.kind in WRITES]
        facts = [record for record in records if record.kind == Kind.FACT]
        times = sorted(record.seconds for record in writes)
        turn_outcomes = Counter(record.outcome for record in turns)
        messages: Counter[str] = Counter()
        for report in reports:
            messages.update(report.get("errors", {}))
        telemetries = [report["telemetry"] for report in reports if report.get("telemetry")]
        holds = [record for record in of_foreigners if record.kind == Kind.HOLD]
        foreign = [record for record in of_foreigners if record.kind == Kind.FOREIGN]
        dropped = sum(record.outcome == Outcome.DROPPED for record in facts)
        dropped += sum(telemetry["queue"]["dropped"] for telemetry in telemetries)
        return Run(
            driver=driver,
            seconds=max((record.end for record in records), default=begun) - begun,
            turns_done=turn_outcomes[Outcome.DONE],
            turns_dead=len(turns) - turn_outcomes[Outcome.DONE],
            locked=turn_outcomes[Outcome.CONTENTION],
            errors=turn_outcomes[Outcome.ERROR],
            messages=dict(messages.most_common()),
            commits=sum(record.outcome == Outcome.DONE for record in writes),
            p50=quantile(times, 0.5),
            p99=quantile(times, 0.99),
            longest=times[-1] if times else 0.0,
            fairness=fairness(
                [[r.end for r in agent if r.kind in WRITES and r.outcome == Outcome.DONE] for agent in by_agent]
            ),
            log_peak=log[0],
            log_end=log[1],
            facts_offered=len(facts),
            facts_dropped=dropped,
            longest_offer=max((record.seconds for record in facts), default=0.0),
            holds=len(holds),
            held=sum(record.seconds for record in holds),
            foreign_commits=sum(record.outcome == Outcome.DONE for record in foreign),
            foreign_locked=sum(record.outcome == Outcome.CONTENTION for record in foreign),
            foreign_longest=max((record.seconds for record in foreign), default=0.0),
            verification=verification,
            waiters=waiters(telemetries),
        )
