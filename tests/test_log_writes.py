"""What was answered is in the log, whole and for any other SQLite, however the disk takes the writes of a commit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys

import pytest

import writelane
from writelane import dbapi

#: A disk that takes writes of a log in small parts, is interrupted, or refuses them, as a variable says.
DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

char disk_mode = 'w';
long disk_refused;
static unsigned dice = 1;

static unsigned roll(void) { dice = dice * 1103515245u + 12345u; return dice >> 16; }

static ssize_t take(int fd, const void *bytes, size_t length, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (!real) real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t named = readlink(link, name, sizeof name);
  if (named > 4 && !memcmp(name + named - 4, "-wal", 4)) {
    if (disk_mode == 'i' && roll() % 2) { errno = EINTR; return -1; }
    if (disk_mode == 's' && length > 1) length = 1 + roll() % length;
    if (disk_mode == 'f' && roll() % 2) { disk_refused++; errno = EIO; return -1; }
    if (disk_mode == 'n' && roll() % 2) {
      disk_refused++;
      if (length > 1 && roll() % 2) return real(fd, bytes, 1 + roll() % (length - 1), at);
      errno = ENOSPC;
      return -1;
    }
  }
  return real(fd, bytes, length, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return take(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) { return take(fd, bytes, length, at); }
"""

#: Writes in every way, each time with another disk, and looks after each whether a copy of the files, with the shared
#: memory made anew by another SQLite, has exactly what was answered.
WORKER = '''
import contextlib, ctypes, itertools, os, random, shutil, sqlite3, sys
import writelane
from writelane import dbapi

path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
disk = ctypes.CDLL(None)
mode = ctypes.c_char.in_dll(disk, "disk_mode")
refused = ctypes.c_long.in_dll(disk, "disk_refused")
dice = random.Random(seed)
db = writelane.open(path, durability="normal")
connection = dbapi.connect(path, isolation_level=None)
connection.execute("PRAGMA synchronous=NORMAL")
connection.execute("PRAGMA cache_size=10")
numbers = itertools.count(1)
INSERT = "INSERT INTO t(id, x) VALUES (?, zeroblob(?))"
SPREAD = """INSERT INTO t(id, x) WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
            SELECT i, zeroblob(?3) FROM n"""

def rows(count):
    return [(next(numbers), dice.choice([1, 100, 5000, 60000])) for _ in range(count)]

def single():
    row, = rows(1)
    yield [row]
    db.execute(INSERT, row)

def many():
    made = rows(dice.randrange(2, 60))
    yield made
    db.executemany(INSERT, made)

def transaction():
    made = rows(dice.randrange(2, 60))
    yield made
    with db.transaction() as t:
        for row in made:
            t.execute(INSERT, row)

def streamed():
    made = rows(30)
    yield made
    results = [db.submit(INSERT, row) for row in made]
    errors = [error for error in (result.exception() for result in results) if error]
    if errors:
        # Some may have been in a commit of their own: then they are there.
        there = {id for id, in connection.execute("SELECT id FROM t WHERE id >= ?", (made[0][0],))}
        kept = [row for row, result in zip(made, results) if result.exception() is None]
        assert there == {id for id, _ in kept}, (there, kept)
        expected.update(kept)
        raise errors[0]

def plain():
    row, = rows(1)
    yield [row]
    connection.execute(INSERT, row)

def spread():
    first, size = next(numbers), dice.choice([1, 2000])
    made = [(first, size)] + [(next(numbers), size) for _ in range(dice.randrange(100, 400))]
    yield made
    connection.execute(SPREAD, (first, made[-1][0], size))

@contextlib.contextmanager
def begun():
    """A transaction of the connection, which is committed, or rolled back where anything of it is refused."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except dbapi.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.rollback()
        raise

def rewritten():
    """A transaction that fills the cache several times, and changes pages that it has in the log already."""
    made = rows(dice.randrange(20, 60))
    yield made
    with begun():
        for id, _ in made:
            connection.execute(INSERT, (id, 3000))
        for id, size in made:
            connection.execute("UPDATE t SET x = zeroblob(?) WHERE id = ?", (size, id))

def batched():
    """Many rows of a transaction in one call, more than the cache has room for."""
    made = [(next(numbers), dice.choice([1, 2000])) for _ in range(dice.randrange(100, 600))]
    yield made
    with begun():
        connection.executemany(INSERT, made)

def refused_at_its_end():
    """A statement that fills the cache and fails."""
    yield []
    last = max(expected, default=0)
    if last:
        try:
            connection.execute("""INSERT INTO t(id, x) SELECT id + 1000000, zeroblob(1000) FROM t
                                  UNION ALL SELECT max(id), 0 FROM t""")
        except dbapi.IntegrityError:
            return
        assert False, "a row with an id that is there was taken"

def look(what):
    copy = path + ".copy"
    for end in ("-wal", "-shm", ""):
        if os.path.exists(copy + end):
            os.unlink(copy + end)
    # First the log: what it has is in it until it begins anew, which takes another write.
    for end in ("-wal", ""):
        if os.path.exists(path + end):
            shutil.copyfile(path + end, copy + end)
    for name in (copy, path):
        other = sqlite3.connect(name)
        found = dict(other.execute("SELECT id, length(x) FROM t"))
        assert found == expected, (what, name, sorted(set(found.items()) ^ set(expected.items()))[:5])
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)], (what, name)
        other.close()

expected = {}
done = failed = 0
works = [single, many, transaction, streamed, plain, spread, batched, rewritten, refused_at_its_end]
for round in range(rounds):
    work, how = dice.choice(works), dice.choice(b"wsifn")
    made = work()
    added = next(made)
    before = refused.value
    mode.value = how
    try:
        next(made, None)
    except (writelane.Error, dbapi.Error) as error:
        assert refused.value > before, (work.__name__, chr(how), error)
        failed += 1
    else:
        expected.update(added)
        done += 1
    mode.value = b"w"
    if len(expected) > 3000:
        connection.execute("DELETE FROM t")
        expected.clear()
    look((seed, round, work.__name__, chr(how)))
print(done, failed)
connection.close()
db.close()
'''


