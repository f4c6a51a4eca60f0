"""Long waits and holds are told at once: to callbacks, to the log, and to a file that many processes write."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import writelane
import writelane.dbapi
from test_telemetry import INSERT, outsider
from writelane import Notice, telemetry_file
from writelane.telemetry_file import TelemetryFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path, telemetry=False) as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
    return path


def wait_for(found: Callable[[], Any]) -> Any:
    """Wait until ``found()`` is true; the time limit of the test ends a wait that never does."""
    while not (result := found()):
        time.sleep(0.01)
    return result


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_foreign_holder_is_named_in_every_place_that_tells_of_the_wait(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, told = tmp_path / "telemetry.jsonl", list[Notice]()
    with writelane.open(path, telemetry=file, warn_after=0.5) as db:
        db.on_wait(told.append, over=0.5)
        db.execute("UPDATE t SET x = x")
        with outsider(path, 2.0) as pid:
            db.execute(INSERT, ("inside",))
        db.execute("DELETE FROM t WHERE x = 'nothing'")
        wait_for(lambda: told and caplog.records and '"wait"' in file.read_text())
    (notice,) = told
    assert (notice.kind, notice.sql, notice.phase, notice.error) == ("wait", INSERT, "lock", None)
    assert 1.0 < notice.waited["lock"] <= notice.seconds < 20
    assert notice.holder is not None
    assert notice.holder["pid"] == pid
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("writelane", logging.WARNING)
    assert "\n" not in record.getMessage()
    for part in (str(path), INSERT, "for the lock", f"held by process {pid}", "outsider.py", "retries"):
        assert part in record.getMessage()
    (line,) = [line for line in lines(file) if line["kind"] == "wait"]
    assert (line["sql"], line["holder"]["pid"], line["pid"]) == (INSERT, pid, os.getpid())
    assert line["waited"] == notice.waited
    statements = {line["sql"]: line for line in lines(file) if line["kind"] == "statement"}
    assert statements[INSERT]["lock"] > 1.0
    assert pid in [by["pid"] for by in statements[INSERT]["held_by"]]
    for other in ("UPDATE t SET x = x", "DELETE FROM t WHERE x = 'nothing'"):
        assert statements[other]["lock"] < 0.5
        assert [by for by in statements[other]["held_by"] if by["pid"] is not None] == []


def test_a_callback_runs_on_a_thread_of_its_own_and_may_use_the_database(path: Path) -> None:
    seen = list[Any]()
    with writelane.open(path, warn_after=None) as db:

        def callback(notice: Notice) -> None:
            seen.append((threading.current_thread().name, db.execute("SELECT count(*) FROM t").rows))

        with db.on_wait(callback, over=0.1):
            with db.transaction():
                waiting = db.submit(INSERT, (1,))
                time.sleep(0.4)
            waiting.result()
            wait_for(lambda: seen)
    assert seen == [("wl-telemetry", [(1,)])]


def test_a_callback_that_raises_is_logged_and_the_next_is_called(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = list[Notice]()

    def broken(notice: Notice) -> None:
        raise RuntimeError("broken callback")

    with writelane.open(path, warn_after=None) as db:
        db.on_wait(broken, over=0.0)
        db.on_wait(told.append, over=0.0)
        db.execute(INSERT, (1,))
        db.execute(INSERT, (2,))
        wait_for(lambda: len(told) == 2)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["broken callback"] * 2


def test_only_waits_over_the_threshold_are_told_and_none_after_the_end(path: Path) -> None:
    told = list[Notice]()
    with writelane.open(path, warn_after=None) as db:
        listening = db.on_wait(told.append, over=30.0)
        everything = list[Notice]()
        db.on_wait(everything.append, over=0.0)
        db.execute(INSERT, (1,))
        wait_for(lambda: everything)
        listening.close()
        with pytest.raises(ValueError, match="threshold"):
            db.on_wait(told.append, over=float("nan"))
    assert told == []


def test_a_long_hold_is_warned_of_with_the_place_that_began_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with writelane.open(path, warn_after=0.2) as db:
        with db.transaction(label="import") as tx:
            tx.execute(INSERT, (1,))
            time.sleep(0.3)
        wait_for(lambda: any("held the lock" in record.getMessage() for record in caplog.records))
    # Its snapshot was told of before, while it was open.
    (record,) = [record for record in caplog.records if "a snapshot" not in record.getMessage()]
    assert "held the lock for 0.3" in record.getMessage() or "held the lock for" in record.getMessage()
    assert "import" in record.getMessage()
    assert f"begun at {__file__}:" in record.getMessage()


def test_the_thread_ends_when_nobody_listens(path: Path) -> None:
    def running() -> bool:
        return any(thread.name == "wl-telemetry" for thread in threading.enumerate())

    wait_for(lambda: telemetry_file._accounts or not running())
    if telemetry_file._accounts:
        pytest.skip("a telemetry file of another test keeps the thread")
    with writelane.open(path, warn_after=None) as db:
        db.execute(INSERT, (1,))
        assert not running()
        with db.on_wait(print):
            assert running()
        wait_for(lambda: not running())
    dropped = writelane.open(path)
    assert running()
    del dropped
    wait_for(lambda: not running())


def test_what_happened_before_the_exit_is_told(path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time, writelane\n"
        "db = writelane.open(sys.argv[1], warn_after=0.1)\n"
        "with db.transaction():\n"
        "    waiting = db.submit('INSERT INTO t(x) VALUES (1)')\n"
        "    time.sleep(0.3)\n"
        "waiting.result()\n"
    )
    file = tmp_path / "telemetry.jsonl"
    environment = {**os.environ, "WRITELANE_TELEMETRY": str(file)}
    process = subprocess.run(
        [sys.executable, "-c", code, path], env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    assert "waited" in process.stderr
    assert "INSERT INTO t(x) VALUES (1)" in process.stderr
    found = lines(file)
    # The snapshot of the transaction is told of if somebody looked while it was open.
    assert {line["kind"] for line in found} - {"snapshot"} == {"wait", "hold", "statement", "state"}
    counted = {line["sql"]: line["count"] for line in found if line["kind"] == "statement"}
    assert counted == {"INSERT INTO t(x) VALUES (1)": 1, "transaction": 1}


def test_connections_write_the_file_that_the_environment_names(path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, writelane; writelane.install()\n"
        "import sqlite3\n"
        "for number in range(3):\n"
        "    connection = sqlite3.connect(sys.argv[1])\n"
        "    connection.execute('INSERT INTO t(x) VALUES (?)', (number,))\n"
        "    connection.commit(); connection.close()\n"
        "sqlite3.connect(':memory:').close()\n"
    )
    file = tmp_path / "telemetry.jsonl"
    environment = {**os.environ, "WRITELANE_TELEMETRY": str(file), "WRITELANE_WARN_AFTER": "0"}
    process = subprocess.run(
        [sys.executable, "-c", code, path], env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    counted = {line["sql"]: line["count"] for line in lines(file) if line["kind"] == "statement"}
    assert counted == {"INSERT INTO t(x) VALUES (?)": 3, "COMMIT": 3}
    assert process.stderr.count("waited") >= 6


def test_a_file_that_cannot_be_written_fails_no_work(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with writelane.open(path, telemetry=tmp_path / "no such folder" / "file", warn_after=None) as db:
        db.execute(INSERT, (1,))
        assert db.execute("SELECT x FROM t").rows == [(1,)]
    assert any("telemetry could not be written" in record.getMessage() for record in caplog.records)


WRITER = """
import sys
from writelane.telemetry_file import TelemetryFile
file = TelemetryFile(sys.argv[1], int(sys.argv[3]))
sys.stdin.readline()
for number in range(int(sys.argv[4])):
    file.write([{"kind": "wait", "writer": int(sys.argv[2]), "number": number, "sql": "x" * (number % 500)}])
