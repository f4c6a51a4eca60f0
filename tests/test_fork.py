"""A forked child refuses what it inherited, opens anew, and hangs nobody; no lock is lost or left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import writelane
import writelane.dbapi

# Newer Pythons warn of any fork with threads; that it goes well here is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

#: Seconds after which a child is killed: it hangs. Children need a small part of that.
HANGS_AFTER = 100


class Child:
    """A forked child that runs a function and exits at once."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            signal.alarm(HANGS_AFTER)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def join(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


class Gate:
    """Waits across processes."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def open(self) -> None:
        os.write(self.write, b"x")

    def wait(self) -> None:
        assert os.read(self.read, 1) == b"x"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t(x)")
    return path


def rows(path: Path) -> list[str]:
    """Read all rows in another process, after its check of the whole file."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=60);"
        "assert c.execute('PRAGMA integrity_check').fetchall() == [('ok',)];"
        "print(*(x for (x,) in c.execute('SELECT x FROM t')), sep='\\n')"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return sorted(output.split())


def insert(path: Path, value: str) -> None:
    with writelane.open(path, deadline=60) as db:
        db.execute("INSERT INTO t VALUES (?)", (value,))


def insert_many(path: str, name: str, count: int) -> None:
    """Runs in the processes that multiprocessing starts."""
    with writelane.open(path, deadline=120) as db:
        for number in range(count):
            db.execute("INSERT INTO t VALUES (?)", (f"{name}.{number}",))


def test_a_child_refuses_the_connection_it_inherited(path: Path) -> None:
    connection = writelane.dbapi.connect(path, isolation_level=None)
    cursor = connection.execute("SELECT 1 UNION SELECT 2")

    def child() -> None:
        with pytest.raises(writelane.ForkError):
            connection.execute("INSERT INTO t VALUES ('inherited')")
        with pytest.raises(writelane.ForkError):
            cursor.fetchone()

    Child(child).join()
    assert cursor.fetchall() == [(1,), (2,)]
    connection.execute("INSERT INTO t VALUES ('parent')")
    connection.close()
    assert rows(path) == ["parent"]


def test_a_child_refuses_the_database_it_inherited_and_opens_its_own(path: Path) -> None:
    db = writelane.open(path)
    db.execute("INSERT INTO t VALUES ('before')")

    def child() -> None:
        with pytest.raises(writelane.ForkError):
            db.execute("INSERT INTO t VALUES ('inherited')")
        with pytest.raises(writelane.ForkError):
            db.submit("INSERT INTO t VALUES ('inherited')")
        with pytest.raises(writelane.ForkError):
            db.execute("SELECT * FROM t")
        insert(path, "child")

    Child(child).join()
    db.execute("INSERT INTO t VALUES ('after')")
    db.close()
    assert rows(path) == ["after", "before", "child"]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_parent_and_child_exclude_each_other(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode={journal}")
        other.execute("CREATE TABLE t(x)")
    parent = writelane.dbapi.connect(path, isolation_level=None, timeout=0)
    parent.execute("BEGIN IMMEDIATE")
    parent.execute("INSERT INTO t VALUES ('parent')")
    refused, committed, holding, checked = Gate(), Gate(), Gate(), Gate()

    def child() -> None:
        with closing(writelane.dbapi.connect(path, isolation_level=None, timeout=0)) as own:
            with pytest.raises(sqlite3.OperationalError):
                own.execute("BEGIN IMMEDIATE")
            refused.open()
            committed.wait()
            own.execute("BEGIN IMMEDIATE")
            own.execute("INSERT INTO t VALUES ('child')")
            holding.open()
            checked.wait()
            own.execute("COMMIT")

    one = Child(child)
    refused.wait()
    parent.execute("COMMIT")
    committed.open()
    holding.wait()
    with pytest.raises(sqlite3.OperationalError):
        parent.execute("BEGIN IMMEDIATE")
    checked.open()
    one.join()
    parent.close()
    assert rows(path) == ["child", "parent"]


def test_a_childs_exit_drops_no_lock_of_its_parent(path: Path) -> None:
    with closing(writelane.dbapi.connect(path, isolation_level=None)) as parent:
        parent.execute("BEGIN IMMEDIATE")
        Child(lambda: None).join()

        def reader() -> None:
            with closing(writelane.dbapi.connect(path)) as own:
                assert own.execute("SELECT count(*) FROM t").fetchone() == (0,)

        Child(reader).join()
        code = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0)\n"
            "try: c.execute('BEGIN IMMEDIATE')\n"
            "except sqlite3.OperationalError as error: print(error)\n"
        )
        said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
        assert said.stdout == "database is locked\n"
        parent.execute("COMMIT")


