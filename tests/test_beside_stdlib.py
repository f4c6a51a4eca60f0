"""The standard library's sqlite3 may use the same file in the same process: nobody's locks are dropped."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

import writelane
import writelane.dbapi

OUTSIDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("INSERT INTO t VALUES ('outsider')")
except sqlite3.OperationalError as error:
    print(error)
else:
    print("let in")
connection.close()
"""


def outsider(path: Path) -> str:
    """Try to write from another process, with the standard library, without waiting."""
    return subprocess.run(
        [sys.executable, "-c", OUTSIDER, str(path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def seen_by_outsider(path: Path) -> list[str]:
    """Read all rows in another process, after its check of the whole file."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=60);"
        "assert c.execute('PRAGMA integrity_check').fetchall() == [('ok',)];"
        "print(*(x for (x,) in c.execute('SELECT x FROM t ORDER BY rowid')), sep='\\n')"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


@pytest.fixture(params=["wal", "delete"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={request.param}")
        connection.execute("CREATE TABLE t(x)")
    return path


@contextmanager
def held_by_dbapi(path: Path) -> Iterator[None]:
    with closing(writelane.dbapi.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES ('ours')")
        yield
        connection.execute("COMMIT")


@contextmanager
def held_by_database(path: Path) -> Iterator[None]:
    with writelane.open(path, journal="keep") as db, db.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES ('ours')")
        yield


Holder = Callable[[Path], AbstractContextManager[None]]


def use_stdlib(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.execute("BEGIN IMMEDIATE")


def read_plainly(path: Path) -> None:
    for file in path.parent.glob("app.db*"):
        file.read_bytes()


def copy_plainly(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))


def open_another_of_ours(path: Path) -> None:
    with closing(writelane.dbapi.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.parametrize("holder", [held_by_dbapi, held_by_database])
@pytest.mark.parametrize("intruder", [use_stdlib, read_plainly, copy_plainly, open_another_of_ours])
def test_our_write_transaction_keeps_its_lock(path: Path, holder: Holder, intruder: Callable[[Path], None]) -> None:
    with holder(path):
        assert outsider(path) == "database is locked"
        intruder(path)
        assert outsider(path) == "database is locked"
    assert seen_by_outsider(path) == ["ours"]


def read_with_dbapi(path: Path) -> None:
    with closing(writelane.dbapi.connect(path, timeout=0, isolation_level=None)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")


def read_with_database(path: Path) -> None:
    with writelane.open(path, journal="keep", readonly=True) as db:
        assert db.execute("SELECT count(*) FROM t").rows == [(0,)]


def open_and_close(path: Path) -> None:
    writelane.dbapi.connect(path).close()


@pytest.mark.parametrize("intruder", [read_with_dbapi, read_with_database, open_and_close])
def test_the_write_transaction_of_the_standard_module_keeps_its_lock(
    path: Path, intruder: Callable[[Path], None]
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES ('theirs')")
        for _ in range(3):
            intruder(path)
            assert outsider(path) == "database is locked"
        connection.execute("COMMIT")
    assert seen_by_outsider(path) == ["theirs"]


def test_we_wait_out_a_transaction_of_the_standard_module(path: Path) -> None:
    with writelane.open(path, journal="keep") as db:
        db.execute("INSERT INTO t VALUES ('first')")
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t VALUES ('theirs')")
            waiting = db.submit("INSERT INTO t VALUES ('ours')")
            assert not waiting.done()
            connection.execute("COMMIT")
            waiting.result(timeout=60)
    assert seen_by_outsider(path) == ["first", "theirs", "ours"]


def test_closing_the_last_connection_of_either_leaves_the_log_to_the_other(path: Path) -> None:
    theirs = sqlite3.connect(path, isolation_level=None, timeout=60)
    theirs.execute("INSERT INTO t VALUES (0)")
    ours = writelane.dbapi.connect(path, isolation_level=None, timeout=60)
    ours.execute("INSERT INTO t VALUES (1)")
    ours.close()
    assert seen_by_outsider(path) == ["0", "1"]
    theirs.execute("INSERT INTO t VALUES (2)")
    ours = writelane.dbapi.connect(path, isolation_level=None, timeout=60)
    ours.execute("INSERT INTO t VALUES (3)")
    theirs.close()
    assert seen_by_outsider(path) == ["0", "1", "2", "3"]
    ours.execute("INSERT INTO t VALUES (4)")
    ours.close()
    assert seen_by_outsider(path) == ["0", "1", "2", "3", "4"]


def test_threads_of_both_write_at_once(path: Path) -> None:
    rows = 300
    failures: list[BaseException] = []

    def write(name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        try:
            for first in range(0, rows, 25):
                with closing(connect()) as connection:
                    connection.execute("PRAGMA synchronous=OFF")
                    for row in range(first, first + 25):
                        connection.execute("INSERT INTO t VALUES (?)", (f"{name}{row}",))
        except BaseException as failure:
            failures.append(failure)

    def theirs() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=120, isolation_level=None)

    def ours() -> sqlite3.Connection:
        connection: sqlite3.Connection = writelane.dbapi.connect(path, timeout=120, isolation_level=None)
        return connection

    with writelane.open(path, journal="keep", durability="normal", deadline=120) as db:
        threads = [threading.Thread(target=write, args=arguments) for arguments in (("t", theirs), ("o", ours))]
        for thread in threads:
            thread.start()
        for row in range(rows):
            db.execute("INSERT INTO t VALUES (?)", (f"d{row}",))
        for thread in threads:
            thread.join()
    assert failures == []
    assert sorted(seen_by_outsider(path)) == sorted(f"{name}{row}" for name in "tod" for row in range(rows))


WITHOUT_THE_LOCKS = """
import sqlite3, sys, writelane, writelane.dbapi
path = sys.argv[1]
theirs = sqlite3.connect(path)
theirs.execute("SELECT * FROM t").fetchall()
for connect in (writelane.dbapi.connect, lambda path: writelane.open(path, journal="keep")):
    try:
        connect(path)
    except sqlite3.OperationalError as error:
        assert "another SQLite library" in str(error), error
    else:
        raise AssertionError("it was opened")
theirs.close()
with writelane.open(path, journal="keep") as db:
    db.execute("INSERT INTO t VALUES ('ours')")
connection = writelane.dbapi.connect(path)
print(connection.execute("SELECT * FROM t").fetchall())
"""


def test_a_kernel_without_these_locks_makes_us_refuse_what_the_standard_module_has_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITELANE_NO_OFD_LOCKS", "1")
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_LOCKS, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.returncode) == ("[('ours',)]\n", 0), ended.stderr
