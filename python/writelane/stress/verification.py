"""Is every row that was acknowledged in the file, once?"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from writelane.stress.plan import Plan
from writelane.stress.records import Kind, Outcome, Record

__all__ = ["Verification", "verify"]

#: The table that the rows of a kind are in.
TABLES = {
    Kind.DELIVER: "messages",
    Kind.EVENT: "events",
    Kind.FACT: "facts",
    Kind.FOREIGN: "foreign",
    Kind.HOLD: "foreign",
}
#: Marks of rows at fault that are named.
SHOWN = 10
#: Kinds that may be dropped after they were taken: an offer is no promise.
BEST_EFFORT = {Kind.FACT}


@dataclass
class Verification:
    """What the comparison of the records with the file has found."""

    acknowledged: int = 0
    """Rows whose write returned."""
    missing: int = 0
    """Of these, not in the file."""
    doubled: int = 0
    """Rows that are in the file more than once."""
    unacknowledged: int = 0
    """Rows in the file whose write failed or never returned."""
    torn: int = 0
    """Deliveries of which only a part is in the file."""
    lost_updates: int = 0
    """Deliveries whose version was overwritten by another that had not seen it."""
    facts_written: int = 0
    """Rows of best-effort work in the file."""
    at_fault: list[int] = field(default_factory=list)
    integrity: list[str] = field(default_factory=list)
    """What ``PRAGMA integrity_check`` says: ``ok``, or what is wrong."""

    @property
    def sound(self) -> bool:
        """Whether the file is what the acknowledgements say."""
        return self.integrity == ["ok"] and not (
            self.missing or self.doubled or self.unacknowledged or self.torn or self.lost_updates
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {**asdict(self), "sound": self.sound}


def verify(database: Path, plan: Plan, records: Iterable[Record]) -> Verification:
    """Compare a file that nobody writes any more with what its writers have recorded."""
    found = Verification()
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        there = {
            table: Counter(
                mark for (mark,) in connection.execute(f"SELECT mark FROM {plan.table(table)} WHERE mark IS NOT NULL")
            )
            for table in sorted(set(TABLES.values()))
        }
        versions: dict[int, int] = dict(connection.execute(f"SELECT id, version FROM {plan.table('sessions')}"))
        found.integrity = [text for (text,) in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    found.facts_written = sum(there["facts"].values())
    faults: list[int] = []
    known: dict[str, set[int]] = {table: set() for table in there}
    delivered: Counter[int] = Counter()
    for record in records:
        if record.kind == Kind.TURN:
            continue
        kind = Kind(record.kind)
        marks = range(record.mark, record.mark + record.rows)
        present = [mark for mark in marks if there[TABLES[kind]][mark]]
        if record.outcome == Outcome.DONE:
            known[TABLES[kind]].update(marks)
            if kind not in BEST_EFFORT:
                found.acknowledged += record.rows
                found.missing += record.rows - len(present)
                faults += [mark for mark in marks if mark not in present]
            delivered[record.session] += kind == Kind.DELIVER
        if 0 < len(present) < record.rows:
            found.torn += 1
            faults += present
    for table, counts in there.items():
        twice = [mark for mark, count in counts.items() if count > 1]
        unknown = [mark for mark in counts if mark not in known[table]]
        found.doubled += len(twice)
        found.unacknowledged += len(unknown)
        faults += twice + unknown
    found.lost_updates = sum(max(0, count - versions.get(session, 0)) for session, count in delivered.items())
    found.at_fault = faults[:SHOWN]
    return found
