"""A process that knows nothing of writelane: the standard library's module, run by its path and isolated.

It is given one line of JSON, says ``ready``, and then does as the lines say that follow: ``begin TIME``, ``hold``,
``stop``.
When the other end of that pipe is gone, so is it.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sqlite3
import struct
import sys
import threading
import time
from typing import Any

#: SQLite's BUSY and LOCKED, for Python 3.10, whose exceptions carry no code.
CONTENTION_MESSAGES = ("locked", "busy")
LINE = "a line of a program that has not heard of any of this"


class Foreigner:
    """One such process."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._layout = struct.Struct(order["layout"])
        self._log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._mark: int = order["mark"]
        self._stop = threading.Event()
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        # As people connect: with the default time-out of five seconds.
        self._connection = sqlite3.connect(order["database"], isolation_level=None)
        self._connection.execute(f"PRAGMA synchronous={order['durability']}")
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()

    def listen(self) -> None:
        """Take orders until there is nobody left to give them."""
        with os.fdopen(os.dup(0), encoding="ascii") as orders:
            for line in orders:
                if line.strip() == "stop":
                    self._stop.set()
                self._orders.put(line.strip())
        if not self._stop.is_set():
            os._exit(1)

    def _insert(self) -> None:
        self._mark += 1
        self._connection.execute(f"INSERT INTO {self._order['table']}(mark, body) VALUES (?, ?)", (self._mark, LINE))

    def _record(self, outcome: int, begun: float) -> None:
        end = time.monotonic()
        os.write(self._log, self._layout.pack(self._order["kind"], outcome, 0, self._mark, 1, end, end - begun))

    def hold(self) -> None:
        """Hold the write lock for some seconds, each time it is ordered."""
        while self._orders.get() == "hold":
            while not self._stop.is_set():
                try:
                    self._connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if not is_contention(error):
                        raise
                    continue
                begun = time.monotonic()
                self._insert()
                self._stop.wait(self._order["seconds"])
                self._connection.execute("COMMIT")
                self._record(self._order["done"], begun)
                break

    def write(self) -> None:
        """Write line after line, and give each up when the time-out has passed."""
        source = random.Random(self._mark)
        while not self._stop.wait(source.expovariate(1 / self._order["seconds"]) if self._order["seconds"] else 0):
            begun = time.monotonic()
            try:
                self._insert()
                outcome = self._order["done"]
            except sqlite3.OperationalError as error:
                if not is_contention(error):
                    raise
                outcome = self._order["contention"]
            self._record(outcome, begun)

    def run(self) -> None:
        """Be that process."""
        threading.Thread(target=self.listen, name="orders", daemon=True).start()
        print("ready", flush=True)
        begin = float(self._orders.get().split()[1])
        time.sleep(max(0.0, begin - time.monotonic()))
        self.hold() if self._order["role"] == "hold" else self.write()
        self._connection.close()
        print("{}", flush=True)


def is_contention(error: sqlite3.OperationalError) -> bool:
    """Return whether others had the lock."""
    return any(word in str(error) for word in CONTENTION_MESSAGES)


if __name__ == "__main__":
    # The orders are read without a buffer here, or those that follow would be lost in it.
    first = b""
    while not first.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(1)
        first += byte
    Foreigner(json.loads(first)).run()
