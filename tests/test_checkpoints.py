"""The log stays bounded, off the callers' path, and a log that cannot shrink is explained."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane import dbapi

#: No limit on speed: how long a test waits for what must come within seconds.
PATIENCE = 60.0
MEBIBYTE = 1 << 20

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM t").fetchall()
print("reading", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("done", flush=True)
sys.stdin.readline()
"""


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def log_bytes(path: Path) -> int:
    try:
        return os.path.getsize(f"{path}-wal")
    except FileNotFoundError:
        return 0


def rows_in_main_file(path: Path, copy: Path) -> int:
    """Count the rows that the database file holds by itself, without its log."""
    shutil.copy(path, copy)
    connection = sqlite3.connect(copy)
    try:
        return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])
    except sqlite3.DatabaseError:
        return -1  # Copied while it was being written.
    finally:
        connection.close()
        copy.unlink()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def db(path: Path) -> Iterator[writelane.Database]:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x)")
        yield db


class Reader:
    """A foreign process that holds a snapshot."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "reading"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self._line() == "done"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def reader(path: Path, db: writelane.Database) -> Iterator[Reader]:
    reader = Reader(path)
    yield reader
    reader.kill()


def test_an_idle_database_is_whole_in_its_main_file(path: Path, db: writelane.Database, tmp_path: Path) -> None:
    for number in range(50):
        db.execute("INSERT INTO t VALUES (?)", (number,))
    assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 50)


def test_an_idle_database_of_plain_connections_is_whole_too(path: Path, tmp_path: Path) -> None:
    connection = dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    for number in range(50):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 50)
    # Once more, after the thread that did it has ended.
    connection.execute("INSERT INTO t VALUES (51)")
    assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 51)
    connection.close()


def test_the_log_stays_short_while_many_jobs_are_written(path: Path, db: writelane.Database) -> None:
    peak = 0
    for _ in range(60):
        db.executemany("INSERT INTO t VALUES (randomblob(1000))", [()] * 500)
        peak = max(peak, log_bytes(path))
    assert peak < 16 * MEBIBYTE, f"{peak} bytes for 30 MB written"
    assert db.telemetry().checkpoints["count"] > 1


def test_no_checkpoint_of_a_foreign_process_is_ever_due(path: Path, db: writelane.Database) -> None:
    """The first threshold is under SQLite's own 1,000 pages, at which an older version would checkpoint."""
    longest = 0
    for _ in range(4000):
        db.execute("INSERT INTO t VALUES (randomblob(2000))")
        longest = max(longest, log_bytes(path))
    assert longest < 1000 * 4120 + 100 * 4120


def test_a_pinned_log_is_explained_and_shrinks_afterwards(path: Path, db: writelane.Database, reader: Reader) -> None:
    def write_until(condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            db.execute("INSERT INTO t VALUES (randomblob(20000))")
            if condition():
                return True
            time.sleep(0.002)
        return False

    assert write_until(lambda: db.telemetry().checkpoints["pinned"] is not None)
    pinned = db.telemetry().checkpoints["pinned"]
    assert [who["pid"] for who in pinned["readers"]] == [reader.process.pid]
    assert pinned["pages"] > 0
    assert pinned["seconds"] >= 1.0
    assert not pinned["over"]
    assert write_until(lambda: log_bytes(path) > 8 * MEBIBYTE)

    reader.end()
    assert write_until(lambda: log_bytes(path) <= 8 * MEBIBYTE)
    assert db.telemetry().checkpoints["pinned"]["over"]
    assert db.telemetry().checkpoints["episodes"] == 1


def test_a_pinned_log_shrinks_without_further_writes(path: Path, db: writelane.Database, reader: Reader) -> None:
    for _ in range(20):
        db.executemany("INSERT INTO t VALUES (randomblob(20000))", [()] * 40)
    assert log_bytes(path) > 8 * MEBIBYTE
    reader.end()
    assert until(lambda: log_bytes(path) <= 8 * MEBIBYTE)


def test_a_checkpoint_that_is_asked_for_says_what_it_did(path: Path, db: writelane.Database, reader: Reader) -> None:
    db.execute("INSERT INTO t VALUES (1)")
    busy, log, copied = db.checkpoint()
    assert (busy, log > copied) == (0, True), "the reader's snapshot is older than the row"
    started = time.monotonic()
    busy, _, _ = db.checkpoint("truncate", deadline=0.3)
    assert busy == 1
    assert time.monotonic() - started < PATIENCE
    reader.end()
    assert db.checkpoint("truncate") == (0, 0, 0)
    assert log_bytes(path) == 0
    with pytest.raises(ValueError, match="passive"):
        db.checkpoint("restart")


def test_foreign_processes_may_checkpoint_and_close_at_any_time(path: Path, db: writelane.Database) -> None:
    meddler = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys\n"
            "for mode in ['PASSIVE', 'TRUNCATE', 'FULL', 'RESTART'] * 25:\n"
            "    c = sqlite3.connect(sys.argv[1], timeout=60)\n"
            "    c.execute(f'PRAGMA wal_checkpoint({mode})').fetchall()\n"
            "    c.close()\n",
            str(path),
        ]
    )
    written = 0
    while meddler.poll() is None:
        db.execute("INSERT INTO t VALUES (?)", (written,))
        written += 1
    assert meddler.returncode == 0
    assert db.execute("SELECT count(*), count(DISTINCT x) FROM t").rows == [(written, written)]
    assert db.execute("PRAGMA integrity_check").rows == [("ok",)]


