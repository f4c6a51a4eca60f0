"""Settings of the benchmarks: how many trials, how long; the order of the trials; the table at the end.

Every trial is one benchmark, so that the trials of one workload can take turns: all drivers once, then all once more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import goals
import table
import trial
from workloads import WORKLOADS, Workload

#: A trial long enough to be measured, and one that only shows that it runs.
MEASURED = trial.Sizes(seconds=2.0, rows=300_000)
SMOKE = trial.Sizes(seconds=0.05, rows=300)
ROUNDS = 3

#: What is no trial of a driver: the costs of telemetry and of the disk.
EXTRAS = pytest.StashKey[dict[str, Any]]()
CELLS = pytest.StashKey[dict[tuple[str, str], list[trial.Trial]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trials")
    group.addoption("--smoke", action="store_true", help="run every bench once, small, unmeasured")
    group.addoption("--rounds", type=int, default=ROUNDS, help="trials of each driver (default: %(default)s)")
    group.addoption("--seconds", type=float, default=MEASURED.seconds, help="of one trial (default: %(default)s)")
    group.addoption("--table", metavar="FILE", help="write the table there too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELLS] = {}
    config.stash[EXTRAS] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workload" in metafunc.fixturenames:
        rounds = 1 if metafunc.config.getoption("--smoke") else metafunc.config.getoption("--rounds")
        cases = [
            pytest.param(workload, driver, number, id=f"{workload.name}-{driver}-{number}")
            for _, series in groupby(WORKLOADS.values(), key=lambda workload: workload.series or workload.name)
            for number, workload in product(range(rounds), list(series))
            for driver in _rotated(workload, number)
        ]
        metafunc.parametrize(("workload", "driver", "number"), cases)


def _rotated(workload: Workload, number: int) -> list[str]:
    """Return the drivers, another one first in each round; ``limit`` last, since it wants the size of our groups."""
    drivers = [driver for driver in workload.drivers if driver != "limit"]
    first = number % len(drivers)
    return [*drivers[first:], *drivers[:first], *(["limit"] if "limit" in workload.drivers else [])]


@pytest.fixture
def measure(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Workload, str], trial.Trial]]:
    """Run one trial and keep what it has measured for the table."""
    config = request.config
    cells = config.stash[CELLS]
    sizes = SMOKE if config.getoption("--smoke") else trial.Sizes(config.getoption("--seconds"), MEASURED.rows)

    def run(workload: Workload, driver: str) -> trial.Trial:
        ours = cells.get((workload.name, "writelane"))
        measured = trial.run(workload, driver, sizes, tmp_path, ours[-1].group if ours else 1.0)
        cells.setdefault((workload.name, driver), []).append(measured)
        return measured

    yield run
    # Databases of many trials would fill the disk.
    for path in tmp_path.iterdir():
        path.unlink()


@pytest.fixture
def extras(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return where a bench that is no trial of a driver puts what it has measured."""
    return request.config.stash[EXTRAS]


def _rows(config: pytest.Config) -> list[dict[str, Any]]:
    rows = table.rows(config.stash[CELLS])
    if telemetry := config.stash[EXTRAS].get("telemetry"):
        rows.append({"workload": "telemetry-normal", "driver": "writelane", **telemetry})
    return rows


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]) -> None:
    output_json["table"] = _rows(config)
    output_json["goals"] = goals.results(output_json["table"])
    output_json["disk"] = config.stash[EXTRAS].get("disk", {})
    output_json["cores"] = len(os.sched_getaffinity(0))
    output_json["rounds"] = config.getoption("--rounds")
    output_json["seconds"] = config.getoption("--seconds")
    output_json["trials"] = [
        {"workload": name, "driver": driver, **asdict(each)}
        for (name, driver), trials in config.stash[CELLS].items()
        for each in trials
    ]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[CELLS] or config.stash[EXTRAS]:
        rows = _rows(config)
        written = table.text([row for row in rows if row["workload"] in WORKLOADS])
        if disk := config.stash[EXTRAS].get("disk"):
            written += (
                f"\n\na flush: appended {disk['appended'] * 1e6:.0f} us, overwritten {disk['overwritten'] * 1e6:.0f} us"
            )
        if not config.getoption("--smoke"):
            written += "\n" + goals.text(goals.results(rows))
        terminalreporter.write_line(written)
        if config.getoption("--table"):
            Path(config.getoption("--table")).write_text(written.lstrip("\n") + "\n", encoding="utf-8")
