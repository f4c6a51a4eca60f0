"""A checkpoint that fails, or meets another's, fails no acknowledged write: it is counted, told and tried again."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import writelane
from test_checkpoints import Reader, log_bytes, rows_in_main_file, until
from test_filesystem import LIBC, mount_by_kernel
from writelane import dbapi

MEBIBYTE = 1 << 20
QUICK = writelane.Checkpoints(idle=0.05)
INSERT = "INSERT INTO t VALUES (randomblob(2000))"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Have the kernel refuse this process what would make a file longer, as a disk that cannot write does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_write_of_the_database_that_fails_is_told_once_and_tried_again(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "writelane")
    file = tmp_path / "telemetry.jsonl"
    with writelane.open(path, checkpoints=QUICK, warn_after=600, telemetry=file) as db:
        db.execute("CREATE TABLE t(x)")
        for _ in range(100):
            db.execute(INSERT)
        db.checkpoint("truncate")
        size = path.stat().st_size
        with no_file_longer_than(size):
            # The log begins anew and stays shorter than the database, which must become longer.
            for _ in range(20):
                db.execute(INSERT)
            assert until(lambda: db.telemetry().checkpoints["errors"] >= 3), "it is tried again"
            assert db.execute("SELECT count(*) FROM t").rows == [(120,)]
            found = db.telemetry().checkpoints
            assert found["last_error"] == "disk I/O error (SQLITE_IOERR_WRITE)"
        assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 120)
        assert until(lambda: messages(caplog, "can be copied again"))
        (told,) = messages(caplog, "could not be copied into the database")
        assert "SQLITE_IOERR_WRITE" in told
        assert str(path) in told
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [line for line in lines if line["kind"].startswith("checkpoint")]
    assert [line["kind"] for line in lines] == ["checkpoint_failed", "checkpoint_recovered"]
    assert lines[0]["error"] == "SQLITE_IOERR_WRITE"
    assert lines[1]["seconds"] > 0


def test_a_checkpoint_that_fails_inside_a_connections_call_fails_not_the_call(path: Path, tmp_path: Path) -> None:
    connection = dbapi.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    # Longer than the log becomes until it is to be copied.
    connection.executemany("INSERT INTO t VALUES (zeroblob(?))", [(100_000,)] * 60)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with no_file_longer_than(path.stat().st_size):
        rows = 60
        while dbapi.telemetry(connection).checkpoints["errors"] == 0 and log_bytes(path) < 5 * MEBIBYTE:
            connection.execute(INSERT)
            rows += 1
        assert dbapi.telemetry(connection).checkpoints["errors"] > 0
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == rows)
    connection.close()


def test_a_disk_without_room_for_the_copy_loses_nothing_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount_by_kernel("none", disk, "tmpfs", options="size=4m")
    try:
        path, filler = disk / "app.db", disk / "filler"
        with writelane.open(path, checkpoints=QUICK) as db:
            db.execute("CREATE TABLE t(x)")
            db.checkpoint("truncate")
            left = os.statvfs(disk)
            with filler.open("wb") as file:
                file.write(bytes(left.f_bavail * left.f_frsize - 400_000))
            # One commit, so that none of it is copied before: the log has room for it, the database has not.
            written = 100
            db.executemany(INSERT, [()] * written)
            assert until(lambda: db.telemetry().checkpoints["errors"] >= 2)
            assert "full" in db.telemetry().checkpoints["last_error"]
            assert db.execute("SELECT count(*) FROM t").rows == [(written,)]
            assert until(lambda: messages(caplog, "SQLITE_FULL"))
            filler.unlink()
            assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == written)
            assert db.execute("PRAGMA integrity_check").rows == [("ok",)]
    finally:
        assert LIBC.umount2(os.fsencode(disk), 2) == 0


CHECKPOINTER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=600)
connection.execute("SELECT count(*) FROM t").fetchall()
print("ready", flush=True)
print(connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall(), flush=True)
"""


