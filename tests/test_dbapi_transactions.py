"""Transactions of `writelane.dbapi`: nothing is half committed, and no write is refused for an earlier read."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading

import pytest

import writelane.dbapi
from writelane.errors import ForkError


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "app.db")
    connection = writelane.dbapi.connect(path)
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t(x UNIQUE)")
    connection.close()
    return path


@pytest.fixture
def connect(path):
    connections = []

    def connect(**options):
        connections.append(writelane.dbapi.connect(path, **options))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def outsider(path, sql):
    """Run a statement with plain sqlite3 in another process, and return its rows."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "print(c.execute(sys.argv[2]).fetchall()); c.close()"
    )
    return eval(subprocess.run([sys.executable, "-c", code, path, sql], check=True, capture_output=True).stdout)


LOSSES = {
    "or rollback": "INSERT OR ROLLBACK INTO t VALUES ('dup')",
    "trigger": "INSERT INTO g VALUES (1)",
    "column": "INSERT INTO u VALUES ('dup')",
}


@pytest.fixture(params=LOSSES)
def lost(request, connect):
    """A connection whose transaction, with a row 'A' in it, an error has just rolled back."""
    connection = connect()
    connection.executescript(
        """
        INSERT INTO t VALUES ('dup');
        CREATE TABLE u(x UNIQUE ON CONFLICT ROLLBACK); INSERT INTO u VALUES ('dup');
        CREATE TABLE g(x); CREATE TRIGGER gt BEFORE INSERT ON g BEGIN SELECT RAISE(ROLLBACK, 'no'); END;
        """
    )
    connection.execute("INSERT INTO t VALUES ('A')")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(LOSSES[request.param])
    return connection


def test_the_second_half_of_a_lost_transaction_is_refused(lost, path):
    for attempt in (
        lambda: lost.execute("INSERT INTO t VALUES ('B')"),
        lambda: lost.executemany("INSERT INTO t VALUES (?)", [("B",)]),
        lambda: lost.execute("SAVEPOINT s"),
        lambda: lost.execute("COMMIT"),
        lost.commit,
    ):
        with pytest.raises(sqlite3.OperationalError, match=r"rolled back .* call rollback\(\)"):
            attempt()
    assert lost.in_transaction
    assert lost.execute("SELECT x FROM t").fetchall() == [("dup",)]
    assert outsider(path, "SELECT x FROM t") == [("dup",)]


@pytest.mark.parametrize(
    "acknowledge",
    [
        lambda connection: connection.rollback(),
        lambda connection: connection.execute("ROLLBACK"),
        lambda connection: connection.execute("BEGIN"),
        lambda connection: connection.__exit__(ValueError, ValueError(), None),
    ],
)
def test_a_loss_that_is_acknowledged_is_over(lost, path, acknowledge):
    acknowledge(lost)
    lost.execute("INSERT INTO t VALUES ('B')")
    lost.commit()
    assert not lost.in_transaction
    assert outsider(path, "SELECT x FROM t") == [("dup",), ("B",)]


def test_leaving_a_lost_transaction_by_context_raises_and_is_over(connect, path):
    connection = connect()
    connection.execute("INSERT INTO t VALUES ('dup')")
    connection.commit()
    with pytest.raises(sqlite3.OperationalError, match="rolled back"), connection:
        connection.execute("INSERT INTO t VALUES ('A')")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO t VALUES ('dup')")
    with connection:
        connection.execute("INSERT INTO t VALUES ('B')")
    assert outsider(path, "SELECT x FROM t") == [("dup",), ("B",)]


def test_a_transaction_that_began_with_the_failing_statement_loses_nothing_more(connect):
    connection = connect()
    connection.execute("INSERT INTO t VALUES ('dup')")
    connection.commit()
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT OR ROLLBACK INTO t VALUES ('dup')")
    assert not connection.in_transaction
    connection.execute("INSERT INTO t VALUES ('B')")
    connection.commit()


