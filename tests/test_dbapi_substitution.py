"""`writelane.install()` and ``writelane run`` put `writelane.dbapi` in the place of ``sqlite3``."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_install_gives_the_drop_in_to_later_imports():
    code = """
import sys
import writelane
writelane.install()
writelane.install()
import sqlite3, sqlite3.dbapi2
from sqlite3 import dbapi2
import writelane.dbapi
assert sqlite3 is writelane.dbapi, sqlite3
assert sqlite3.dbapi2 is dbapi2 is writelane.dbapi.dbapi2
assert type(sqlite3.connect(":memory:")) is writelane.dbapi.Connection
assert issubclass(writelane.errors.WriteTimeout, sqlite3.OperationalError)
import sqlite3.dump
assert sqlite3.dump.__file__ != __import__("writelane.dbapi.dump").__file__
assert "writelane" in sqlite3.dump.__file__
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr


PROGRAM = """
import sqlite3, subprocess, sys
assert sqlite3.__name__ == "writelane.dbapi", sqlite3
assert __name__ == "__main__"
print(sys.argv[1:])
{body}
sys.exit(7)
"""

CONTENDED = """
path = sys.argv[1]
connection = sqlite3.connect(path, timeout=60, isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE t(x)")
code = '''
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
'''
holder = subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
holder.stdout.readline()
import threading
threading.Timer(0.3, lambda: holder.communicate("go")).start()
connection.execute("INSERT INTO t VALUES ('secret value')")
connection.close()
"""


def test_run_runs_a_file_with_its_arguments_and_exit_status(tmp_path):
    program = tmp_path / "app.py"
    program.write_text(PROGRAM.format(body=""))
    result = python("-m", "writelane", "run", program, "--json", "-m", "x")
    assert result.returncode == 7, result.stderr
    assert result.stdout == "['--json', '-m', 'x']\n"
    assert result.stderr == "writelane: no statement waited for a lock\n"


def test_run_runs_a_module(tmp_path):
    (tmp_path / "fleet.py").write_text(PROGRAM.format(body=""))
    result = python("-m", "writelane", "run", "-m", "fleet", "-v", "y", cwd=tmp_path)
    assert result.returncode == 7, result.stderr
    assert result.stdout == "['-v', 'y']\n"


def test_run_tells_the_lock_waits_at_the_end(tmp_path):
    program = tmp_path / "app.py"
    program.write_text(PROGRAM.format(body=CONTENDED))
    result = python("-m", "writelane", "run", program, tmp_path / "app.db")
    assert result.returncode == 7, result.stderr
    first, *rest = result.stderr.splitlines()
    assert first.startswith("writelane: 1 statement waited for a lock, 0.")
    assert "INSERT INTO t VALUES" in rest[0]
    assert "behind process" in rest[1]


def test_run_without_a_program_says_so():
    result = python("-m", "writelane", "run")
    assert result.returncode == 2
    assert "give a program" in result.stderr


@pytest.mark.parametrize("arguments", [(":memory:", "select 1"), ("-v",)])
def test_the_shell_runs(arguments):
    result = python("-m", "writelane.dbapi", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_every_file_of_the_process_is_asked_for_waits(tmp_path):
    code = """
import sqlite3, subprocess, sys, threading
import writelane, writelane.dbapi
from writelane.dbapi import measure

HOLD = '''
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
'''

def hold(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    holder.stdout.readline()
    threading.Timer(0.3, lambda: holder.communicate("go")).start()

connections = [writelane.dbapi.connect(f"{number}.db", timeout=60, isolation_level=None) for number in range(3)]
for number, connection in enumerate(connections):
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    if number:
        hold(f"{number}.db")
        connection.execute(f"INSERT INTO t VALUES ({number})")
    connection.close()
with writelane.open("3.db") as db:
    db.execute("CREATE TABLE t(x)")
    hold("3.db")
    db.execute("INSERT INTO t VALUES (3)")
sums = [wait["lock_wait"]["sum"] for wait in measure.lock_waits()]
assert sums == sorted(sums, reverse=True), sums
# The first turn on a new file may take its time too.
waits = [wait for wait in measure.lock_waits() if wait["sql"].startswith("INSERT")]
assert {(wait["path"].rpartition("/")[2], wait["sql"]) for wait in waits} == {
    (f"{number}.db", f"INSERT INTO t VALUES ({number})") for number in (1, 2, 3)
}, waits
assert all(wait["lock_waits"] == 1 for wait in waits), waits
count = sum(wait["lock_waits"] for wait in measure.lock_waits())
assert measure.report().startswith(f"writelane: {count} statements waited for a lock, "), measure.report()
"""
    result = python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