def test_our_own_readers_never_pin_the_log(path: Path, db: writelane.Database) -> None:
    db.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    result = db.execute("SELECT x FROM t")
    db.execute("INSERT INTO t VALUES (-1)")
    busy, log, copied = db.checkpoint()
    assert (busy, log) == (0, copied), "a result that is not looked at holds no snapshot"
    assert len(result.rows) == 1000


def test_a_pinned_log_is_told_once_when_it_begins_and_once_when_it_ends(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "writelane")
    file, told = tmp_path / "telemetry.jsonl", list[writelane.Notice]()

    def write_until(condition: Callable[[], bool]) -> bool:
        def wrote() -> bool:
            db.execute("INSERT INTO t VALUES (randomblob(20000))")
            return condition()

        return until(wrote)

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "writelane" and "log" in record.getMessage()]

    # Waits are of no interest here, however long they are on a busy machine.
    with writelane.open(path, telemetry=file, warn_after=600) as db:
        db.execute("CREATE TABLE t(x)")
        db.on_pinned(told.append)
        before, reader = time.time(), Reader(path)
        try:
            assert write_until(lambda: bool(told))
            # More checkpoints find the same reader, and say nothing.
            count = db.telemetry().checkpoints["count"]
            assert write_until(lambda: db.telemetry().checkpoints["count"] > count + 3)
            assert [notice.kind for notice in told] == ["pinned"]
            reader.end()
            assert write_until(lambda: len(told) == 2 and len(records()) == 2)
        finally:
            reader.kill()
    begun, ended = told
    assert begun.kind == "pinned"
    assert begun.pinned is not None
    assert [who["pid"] for who in begun.pinned["readers"]] == [reader.process.pid]
    assert begun.pinned["pages"] > 0
    assert before <= begun.pinned["since"] <= begun.at - 1.0
    assert len(begun.pinned["marks"]) == 1
    assert ended.kind == "unpinned"
    assert ended.pinned is not None
    assert ended.pinned["over"]
    assert ended.seconds > begun.seconds
    assert [record.levelno for record in records()] == [logging.WARNING, logging.INFO]
    message = records()[0].getMessage()
    for part in (str(path), f"process {reader.process.pid}", f"read mark {begun.pinned['marks'][0]}", "since "):
        assert part in message
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [line for line in lines if line["kind"] in ("pinned", "unpinned")]
    assert [(line["kind"], line["path"], line["pid"]) for line in lines] == [
        ("pinned", str(path), os.getpid()),
        ("unpinned", str(path), os.getpid()),
    ]
    assert lines[0]["pinned"] == begun.pinned


HOURS = 7200.0
HUGE = 1 << 40


@pytest.mark.parametrize(("pages", "some"), [(20, True), (999, False)])
def test_the_log_is_copied_at_the_pages_that_were_set(path: Path, pages: int, some: bool) -> None:
    with writelane.open(path, checkpoints=writelane.Checkpoints(pages=pages, idle=HOURS)) as db:
        db.execute("CREATE TABLE t(x)")
        for _ in range(60):
            db.execute("INSERT INTO t VALUES (randomblob(4000))")
        # In turn after whatever checkpoint came of the last write.
        db.submit("INSERT INTO t VALUES (1)").result()
        assert (db.telemetry().checkpoints["count"] > 0) == some


