"""What was queued is done when the interpreter ends, however it ends; and nothing hangs or aborts."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import writelane

PREAMBLE = """
import asyncio, atexit, gc, os, sys, threading, time
import writelane
db = writelane.open(sys.argv[1], deadline=60)
def put(count):
    return [db.submit("INSERT INTO t(x) VALUES (?)", (number,)) for number in range(count)]
"""

#: How a program ends, how many rows it must have written, and its exit code.
ENDINGS: dict[str, tuple[str, int, int]] = {
    "at its last line": ("futures = put(500)", 500, 0),
    "without a name for anything": ("put(500); del db; gc.collect()", 500, 0),
    "by an exception": ("put(500); raise RuntimeError('over')", 500, 1),
    "by sys.exit": ("put(500); sys.exit(3)", 500, 3),
    "by sys.exit in a thread": (
        "def work():\n    put(500)\n    sys.exit(3)\nthread = threading.Thread(target=work); thread.start()",
        500,
        0,
    ),
    "in a cycle": ("class Keeps: pass\nkeeps = Keeps(); keeps.self, keeps.db = keeps, db; put(500); del db", 500, 0),
    "with an exit handler that writes": ("atexit.register(lambda: put(500))", 500, 0),
    "with callbacks outstanding": (
        "futures = put(500)\nfor future in futures: future.add_done_callback(lambda future: None)",
        500,
        0,
    ),
    "with an offer outstanding": ("db.offer('INSERT INTO t(x) VALUES (1)')", 1, 0),
    "with a loop that was closed": (
        "async def main():\n    task = asyncio.ensure_future(db.aexecute('INSERT INTO t(x) VALUES (1)'))\n"
        "    await asyncio.sleep(0)\n    await task\nasyncio.run(main())",
        1,
        0,
    ),
    "with a daemon thread inside a transaction": (
        "entered = threading.Event()\n"
        "def work():\n    with db.transaction() as tx:\n        tx.execute('INSERT INTO t(x) VALUES (1)')\n"
        "        entered.set()\n        time.sleep(1000)\n"
        "threading.Thread(target=work, daemon=True).start(); entered.wait()",
        0,
        0,
    ),
    "while daemon threads write": (
        "def work():\n    while True: db.execute('INSERT INTO t(x) VALUES (1)')\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.2)",
        -1,
        0,
    ),
    "at once, by os._exit": ("db.execute('INSERT INTO t(x) VALUES (1)'); os._exit(5)", 1, 5),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_exit_drains_what_was_queued(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x)")
    code, rows, status = ENDINGS[ending]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PREAMBLE + textwrap.dedent(code), str(path)],
        text=True,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == status, done.stderr
    assert "Fatal" not in done.stderr
    assert "panicked" not in done.stderr
    with contextlib.closing(sqlite3.connect(path)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = plain.execute("SELECT count(*) FROM t").fetchone()[0]
    assert found == rows or (rows < 0 and found > 0)
