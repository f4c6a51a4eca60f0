"""A killed process loses nothing that was acknowledged, and leaves nothing half done."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

import writelane

SOAK = bool(os.environ.get("WRITELANE_SOAK"))
ROUNDS = 40 if SOAK else 5

#: A process whose threads write in every way there is, and say so in one write to the pipe once they were answered.
WRITER = textwrap.dedent(
    """
    import itertools, os, sys, threading
    import writelane

    path, durability, name = sys.argv[1:]
    db = writelane.open(path, durability=durability, deadline=None)
    INSERT = "INSERT INTO done(writer, job, row) VALUES (?, ?, ?)"

    def say(kind, writer, job, rows):
        os.write(1, f"{kind} {writer} {job} {rows}\\n".encode())

    def executing(writer):
        for job in itertools.count():
            db.execute(INSERT, (writer, job, 0))
            say("ack", writer, job, 1)

    def submitting(writer):
        jobs = itertools.count()
        while True:
            futures = [(job, db.submit(INSERT, (writer, job, 0))) for job in itertools.islice(jobs, 20)]
            for job, future in futures:
                future.result()
                say("ack", writer, job, 1)

    def batching(writer):
        for job in itertools.count():
            with db.batch() as batch:
                for row in range(5):
                    batch.execute(INSERT, (writer, job, row))
            say("ack", writer, job, 5)

    def many(writer):
        for job in itertools.count():
            db.executemany(INSERT, [(writer, job, row) for row in range(7)])
            say("ack", writer, job, 7)

    def transacting(writer):
        for job in itertools.count():
            with db.transaction() as tx:
                for row in range(3):
                    tx.execute(INSERT, (writer, job, row))
            say("ack", writer, job, 3)

    kinds = [executing, executing, submitting, batching, many, transacting]
    for number, kind in enumerate(kinds):
        writer = f"{name}/{kind.__name__}/{number}"
        threading.Thread(target=kind, args=(writer,), daemon=True).start()
    threading.Event().wait()
    """
)

ROWS = {"executing": 1, "submitting": 1, "batching": 5, "many": 7, "transacting": 3}


def acknowledged(output: bytes) -> Counter[tuple[str, int]]:
    """Return the rows of each job that was acknowledged, from whole lines only: the last one may be cut."""
    lines = output.split(b"\n")[:-1]
    acks: Counter[tuple[str, int]] = Counter()
    for line in lines:
        kind, writer, job, rows = line.decode().split()
        assert kind == "ack"
        acks[writer, int(job)] += int(rows)
    return acks


@pytest.mark.parametrize("durability", ["normal", "full"])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_acknowledged_rows_survive_a_kill_once_and_whole(tmp_path: Path, durability: str, journal: str) -> None:
    path = tmp_path / "app.db"
    with writelane.open(path, journal=journal) as db:
        db.execute("CREATE TABLE done(writer TEXT NOT NULL, job INTEGER NOT NULL, row INTEGER NOT NULL)")
    seed = int.from_bytes(os.urandom(4), "big")
    dice = random.Random(seed)
    everything: Counter[tuple[str, int]] = Counter()
    for number in range(ROUNDS):
        # Two processes at once, of which both are killed at moments of their own.
        running = []
        for half in range(2):
            output = (tmp_path / f"acks{number}.{half}").open("wb")
            command = [sys.executable, "-c", WRITER, str(path), durability, f"{number}.{half}"]
            running.append((subprocess.Popen(command, stdout=output), output))
        # Not before both have been acknowledged something, or it is the kill of an idle process that is tested.
        for process, output in running:
            while os.fstat(output.fileno()).st_size == 0:
                assert process.poll() is None
                time.sleep(0.005)
        for process, _ in running:
            time.sleep(dice.random() * 0.3)
            process.kill()
        for half, (process, output) in enumerate(running):
            assert process.wait() == -9
            output.close()
            everything += acknowledged((tmp_path / f"acks{number}.{half}").read_bytes())

    with contextlib.closing(sqlite3.connect(path, timeout=60)) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found: Counter[tuple[str, int]] = Counter()
        for writer, job, rows, different in plain.execute(
            "SELECT writer, job, count(*), count(DISTINCT row) FROM done GROUP BY writer, job"
        ):
            assert rows == different, f"seed {seed}: {writer} {job} is there twice"
            assert rows == ROWS[writer.split("/")[1]], f"seed {seed}: {writer} {job} is half there"
            found[writer, job] = rows
    lost = [job for job, rows in everything.items() if found[job] != rows]
    assert not lost, f"seed {seed}: {len(lost)} acknowledged jobs are lost: {lost[:5]}"
    assert len(everything) > 2 * ROUNDS
    # The killed left at most what was under way: a job of each thread, the submitting thread's twenty.
    assert len(found) - len(everything) <= 2 * ROUNDS * (5 + 20)

    with writelane.open(path) as db:
        db.execute("INSERT INTO done VALUES ('after', 0, 0)")
        assert db.execute("SELECT count(*) FROM done WHERE writer = 'after'").rows == [(1,)]
