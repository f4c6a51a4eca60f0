"""One process owns a file that is opened exclusively, on this host and, by a lease, among hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import writelane
from writelane._native import database_owner

OWNER = """
import sys, writelane
with writelane.open(sys.argv[1], access="exclusive") as db:
    db.execute("CREATE TABLE IF NOT EXISTS t(x)")
    print("owned", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    other = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "owned\n"
        yield other
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize("access", ["exclusive", "shared"])
def test_others_are_told_who_owns_it(tmp_path: Path, access: str) -> None:
    path = tmp_path / "app.db"
    with another_owner(path) as owner:
        with pytest.raises(writelane.OwnedElsewhere) as refused:
            writelane.open(path, access=access)
        text = str(refused.value)
        assert str(owner.pid) in text
        assert os.uname().nodename in text
        seen = database_owner(path)
        assert seen is not None
        assert (seen["pid"], seen["certain"]) == (owner.pid, True)


def test_a_killed_owner_is_followed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with another_owner(path) as owner:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert database_owner(path) is None
        with writelane.open(path, access="exclusive", deadline=5) as db:
            db.execute("INSERT INTO t VALUES (1)")


def test_an_owner_that_closes_makes_room(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    writelane.open(path, access="exclusive").close()
    assert database_owner(path) is None
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x)")


def test_an_owner_whose_file_is_taken_away_commits_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path, access="exclusive") as db:
        db.execute("CREATE TABLE t(x)")
        (tmp_path / "app.db-owner").unlink()
        with pytest.raises(writelane.OwnedElsewhere):
            db.execute("INSERT INTO t VALUES (1)")
    with writelane.open(path) as db:
        assert db.execute("SELECT count(*) FROM t").rows == [(0,)]


class AnotherHost:
    """Claims a database as a process of another host would: by the format of its claims alone."""

    def __init__(self, database: Path, number: int) -> None:
        self.path = Path(f"{database}-owner.{number}")
        self.number = number
        self.beats = 0
        self._write("x")

    def _write(self, mode: str = "w") -> None:
        text = (
            "writelane owner 1\nhost=far.example\nboot=another-boot\npid=4242\nstarted=1\n"
            f"number={self.number}\nnonce=77\nsince=1700000000\nbeat={self.beats}\nlease_ms=30000\nlock=1:1\nreleased=0\n"
        )
        total = 0xCBF29CE484222325
        for byte in text.encode():
            total = ((total ^ byte) * 0x100000001B3) & (1 << 64) - 1
        record = f"{text}sum={total:016x}\n"
        with self.path.open(mode) as file:
            file.write(record.ljust(512, "\n"))

    def beat(self) -> None:
        """Renew the claim."""
        self.beats += 1
        self._write()


@pytest.fixture
def lease(fuse: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """A folder on a network filesystem, and the folder behind it."""
    return fuse("sshfs")


def test_a_live_owner_on_another_host_is_not_torn_down(lease: tuple[Path, Path]) -> None:
    point, folder = lease
    other = AnotherHost(folder / "app.db", 1)
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(0.2):
            other.beat()

    living = threading.Thread(target=live)
    living.start()
    try:
        with pytest.raises(writelane.OwnedElsewhere) as refused:
            writelane.open(point / "app.db", journal="delete", deadline=60)
    finally:
        stop.set()
        living.join()
    assert "process 4242 on host far.example" in str(refused.value)
    assert not (folder / "app.db").exists()


def test_a_silent_owner_on_another_host_is_waited_for_and_the_wait_is_told(lease: tuple[Path, Path]) -> None:
    point, folder = lease
    AnotherHost(folder / "app.db", 1)
    with pytest.raises(writelane.OwnedElsewhere, match=r"taken over in \d+ s") as refused:
        writelane.open(point / "app.db", journal="delete", deadline=0.2)
    assert "far.example" in str(refused.value)


def test_an_owner_that_another_host_has_followed_commits_nothing_more(lease: tuple[Path, Path]) -> None:
    point, folder = lease
    with writelane.open(point / "app.db", journal="delete") as db:
        db.execute("CREATE TABLE t(x)")
        assert (folder / "app.db-owner.1").exists()
        AnotherHost(folder / "app.db", 2)
        with pytest.raises(writelane.OwnedElsewhere, match=r"far\.example"):
            db.execute("INSERT INTO t VALUES (1)")
    connection = sqlite3.connect(folder / "app.db")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()


def test_a_second_process_of_this_host_is_refused_on_a_network_filesystem(lease: tuple[Path, Path]) -> None:
    point, _ = lease
    program = (
        "import sys, writelane\n"
        "try: writelane.open(sys.argv[1], journal='delete')\n"
        "except writelane.OwnedElsewhere as error: print('refused', error)"
    )
    with writelane.open(point / "app.db", journal="delete") as db:
        db.execute("CREATE TABLE t(x)")
        done = subprocess.run(
            [sys.executable, "-c", program, str(point / "app.db")], capture_output=True, text=True, check=False
        )
        assert done.stdout.startswith("refused"), done
        assert str(os.getpid()) in done.stdout
        db.execute("INSERT INTO t VALUES (1)")
