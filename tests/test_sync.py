"""With `full`, an answer means that the row is on the disk, and nobody waits for another's disk."""

from __future__ import annotations

import os
import select
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest

import writelane

#: A disk whose syncs of a log are held or fail, as the file that is named in the environment says.
DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char mode(void) {
  char first = 0;
  int fd = open(getenv("DISK_MODE"), O_RDONLY);
  if (fd >= 0) { if (read(fd, &first, 1) != 1) first = 0; close(fd); }
  return first;
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, sizeof name);
  if (length > 4 && !memcmp(name + length - 4, "-wal", 4)) {
    if (mode() == 'f') { errno = EIO; return -1; }
    while (mode() == 'h') {
      char held[4096];
      snprintf(held, sizeof held, "%s.held", getenv("DISK_MODE"));
      close(open(held, O_CREAT | O_WRONLY, 0600));
      usleep(1000);
    }
  }
  return real(fd);
}
"""

#: Writes the numbers that it is given, one a line, and says how each fared.
WRITER = """
import sys, writelane
db = writelane.open(sys.argv[1], durability=sys.argv[2])
print("open", flush=True)
for line in sys.stdin:
    try:
        if line.startswith("transaction"):
            with db.transaction() as transaction:
                transaction.execute("INSERT INTO t VALUES (?)", (int(line.split()[1]),))
        elif line.startswith("checkpoint"):
            db.checkpoint()
        else:
            db.execute("INSERT INTO t VALUES (?)", (int(line),))
        print("done", flush=True)
    except writelane.Error as error:
        print(type(error).__name__, error.sqlite_errorname, flush=True)
"""


@pytest.fixture(scope="module")
def shim(library):
    return library("disk", DISK)


class Disk:
    """The file that says how the disk behaves."""

    def __init__(self, path):
        self.path = path
        self.held = path.with_name(path.name + ".held")
        self.is_("well")

    def is_(self, mode):
        self.held.unlink(missing_ok=True)
        waiting = self.path.with_name(self.path.name + ".new")
        waiting.write_text(mode)
        waiting.rename(self.path)

    def wait_until_held(self):
        deadline = time.monotonic() + 60
        while not self.held.exists():
            assert time.monotonic() < deadline, "nobody syncs the log"
            time.sleep(0.001)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path / "disk")


@pytest.fixture
def database(tmp_path):
    """A database with a log: the header of a new one is synced by SQLite itself, with the lock."""
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t(x)")
    yield path
    connection.close()


@pytest.fixture
def start(database, disk, shim):
    processes = []

    def start(durability="full"):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(database), durability],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "LD_PRELOAD": str(shim), "DISK_MODE": str(disk.path)},
        )
        processes.append(process)
        assert process.stdout.readline() == "open\n"
        return process

    yield start
    disk.is_("well")
    for process in processes:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def say(process, line):
    process.stdin.write(f"{line}\n")


def ask(process, line):
    say(process, line)
    return process.stdout.readline().strip()


def rows(path):
    connection = sqlite3.connect(path)
    found = [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]
    connection.close()
    return found


@pytest.mark.parametrize("work", ["1", "transaction 1"])
def test_others_write_while_one_waits_for_its_disk_and_it_is_not_answered_before(start, disk, database, work):
    slow, other = start(), start("normal")
    disk.is_("hold")
    say(slow, work)
    disk.wait_until_held()
    # A process of ours, in turn, and a foreign one: neither waits for a disk that is not its own.
    assert ask(other, 2) == "done"
    foreign = sqlite3.connect(database, timeout=0, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    foreign.execute("INSERT INTO t VALUES (3)")
    foreign.execute("COMMIT")
    foreign.close()
    assert not select.select([slow.stdout], [], [], 0)[0], "answered before its row is on the disk"
    disk.is_("well")
    assert slow.stdout.readline() == "done\n"
    assert rows(database) == [1, 2, 3]


@pytest.mark.parametrize("work", ["1", "transaction 1"])
def test_a_sync_that_fails_is_told_as_a_commit_whose_fate_is_uncertain(start, disk, work):
    process = start()
    disk.is_("fail")
    assert ask(process, work) == "CommitUncertain SQLITE_IOERR_FSYNC"


def test_after_a_sync_that_failed_an_answer_again_means_that_all_is_on_the_disk(start, disk, database, tmp_path):
    process = start()
    disk.is_("fail")
    assert ask(process, 1).startswith("CommitUncertain")
    disk.is_("well")
    assert ask(process, 2) == "done"
    # The kernel has told of the lost pages once and calls them written, so the log is no witness any more.
    copy = tmp_path / "copy.db"
    shutil.copyfile(database, copy)
    assert rows(copy) == [1, 2]


def test_after_a_checkpoint_that_could_not_sync_the_log_an_answer_again_means_that_all_is_on_the_disk(
    start, disk, database, tmp_path
):
    """The kernel tells of a page that it could not write once, and the checkpoint was told."""
    process = start()
    assert ask(process, 1) == "done"
    disk.is_("failing")
    assert ask(process, "checkpoint").startswith("OperationalError SQLITE_IOERR")
    disk.is_("well")
    assert ask(process, 2) == "done"
    copy = tmp_path / "copy.db"
    shutil.copy(database, copy)
    assert rows(copy) == [1, 2], "the database file has it, whatever the disk has of the log"


def test_after_a_sync_that_failed_nothing_is_called_durable_while_the_log_cannot_be_folded_in(start, disk, database):
    process = start()
    reader = sqlite3.connect(database, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchone()
    disk.is_("fail")
    assert ask(process, 1).startswith("CommitUncertain")
    disk.is_("well")
    assert ask(process, 2).startswith("CommitUncertain")
    reader.close()
    assert ask(process, 3) == "done"
    assert ask(process, 4) == "done"
    assert rows(database) == [1, 2, 3, 4]


def test_a_rollback_journal_is_synced_by_sqlite_itself(tmp_path):
    with writelane.open(tmp_path / "app.db", journal="delete", durability="extra") as db:
        db.execute("CREATE TABLE t(x)")
        assert db.execute("INSERT INTO t VALUES (1)").rowcount == 1
        assert db.execute("PRAGMA journal_mode").rows == [("delete",)]


def test_a_database_without_a_log_gets_no_shared_memory(tmp_path):
    with writelane.open(tmp_path / "app.db", journal="delete", durability="full") as db:
        db.execute("CREATE TABLE t(x)")
        for number in range(2_000):
            db.execute("INSERT INTO t VALUES (?)", (number,))
        assert sorted(file.name for file in tmp_path.glob("app.db-*")) == ["app.db-lane"]
