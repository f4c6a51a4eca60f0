"""What telemetry costs: sixteen threads write, and it is switched on and off while they do."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import writelane

THREADS = 16

#: Windows are short and in the order on, off, off, on, so that whatever else the machine does falls on both alike.
WINDOW = 0.1
WINDOWS = 80


def rates(path: Path, windows: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return the rows a second of each window, on and off."""
    counts, ending = [0] * THREADS, threading.Event()
    measured: tuple[list[float], list[float]] = ([], [])
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, worker INTEGER, body TEXT)")
        telemetry = db.file_telemetry()

        def work(number: int) -> None:
            while not ending.is_set():
                db.execute("INSERT INTO t(worker, body) VALUES (?, ?)", (number, "x" * 100))
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            time.sleep(seconds)
            for window in range(windows):
                on = window % 4 in (0, 3)
                telemetry.on = on
                before, began = sum(counts), time.perf_counter()
                time.sleep(seconds)
                rate = (sum(counts) - before) / (time.perf_counter() - began)
                measured[0 if on else 1].append(rate)
        finally:
            ending.set()
            for thread in threads:
                thread.join()
    return measured


def bench_telemetry(benchmark: Any, request: pytest.FixtureRequest, tmp_path: Path, extras: dict[str, Any]) -> None:
    smoke = request.config.getoption("--smoke")
    windows, seconds = (4, 0.01) if smoke else (WINDOWS, WINDOW)
    on, off = benchmark.pedantic(rates, args=(tmp_path / "app.db", windows, seconds), rounds=1, iterations=1)
    cost = 1 - statistics.fmean(on) / statistics.fmean(off) if statistics.fmean(off) else 0.0
    extras["telemetry"] = {"on": statistics.fmean(on), "off": statistics.fmean(off), "cost": cost}
    assert smoke or min(*on, *off) > 0