def test_a_half_read_cursor_does_not_stop_a_later_write(connect, path):
    connection = connect(isolation_level=None)
    connection.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(1000)))
    cursor = connection.execute("SELECT x FROM t ORDER BY x")
    assert cursor.fetchone() == (0,)
    outsider(path, "INSERT INTO t VALUES (5000)")
    connection.execute("INSERT INTO t VALUES (5001)")
    # The cursor goes on with the rows that it selected.
    assert [x for (x,) in cursor] == list(range(1, 1000))
    assert outsider(path, "SELECT x FROM t WHERE x >= 5000") == [(5000,), (5001,)]


def test_rows_of_a_changing_statement_do_not_stop_the_commit(connect, path):
    connection = connect()
    cursor = connection.execute("INSERT INTO t VALUES (1), (2), (3) RETURNING x")
    assert cursor.fetchone() == (1,)
    connection.commit()
    assert cursor.fetchall() == [(2,), (3,)]
    assert cursor.rowcount == 3
    assert outsider(path, "SELECT x FROM t") == [(1,), (2,), (3,)]


def test_a_write_after_a_read_on_a_stale_snapshot_says_what_to_do(connect, path):
    connection = connect(isolation_level=None, timeout=60)
    connection.execute("BEGIN DEFERRED")
    connection.execute("SELECT * FROM t").fetchall()
    outsider(path, "INSERT INTO t VALUES ('theirs')")
    with pytest.raises(sqlite3.OperationalError, match="roll back and run it again") as raised:
        connection.execute("INSERT INTO t VALUES ('ours')")
    assert raised.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    connection.rollback()
    connection.execute("INSERT INTO t VALUES ('ours')")


@pytest.mark.parametrize(("begin", "taken"), [("immediate", True), ("deferred", False)])
def test_a_bare_begin_takes_the_lock_unless_told_otherwise(connect, begin, taken):
    first, second = connect(isolation_level=None, begin=begin), connect(isolation_level=None, timeout=0)
    first.execute("BEGIN")
    if taken:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("BEGIN IMMEDIATE")
    else:
        second.execute("BEGIN IMMEDIATE")
        second.rollback()
    first.rollback()


def test_a_bare_begin_on_a_read_only_database_reads(path):
    connection = writelane.dbapi.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    connection.execute("BEGIN")
    assert connection.execute("SELECT * FROM t").fetchall() == []
    connection.execute("COMMIT")
    connection.close()


def test_increments_of_many_threads_are_all_there(connect):
    connect().execute("INSERT INTO t VALUES (0)").connection.commit()
    failures = []

    def increment(connection):
        try:
            for _ in range(50):
                connection.execute("BEGIN")
                (value,) = connection.execute("SELECT x FROM t").fetchone()
                connection.execute("UPDATE t SET x = ?", (value + 1,))
                connection.execute("COMMIT")
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=increment, args=(connect(isolation_level=None, timeout=120, check_same_thread=False),))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert connect().execute("SELECT x FROM t").fetchone() == (200,)