"""


def write_together(file: Path, writers: int, each: int, bytes_max: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, file, str(writer), str(bytes_max), str(each)], stdin=subprocess.PIPE
        )
        for writer in range(writers)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(120) for process in processes] == [0] * writers


def test_lines_of_many_processes_never_mix_and_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.jsonl"
    write_together(file, 4, 1_500, 64 << 20)
    found = [(line["writer"], line["number"]) for line in lines(file)]
    assert sorted(found) == [(writer, number) for writer in range(4) for number in range(1_500)]


def test_the_file_is_bounded_while_many_processes_put_it_aside(tmp_path: Path) -> None:
    bytes_max = 200_000

    def is_bounded(folder: Path) -> bool:
        folder.mkdir()
        file = folder / "telemetry.jsonl"
        older = file.with_name(file.name + ".1")
        write_together(file, 4, 1_500, bytes_max)
        assert sorted(one.name for one in folder.iterdir()) == [file.name, older.name]
        # Whole lines, and each writer's last ones, in order.
        kept = lines(older) + lines(file)
        for writer in range(4):
            numbers = [line["number"] for line in kept if line["writer"] == writer]
            assert sorted(numbers) == list(range(1_500 - len(numbers), 1_500))
        # A process that looked before the file was put aside may still write one line to it.
        return all(one.stat().st_size <= bytes_max + 4 * 1_000 for one in (file, older))

    # Nobody waits for a process that is stopped while it puts the file aside, as by a machine that runs others instead.
    assert any(is_bounded(tmp_path / str(attempt)) for attempt in range(5))


def test_a_file_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.jsonl"
    writer = TelemetryFile(str(file), 1 << 20)
    writer.write([{"kind": "state"}])
    file.rename(tmp_path / "elsewhere")
    writer.write([{"kind": "state"}])
    assert len(lines(file)) == 1
