"""A write of `writelane.dbapi` waits for the lock up to the connection's time-out, and what ends the wait is told."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

import writelane.dbapi
from writelane.errors import WriteTimeout

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO t VALUES ('holder')")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
connection.close()
"""


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "app.db")
    connection = writelane.dbapi.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    return path


class Holder:
    """Another program, with plain sqlite3, that holds the write lock until it is told to let go."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "held\n"
        self._once = threading.Lock()

    def let_go(self):
        """End the transaction; what another thread has begun is waited for."""
        with self._once:
            if self.process.returncode is None:
                self.process.communicate("go\n", timeout=60)


@pytest.fixture
def holder(path):
    holder = Holder(path)
    yield holder
    holder.let_go()


def rows(path):
    connection = writelane.dbapi.connect(path)
    try:
        return [x for (x,) in connection.execute("SELECT x FROM t ORDER BY rowid")]
    finally:
        connection.close()


@pytest.mark.parametrize("timeout", [60, 86_400 * 30, 1e10, float("inf")])
def test_a_foreign_transaction_is_waited_out_whatever_the_timeout(path, holder, timeout):
    connection = writelane.dbapi.connect(path, timeout=timeout, isolation_level=None)
    threading.Timer(0.2, holder.let_go).start()
    connection.execute("INSERT INTO t VALUES ('ours')")
    connection.close()
    assert rows(path) == ["holder", "ours"]


def test_a_timeout_says_locked_how_long_and_who(path, holder):
    connection = writelane.dbapi.connect(path, timeout=0.2, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked") as raised:
        connection.execute("INSERT INTO t VALUES ('ours')")
    connection.close()
    assert isinstance(raised.value, WriteTimeout)
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.sqlite_errorcode == 5
    assert raised.value.sqlite_errorname == "SQLITE_BUSY"
    assert raised.value.waited["lock"] >= 0.1
    assert raised.value.holder["pid"] == holder.process.pid
    holder.let_go()
    assert rows(path) == ["holder"]


def test_no_timeout_fails_at_once_and_takes_a_free_lock(path, holder):
    connection = writelane.dbapi.connect(path, timeout=0, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.execute("INSERT INTO t VALUES ('ours')")
    holder.let_go()
    connection.execute("INSERT INTO t VALUES ('ours')")
    connection.close()
    assert rows(path) == ["holder", "ours"]


def test_interrupt_ends_the_wait(path, holder):
    connection = writelane.dbapi.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    timer = threading.Timer(0.2, connection.interrupt)
    timer.start()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute("INSERT INTO t VALUES ('ours')")
    timer.join()
    holder.let_go()
    connection.execute("INSERT INTO t VALUES ('later')")
    connection.close()
    assert rows(path) == ["holder", "later"]


def test_control_c_ends_the_wait_and_nothing_is_written(path, holder):
    connection = writelane.dbapi.connect(path, timeout=60, isolation_level=None)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        connection.execute("INSERT INTO t VALUES ('ours')")
    timer.join()
    connection.close()
    holder.let_go()
    assert rows(path) == ["holder"]


def test_the_pragma_sets_the_same_timeout(path, holder):
    connection = writelane.dbapi.connect(path, timeout=60, isolation_level=None)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
    assert connection.execute("PRAGMA busy_timeout = 50").fetchone() == (50,)
    with pytest.raises(WriteTimeout):
        connection.execute("INSERT INTO t VALUES ('ours')")
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (50,)
    connection.execute("PRAGMA busy_timeout(60000)")
    threading.Timer(0.2, holder.let_go).start()
    connection.execute("INSERT INTO t VALUES ('ours')")
    connection.close()
    assert rows(path) == ["holder", "ours"]


def test_the_switch_to_a_log_waits_like_any_statement(tmp_path):
    path = str(tmp_path / "rollback.db")
    connection = writelane.dbapi.connect(path)
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    holder = Holder(path)
    connection = writelane.dbapi.connect(path, timeout=60)
    threading.Timer(0.2, holder.let_go).start()
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.close()
    assert rows(path) == ["holder"]


def test_a_wait_does_not_hold_the_interpreter(path, holder):
    connection = writelane.dbapi.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
    waiting = threading.Thread(target=connection.execute, args=("INSERT INTO t VALUES ('ours')",))
    waiting.start()
    # Would hang if either blocked: the interpreter is free, and these never wait for the connection.
    for _ in range(1000):
        assert connection.in_transaction is False
        assert connection.total_changes == 0
    holder.let_go()
    waiting.join()
    connection.close()
    assert rows(path) == ["holder", "ours"]


@pytest.fixture
def pinned(path):
    """A reader whose snapshot keeps the log from being cut; call it to let go."""
    reader = writelane.dbapi.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("BEGIN DEFERRED")
    reader.execute("SELECT * FROM t").fetchall()
    writer = writelane.dbapi.connect(path)
    with writer:
        writer.execute("INSERT INTO t VALUES ('in the log')")
    writer.close()
    yield lambda: reader.execute("COMMIT")
    reader.close()


@pytest.mark.parametrize("pragma", ["PRAGMA wal_checkpoint(TRUNCATE)", "pragma main.wal_checkpoint = 'truncate'"])
def test_a_checkpoint_that_waits_for_a_reader_lets_others_write(path, pinned, pragma):
    answers = []

    def checkpoint():
        connection = writelane.dbapi.connect(path, timeout=120)
        answers.append(connection.execute(pragma).fetchall())
        connection.close()

    thread = threading.Thread(target=checkpoint)
    thread.start()
    writer = writelane.dbapi.connect(path, timeout=60)
    for number in range(50):
        with writer:
            writer.execute("INSERT INTO t VALUES (?)", (number,))
    assert answers == []
    pinned()
    thread.join()
    writer.close()
    assert answers == [[(0, 0, 0)]]
    assert os.path.getsize(path + "-wal") == 0


def test_a_checkpoint_whose_time_is_up_answers_busy_as_there(path, pinned):
    connection = writelane.dbapi.connect(path, timeout=0.05)
    standard = sqlite3.connect(path, timeout=0.05)
    for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
        sql = f"PRAGMA wal_checkpoint({mode})"
        assert connection.execute(sql).fetchall() == standard.execute(sql).fetchall()
    connection.execute("INSERT INTO t VALUES ('after')")
    connection.commit()
    connection.execute("BEGIN")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    standard.close()


def test_interrupt_ends_a_checkpoint_that_waits(path, pinned):
    connection = writelane.dbapi.connect(path, timeout=120, check_same_thread=False)
    ended = threading.Event()

    def interrupt():
        while not ended.wait(0.01):
            connection.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ended.set()
    thread.join()
    connection.close()


SHARED = """
import sys, threading
import writelane.dbapi
connection = writelane.dbapi.connect(sys.argv[1], timeout=60, check_same_thread=False, isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE t(x)")
connection.execute("INSERT INTO t VALUES (1)")
# The function comes back to the interpreter with the connection in hand.
connection.create_function("twice", 1, lambda value: sum(range(1000)) and value * 2)
many = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 50) SELECT sum(twice(i)) FROM c"

def read():
    for _ in range(300):
        assert connection.execute(many).fetchone() == (2550,)

def write():
    for _ in range(300):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE t SET x = twice(x) % 1000")
        connection.execute("COMMIT")

def register():
    for _ in range(300):
        try:
            connection.create_function("other", 1, lambda value: value)
        except writelane.dbapi.OperationalError:
            pass  # a statement that may use the function is running
        connection.in_transaction, connection.total_changes

threads = [threading.Thread(target=work) for work in (read, read, write, register, register)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
connection.close()
print("done")
"""


def test_threads_that_share_a_connection_with_functions_of_python_do_not_wait_for_each_other_for_ever(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", SHARED, str(tmp_path / "shared.db")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.stdout == "done\n", result.stderr
    assert result.stderr == ""