def test_an_idle_log_is_cut_to_what_was_said_to_be_kept(path: Path) -> None:
    with writelane.open(path, checkpoints=writelane.Checkpoints(keep_bytes=100_000, limit_bytes=HUGE)) as db:
        db.execute("CREATE TABLE t(x)")
        db.executemany("INSERT INTO t VALUES (randomblob(4000))", [()] * 200)
        assert until(lambda: log_bytes(path) <= 100_000)
        assert until(lambda: db.telemetry().checkpoints["cuts"] > 0)


def test_a_pinned_log_is_called_so_as_early_as_was_set(path: Path) -> None:
    with writelane.open(path, checkpoints=writelane.Checkpoints(idle=HOURS, pinned_after=0)) as db:
        db.execute("CREATE TABLE t(x)")
        reader = Reader(path)
        try:
            db.execute("INSERT INTO t VALUES (1)")
            db.checkpoint()
            db.checkpoint()
            assert not db.telemetry().checkpoints["pinned"]["over"]
        finally:
            reader.kill()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pages": 0}, "pages must be 1 to 999"),
        ({"pages": 1000}, "pages must be 1 to 999"),
        ({"pages": -1}, "pages must be 1 to 999"),
        ({"idle": 0}, "idle must be more than 0"),
        ({"idle": -1}, "idle must be a number"),
        ({"idle": float("nan")}, "idle must be a number"),
        ({"idle": float("inf")}, "idle must be a number"),
        ({"pinned_after": float("inf")}, "pinned_after must be a number"),
        ({"keep_bytes": -1}, "keep_bytes must be"),
        ({"limit_bytes": -1}, "limit_bytes must not be negative"),
        ({"keep_bytes": 2000, "limit_bytes": 1000}, "limit_bytes must be at least keep_bytes"),
    ],
)
def test_thresholds_that_would_do_harm_are_refused(path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        writelane.open(path, checkpoints=writelane.Checkpoints(**options))
    assert not path.exists()


FEW = writelane.Checkpoints(pages=20, idle=HOURS)


@pytest.mark.parametrize("first", ["database", "connection"])
def test_connections_have_the_thresholds_of_the_database_in_their_process(path: Path, first: str) -> None:
    early = dbapi.connect(path, isolation_level=None) if first == "connection" else None
    with writelane.open(path, checkpoints=FEW) as db:
        db.execute("CREATE TABLE t(x)")
        connection = early or dbapi.connect(path, isolation_level=None)
        before = db.telemetry().checkpoints["count"]
        for _ in range(60):
            connection.execute("INSERT INTO t VALUES (randomblob(4000))")
        assert db.telemetry().checkpoints["count"] > before
        connection.close()


def test_a_log_kept_by_a_connection_is_cut_to_what_a_later_database_says(path: Path) -> None:
    connection = dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    with writelane.open(path, checkpoints=writelane.Checkpoints(idle=HOURS, keep_bytes=0)) as db:
        for _ in range(200):
            connection.execute("INSERT INTO t VALUES (randomblob(20000))")
        assert db.telemetry().checkpoints["count"] > 0
        db.checkpoint()
        longest = log_bytes(path)
        # The log begins anew, and is as short as what is in it.
        connection.execute("INSERT INTO t VALUES (1)")
        assert log_bytes(path) < longest
    connection.close()


ALONE = """
import sys
import writelane.dbapi as sqlite3
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE t(x)")
for _ in range(60):
    connection.execute("INSERT INTO t VALUES (randomblob(4000))")
print(sqlite3.telemetry(connection).checkpoints["count"])
connection.close()
"""

OPENED = """
import sys
import writelane
with writelane.open(sys.argv[1]) as db:
    db.execute("CREATE TABLE t(x)")
    for _ in range(60):
        db.execute("INSERT INTO t VALUES (randomblob(4000))")
    db.submit("INSERT INTO t VALUES (1)").result()
    print(db.telemetry().checkpoints["count"])
"""


def run_with(value: str, code: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WRITELANE_CHECKPOINTS": value}
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.parametrize("code", [ALONE, OPENED], ids=["connection", "database"])
@pytest.mark.parametrize(("pages", "some"), [("20", True), ("999", False)])
def test_the_environment_sets_the_thresholds_of_a_process(path: Path, code: str, pages: str, some: bool) -> None:
    process = run_with(f"pages={pages}, idle=7200", code, path)
    assert process.returncode == 0, process.stderr
    assert (int(process.stdout) > 0) == some


@pytest.mark.parametrize("code", [ALONE, OPENED], ids=["connection", "database"])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("pages=1000", "pages must be 1 to 999"),
        ("pages", "'pages' is not a name and a number"),
        ("pages=many", "'pages=many' is not a name and a number"),
        ("page=5", "there is no 'page'"),
    ],
)
def test_an_environment_that_says_nonsense_is_refused(path: Path, code: str, value: str, named: str) -> None:
    process = run_with(value, code, path)
    assert process.returncode != 0
    assert f"ValueError: WRITELANE_CHECKPOINTS: {named}" in process.stderr
    assert not path.exists()


