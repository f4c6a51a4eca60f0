"""Compare `writelane.dbapi` with the interpreter's own ``sqlite3``: both in one run, interleaved, medians.

``python benches/dbapi_rivals.py [--rows N] [--rounds N] [--json]``. Each workload prints its ratio: more than 1 is
faster than the standard module. The goals are in `GOALS`; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import writelane.dbapi

#: Workload, and how many times as fast as the standard module it has to be. Short calls on a file pay some microseconds
#: for locks that nothing else in the process can drop, which a single read notices most.
GOALS = {
    "fetchall": 1.2,
    "iterate": 1.1,
    "fetchmany": 1.2,
    "executemany list": 1.1,
    "executemany generator": 1.1,
    "single insert": 0.95,
    "single select": 0.85,
}


def fill(module: Any, path: str, rows: int) -> Any:
    connection = module.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, score REAL, note TEXT)")
    connection.executemany(
        "INSERT INTO t(name, score, note) VALUES (?, ?, ?)",
        [(f"name {number}", number / 7, "x" * (number % 40)) for number in range(rows)],
    )
    connection.commit()
    return connection


def fetchall(connection: Any, rows: int) -> None:
    assert len(connection.execute("SELECT * FROM t").fetchall()) == rows


def iterate(connection: Any, rows: int) -> None:
    count = 0
    for _ in connection.execute("SELECT * FROM t"):
        count += 1
    assert count == rows


def fetchmany(connection: Any, rows: int) -> None:
    cursor = connection.execute("SELECT * FROM t")
    count = 0
    while batch := cursor.fetchmany(1000):
        count += len(batch)
    assert count == rows


def _many(connection: Any, values: Any) -> None:
    connection.execute("CREATE TABLE many(id INTEGER PRIMARY KEY, name TEXT, score REAL)")
    connection.executemany("INSERT INTO many(name, score) VALUES (?, ?)", values)
    connection.commit()


def executemany_list(connection: Any, rows: int) -> None:
    _many(connection, LISTED[:rows])


def executemany_generator(connection: Any, rows: int) -> None:
    _many(connection, (value for value in LISTED[:rows]))


def drop_many(connection: Any) -> None:
    connection.execute("DROP TABLE IF EXISTS many")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def single_insert(connection: Any, rows: int) -> None:
    for number in range(rows // 60):
        connection.execute("INSERT INTO t(name, score, note) VALUES (?, ?, ?)", ("single", number, "note"))
        connection.commit()


def drop_singles(connection: Any) -> None:
    connection.execute("DELETE FROM t WHERE name = 'single'")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def single_select(connection: Any, rows: int) -> None:
    for number in range(rows // 10):
        connection.execute("SELECT name FROM t WHERE id = ?", (number + 1,)).fetchone()


WORKLOADS: dict[str, tuple[Callable[[Any, int], None], Callable[[Any], None] | None]] = {
    "fetchall": (fetchall, None),
    "iterate": (iterate, None),
    "fetchmany": (fetchmany, None),
    "executemany list": (executemany_list, drop_many),
    "executemany generator": (executemany_generator, drop_many),
    "single insert": (single_insert, drop_singles),
    "single select": (single_select, None),
}

LISTED: list[tuple[str, float]] = []


def measure(rows: int, rounds: int) -> dict[str, float]:
    LISTED[:] = [(f"name {number}", number / 7) for number in range(rows)]
    modules = {"sqlite3": sqlite3, "writelane": writelane.dbapi}
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        connections = {name: fill(module, os.path.join(folder, f"{name}.db"), rows) for name, module in modules.items()}
        for connection in connections.values():
            # As durable as a log is used: with OFF nothing is, and with FULL it is the disk that is compared.
            connection.execute("PRAGMA synchronous=NORMAL")
        for workload, (run, clean) in WORKLOADS.items():
            seconds: dict[str, list[float]] = {name: [] for name in modules}
            for _ in range(rounds):
                for name, connection in connections.items():
                    began = time.perf_counter()
                    run(connection, rows)
                    seconds[name].append(time.perf_counter() - began)
                    if clean is not None:
                        clean(connection)
            ratios[workload] = statistics.median(seconds["sqlite3"]) / statistics.median(seconds["writelane"])
        for connection in connections.values():
            connection.close()
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ratios = measure(options.rows, options.rounds)
    if options.json:
        print(json.dumps({name: {"ratio": ratio, "goal": GOALS[name]} for name, ratio in ratios.items()}))
    else:
        for name, ratio in ratios.items():
            print(f"{name:22} {ratio:5.2f}  (goal {GOALS[name]:.2f}){'' if ratio >= GOALS[name] else '  MISSED'}")
    return int(any(ratio < GOALS[name] for name, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
