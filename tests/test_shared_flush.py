"""Processes that commit with `full` share flushes of the log, and each answer rests on one that was made after it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest

#: A disk whose flushes of a log take as long as a variable says, and fail where another one is set; it notes what is
#: done to the log: by whom, what, from when to when, and whether it went well.
DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int is_log(int fd) {
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, sizeof name);
  return length > 4 && !memcmp(name + length - 4, "-wal", 4);
}

static void note(char what, long long from, int well) {
  static int file = -1;
  if (file < 0) file = open(getenv("DISK_NOTES"), O_WRONLY | O_APPEND | O_CREAT, 0600);
  char line[128];
  int length = snprintf(line, sizeof line, "%d %c %lld %lld %d\\n", getpid(), what, from, now(), well);
  if (write(file, line, length) != length) abort();
}

static ssize_t put(int fd, const void *bytes, size_t length, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (!real) real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  long long from = now();
  ssize_t written = real(fd, bytes, length, at);
  if (is_log(fd)) note('w', from, written >= 0);
  return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return put(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) { return put(fd, bytes, length, at); }

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  if (!is_log(fd)) return real(fd);
  long long from = now();
  usleep(atoi(getenv("DISK_TAKES")));
  // As quick as it says, whatever the disk of this machine takes.
  int failed = getenv("DISK_FAILS") ? -1 : 0;
  note('f', from, !failed);
  if (failed) errno = EIO;
  return failed;
}
"""

#: Writes so many rows, and says of each when it was answered and how.
WRITER = """
import sys, time, writelane
path, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with writelane.open(path, durability="full", deadline=60, warn_after=None) as db:
    db.execute("INSERT INTO t VALUES (?, -1)", (writer,)) if writer >= 0 else None
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        try:
            db.execute("INSERT INTO t VALUES (?, ?)", (writer, number))
            print(number, time.monotonic_ns(), "well", flush=True)
        except writelane.Error as error:
            print(number, time.monotonic_ns(), type(error).__name__, flush=True)
    print("shared", db.telemetry().groups["shared_flushes"], flush=True)
"""


#: A flush takes the processors as long as the disk, and is worth being shared.
QUICK = 50

#: The disk, or the kernel, makes one of several by itself.
SLOW = 3_000


@pytest.fixture(scope="module")
def shim(library: Callable[[str, str], Path]) -> Path:
    return library("disk", DISK)