def test_lastrowid_and_rowcount_belong_to_their_statement_on_a_shared_connection(connect):
    connection = connect(isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE r(id INTEGER PRIMARY KEY, thread, number)")
    claims, failures = [], []

    def insert(thread):
        try:
            for number in range(200):
                cursor = connection.cursor()
                cursor.execute("INSERT INTO r(thread, number) VALUES (?, ?)", (thread, number))
                claims.append((cursor.lastrowid, thread, number))
                assert cursor.rowcount == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=insert, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(claims) == connection.execute("SELECT id, thread, number FROM r ORDER BY id").fetchall()


def test_a_transaction_left_alone_is_rolled_back_for_others_and_says_why(connect, path):
    idle, other = connect(idle_rollback=0.1), connect(timeout=120)
    idle.execute("INSERT INTO t VALUES ('idle')")
    cursor = idle.execute("SELECT x FROM t")
    # Gets the lock only because the other transaction is taken away.
    other.execute("INSERT INTO t VALUES ('other')")
    other.commit()
    assert idle.in_transaction
    for use in (
        cursor.fetchall,
        idle.commit,
        lambda: idle.execute("SELECT 1"),
        lambda: idle.execute("INSERT INTO t VALUES ('half')"),
    ):
        with pytest.raises(sqlite3.OperationalError, match=r"rolled back \(it was left alone"):
            use()
    idle.rollback()
    idle.execute("INSERT INTO t VALUES ('again')")
    idle.commit()
    assert outsider(path, "SELECT x FROM t") == [("other",), ("again",)]


def test_a_transaction_in_use_is_not_idle(connect, path):
    busy = connect(idle_rollback=30)
    busy.execute("INSERT INTO t VALUES ('busy')")
    busy.commit()
    assert outsider(path, "SELECT x FROM t") == [("busy",)]
    with pytest.raises(ValueError, match="idle_rollback"):
        connect(idle_rollback=0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_inherited_connection_is_refused_and_the_parents_goes_on(connect, path):
    connection = connect(isolation_level=None)
    connection.execute("INSERT INTO t VALUES ('parent')")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"accepted"
        try:
            connection.execute("INSERT INTO t VALUES ('child')")
        except ForkError:
            said = b"refused"
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"refused"
    os.waitpid(child, 0)
    connection.execute("INSERT INTO t VALUES ('again')")
    assert outsider(path, "SELECT x FROM t") == [("parent",), ("again",)]


@pytest.mark.parametrize(
    "sql",
    [
        "/* SELECT */ INSERT INTO t VALUES (1)",
        "-- x\n INSERT INTO t VALUES (1)",
        "\n\t;INSERT INTO t VALUES (1)",
        "WITH c(i) AS (SELECT 1) INSERT INTO t SELECT i FROM c",
        "REPLACE INTO t VALUES (1)",
        "INSERT INTO t VALUES (1) RETURNING x",
    ],
)
def test_a_write_in_any_dress_is_undone_by_rollback_and_kept_by_commit(connect, path, sql):
    connection = connect()
    connection.execute(sql).fetchall()
    assert connection.in_transaction
    connection.rollback()
    assert outsider(path, "SELECT x FROM t") == []
    connection.execute(sql).fetchall()
    connection.commit()
    assert outsider(path, "SELECT x FROM t") == [(1,)]


@pytest.fixture
def damaged(tmp_path):
    """A database with a table `good`, and a table `bad` whose root page is no page."""
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE good(x); CREATE TABLE bad(x)")
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'bad'").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    return str(path)


def test_a_connection_that_met_damage_writes_again_after_a_rollback_and_keeps_its_temporary_tables(damaged):
    connection = writelane.dbapi.connect(damaged)
    connection.execute("CREATE TEMP TABLE mine(x)")
    connection.commit()
    for _ in range(3):
        connection.execute("INSERT INTO good VALUES (1)")
        with pytest.raises(sqlite3.DatabaseError, match="malformed"):
            connection.execute("INSERT INTO bad VALUES (1)")
        connection.rollback()
        connection.execute("INSERT INTO good VALUES (2)")
        connection.execute("INSERT INTO mine VALUES (2)")
        connection.commit()
    assert connection.execute("SELECT x FROM good").fetchall() == [(2,)] * 3
    assert connection.execute("SELECT x FROM mine").fetchall() == [(2,)] * 3
    connection.close()


def test_a_transaction_that_met_damage_is_not_committed_and_says_so(damaged):
    connection = writelane.dbapi.connect(damaged)
    connection.execute("INSERT INTO good VALUES (1)")
    with pytest.raises(sqlite3.DatabaseError, match="malformed"):
        connection.execute("INSERT INTO bad VALUES (1)")
    with pytest.raises(sqlite3.DatabaseError):
        connection.commit()
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM good").fetchone() == (0,)
    connection.execute("INSERT INTO good VALUES (2)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("level", "begun"),
    [
        ("", "BEGIN IMMEDIATE"),
        ("DEFERRED", "BEGIN IMMEDIATE"),
        ("IMMEDIATE", "BEGIN IMMEDIATE"),
        ("EXCLUSIVE", "BEGIN EXCLUSIVE"),
        (None, None),
    ],
)
def test_an_implicit_transaction_takes_the_lock_as_it_begins(connect, level, begun):
    connection = connect(isolation_level=level)
    told = []
    connection.set_trace_callback(told.append)
    connection.execute("SELECT * FROM t")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.set_trace_callback(None)
    assert [text for text in told if text.startswith("BEGIN")] == ([begun] if begun else [])
    assert connection.in_transaction is (begun is not None)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`autocommit` came with 3.12")
def test_a_transaction_that_is_always_open_reads_until_it_writes(connect, path):
    connection = connect(autocommit=False)
    assert connection.in_transaction
    outsider(path, "INSERT INTO t VALUES ('outside')")
    connection.execute("INSERT INTO t VALUES ('inside')")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connect(timeout=0).execute("INSERT INTO t VALUES ('second')")
    connection.commit()
    assert connection.in_transaction
    assert connection.execute("SELECT x FROM t").fetchall() == [("outside",), ("inside",)]


@pytest.mark.parametrize("parameters", [(object(),), (2**63,), ("\ud800",), (1, 2), ()])
def test_parameters_that_cannot_be_bound_leave_no_transaction(connect, parameters):
    connection = connect()
    with pytest.raises((sqlite3.Error, OverflowError, UnicodeEncodeError)):
        connection.execute("INSERT INTO t VALUES (?)", parameters)
    assert not connection.in_transaction
    with pytest.raises((sqlite3.Error, OverflowError, UnicodeEncodeError)):
        connection.executemany("INSERT INTO t VALUES (?)", [parameters])
    assert not connection.in_transaction


def test_rows_of_an_iterator_outside_a_transaction_are_stored_one_by_one(connect, path):
    connection = connect(isolation_level=None)
    seen = []

    def rows():
        for number in range(3):
            seen.append(outsider(path, "SELECT count(*) FROM t")[0][0])
            yield (number,)

    connection.executemany("INSERT INTO t VALUES (?)", rows())
    assert seen == [0, 1, 2]


def test_an_error_of_the_iterator_keeps_the_rows_before_it_in_the_transaction(connect):
    connection = connect()

    def rows():
        yield ("a",)
        yield ("b",)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        connection.executemany("INSERT INTO t VALUES (?)", rows())
    assert connection.in_transaction
    assert connection.execute("SELECT x FROM t").fetchall() == [("a",), ("b",)]
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_with_clause_in_front_counts_its_rows(connect):
    cursor = connect().execute("WITH c(i) AS (VALUES (1), (2)) INSERT INTO t SELECT i FROM c")
    assert cursor.rowcount == 2


def test_a_row_that_is_changed_while_the_rows_are_read_comes_as_it_is_now(path):
    def read(module):
        connection = module.connect(path, isolation_level=None)
        connection.execute("DELETE FROM t")
        connection.executemany("INSERT INTO t(rowid, x) VALUES (?, ?)", [(number, number) for number in range(10)])
        got = []
        for (x,) in connection.execute("SELECT x FROM t ORDER BY rowid"):
            got.append(x)
            connection.execute("UPDATE t SET x = x + 100 WHERE rowid > 5 AND x < 100")
        connection.close()
        return got

    assert read(writelane.dbapi) == read(sqlite3)


def test_functions_inside_sql_and_other_threads_do_not_stop_each_other(connect):
    connection = connect(check_same_thread=False)
    entered, leave = threading.Event(), threading.Event()

    def wait():
        entered.set()
        return int(leave.wait(60))

    connection.create_function("wait", 0, wait)
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(connection.execute("SELECT wait()").fetchall()))
    thread.start()
    assert entered.wait(60)
    # None of these may wait for the statement that runs.
    assert connection.in_transaction is False
    assert connection.total_changes == 0
    # This one does, while the interpreter goes on.
    other = threading.Thread(target=lambda: connection.create_function("later", 0, lambda: 2))
    other.start()
    other.join(0.05)
    leave.set()
    thread.join()
    other.join()
    assert answers == [(1,)]
    assert connection.execute("SELECT later()").fetchone() == (2,)
