"""Numbers are dense and given once, across threads, processes and crashes; UUIDs of a process are in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import writelane

#: `make soak` runs the sizes of the promise.
PROCESSES, NUMBERS = (16, 10_000) if os.environ.get("WRITELANE_SOAK") else (4, 400)

ALLOCATE = """
import sys, writelane
path, process, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = writelane.open(path, deadline=None)
for number in range(count):
    if number % 2:
        with db.batch() as batch:
            seq = batch.next_id("messages", "stream")
            batch.execute("INSERT INTO messages VALUES (?, ?, ?)", ("stream", seq, process))
    else:
        seq = db.next_id("messages", "stream")
        db.execute("INSERT INTO messages VALUES (?, ?, ?)", ("stream", seq, process))
db.close()
"""

APPEND_UNTIL_KILLED = """
import sys, writelane
db = writelane.open(sys.argv[1], deadline=None)
while True:
    with db.batch() as batch:
        seq = batch.next_id("messages", "stream")
        batch.execute("INSERT INTO messages VALUES ('stream', ?, 0)", (seq,))
    print(int(seq), flush=True)
"""


@pytest.fixture
def db(tmp_path: Path) -> writelane.Database:
    db = writelane.open(tmp_path / "app.db")
    db.execute("CREATE TABLE messages(session, seq INTEGER, process, PRIMARY KEY (session, seq))")
    return db


def test_numbers_count_from_one_for_each_name_and_key(db: writelane.Database) -> None:
    assert [db.next_id("messages", "a") for _ in range(3)] == [1, 2, 3]
    assert db.next_id("messages", "b") == 1
    assert db.next_id("messages") == 1
    assert db.next_id("events", "a") == 1
    # A number and the text of its digits are two keys.
    assert (db.next_id("messages", 7), db.next_id("messages", "7"), db.next_id("messages", b"7")) == (1, 1, 1)
    assert db.next_id("messages", 7) == 2
    db.close()


def test_a_row_and_its_number_are_one_transaction(db: writelane.Database) -> None:
    with db.batch() as batch:
        first = batch.next_id("messages", "s")
        second = batch.next_id("messages", "s")
        batch.execute("INSERT INTO messages VALUES (?, ?, 0)", ("s", first))
        batch.execute("INSERT INTO messages VALUES (:session, :seq, 0)", {"session": "s", "seq": second})
        with pytest.raises(RuntimeError, match="committed"):
            _ = first.value
    assert (first.value, int(second)) == (1, 2)
    assert db.execute("SELECT seq FROM messages ORDER BY seq").rows == [(1,), (2,)]
    db.close()


def test_a_batch_that_fails_gives_its_number_back(db: writelane.Database) -> None:
    db.execute("INSERT INTO messages VALUES ('s', 2, 0)")
    assert db.next_id("messages", "s") == 1
    with pytest.raises(writelane.IntegrityError), db.batch() as batch:
        batch.execute("INSERT INTO messages VALUES ('s', ?, 0)", (batch.next_id("messages", "s"),))
    db.execute("DELETE FROM messages")
    assert db.next_id("messages", "s") == 2
    db.close()


def test_a_transaction_takes_numbers_that_it_gives_back_when_it_rolls_back(db: writelane.Database) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        assert tx.next_id("messages", "s") == 1
        _ = 1 // 0
    with db.transaction() as tx:
        assert [tx.next_id("messages", "s"), tx.next_id("messages", "s")] == [1, 2]
    assert db.next_id("messages", "s") == 3
    db.close()


def test_a_placeholder_is_good_in_its_own_batch_only(db: writelane.Database) -> None:
    with db.batch() as batch:
        number = batch.next_id("messages", "s")
    with pytest.raises(writelane.ProgrammingError, match="same batch"):
        db.execute("INSERT INTO messages VALUES ('s', ?, 0)", (number,))
    with pytest.raises(writelane.ProgrammingError, match="gave no row"), db.batch() as batch:
        batch.execute("INSERT INTO messages VALUES ('s', ?, 0)", (number,))
    db.close()


def test_a_number_is_required_also_in_a_best_effort_block(db: writelane.Database) -> None:
    with db.best_effort():
        assert db.next_id("messages", "s") == 1
        with db.batch() as batch:
            number = batch.next_id("messages", "s")
    db.flush()
    with pytest.raises(RuntimeError, match="offered"):
        _ = number.value
    assert db.next_id("messages", "s") == 3
    db.close()


def test_threads_get_every_number_once(db: writelane.Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: db.next_id("messages", "s"), range(200)))
    assert sorted(numbers) == list(range(1, 201))
    db.close()


def test_processes_get_every_number_once(db: writelane.Database) -> None:
    command = [sys.executable, "-c", ALLOCATE, str(db.path)]
    each = NUMBERS // PROCESSES
    processes = [subprocess.Popen([*command, str(number), str(each)]) for number in range(PROCESSES)]
    assert [process.wait() for process in processes] == [0] * PROCESSES
    numbers = [row[0] for row in db.execute("SELECT seq FROM messages ORDER BY seq").rows]
    assert numbers == list(range(1, each * PROCESSES + 1))
    assert db.next_id("messages", "stream") == each * PROCESSES + 1
    db.close()


def test_a_killed_process_leaves_no_gap(db: writelane.Database) -> None:
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND_UNTIL_KILLED, str(db.path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout:
            for _ in range(20):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.wait()
    numbers = [row[0] for row in db.execute("SELECT seq FROM messages ORDER BY seq").rows]
    assert len(numbers) >= 60
    assert numbers == list(range(1, len(numbers) + 1))
    assert db.next_id("messages", "stream") == len(numbers) + 1
    db.close()


def test_uuid7_is_in_order_in_python_and_in_sql(db: writelane.Database) -> None:
    made = [writelane.uuid7() if number % 2 else db.execute("SELECT uuid7()").rows[0][0] for number in range(50)]
    assert made == sorted(made)
    assert len(set(made)) == 50
    parsed = uuid.UUID(made[0])
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, made[0])
    db.execute("CREATE TABLE facts(id TEXT PRIMARY KEY DEFAULT (uuid7()), x)")
    db.executemany("INSERT INTO facts(x) VALUES (?)", [(number,) for number in range(20)])
    assert [row[0] for row in db.execute("SELECT x FROM facts ORDER BY id").rows] == list(range(20))
    db.close()


FORK = """
import os, writelane
writelane.uuid7()
child = os.fork()
mine = {writelane.uuid7() for _ in range(1000)}
if child:
    os.waitpid(child, 0)
print("\\n".join(mine), flush=True)
"""


def test_a_forked_child_makes_other_uuids() -> None:
    printed = subprocess.run([sys.executable, "-c", FORK], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert len(set(printed.split())) == 2000
