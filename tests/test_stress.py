"""The stress command: a fleet in real processes whose every acknowledged row is there once, and that leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from writelane.cli import main
from writelane.stress.measures import fairness, quantile
from writelane.stress.plan import Plan
from writelane.stress.records import LAYOUT, Kind, Log, Outcome, Record, first_mark, read_log
from writelane.stress.tables import fill, free_prefix
from writelane.stress.verification import Verification, verify

SMALL = ["--processes", "2", "--turns", "2", "--size", "1", "--think", "0"]


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every run a temporary folder of its own, and see that it is left empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["stress", "--json", *arguments])
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    found: dict[str, Any] = json.loads(output)
    assert found["status"] == status
    return status, found


def test_a_fleet_outlives_a_foreign_hold_without_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    # The short form of `make soak`: fewer megabytes, turns and seconds, the same nine processes and two holds.
    status, found = document(
        capsys, "--processes", "9", "--turns", "8", "--size", "8", "--hold", "2", "--holds", "2", "--think", "4"
    )
    (run,) = found["runs"]
    assert status == 0, run
    assert (run["turns_done"], run["turns_dead"], run["locked"], run["errors"]) == (72, 0, 0, 0)
    assert run["holds"] == 2
    assert run["held"] >= 4
    assert run["verification"]["sound"]
    # Of a turn four events and two to six messages; of a hold one row.
    assert 72 * 6 + 2 <= run["verification"]["acknowledged"] <= 72 * 10 + 2
    assert run["longest"] >= 1, "nobody has waited for the holder, so the run has shown nothing"
    assert run["waiters"][0]["longest"] >= 1
    assert any("foreign.py" in holder["holder"] for waiter in run["waiters"] for holder in waiter["held_by"])


def test_threads_and_foreign_writers_keep_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = document(
        capsys, "--processes", "2", "--threads", "3", "--turns", "4", "--size", "1", "--foreign-writers", "2"
    )
    (run,) = found["runs"]
    assert status == 0, run
    assert run["turns_done"] == 24
    assert run["commits"] == 24 * 5
    assert run["verification"]["sound"]


def test_compare_runs_both_on_the_same_turns(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = document(capsys, *SMALL, "--compare", "--holds", "0")
    plain, ours = found["runs"]
    assert status == 0
    assert (plain["driver"], ours["driver"]) == ("sqlite3", "writelane")
    assert plain["turns_done"] == ours["turns_done"] == 4
    assert plain["verification"]["acknowledged"] == ours["verification"]["acknowledged"]


def test_the_text_shows_both_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", *SMALL, "--compare", "--holds", "0"]) == 0
    output = capsys.readouterr().out
    assert [line.split() for line in output.splitlines() if line.startswith("turns done")] == [
        ["turns", "done", "4", "4"]
    ]
    assert "is there once" in output.splitlines()[-1]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", *SMALL, "--quiet"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["stress", "--json", *SMALL, "--progress"])
    printed = capsys.readouterr()
    assert status == 0
    json.loads(printed.out)
    assert "[" in printed.err


def test_real_works_on_a_copy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes(x)")
        connection.execute("CREATE TABLE writelane_stress_sessions(mine)")
        connection.executemany("INSERT INTO notes VALUES (?)", [(i,) for i in range(100)])
        connection.commit()
    before = path.read_bytes()
    kept = tmp_path / "kept"
    status, found = document(capsys, *SMALL, "--real", str(path), "--keep", str(kept))
    assert status == 0
    assert path.read_bytes() == before
    assert found["plan"]["prefix"] != "writelane_stress_"
    with contextlib.closing(sqlite3.connect(kept / "writelane.db")) as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (100,)
        assert connection.execute("SELECT * FROM writelane_stress_sessions").fetchall() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--processes", "0"], "processes"),
        (["--deadline", "0"], "deadline"),
        (["--think", "nan"], "think"),
        (["--size", "1e9"], "MB free"),
        (["--real", "nowhere.db"], "nowhere.db"),
        (["--durability", "sometimes"], "durability"),
    ],
)
def test_what_cannot_be_done_is_said(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    status, found = document(capsys, *arguments)
    assert status == 2
    assert words in found["error"]["message"]


def test_a_folder_that_cannot_be_written_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    status, found = document(capsys, *SMALL, "--keep", str(tmp_path / "file" / "folder"))
    assert (status, "folder" in found["error"]["message"]) == (2, True)
    status, found = document(capsys, *SMALL, "--keep", str(tmp_path))
    assert (status, "not empty" in found["error"]["message"]) == (2, True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    status, found = document(capsys, *SMALL)
    assert (status, "TMPDIR" in found["error"]["message"]) == (2, True)


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a long run and return it once its agents are at work."""
    command = [sys.executable, "-m", "writelane", "stress", "--json", "--progress", "--turns", "100000", *arguments]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    heard = ""
    while "turns [" not in heard:
        character = run.stderr.read(1)
        assert character, heard
        heard += character
    return run


