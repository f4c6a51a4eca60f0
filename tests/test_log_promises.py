"""What is promised of the log: a reader that pins it is named and forgiven, and an idle file is whole by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import writelane
from test_checkpoints import MEBIBYTE, Reader, log_bytes, rows_in_main_file, until
from writelane import dbapi

#: Seconds for which a reader holds its snapshot; ten with ``WRITELANE_SOAK``, as it was promised for.
HELD = 10.0 if os.environ.get("WRITELANE_SOAK") else 2.0

#: A log that nobody pins is shorter.
SHORT = 8 * MEBIBYTE

WRITER = """
import sys
import writelane
if sys.argv[2] == "database":
    db = writelane.open(sys.argv[1], warn_after=None)
    write, end = db.execute, db.close
else:
    import writelane.dbapi as sqlite3
    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=600)
    write, end = connection.execute, connection.close
written = 0
rows = int(sys.argv[3])
print("writing", flush=True)
while written != rows:
    write("INSERT INTO t VALUES (randomblob(4000))")
    written += 1
print("written", flush=True)
sys.stdin.readline()
end()
"""


@contextmanager
def writers(path: Path, rows: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Run writers of both faces that write so many rows each, then keep the file open; -1: until they are killed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), face, str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for face in ("database", "connection")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_reader_of_another_process_is_named_under_load_and_the_log_short_after_it(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        told = list[writelane.Notice]()
        db.on_pinned(told.append)
        with writers(path, -1):
            reader = Reader(path)
            try:

                def pinned() -> Any:
                    # Whoever has the lane checkpoints; a write of our own sees to it that we do, too.
                    db.execute("INSERT INTO t VALUES (1)")
                    db.checkpoint()
                    return db.telemetry().checkpoints["pinned"]

                assert until(lambda: pinned() and pinned()["seconds"] >= HELD and log_bytes(path) > SHORT)
                found = pinned()
                assert not found["over"]
                assert [who["pid"] for who in found["readers"]] == [reader.process.pid]
                assert found["pages"] > 0
                reader.end()
                assert until(lambda: log_bytes(path) <= SHORT)
                assert until(lambda: pinned()["over"])
            finally:
                reader.kill()
        assert until(lambda: len(told) >= 2)
        assert [notice.kind for notice in told[:2]] == ["pinned", "unpinned"]


def test_the_main_file_of_an_idle_database_has_every_row_though_all_have_it_open(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        with writers(path, 300) as processes:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "written\n"
            # They are all idle, and none has closed: nobody tidies up by going.
            assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 600)
            assert all(process.poll() is None for process in processes)
            assert db.execute("SELECT count(*) FROM t").rows == [(600,)]


def test_the_main_file_has_every_row_though_all_who_wrote_were_killed(tmp_path: Path) -> None:
    """Whoever has the file open looks after what others have left, as soon as it writes."""
    path = tmp_path / "app.db"
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        with writers(path, 20) as processes:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "written\n"
        db.execute("INSERT INTO t VALUES (1)")
        assert until(lambda: rows_in_main_file(path, tmp_path / "copy.db") == 41)


def test_a_reader_of_our_own_in_this_process_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path, warn_after=None) as db:
        db.execute("CREATE TABLE t(x)")
        reader = dbapi.connect(path)
        reader.execute("BEGIN DEFERRED")
        reader.execute("SELECT count(*) FROM t").fetchall()

        def pinned() -> Any:
            db.execute("INSERT INTO t VALUES (1)")
            db.checkpoint()
            return db.telemetry().checkpoints["pinned"]

        assert until(pinned)
        assert [who["pid"] for who in pinned()["readers"]] == [os.getpid()]
        reader.rollback()
        assert until(lambda: pinned()["over"])
        reader.close()
