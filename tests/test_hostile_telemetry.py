"""Telemetry withstands what statements, callbacks and disks do to it, and fails nobody's work."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import writelane
import writelane.dbapi
from test_telemetry import INSERT, statement
from writelane.cli import main
from writelane.notices import Notice, line
from writelane.opentelemetry import instrument
from writelane.prometheus import Collector
from writelane.report import from_file
from writelane.telemetry_file import TelemetryFile

#: Acts on a terminal, and begins a line of its own.
EVIL = "\x1b]0;owned\x07\x1b[2J\x00\u202e\r\nWARNING forged"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path, telemetry=False) as db:
        db.execute("CREATE TABLE t(x)")
    return path


def wait_for(found: Callable[[], Any]) -> Any:
    """Wait until ``found()`` is true; the time limit of the test ends a wait that never does."""
    while not (result := found()):
        time.sleep(0.01)
    return result


def notice(sql: str, **more: Any) -> Notice:
    nothing: dict[str, Any] = {"retries": 0, "group": 0, "holder": None, "held_by": [], "error": None}
    told = {"at": 0.0, "path": "app.db", "kind": "wait", "sql": sql, "seconds": 1.0, "phase": "lock", "waited": {}}
    return Notice(**{**told, **nothing, "location": None, **more})


def test_texts_of_megabytes_are_counted_and_cost_no_memory(path: Path) -> None:
    with writelane.open(path) as db:
        for number in range(8):
            db.execute(f"INSERT INTO t(x) VALUES ('{'é' * 3_000_000}{number}')")
        with db.transaction(label="L" * 3_000_000):
            pass
        entries = db.telemetry().statements
    # They differ only where nobody looks.
    assert sorted(entry["count"] for entry in entries) == [1, 8]
    assert all(len(entry["sql"].encode()) <= 4096 for entry in entries)


def test_texts_that_are_no_statements_leave_the_counts_whole(path: Path) -> None:
    with writelane.open(path) as db:
        connection = writelane.dbapi.connect(path)
        for text in ("SELECT 1\0", "SELECT '\ud800'"):
            for call in (db.execute, db.submit, connection.execute):
                with pytest.raises((writelane.ProgrammingError, UnicodeEncodeError)):
                    answer = call(text)
                    answer.result()  # type: ignore[union-attr]
        with db.transaction(label=EVIL):
            pass
        connection.close()
        db.execute(INSERT, (1,))
        snapshot = db.telemetry().to_dict()
        json.dumps(snapshot)
        assert statement(snapshot, INSERT)["count"] == 1
        assert statement(snapshot, EVIL)["count"] == 1


def test_a_line_of_the_log_is_one_line_and_moves_no_terminal(path: Path) -> None:
    holder = {"pid": 1, "command": EVIL, "statement": EVIL, "seconds": 1.0, "stopped": False}
    records = list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("writelane")
    logger.addHandler(handler)
    try:
        with writelane.open(path, warn_after=0) as db, db.transaction(label=EVIL):
            pass
        wait_for(lambda: len(records) >= 2)
    finally:
        logger.removeHandler(handler)
    for record in records:
        assert record.getMessage().isprintable()
    assert "forged" in line(notice(EVIL, holder=holder))


def test_reports_move_no_terminal(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, html = tmp_path / "telemetry.jsonl", tmp_path / "waits.html"
    evil = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J.db"))
    with writelane.open(evil, telemetry=file, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        with db.transaction(label=EVIL):
            waiting = db.submit(f"INSERT INTO t(x) VALUES ('{EVIL.replace(chr(0), '')}')")
            time.sleep(0.1)
        waiting.result()
    capsys.readouterr()
    for arguments in (["waits", file], ["waits", file, "--html", html], ["top", evil, "--once"]):
        assert main([str(argument) for argument in arguments]) == 0
        shown = capsys.readouterr().out.replace("\n", "").replace("█", "")
        assert shown.isprintable(), ascii(shown)
    page = html.read_text(encoding="utf-8")
    assert "owned" in page
    assert "\x1b" not in page
    for arguments in (["waits", file, "--json"], ["top", evil, "--json"]):
        assert main([str(argument) for argument in arguments]) == 0
        json.loads(capsys.readouterr().out)


def test_exporters_name_a_database_whose_path_is_no_text(tmp_path: Path) -> None:
    evil = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db"))
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with writelane.open(evil) as db:
        registry.register(Collector(db))
        instrument(db, meter=provider.get_meter("test"))
        db.execute("CREATE TABLE t(x)")
        assert "CREATE TABLE t(x)" in generate_latest(registry).decode("utf-8")
        data = reader.get_metrics_data()
        assert data is not None
        data.to_json().encode("utf-8")
    provider.shutdown()


@pytest.mark.parametrize("raised", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_silences_nobody_else(path: Path, raised: BaseException) -> None:
    heard = list[Notice]()

    def raises(_: Notice) -> None:
        raise raised

    with writelane.open(path, warn_after=None) as db:
        db.on_wait(raises, over=0)
        db.on_wait(heard.append, over=0)
        for number in range(3):
            db.execute(INSERT, (number,))
            wait_for(lambda number=number: len(heard) > number)


def test_a_callback_may_end_itself_and_use_the_database(path: Path) -> None:
    heard, written = list[Notice](), list[writelane.Result]()
    with writelane.open(path, warn_after=None) as db:

        def once(notice: Notice) -> None:
            heard.append(notice)
            listening.close()
            listening.close()

        def writes(notice: Notice) -> None:
            if len(written) < 5:
                written.append(db.execute(INSERT, (notice.seconds,)))
                db.telemetry()
                db.on_wait(print, over=3600).close()

        listening = db.on_wait(once, over=0)
        db.on_wait(writes, over=0)
        db.execute(INSERT, (1,))
        wait_for(lambda: len(written) == 5)
        with pytest.raises(TypeError):
            db.on_wait(3)  # type: ignore[arg-type]
    assert len(heard) >= 1


def test_a_callback_may_close_the_database(path: Path) -> None:
    db = writelane.open(path, warn_after=None)
    db.on_wait(lambda _: db.close(), over=0)
    db.execute(INSERT, (1,))
    wait_for(lambda: db.closed)
    with writelane.open(path) as again:
        assert again.execute("SELECT count(*) FROM t").rows == [(1,)]


def test_a_forked_child_exports_its_own_counts_and_the_parent_its_own(path: Path) -> None:
    registry = CollectorRegistry()
    code = os.EX_SOFTWARE
    with writelane.open(path) as db:
        registry.register(Collector(path))
        db.execute(INSERT, (1,))
        child = os.fork()
        if child == 0:
            try:
                with writelane.open(path) as own:
                    for number in range(4):
                        own.execute(INSERT, (number,))
                    mine = CollectorRegistry()
                    mine.register(Collector(own))
                    generate_latest(registry)
                    code = os.EX_OK if 'VALUES (?)"} 4.0' in generate_latest(mine).decode() else os.EX_DATAERR
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == os.EX_OK
        assert 'VALUES (?)"} 1.0' in generate_latest(registry).decode()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "writelane")
    return lambda: [one.getMessage() for one in caplog.records if "telemetry" in one.getMessage()]


@pytest.mark.parametrize("where", ["missing/waits.jsonl", ".", "pipe"])
def test_a_file_that_cannot_be_written_is_said_once_and_fails_nobody(
    path: Path, tmp_path: Path, where: str, said: Callable[[], list[str]]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with writelane.open(path, telemetry=tmp_path / where, warn_after=None) as db:
        heard = list[Notice]()
        db.on_wait(heard.append, over=0.05)
        for number in range(3):
            with db.transaction():
                waiting = db.submit(INSERT, (number,))
                time.sleep(0.08)
            waiting.result()
        wait_for(lambda: len(heard) >= 3)
        assert db.execute("SELECT count(*) FROM t").rows == [(3,)]
    assert len(said()) == 1
    assert "could not be written" in said()[0]


def test_what_could_not_be_written_is_written_later(path: Path, tmp_path: Path, said: Callable[[], list[str]]) -> None:
    file = tmp_path / "later" / "waits.jsonl"
    with writelane.open(path, telemetry=file, warn_after=None) as db:
        db.execute(INSERT, (1,))
        db._write_telemetry()  # type: ignore[misc]
        db.execute(INSERT, (2,))
        file.parent.mkdir()
        db._write_telemetry()  # type: ignore[misc]
        assert from_file(file).statements[INSERT].count == 2
        # Gone while it is in use.
        file.unlink()
        db.execute(INSERT, (3,))
    assert from_file(file).statements[INSERT].count == 1
    assert [("again" in line) for line in said()] == [False, True]


def test_a_line_that_fits_only_in_part_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "waits.jsonl"
    record = {"kind": "wait", "at": 1.0, "path": "a.db", "sql": "x" * 100, "seconds": 0.1, "phase": "lock"}
    writer = TelemetryFile(str(file), 1 << 20)
    assert writer.write([record]) == 1
    length = file.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file that may not grow takes a part of a line, as a full disk does. The signal is ignored by Python.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * length - 50, limits[1]))
    try:
        assert writer.write([record, record]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.stat().st_size == 2 * length - 50
    assert writer.write([record, record]) == 2
    report = from_file(file)
    assert (len(report.events), report.unread) == (3, 1)


ROTATOR = """
import sys
from writelane.telemetry_file import TelemetryFile
file = TelemetryFile(sys.argv[1], int(sys.argv[2]))
record = {"kind": "wait", "at": 1.0, "path": "a.db", "sql": "x" * 200, "seconds": 0.1, "phase": "lock"}
print("ready", flush=True)
sys.stdin.readline()
assert all(file.write([record]) == 1 for _ in range(1000))
"""


def test_eight_processes_put_one_file_aside_and_tear_no_line(tmp_path: Path) -> None:
    file, most = tmp_path / "waits.jsonl", 20_000
    command = [sys.executable, "-c", ROTATOR, str(file), str(most)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    report = from_file(file)
    assert report.unread == 0
    assert len(report.events) > 0
    # Lines that others write while one puts the file aside come on top.
    for one in (file, tmp_path / "waits.jsonl.1"):
        assert one.stat().st_size < 2 * most
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["waits.jsonl", "waits.jsonl.1"]


def test_a_stopped_process_that_puts_the_file_aside_stops_nobody(tmp_path: Path) -> None:
    file = tmp_path / "waits.jsonl"
    writer = TelemetryFile(str(file), 300)
    record = {"kind": "wait", "at": 1.0, "path": "a.db", "sql": "x" * 200, "seconds": 0.1, "phase": "lock"}
    assert writer.write([record]) == 1
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert writer.write([record, record]) == 2
    assert writer.write([record]) == 1
    assert len(from_file(file).events) == 4
    assert file.with_name("waits.jsonl.1").exists()


def test_a_file_that_cannot_be_put_aside_is_left_unlocked(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    file = tmp_path / "waits.jsonl"
    (tmp_path / "waits.jsonl.1").mkdir()
    record = {"kind": "wait", "at": 1.0, "path": "a.db", "sql": "x" * 200, "seconds": 0.1, "phase": "lock"}
    writer = TelemetryFile(str(file), 300)
    assert [writer.write([record]) for _ in range(3)] == [1, 0, 0]
    assert len(said()) == 1
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (tmp_path / "waits.jsonl.1").rmdir()
    assert writer.write([record]) == 1


def test_a_forked_child_keeps_no_descriptor_of_its_parent_s_file(path: Path, tmp_path: Path) -> None:
    def descriptors() -> int:
        return [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")].count(str(file))

    file = tmp_path / "waits.jsonl"
    with writelane.open(path, telemetry=file, warn_after=None) as db:
        db.execute(INSERT, (1,))
        db._write_telemetry()  # type: ignore[misc]
        assert descriptors() == 1
        child = os.fork()
        if child == 0:
            os._exit(descriptors())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert descriptors() == 1


@pytest.mark.parametrize("value", ["soon", "nan", "-1"])
def test_a_number_in_the_environment_that_is_none_fails_nobody(
    path: Path, tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WRITELANE_WARN_AFTER", value)
    monkeypatch.setenv("WRITELANE_TELEMETRY_BYTES", value)
    monkeypatch.setenv("WRITELANE_TELEMETRY", str(tmp_path / f"{value}.jsonl"))
    monkeypatch.setattr("writelane.telemetry_file._misset", set())
    for _ in range(2):
        connection = writelane.dbapi.connect(path)
        connection.execute(INSERT, (1,))
        connection.commit()
        connection.close()
    with writelane.open(path) as db:
        db.execute(INSERT, (2,))
    assert len(from_file(tmp_path / f"{value}.jsonl").statements) > 0
    ignored = sorted(one.getMessage().split()[0] for one in caplog.records if "is ignored" in one.getMessage())
    assert ignored == ["WRITELANE_TELEMETRY_BYTES", "WRITELANE_WARN_AFTER"]