def children(folder: Path) -> list[int]:
    """The processes that were given a file in a folder, by what they have open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(folder) in os.readlink(link) for link in (process / "fd").iterdir()):
                    found.append(int(process.name))
    return found


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_parent(temporary_folder: Path, signum: signal.Signals) -> None:
    run = started("--processes", "2", "--size", "1", "--hold", "1000", "--foreign-writers", "1")
    assert len(children(temporary_folder)) >= 4
    run.send_signal(signum)
    output, _ = run.communicate(timeout=60)
    if signum == signal.SIGKILL:
        assert run.returncode == -signal.SIGKILL
        # Nobody can wait for the children of a killed process but by looking.
        give_up = time.monotonic() + 60
        while (children(temporary_folder) or list(temporary_folder.iterdir())) and time.monotonic() < give_up:
            time.sleep(0.05)
    else:
        assert json.loads(output)["status"] == run.returncode == 130
    assert children(temporary_folder) == []
    assert list(temporary_folder.iterdir()) == []


def test_an_agent_that_dies_fails_the_run(temporary_folder: Path) -> None:
    run = started("--processes", "2", "--size", "1")
    agents = [pid for pid in children(temporary_folder) if pid != run.pid]
    os.kill(agents[0], signal.SIGKILL)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "ended with status -9" in json.loads(output)["error"]["message"]


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, Plan]:
    plan = Plan(processes=1, size_mb=0.5)
    fill(tmp_path / "filled.db", plan, lambda done: None)
    return tmp_path / "filled.db", plan


def insert(path: Path, plan: Plan, table: str, *marks: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executemany(f"INSERT INTO {plan.table(table)}(session, mark) VALUES (0, ?)", [(m,) for m in marks])
        connection.commit()


def record(kind: Kind, outcome: Outcome, mark: int, rows: int = 1) -> Record:
    return Record(kind, outcome, 0, mark, rows, 0.0, 0.0)


def faults(found: Verification) -> dict[str, int]:
    return {
        name: value
        for name in ("missing", "doubled", "unacknowledged", "torn", "lost_updates")
        if (value := getattr(found, name))
    }


def test_verification_finds_each_kind_of_fault(filled: tuple[Path, Plan]) -> None:
    path, plan = filled
    done, failed = Outcome.DONE, Outcome.CONTENTION
    insert(path, plan, "events", 10, 11, 11, 12, 30)
    insert(path, plan, "messages", 20, 21)
    insert(path, plan, "facts", 40)
    assert faults(verify(path, plan, [])) == {"doubled": 1, "unacknowledged": 7}
    records = [
        record(Kind.EVENT, done, 10),
        record(Kind.EVENT, done, 11),
        record(Kind.EVENT, done, 12),
        record(Kind.EVENT, done, 13),
        record(Kind.EVENT, failed, 30),
        record(Kind.DELIVER, failed, 20, rows=3),
        record(Kind.DELIVER, done, 50),
        record(Kind.FACT, done, 40),
        record(Kind.FACT, done, 41),
        record(Kind.TURN, failed, 0),
    ]
    found = verify(path, plan, records)
    assert found.integrity == ["ok"]
    assert not found.sound
    assert faults(found) == {"missing": 2, "doubled": 1, "unacknowledged": 3, "torn": 1, "lost_updates": 1}
    assert set(found.at_fault) == {13, 50, 11, 30, 20, 21}


def test_filling_reaches_its_size_and_finds_a_free_prefix(filled: tuple[Path, Plan]) -> None:
    path, plan = filled
    assert 0.5e6 <= path.stat().st_size < 0.6e6
    assert free_prefix(path, plan.prefix) == "writelane_stress2_"
    assert free_prefix(path, "other_") == "other_"


def test_a_log_that_was_cut_short_gives_its_whole_records(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log")
    written = [Record(Kind.EVENT, Outcome.DONE, 3, first_mark(2) + i, 1, 1.5, 0.25) for i in range(3)]
    for each in written:
        log.write(each)
    log.close()
    with (tmp_path / "agent.log").open("r+b") as file:
        file.truncate(3 * LAYOUT.size - 1)
    assert list(read_log(tmp_path / "agent.log")) == written[:2]


def test_quantiles_and_fairness_by_hand() -> None:
    assert [quantile([1.0, 2.0, 3.0, 4.0], share) for share in (0.25, 0.5, 0.99, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert quantile([], 0.5) == 0
    # Until the first is done, at 3.0, the others have 1 and 2 commits; what they do later has no rival.
    assert fairness([[1.0, 2.0, 3.0], [2.0, 9.0, 9.5], [1.0, 3.0, 4.0]]) == pytest.approx(1 / 3)
    assert fairness([[1.0], []]) == 0
    assert fairness([[], []]) == 1
