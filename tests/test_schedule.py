"""A scheduled job runs once per interval over all processes, never beside itself, and is taken over from the dead."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane import schedule

#: Notes when it runs, over and over, until the file has as many runs as asked for.
WORKER = """
import sys, threading, writelane
path, every, runs = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
db = writelane.open(path)
enough = threading.Event()

def note(db):
    db.execute("INSERT INTO runs(at) VALUES (julianday('now'))")
    inside = db.execute("INSERT INTO inside VALUES (1) RETURNING (SELECT count(*) FROM inside)").rows[0][0]
    db.execute("INSERT INTO overlaps SELECT ? WHERE ? > 1", (inside, inside))
    db.execute("DELETE FROM inside")
    if db.execute("SELECT count(*) FROM runs").rows[0][0] >= runs:
        enough.set()
    return "noted"

db.every(every, "note", note)
while not enough.wait(0.02):
    if db.execute("SELECT count(*) FROM runs").rows[0][0] >= runs:
        break
db.close()
"""

#: Begins a run and never ends it.
HANG = """
import sys, threading, writelane
db = writelane.open(sys.argv[1])
def hang():
    print("running", flush=True)
    threading.Event().wait()
db.every("1h", "job", hang)
threading.Event().wait()
"""

LEAVES_AT_EXIT = """
import sys, threading, writelane
db = writelane.open(sys.argv[1])
begun = threading.Event()
def job(db):
    begun.set()
    db.execute("CREATE TABLE done(x)")
    return "done"
db.every("1h", "job", job)
begun.wait()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the suite's time-out ends it if it does not."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


def only(db: writelane.Database) -> writelane.JobStatus:
    (job,) = db.jobs()
    return job


def test_a_job_that_has_not_run_within_its_interval_runs_at_once(path: Path) -> None:
    ran: list[Any] = []
    with writelane.open(path) as db:
        assert db.jobs() == []
        before = time.time()
        scheduled = db.every("1h", "prune-usage", lambda: ran.append(1) or "result")
        wait_until(lambda: only(db).runs == 1)
        job = scheduled.status()
        assert ran == [1]
        assert (job.name, job.every, job.runs, job.failures) == ("prune-usage", 3600.0, 1, 0)
        assert (job.last_result, job.last_error, job.running) == ("'result'", None, None)
        assert job.last_start is not None
        assert job.last_end is not None
        # To the millisecond, as SQLite tells the time.
        assert before - 0.001 <= job.last_start <= job.last_end <= time.time()
        assert job.next_run == job.last_start + 3600
    # Another opening of the file, as another process would: it is not due.
    with writelane.open(path) as db:
        db.every("1h", "prune-usage", lambda: ran.append(2))
        db.every("1h", "other", ran.append.__self__.copy)
        wait_until(lambda: {job.name for job in db.jobs() if job.runs} == {"prune-usage", "other"})
        assert ran == [1]


def test_a_job_that_must_have_an_argument_gets_the_database(path: Path) -> None:
    given: list[Any] = []
    with writelane.open(path) as db:
        db.every("1h", "with", given.append)
        db.every("1h", "default", lambda database=None: given.append(database))
        wait_until(lambda: len(given) == 2)
        assert sorted(given, key=lambda item: item is None) == [db, None]


def test_processes_share_the_runs_and_none_overlaps(path: Path) -> None:
    with writelane.open(path) as db:
        for table in ("runs(at)", "inside(x)", "overlaps(n)"):
            db.execute(f"CREATE TABLE {table}")
        command = [sys.executable, "-c", WORKER, str(path), "0.2", "6"]
        workers = [subprocess.Popen(command) for _ in range(4)]
        assert [worker.wait() for worker in workers] == [0] * 4
        at = [row[0] * 86400 for row in db.execute("SELECT at FROM runs ORDER BY at").rows]
        assert len(at) >= 6
        assert db.execute("SELECT * FROM overlaps").rows == []
        # A run is noted after its claim; a claim never comes before the last one and the interval.
        assert at[-1] - at[0] >= 0.2 * (len(at) - 2)
        assert only(db).failures == 0


