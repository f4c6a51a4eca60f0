"""Every driver with every workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trial import Trial, missing
from workloads import Workload


def bench_trial(
    benchmark: Any,
    request: pytest.FixtureRequest,
    measure: Callable[[Workload, str], Trial],
    workload: Workload,
    driver: str,
    number: int,
) -> None:
    if absent := missing(driver):
        # Only a smoke run, which many start without the rivals, may do without.
        (pytest.skip if request.config.getoption("--smoke") else pytest.fail)(f"no {absent}; `make rivals` gets it")
    measured = benchmark.pedantic(measure, args=(workload, driver), rounds=1, iterations=1)
    assert measured.rows > 0 or workload.kind == "backlog"
    benchmark.group = workload.name
    benchmark.extra_info.update(workload=workload.name, driver=driver, rate=measured.rate)
