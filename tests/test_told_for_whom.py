"""A write that fails of its deadline says who held the lock, however often that happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import writelane

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[writelane.Database]:
    with writelane.open(tmp_path / "app.db") as database:
        database.execute("CREATE TABLE t(x)")
        yield database


@pytest.fixture
def holder(database: writelane.Database) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(database.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process.pid
        process.kill()


def test_every_timeout_names_the_holder(database: writelane.Database, holder: int) -> None:
    # One right after the other, so that no look is left over from a longer wait; both ways to wait.
    for _ in range(10):
        with pytest.raises(writelane.WriteTimeout) as caught:
            database.execute("INSERT INTO t VALUES (1)", deadline=0.1)
        assert caught.value.holder is not None
        assert caught.value.holder["pid"] == holder
        # Several that share a transaction, or would.
        for future in [database.submit("INSERT INTO t VALUES (1)", deadline=0.1) for _ in range(3)]:
            with pytest.raises(writelane.WriteTimeout) as caught:
                future.result()
            assert caught.value.holder is not None
            assert caught.value.holder["pid"] == holder