def test_the_defaults_stand_in_one_place_and_the_documents_say_the_same() -> None:
    document = (Path(__file__).parent.parent / "docs" / "files.md").read_text()
    (block,) = [block for block in document.split("```") if "checkpoints = writelane.Checkpoints(" in block]
    scope: dict[str, Any] = {"writelane": writelane}
    exec(block.removeprefix("python").split("db = ")[0], scope)
    assert scope["checkpoints"] == writelane.Checkpoints()


def open_logs(path: Path) -> list[str]:
    """Return the descriptors that this process has of the log."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # That of the listing itself.
        if name.removesuffix(" (deleted)") == f"{path}-wal":
            found.append(name)
    return found


@pytest.mark.parametrize("face", ["database", "connection"])
def test_the_log_is_written_ahead_of_its_copying(path: Path, face: str) -> None:
    connection = dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    with writelane.open(path) as db:
        write = db.execute if face == "database" else connection.execute
        for _ in range(500):
            write("INSERT INTO t VALUES (randomblob(4000))")
        # In pieces of a hundred pages and more, by a thread that nobody waits for.
        assert until(lambda: db.telemetry().checkpoints["ahead"] >= 3)
        assert 3 <= db.telemetry().checkpoints["ahead"] <= 12
    connection.close()


def test_a_log_that_others_replaced_is_written_ahead_too(path: Path) -> None:
    connection = dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")

    def write() -> None:
        for _ in range(200):
            connection.execute("INSERT INTO t VALUES (randomblob(4000))")

    def ahead() -> int:
        return int(dbapi.telemetry(connection).checkpoints["ahead"])

    write()
    assert until(lambda: ahead() > 0)
    before = ahead()
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA journal_mode=WAL")
    write()
    connection.execute("INSERT INTO t VALUES (1)")
    assert until(lambda: ahead() > before)
    connection.close()
    assert open_logs(path) == []


def test_a_closed_database_has_let_the_file_go_though_somebody_still_has_the_object(path: Path) -> None:
    db = writelane.open(path)
    db.execute("CREATE TABLE t(x)")
    assert db.execute("SELECT count(*) FROM t").rows == [(0,)]
    db.close()
    # The last connection that is closed takes the log away.
    assert not Path(f"{path}-wal").exists()
    with pytest.raises(writelane.Closed):
        db.execute("SELECT count(*) FROM t")
    with pytest.raises(writelane.Closed):
        db.execute("INSERT INTO t VALUES (1)")
    with writelane.open(path, readonly=True) as reader:
        assert reader.execute("SELECT count(*) FROM t").rows == [(0,)]
    assert db.closed


def test_a_turn_left_for_the_log_is_taken_up_whoever_has_queued_meanwhile(path: Path) -> None:
    # Every commit leaves a log that is due, so that each of a caller's own leaves its turn to the writer thread.
    with writelane.open(path, checkpoints=writelane.Checkpoints(pages=3), deadline=PATIENCE) as db:
        db.execute("CREATE TABLE t(x)")

        def alone() -> None:
            for number in range(1_500):
                db.execute("INSERT INTO t(x) VALUES (?)", (number,))

        def queued() -> None:
            for number in range(1_500):
                db.submit("INSERT INTO t(x) VALUES (?)", (-number,)).result()

        with ThreadPoolExecutor() as pool:
            for work in [pool.submit(alone), pool.submit(queued)]:
                work.result()
        assert db.execute("SELECT count(*) FROM t").rows == [(3_000,)]
