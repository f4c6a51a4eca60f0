"""The interpreter's own tests of ``sqlite3`` pass with `writelane.dbapi` in its place, but for reasoned deviations."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from cpython.deviations import DEVIATIONS

RUNNER = pathlib.Path(__file__).parent / "cpython" / "run.py"

#: Fewer tests than this means that the suite was not found, not that it is small: 3.10 has the fewest.
TESTS_MIN = 290


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    process = subprocess.run(
        [sys.executable, str(RUNNER)],
        capture_output=True,
        text=True,
        timeout=170,
        # The tests leave files beside them.
        cwd=tmp_path_factory.mktemp("suite"),
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout)


def listed(test_id):
    return [
        reason for end, minors, reason in DEVIATIONS if sys.version_info[1] in minors and test_id.endswith(f".{end}")
    ]


def test_the_suite_was_found_and_run(outcomes):
    passed = [test for test, (outcome, _) in outcomes.items() if outcome == "passed"]
    assert len(passed) >= TESTS_MIN


def test_no_test_fails_that_is_not_listed(outcomes):
    failures = {
        test: message for test, (outcome, message) in outcomes.items() if outcome == "failed" and not listed(test)
    }
    assert not failures, "\n\n".join(f"{test}\n{message}" for test, message in failures.items())


def test_every_listed_deviation_still_fails(outcomes):
    passing = [test for test, (outcome, _) in outcomes.items() if outcome == "passed" and listed(test)]
    assert not passing


def test_every_deviation_names_a_test_and_has_a_reason(outcomes):
    for end, minors, reason in DEVIATIONS:
        assert len(reason) > 20
        if sys.version_info[1] in minors:
            assert any(test.endswith(f".{end}") for test in outcomes), end
