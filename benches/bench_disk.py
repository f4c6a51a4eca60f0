"""What a flush of this disk costs: the size of a small commit, appended to a file and written over it again."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

#: A page of the log with its header.
FRAME = bytes(4096 + 24)
FLUSHES = 2000


def flush_times(path: Path, flushes: int) -> dict[str, float]:
    """Return the median seconds of a flush that makes the file longer, and of one that does not."""
    medians = {}
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        for name in ("appended", "overwritten"):
            os.lseek(file, 0, os.SEEK_SET)
            times = []
            for _ in range(flushes):
                began = time.perf_counter()
                os.write(file, FRAME)
                os.fdatasync(file)
                times.append(time.perf_counter() - began)
            medians[name] = statistics.median(times)
    finally:
        os.close(file)
    return medians


def bench_disk(benchmark: Any, request: pytest.FixtureRequest, tmp_path: Path, extras: dict[str, Any]) -> None:
    flushes = 10 if request.config.getoption("--smoke") else FLUSHES
    extras["disk"] = benchmark.pedantic(flush_times, args=(tmp_path / "disk", flushes), rounds=1, iterations=1)
    assert all(seconds > 0 for seconds in extras["disk"].values())
