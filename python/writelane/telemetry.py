"""A snapshot of what the writer has measured."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["Telemetry"]


class Telemetry:
    """What was measured until now; it does not change when more is.

    Times are in seconds. Parameter values are never kept.
    """

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        self._statements: list[dict[str, Any]] = snapshot["statements"]
        self._queue: dict[str, Any] = snapshot["queue"]
        self._groups: dict[str, Any] = snapshot["groups"]
        self._long: list[dict[str, Any]] = snapshot["long_transactions"]
        self._lane: dict[str, Any] = snapshot["lane"]
        self._checkpoints: dict[str, Any] = snapshot["checkpoints"]
        self._readers: dict[str, Any] = snapshot["readers"]
        self._sqlite: dict[str, Any] = snapshot["sqlite"]

    @property
    def statements(self) -> list[dict[str, Any]]:
        """By SQL text, the one that waited longest first: ``sql``, ``count``, ``errors`` by code name, ``retries``,
        ``queue_wait``, ``lock_wait``, ``run``, ``commit`` and ``latency``, which is all of them (each ``{count, sum,
        max, p50, p90, p99, p999}``), ``lock_waits`` (how many waited a millisecond or longer for the lock), ``held_by``
        (a list of ``{pid, command, statement, seconds}``, which add up to the sum of ``lock_wait``; of a holder that
        could not be told, ``pid`` is ``None``) and ``dropped`` (best-effort work that was not run, by reason)."""
        return copy.deepcopy(self._statements)

    @property
    def queue(self) -> dict[str, Any]:
        """``depth``, ``high_water``, ``capacity``, ``refused``, ``dropped``, ``classes`` (``required`` and ``offered``,
        each with its ``refused`` and ``dropped``) and more. Empty where no database is open."""
        return copy.deepcopy(self._queue)

    @property
    def groups(self) -> dict[str, Any]:
        """``count`` (transactions), ``jobs``, ``jobs_max``, ``sizes`` (a list of ``{up_to, count}``), ``hold`` (as a
        phase), ``reruns`` and ``rerun_causes``."""
        return copy.deepcopy(self._groups)

    @property
    def long_transactions(self) -> list[dict[str, Any]]:
        """Transactions that held the lock for a second, or for what is warned of, by the place in the code that began
        them, the worst first: ``location`` (``file:line``), ``sql``, ``count``, ``sum``, ``max``."""
        return copy.deepcopy(self._long)

    @property
    def lane(self) -> dict[str, Any]:
        """``turns`` between processes, ``waits``, ``waited``, ``longest_wait``, ``gaps`` left for foreign writers and
        more."""
        return copy.deepcopy(self._lane)

    @property
    def checkpoints(self) -> dict[str, Any]:
        """``count``, ``busy``, ``errors``, ``last_error``; of the last one ``log`` and ``checkpointed`` (pages) and
        ``seconds``; ``pinned`` (the last time a reader kept the log from shrinking) and more. Empty where nobody in
        this process has the file open to write."""
        return copy.deepcopy(self._checkpoints)

    @property
    def readers(self) -> dict[str, Any]:
        """``open`` connections and those ``reading`` now; ``snapshots`` that are open in this process, those of
        transactions and of connections of an application's own included; of the oldest its age in seconds (``oldest``),
        the statement it began with (``oldest_sql``) and where in the code (``oldest_location``: ``file:line``)."""
        return copy.deepcopy(self._readers)

    @property
    def sqlite(self) -> dict[str, Any]:
        """``version`` and ``compile_options`` of the SQLite in use."""
        return copy.deepcopy(self._sqlite)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain dictionaries, lists, strings and numbers."""
        return copy.deepcopy(self._snapshot)

    def __repr__(self) -> str:
        jobs, transactions = self._groups.get("jobs", 0), self._groups.get("count", 0)
        return f"<writelane.Telemetry {jobs} jobs in {transactions} transactions>"