@pytest.fixture(scope="module")
def shim(library):
    return library("disk", DISK)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    # In a small cache, pages of the index go to the log and come back within one statement.
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, x, somewhere DEFAULT (randomblob(100)))")
    connection.execute("CREATE INDEX spread ON t(somewhere)")
    connection.close()
    return path


@pytest.mark.parametrize("seed", range(3))
def test_what_was_answered_is_in_the_log_however_the_disk_takes_it(database, shim, seed):
    rounds = 1500 if os.environ.get("WRITELANE_SOAK") else 60
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, str(database), str(seed), str(rounds)],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert worker.returncode == 0, worker.stderr
    done, failed = map(int, worker.stdout.split())
    assert done > rounds / 2
    assert failed > 0, "the disk refused nothing"


def test_a_function_that_writes_another_file_in_the_middle_of_a_statement_harms_neither(database, tmp_path):
    """The statement's first frames go to the log before its last, since its cache is small."""
    other_path = tmp_path / "other.db"
    other = dbapi.connect(other_path, isolation_level=None)
    other.execute("PRAGMA journal_mode=WAL")
    other.execute("CREATE TABLE t(x)")
    connection = dbapi.connect(database, isolation_level=None)
    connection.execute("PRAGMA cache_size=10")

    def note(number):
        if number % 10 == 0:
            other.execute("INSERT INTO t VALUES (?)", (number,))
        return number

    connection.create_function("note", 1, note)
    connection.execute(
        """INSERT INTO t(id, x) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
           SELECT i, note(i) FROM n"""
    )
    for path, count in ((database, 2000), (other_path, 200)):
        with contextlib.closing(sqlite3.connect(path)) as reader:
            assert reader.execute("SELECT count(*) FROM t").fetchone() == (count,)
            assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    other.close()


def test_a_transaction_that_stays_open_keeps_nothing_before_it_from_a_checkpoint(database):
    """Short writes leave the marks of what is read in the log where they are; this one is not short."""
    with writelane.open(database, checkpoints=writelane.Checkpoints(pages=900)) as db:
        for _ in range(100):
            db.execute("INSERT INTO t(x) VALUES (1)")
        foreign = sqlite3.connect(database, isolation_level=None)
        with db.transaction() as transaction:
            transaction.execute("INSERT INTO t(x) VALUES (2)")
            busy, log, copied = foreign.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            assert (busy, copied) == (0, log)
        foreign.close()


def test_foreign_checkpoints_in_the_middle_of_short_writes_copy_nearly_all(database):
    """Every transaction they meet began with a mark that at most the sixteenth write before it has set."""
    with writelane.open(database, checkpoints=writelane.Checkpoints(pages=900)):
        foreign = sqlite3.connect(database, isolation_level=None)
        met = []

        def look(number):
            if number % 7 == 0:
                _, log, copied = foreign.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                met.append(log - copied)
            return number

        connection = dbapi.connect(database, isolation_level=None)
        connection.create_function("look", 1, look)
        for number in range(200):
            connection.execute("INSERT INTO t(x) VALUES (look(?))", (number,))
        assert 0 < max(met) <= 16 * 4, "some 16 writes of a few pages"
        assert foreign.execute("SELECT count(*) FROM t").fetchone() == (200,)
        connection.close()
        foreign.close()
