"""Every driver with every workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trial import LIMIT, Trial
from workloads import Workload


def bench_trial(
    benchmark: Any, measure: Callable[[Workload, str], Trial], workload: Workload, driver: str, number: int
) -> None:
    if driver == "limit" and not LIMIT.exists():
        pytest.fail(f"{LIMIT} is not built; `make bench` does it")
    measured = benchmark.pedantic(measure, args=(workload, driver), rounds=1, iterations=1)
    assert measured.rows > 0 or workload.kind == "backlog"
    benchmark.group = workload.name
    benchmark.extra_info.update(workload=workload.name, driver=driver, rate=measured.rate)