class Fleet:
    """Processes that write one database on such a disk."""

    def __init__(self, folder: Path, shim: Path) -> None:
        self.path, self._notes, self._shim = folder / "app.db", folder / "notes", shim
        self.processes = list[subprocess.Popen[str]]()
        self.answers = list[list[tuple[int, int, str]]]()
        #: How many commits of each were brought to the disk by another's flush, as it says.
        self.shared = list[int]()
        with sqlite3.connect(self.path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE t(writer, number)")
        connection.close()

    #: `takes`: microseconds.
    def start(self, writers: int, rows: int, takes: int, failing: bool = False) -> None:
        environment = os.environ | {
            "LD_PRELOAD": str(self._shim),
            "DISK_NOTES": str(self._notes),
            "DISK_TAKES": str(takes),
        }
        if failing:
            environment["DISK_FAILS"] = "1"
        for _ in range(writers):
            writer = -1 if failing else len(self.processes)
            process = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(self.path), str(writer), str(rows)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            self.processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def go(self) -> None:
        self._notes.write_text("")
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def finish(self) -> None:
        for process in self.processes:
            found = list[tuple[int, int, str]]()
            output, _ = process.communicate(timeout=300)
            for line in output.splitlines():
                # The last line of one that was killed may be cut.
                fields = line.split()
                if len(fields) == 3:
                    found.append((int(fields[0]), int(fields[1]), fields[2]))
                elif fields[0] == "shared":
                    self.shared.append(int(fields[1]))
            self.answers.append(found)

    def notes(self) -> list[tuple[int, str, int, int, bool]]:
        lines = (line.split() for line in self._notes.read_text().splitlines())
        return [(int(who), what, int(begun), int(ended), well == "1") for who, what, begun, ended, well in lines]

    def flushes(self) -> int:
        return sum(what == "f" for _, what, *_ in self.notes())

    def check(self) -> None:
        """Whatever was answered is there, and a good flush began after it was written and ended before the answer."""
        notes = self.notes()
        good = sorted((begun, ended) for _, what, begun, ended, well in notes if what == "f" and well)
        # The earliest end of those that began then or later.
        earliest = [ended for _, ended in good]
        for place in reversed(range(len(earliest) - 1)):
            earliest[place] = min(earliest[place], earliest[place + 1])
        with sqlite3.connect(self.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            kept = set(connection.execute("SELECT * FROM t"))
        connection.close()
        for writer, (process, answers) in enumerate(zip(self.processes, self.answers, strict=True)):
            written = sorted(ended for who, what, _, ended, _ in notes if what == "w" and who == process.pid)
            for number, answered, how in answers:
                if how != "well":
                    continue
                assert (writer, number) in kept
                last = written[bisect_left(written, answered) - 1]
                place = bisect_left(good, (last, 0))
                assert (earliest[place] if place < len(good) else answered + 1) <= answered, f"{writer} {number}"


@pytest.fixture
def fleet(tmp_path: Path, shim: Path):
    fleet = Fleet(tmp_path, shim)
    yield fleet
    for process in fleet.processes:
        process.kill()
        process.communicate()


def test_a_flush_serves_several_processes_and_no_answer_comes_before_one_of_its_own(fleet: Fleet) -> None:
    fleet.start(8, 100, takes=QUICK)
    fleet.go()
    fleet.finish()
    assert all(len(answers) == 100 and {how for *_, how in answers} == {"well"} for answers in fleet.answers)
    fleet.check()
    assert fleet.flushes() < 8 * 100 * 0.75
    # A copying of the log begins with a flush, too.
    assert 8 * 100 - sum(fleet.shared) <= fleet.flushes()
    assert sum(fleet.shared) >= 8 * 100 * 0.25


def test_a_lone_process_makes_its_own(fleet: Fleet) -> None:
    fleet.start(1, 20, takes=QUICK)
    fleet.go()
    fleet.finish()
    fleet.check()
    assert fleet.flushes() >= 20
    assert fleet.shared == [0]


def test_nobody_waits_for_another_s_flush_where_the_disk_is_slow(fleet: Fleet) -> None:
    fleet.start(4, 10, takes=SLOW)
    fleet.go()
    fleet.finish()
    fleet.check()
    # One that was opened a moment ago does not know the disk yet.
    assert all(shared <= 1 for shared in fleet.shared)


def test_who_cannot_flush_is_told_and_the_others_are_not_served_by_it(fleet: Fleet) -> None:
    fleet.start(4, 15, takes=QUICK)
    fleet.start(1, 15, takes=QUICK, failing=True)
    fleet.go()
    fleet.finish()
    for answers in fleet.answers[:4]:
        assert [how for *_, how in answers] == ["well"] * 15
    # Another's flush may have served it, as the disk does its work for the others; its own never did.
    assert "CommitUncertain" in {how for *_, how in fleet.answers[4]}
    fleet.processes.pop()
    fleet.answers.pop()
    fleet.check()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_those_who_are_killed_or_stopped_in_the_middle_hold_nobody_up(fleet: Fleet, how: signal.Signals) -> None:
    """Wherever they are: before the others, in a flush that others wait for, woken for the next."""
    fleet.start(9, 200, takes=QUICK)
    fleet.go()
    began = time.monotonic()
    for process in fleet.processes[:5]:
        wanted = fleet.flushes() + 7
        while fleet.flushes() < wanted and time.monotonic() < began + 120:
            time.sleep(0.0005)
        process.send_signal(how)
    for process in fleet.processes[5:]:
        assert process.wait(timeout=120) == 0
    for process in fleet.processes[:5]:
        process.send_signal(signal.SIGCONT)
    fleet.finish()
    for answers in fleet.answers[5:]:
        assert [how for *_, how in answers] == ["well"] * 200
    fleet.check()
