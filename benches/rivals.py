"""The drivers, each used as its own documentation says, behind one small interface.

A driver is opened once in a process, in the thread that runs it. ``writer()`` gives one thread its way to write one row
and wait until it is committed; ``stream()`` writes rows one after the other without waiting for each.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["DRIVERS", "INSERT", "Driver"]

INSERT = "INSERT INTO rows(writer, body) VALUES (?, ?)"
#: Seconds a lock is waited for. Longer than the default, so that rivals are not measured by how they fail.
TIMEOUT = 60.0
#: Writes that a stream leaves unanswered, where the driver sets no bound of its own.
IN_FLIGHT = 1000

Write = Callable[[int, str], None]


class Driver:
    """What the workloads need."""

    def __init__(self, path: str, durability: str) -> None:
        self.path = path
        self.durability = durability

    def writer(self) -> Write:
        """Return what writes a row and returns when it is committed; for the calling thread."""
        raise NotImplementedError

    def stream(self, more: Callable[[], bool], body: str) -> int:
        """Write rows while there are ``more``, wait until all are committed, and return how many."""
        write, done = self.writer(), 0
        while more():
            write(0, body)
            done += 1
        return done

    def group(self) -> float:
        """Return the mean number of rows in a transaction."""
        return 1.0

    def phases(self) -> dict[str, float]:
        """Return the mean seconds of each phase of a write, where the driver tells."""
        return {}

    def close(self) -> None:
        """Close what is not closed by its thread."""


class Sqlite3(Driver):
    """The standard module: a connection for each thread, autocommit."""

    def writer(self) -> Write:
        connection = sqlite3.connect(self.path, timeout=TIMEOUT, isolation_level=None)
        connection.execute(f"PRAGMA synchronous={self.durability}")
        execute = connection.execute
        return lambda writer, body: execute(INSERT, (writer, body)) and None


class Apsw(Driver):
    """APSW: a connection for each thread, autocommit."""

    def writer(self) -> Write:
        import apsw

        connection = apsw.Connection(self.path)
        connection.set_busy_timeout(int(TIMEOUT * 1000))
        connection.execute(f"PRAGMA synchronous={self.durability}")
        execute = connection.execute
        return lambda writer, body: execute(INSERT, (writer, body)) and None


class Peewee(Driver):
    """peewee's SqliteQueueDatabase: one writer thread and a queue."""

    def __init__(self, path: str, durability: str) -> None:
        super().__init__(path, durability)
        from playhouse.sqliteq import SqliteQueueDatabase

        self.database = SqliteQueueDatabase(
            path, autostart=True, timeout=TIMEOUT, pragmas={"journal_mode": "wal", "synchronous": durability}
        )

    def writer(self) -> Write:
        execute = self.database.execute_sql
        # Asking for the count waits for the answer.
        return lambda writer, body: execute(INSERT, (writer, body)).rowcount and None

    def stream(self, more: Callable[[], bool], body: str) -> int:
        execute, waiting, done = self.database.execute_sql, [], 0
        while more():
            waiting.append(execute(INSERT, (0, body)))
            done += 1
            if len(waiting) == IN_FLIGHT:
                # Answered in order, so the oldest half is awaited and the rest keeps the writer busy.
                for cursor in waiting[: IN_FLIGHT // 2]:
                    _ = cursor.rowcount
                del waiting[: IN_FLIGHT // 2]
        for cursor in waiting:
            _ = cursor.rowcount
        return done

    def close(self) -> None:
        self.database.stop()


class Aiosqlite(Driver):
    """aiosqlite: one connection with a thread of its own, and an event loop that all writers share."""

    def __init__(self, path: str, durability: str) -> None:
        super().__init__(path, durability)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.connection = self._run(self._open())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> Any:
        import aiosqlite

        connection = await aiosqlite.connect(self.path, timeout=TIMEOUT, isolation_level=None)
        await connection.execute(f"PRAGMA synchronous={self.durability}")
        return connection

    def run_tasks(self, tasks: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Run coroutines beside each other, as its users do instead of threads."""

        async def gather() -> list[Any]:
            return await asyncio.gather(*tasks)

        return list(self._run(gather()))

    def writer(self) -> Write:
        raise NotImplementedError("its writers are tasks")

    def stream(self, more: Callable[[], bool], body: str) -> int:
        async def stream() -> int:
            waiting: set[asyncio.Future[Any]] = set()
            done = 0
            while more():
                waiting.add(asyncio.ensure_future(self.connection.execute(INSERT, (0, body))))
                done += 1
                if len(waiting) == IN_FLIGHT:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting)
            return done

        return int(self._run(stream()))

    def close(self) -> None:
        self._run(self.connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Writelane(Driver):
    """This library."""

    def __init__(self, path: str, durability: str, queue_size: int = 1024) -> None:
        super().__init__(path, durability)
        import writelane

        self.database = writelane.open(path, durability=durability, deadline=TIMEOUT, queue_size=queue_size)

    def writer(self) -> Write:
        execute = self.database.execute
        return lambda writer, body: execute(INSERT, (writer, body)) and None

    def stream(self, more: Callable[[], bool], body: str) -> int:
        submit, done, last = self.database.submit, 0, None
        # The queue is bounded by itself; in order, so the last answer is the last of all.
        while more():
            last = submit(INSERT, (0, body))
            done += 1
        if last is not None:
            last.result()
        return done

    def group(self) -> float:
        groups = self.database.telemetry().groups
        return float(groups["jobs"]) / max(1, groups["count"])

    def phases(self) -> dict[str, float]:
        told = next(each for each in self.database.telemetry().statements if each["sql"] == INSERT)
        names = {"queue": "queue_wait", "lock": "lock_wait", "run": "run", "commit": "commit"}
        return {name: told[key]["sum"] / max(1, told[key]["count"]) for name, key in names.items()}

    def close(self) -> None:
        self.database.close()


DRIVERS: dict[str, type[Driver]] = {
    "sqlite3": Sqlite3,
    "apsw": Apsw,
    "sqliteq": Peewee,
    "aiosqlite": Aiosqlite,
    "writelane": Writelane,
}
