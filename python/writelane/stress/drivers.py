"""What an agent reaches the database with: one class for each driver, behind one small interface."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Protocol

import writelane
from writelane.stress.plan import Plan

__all__ = ["DRIVERS", "Driver", "StandardDriver", "WritelaneDriver", "is_contention"]

#: The messages of SQLite's BUSY and LOCKED, for Python 3.10, whose exceptions carry no code.
CONTENTION_MESSAGES = ("locked", "busy")
BUSY, LOCKED = 5, 6
PRIMARY = 0xFF


class Driver(Protocol):
    """The database as one thread of an agent sees it. Every method raises the driver's own exceptions."""

    def read(self, session: int) -> int:
        """Read a session as an agent does at the start of its turn; return its version."""

    def deliver(self, session: int, messages: Sequence[tuple[int, str]]) -> None:
        """In one interactive transaction read the version, add messages (mark, body) and write the next version."""

    def event(self, session: int, mark: int, body: str) -> None:
        """Write one event."""

    def offer(self, session: int, mark: int, body: str) -> bool:
        """Write one fact if that is possible, and return whether it was not given up."""

    def telemetry(self) -> dict[str, Any] | None:
        """Wait until all is written, and return what the driver has measured in this process, if it measures."""

    def close(self) -> None:
        """Close."""


def is_contention(error: BaseException) -> bool:
    """Return whether a call failed because others had the lock, and not for what was asked."""
    if isinstance(error, (writelane.WriteTimeout, writelane.QueueFull)):
        return True
    if not isinstance(error, sqlite3.OperationalError):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code & PRIMARY in (BUSY, LOCKED)
    return any(word in str(error) for word in CONTENTION_MESSAGES)


class _Statements:
    def __init__(self, plan: Plan) -> None:
        sessions, messages, events, facts = map(plan.table, ("sessions", "messages", "events", "facts"))
        self.read_session = f"SELECT version, title FROM {sessions} WHERE id = ?"
        self.read_messages = f"SELECT body FROM {messages} WHERE session = ? ORDER BY id DESC LIMIT 20"
        self.count_events = f"SELECT count(*) FROM {events} WHERE session = ?"
        self.add_message = f"INSERT INTO {messages}(session, mark, body) VALUES (?, ?, ?)"
        self.next_version = f"UPDATE {sessions} SET version = ?, updated = ? WHERE id = ?"
        self.add_event = f"INSERT INTO {events}(session, mark, body) VALUES (?, ?, ?)"
        self.add_fact = f"INSERT INTO {facts}(session, mark, body) VALUES (?, ?, ?)"


class StandardDriver:
    """The standard library's module as it is used today: a log, and its default time-out of five seconds."""

    def __init__(self, path: str | os.PathLike[str], plan: Plan) -> None:
        self._statements = _Statements(plan)
        # Made by one thread of the agent and handed to another, which alone uses it.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={plan.durability}")

    def read(self, session: int) -> int:
        """Read a session."""
        execute, text = self._connection.execute, self._statements
        (version, _title) = execute(text.read_session, (session,)).fetchone()
        execute(text.read_messages, (session,)).fetchall()
        execute(text.count_events, (session,)).fetchall()
        return int(version)

    def deliver(self, session: int, messages: Sequence[tuple[int, str]]) -> None:
        """Deliver history."""
        execute, text = self._connection.execute, self._statements
        execute("BEGIN IMMEDIATE")
        try:
            (version, _title) = execute(text.read_session, (session,)).fetchone()
            for mark, body in messages:
                execute(text.add_message, (session, mark, body))
            execute(text.next_version, (version + 1, time.time(), session))
            execute("COMMIT")
        except BaseException:
            # Some errors have ended the transaction already.
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def event(self, session: int, mark: int, body: str) -> None:
        """Write one event."""
        self._connection.execute(self._statements.add_event, (session, mark, body))

    def offer(self, session: int, mark: int, body: str) -> bool:
        """Write one fact, or give it up when the database is locked."""
        try:
            self._connection.execute(self._statements.add_fact, (session, mark, body))
        except sqlite3.OperationalError as error:
            if not is_contention(error):
                raise
            return False
        return True

    def telemetry(self) -> dict[str, Any] | None:
        """Return nothing: the standard module does not measure."""
        return None

    def close(self) -> None:
        """Close."""
        self._connection.close()


class WritelaneDriver:
    """This library."""

    def __init__(self, path: str | os.PathLike[str], plan: Plan) -> None:
        self._statements = _Statements(plan)
        self._database = writelane.open(path, durability=plan.durability, deadline=plan.deadline, journal="wal")

    def read(self, session: int) -> int:
        """Read a session."""
        execute, text = self._database.execute, self._statements
        version = execute(text.read_session, (session,)).rows[0][0]
        _ = execute(text.read_messages, (session,)).rows
        _ = execute(text.count_events, (session,)).rows
        return int(version)

    def deliver(self, session: int, messages: Sequence[tuple[int, str]]) -> None:
        """Deliver history."""
        text = self._statements
        with self._database.transaction(label="deliver history") as transaction:
            version = transaction.execute(text.read_session, (session,)).rows[0][0]
            for mark, body in messages:
                transaction.execute(text.add_message, (session, mark, body))
            transaction.execute(text.next_version, (version + 1, time.time(), session))

    def event(self, session: int, mark: int, body: str) -> None:
        """Write one event."""
        self._database.execute(self._statements.add_event, (session, mark, body))

    def offer(self, session: int, mark: int, body: str) -> bool:
        """Offer one fact."""
        return self._database.offer(self._statements.add_fact, (session, mark, body))

    def telemetry(self) -> dict[str, Any] | None:
        """Wait until the offered facts are written too, and return the telemetry of the process."""
        self._database.flush()
        return self._database.telemetry().to_dict()

    def close(self) -> None:
        """Close."""
        self._database.close()


DRIVERS: dict[str, type[StandardDriver] | type[WritelaneDriver]] = {
    "sqlite3": StandardDriver,
    "writelane": WritelaneDriver,
}
