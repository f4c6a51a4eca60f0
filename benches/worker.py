"""One process of a trial: ``python benches/worker.py``, given its order as one line of JSON.

It says ``ready``, is given the time to begin on the clock that all processes share, says one line of JSON, and stays
until it is let go. The times of its writes go to a file, since they are many.
"""

from __future__ import annotations

import array
import json
import os
import resource
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rivals import DRIVERS, INSERT, Aiosqlite, Driver, Peewee, Writelane

#: Seconds between two looks at how much is queued.
LOOK_SECONDS = 0.01


def wait_for_begin() -> float:
    """Say that all is prepared, and wait until all others are."""
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    time.sleep(max(0.0, begin - time.monotonic()))
    return begin


def closed_loop(driver: Driver, order: dict[str, Any]) -> dict[str, Any]:
    """Every thread writes a row, waits for it, and writes the next."""
    body, threads, seconds = order["body"], order["threads"], order["seconds"]
    times = [array.array("f") for _ in range(threads)]
    clock = time.monotonic

    if isinstance(driver, Aiosqlite):
        begin = wait_for_begin()
        end = begin + seconds
        connection = driver.connection

        async def task(number: int) -> None:
            took = times[number]
            while (started := clock()) < end:
                await connection.execute(INSERT, (number, body))
                took.append(clock() - started)

        driver.run_tasks([task(number) for number in range(threads)])
    else:
        prepared = threading.Barrier(threads + 1)
        started_at = [0.0]

        def run(number: int) -> None:
            write, took = driver.writer(), times[number]
            prepared.wait()
            prepared.wait()
            end = started_at[0] + seconds
            while (started := clock()) < end:
                write(number, body)
                took.append(clock() - started)

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        prepared.wait()
        started_at[0] = begin = wait_for_begin()
        prepared.wait()
        for worker in workers:
            worker.join()
    elapsed = clock() - begin
    everything = array.array("f")
    for took in times:
        everything.extend(took)
    with open(order["times"], "wb") as file:
        everything.tofile(file)
    counts = [len(took) for took in times]
    return {
        "rows": sum(counts),
        "seconds": elapsed,
        "counts": counts,
        "group": driver.group(),
        "phases": driver.phases(),
    }


def stream(driver: Driver, order: dict[str, Any]) -> dict[str, Any]:
    """One thread writes without waiting for each row."""
    begin = wait_for_begin()
    end, clock = begin + order["seconds"], time.monotonic
    rows = driver.stream(lambda: clock() < end, order["body"])
    elapsed = clock() - begin
    return {"rows": rows, "seconds": elapsed, "counts": [rows], "group": driver.group()}


def first_write(order: dict[str, Any]) -> dict[str, Any]:
    """Open an existing file, and have the first write done. Imports are not counted."""
    kind = DRIVERS[order["driver"]]
    if order["driver"] == "writelane":
        import writelane  # noqa: F401
    wait_for_begin()
    started = time.monotonic()
    driver = kind(order["database"], order["durability"])
    driver.writer()(0, order["body"])
    elapsed = time.monotonic() - started
    driver.close()
    return {"rows": 1, "seconds": elapsed, "counts": [1], "group": 1.0}


def module_of(name: str) -> Any:
    """Return the DB-API connection maker of a driver."""
    if name == "writelane":
        import writelane.dbapi

        return writelane.dbapi.connect
    if name == "apsw":
        import apsw

        return apsw.Connection
    return sqlite3.connect


def fetch(order: dict[str, Any]) -> dict[str, Any]:
    """Fetch all rows of a table."""
    connection = module_of(order["driver"])(order["database"])
    sql = f"SELECT * FROM {order['table']}"
    connection.execute(sql).fetchone()
    wait_for_begin()
    started = time.monotonic()
    rows = len(connection.execute(sql).fetchall())
    return {"rows": rows, "seconds": time.monotonic() - started, "counts": [rows], "group": 1.0}


def many(order: dict[str, Any]) -> dict[str, Any]:
    """Insert many rows in one transaction."""
    connection = module_of(order["driver"])(order["database"])
    connection.execute(f"PRAGMA synchronous={order['durability']}")
    data = [(number, order["body"]) for number in range(order["rows"])]
    wait_for_begin()
    started = time.monotonic()
    if order["driver"] == "apsw":
        with connection:
            connection.executemany(INSERT, data)
    else:
        connection.executemany(INSERT, data)
        connection.commit()
    elapsed = time.monotonic() - started
    connection.close()
    return {"rows": len(data), "seconds": elapsed, "counts": [len(data)], "group": float(len(data))}


def backlog(order: dict[str, Any]) -> dict[str, Any]:
    """Queue small jobs while somebody else holds the lock: how much memory does it take, and does the caller wait?"""
    submit: Callable[[str, tuple[int, str]], Any]
    if order["driver"] == "writelane":
        # Room for all in number, so that the bytes are what bounds it.
        submit = Writelane(order["database"], order["durability"], queue_size=order["rows"]).database.submit
    else:
        submit = Peewee(order["database"], order["durability"]).database.execute_sql
    driver_ready = wait_for_begin()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queued = [0]

    def fill() -> None:
        while queued[0] < order["rows"]:
            submit(INSERT, (0, order["body"]))
            queued[0] += 1

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    # Until all is queued, or the queue has taken none for a while: then its caller waits. Looks are counted and not
    # seconds, since a collection of garbage among so many jobs stops both for a long time.
    seen, looks = -1, 0
    while filler.is_alive() and looks * LOOK_SECONDS < order["seconds"]:
        looks = looks + 1 if queued[0] == seen else 0
        seen = queued[0]
        time.sleep(LOOK_SECONDS)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {
        "rows": 0,
        "seconds": time.monotonic() - driver_ready,
        "counts": [queued[0]],
        "group": 1.0,
        "bytes": grown,
        "waits": filler.is_alive(),
    }


def main() -> None:
    """Run the order."""
    order = json.loads(sys.stdin.readline())
    kind = order["kind"]
    driver = DRIVERS[order["driver"]](order["database"], order["durability"]) if kind in ("loop", "stream") else None
    if driver is None:
        result = {"open": first_write, "fetch": fetch, "many": many, "backlog": backlog}[kind](order)
    elif kind == "loop":
        result = closed_loop(driver, order)
    else:
        result = stream(driver, order)
    print(json.dumps(result), flush=True)
    if driver is not None:
        # The others' last writes are not to be measured beside the end of this process.
        sys.stdin.readline()
        driver.close()
    if kind == "backlog":
        # What is queued is not wanted.
        os._exit(0)


if __name__ == "__main__":
    main()