def test_a_killed_parents_lock_is_free_though_its_child_lives(path: Path) -> None:
    held, never = Gate(), Gate()

    def holder() -> None:
        connection = writelane.dbapi.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES ('never')")

        def grandchild() -> None:
            os.write(held.write, os.getpid().to_bytes(8, "little"))
            never.wait()

        Child(grandchild)
        never.wait()

    parent = Child(holder)
    grandchild = int.from_bytes(os.read(held.read, 8), "little")
    os.kill(parent.pid, signal.SIGKILL)
    os.waitpid(parent.pid, 0)
    os.kill(grandchild, 0)
    insert(path, "after")
    os.kill(grandchild, signal.SIGKILL)
    assert rows(path) == ["after"]


def test_grandchildren_write_too(path: Path) -> None:
    with writelane.open(path) as db:
        db.execute("INSERT INTO t VALUES ('parent')")

        def child() -> None:
            with writelane.open(path, deadline=60) as own:
                own.execute("INSERT INTO t VALUES ('child')")
                Child(lambda: insert(path, "grandchild")).join()
                own.execute("INSERT INTO t VALUES ('child again')")

        Child(child).join()
        assert db.execute("SELECT count(*) FROM t").rows == [(4,)]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_of_every_start_method_write_beside_their_parent(path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with writelane.open(path, deadline=120) as db:
        db.execute("INSERT INTO t VALUES ('parent')")
        processes = [context.Process(target=insert_many, args=(str(path), f"{n}", 20)) for n in range(3)]
        for process in processes:
            process.start()
        for number in range(20):
            db.execute("INSERT INTO t VALUES (?)", (f"parent.{number}",))
        for process in processes:
            process.join(HANGS_AFTER)
            assert process.exitcode == 0
    written = [f"{name}.{number}" for name in ("0", "1", "2", "parent") for number in range(20)]
    assert rows(path) == sorted(["parent", *written])


def test_forks_while_threads_write_hang_nobody(path: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []
    written: list[str] = []

    def work(name: str, write: Callable[[str], object]) -> None:
        number = 0
        try:
            while not stop.is_set():
                write(f"{name}{number}")
                written.append(f"{name}{number}")
                number += 1
        except BaseException as failure:
            failures.append(failure)

    with writelane.open(path, deadline=120) as db:

        def by_database(value: str) -> None:
            db.execute("INSERT INTO t VALUES (?)", (value,))

        def by_connection(value: str) -> None:
            with closing(writelane.dbapi.connect(path, timeout=120, isolation_level=None)) as connection:
                connection.execute("INSERT INTO t VALUES (?)", (value,))

        threads = [
            threading.Thread(target=work, args=arguments)
            for arguments in (("a", by_database), ("b", by_connection), ("c", by_database))
        ]
        for thread in threads:
            thread.start()
        for number in range(30):

            def child(number: int = number) -> None:
                insert(path, f"child{number}")
                with closing(writelane.dbapi.connect(path, timeout=120, isolation_level=None)) as own:
                    own.execute("INSERT INTO t VALUES (?)", (f"again{number}",))

            Child(child).join()
            written += [f"child{number}", f"again{number}"]
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert rows(path) == sorted(written)


SERVER = """
import os, sys, writelane
path = sys.argv[1]
db = writelane.open(path, deadline=120)
db.execute("INSERT INTO t VALUES ('master')")
workers = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        own = writelane.open(path, deadline=120)
        for request in range(25):
            own.execute("INSERT INTO t VALUES (?)", (f"{number}.{request}",))
        own.submit("INSERT INTO t VALUES (?)", (f"{number}.last",))
        sys.exit(0)          # through the interpreter's exit, which drains what was submitted
    workers.append(pid)
for pid in workers:
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
db.execute("INSERT INTO t VALUES ('done')")
"""


def test_a_pre_fork_servers_workers_each_open_their_own(path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SERVER, str(path)], capture_output=True, text=True, timeout=HANGS_AFTER
    )
    assert ended.returncode == 0, ended.stderr
    requests = [*map(str, range(25)), "last"]
    assert rows(path) == sorted(["master", "done", *(f"{n}.{r}" for n in range(4) for r in requests)])