def test_the_run_of_a_killed_process_is_taken_over(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HANG, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "running\n"
    ran = threading.Event()
    with writelane.open(path) as db:
        assert only(db).running == process.pid
        db.every("1h", "job", ran.set)
        # It is held by a live process.
        assert not ran.wait(0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert only(db).running is None
        ran.wait()
        wait_until(lambda: only(db).runs == 1)


def test_the_lease_of_a_process_that_cannot_be_seen_runs_out(path: Path) -> None:
    ran = threading.Event()
    with writelane.open(path) as db:
        db.every("1h", "job", lambda: None)
        wait_until(lambda: only(db).runs == 1)
        db.execute(
            "UPDATE writelane_jobs SET owner = 'token another-host 1 1', next_run = 0, lease_until = ?",
            (time.time() + 0.3,),
        )
    with writelane.open(path) as db:
        db.every("1h", "job", ran.set)
        ran.wait()
        assert time.time() >= db.execute("SELECT last_start FROM writelane_jobs").rows[0][0]
        wait_until(lambda: only(db).runs == 2)


def test_a_lease_is_renewed_while_its_job_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "LEASE", 0.3)
    may_end = threading.Event()
    with writelane.open(path) as db:
        db.every("1h", "job", may_end.wait)

        def lease() -> float:
            rows = db.execute("SELECT coalesce(max(lease_until), 0.0) FROM writelane_jobs").rows
            return float(rows[0][0])

        wait_until(lambda: lease() > 0)
        first = lease()
        wait_until(lambda: lease() > first + 0.3)
        may_end.set()
        wait_until(lambda: only(db).runs == 1)


def test_an_error_is_logged_kept_and_retried_with_back_off(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[float] = []

    def job() -> str:
        attempts.append(time.time())
        if len(attempts) < 3:
            raise RuntimeError("not yet")
        return "at last"

    with (
        caplog.at_level(logging.CRITICAL, "writelane"),
        # Not set_level, which would give the tests that follow the level of the line above.
        caplog.at_level(logging.ERROR, "writelane.schedule"),
        writelane.open(path) as db,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(schedule, "RETRY_FIRST", 0.05)
        db.every("1h", "job", job)
        wait_until(lambda: only(db).failures >= 1 or len(attempts) > 1)
        wait_until(lambda: only(db).last_result == "'at last'")
        status = only(db)
        assert (status.runs, status.failures, status.last_error) == (3, 0, None)
    assert attempts[1] - attempts[0] >= 0.05
    assert attempts[2] - attempts[1] >= 0.1
    messages = [record.getMessage() for record in caplog.records if record.name == "writelane.schedule"]
    assert len(messages) == 2
    assert all("job 'job' failed" in message for message in messages)


def test_a_failure_is_kept_for_whoever_asks(path: Path) -> None:
    with writelane.open(path) as db:
        db.every("1h", "job", lambda: 1 // 0)
        wait_until(lambda: only(db).failures >= 1)
        error = only(db).last_error
        assert error is not None
        assert error.startswith("ZeroDivisionError: ")


def test_a_clock_that_was_set_back_does_not_put_a_job_off(path: Path) -> None:
    ran = threading.Event()
    with writelane.open(path) as db:
        db.every("1h", "job", lambda: None)
        wait_until(lambda: only(db).runs == 1)
        db.execute("UPDATE writelane_jobs SET next_run = next_run + 86400")
    with writelane.open(path) as db:
        db.every("1h", "job", ran.set)
        ran.wait()


def test_cancelled_and_closed_schedules_run_no_more(path: Path) -> None:
    ran: list[int] = []
    with writelane.open(path) as db:
        scheduled = db.every(0.01, "job", lambda: ran.append(1))
        wait_until(lambda: len(ran) >= 2)
        with pytest.raises(ValueError, match="already"):
            db.every("1h", "job", lambda: None)
        scheduled.cancel()
        assert scheduled.join(30)
        seen = len(ran)
        # Its name is free again.
        db.every("1h", "job", lambda: None)
    assert len(ran) == seen
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wl-every")]
    with pytest.raises(writelane.Closed):
        db.every("1h", "job", lambda: None)


def test_close_ends_a_prune_that_a_job_is_in(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x)")
        db.execute(
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 1000) "
            "INSERT INTO t SELECT i FROM c"
        )
        begun = threading.Event()

        def prune(db: writelane.Database) -> writelane.Pruned:
            return db.prune("t", where="1", chunk=1, pause=1.0, progress=lambda _: begun.set())

        db.every("1h", "prune", prune)
        begun.wait()
    with writelane.open(path) as db:
        assert db.execute("SELECT count(*) FROM t").rows[0][0] > 0
        assert "finished=False" in str(only(db).last_result)


def test_a_job_that_runs_at_the_interpreters_exit_is_let_end(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_AT_EXIT, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with writelane.open(path) as db:
        assert only(db).last_result == "'done'"


def test_intervals_are_read(path: Path) -> None:
    for interval, expected in [("30m", 1800), ("1h30m", 5400), ("1.5 s", 1.5), ("2d", 172800), ("250ms", 0.25), (7, 7)]:
        assert schedule.seconds(interval) == expected
    assert schedule.seconds(timedelta(minutes=2)) == 120
    for wrong in ["", "30", "m", "30x", "30m!", 0, -1, float("nan"), float("inf"), "0s"]:
        with pytest.raises(ValueError, match="interval"):
            schedule.seconds(wrong)