def test_a_foreign_checkpoint_that_waits_for_readers_is_met_and_outlived(path: Path, tmp_path: Path) -> None:
    with writelane.open(path, checkpoints=writelane.Checkpoints(idle=0.3), warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        db.execute(INSERT)
        reader = Reader(path)
        # Newer than the reader's snapshot, so that a checkpoint which wants all of the log waits for it.
        db.execute(INSERT)
        foreign = subprocess.Popen([sys.executable, "-c", CHECKPOINTER, str(path)], stdout=subprocess.PIPE, text=True)
        try:
            assert foreign.stdout is not None
            assert foreign.stdout.readline() == "ready\n"
            # Until it is in the way of a checkpoint of ours. It holds the write lock meanwhile.
            rows = 2
            while db.telemetry().checkpoints["busy"] == 0 and foreign.poll() is None:
                try:
                    db.execute(INSERT, deadline=0.05)
                    rows += 1
                except writelane.WriteTimeout:
                    assert until(lambda: db.telemetry().checkpoints["busy"] > 0)
            assert db.telemetry().checkpoints["busy"] > 0
            assert db.telemetry().checkpoints["errors"] == 0
            reader.end()
            assert foreign.stdout.readline().startswith("[(0,")
            assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == rows)
        finally:
            reader.kill()
            foreign.kill()
            foreign.communicate()


BUSY = """
import sys
import writelane
db = writelane.open(sys.argv[1], warn_after=None)
print("writing", flush=True)
while True:
    db.executemany("INSERT INTO t VALUES (randomblob(2000))", [()] * 50)
    db.checkpoint()
"""


def test_the_checkpoints_of_a_process_that_is_killed_are_taken_over(path: Path) -> None:
    """It is killed at any moment of its loop, which is mostly in a checkpoint."""
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        longest = 0
        for round in range(5):
            other = subprocess.Popen([sys.executable, "-c", BUSY, str(path)], stdout=subprocess.PIPE, text=True)
            assert other.stdout is not None
            assert other.stdout.readline() == "writing\n"
            time.sleep(0.05 * round)
            other.kill()
            other.communicate()
            count = db.telemetry().checkpoints["count"]
            for _ in range(40):
                db.executemany(INSERT, [()] * 50)
                longest = max(longest, log_bytes(path))
            assert db.telemetry().checkpoints["count"] > count
            assert db.telemetry().checkpoints["errors"] == 0
        assert longest < 16 * MEBIBYTE
        assert db.execute("PRAGMA integrity_check").rows == [("ok",)]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


HOLDER = """
import fcntl, struct, sys
# The lock that SQLite has on the byte of the shared memory which a checkpoint holds.
with open(sys.argv[1] + "-shm", "r+b") as shared:
    what = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 121, 1, 0)
    fcntl.fcntl(shared, fcntl.F_SETLKW, what)
    print("holding", flush=True)
    sys.stdin.readline()
"""


def test_a_checkpoint_that_others_hold_for_long_is_told_of_with_who_they_are(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "writelane")
    with writelane.open(path, checkpoints=writelane.Checkpoints(idle=0.05, pinned_after=0.2)) as db:
        db.execute("CREATE TABLE t(x)")
        db.execute(INSERT)
        assert until(lambda: db.telemetry().checkpoints["count"] > 0)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            holder.send_signal(signal.SIGSTOP)
            db.execute(INSERT)
            assert until(lambda: messages(caplog, "could not be copied into the database"))
            (told,) = messages(caplog, "could not be copied into the database")
            assert "SQLITE_BUSY" in told
            assert f"held by process {holder.pid}, which is stopped" in told
            assert db.telemetry().checkpoints["errors"] == 0
        finally:
            holder.kill()
            holder.communicate()
        assert until(lambda: messages(caplog, "can be copied again"))
        assert len(messages(caplog, "could not be copied into the database")) == 1
