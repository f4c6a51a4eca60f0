"""The comparison of `writelane.dbapi` with the standard module runs, small and unmeasured, so that it cannot rot."""

from __future__ import annotations

import importlib.util
import pathlib

BENCH = pathlib.Path(__file__).parents[1] / "benches" / "dbapi_rivals.py"


def test_every_workload_of_the_comparison_runs():
    spec = importlib.util.spec_from_file_location("dbapi_rivals", BENCH)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    ratios = bench.measure(rows=300, rounds=1)
    assert ratios.keys() == bench.GOALS.keys() == bench.WORKLOADS.keys()
    assert all(ratio > 0 for ratio in ratios.values())
