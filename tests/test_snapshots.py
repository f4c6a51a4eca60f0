"""A snapshot that is open for long is told of once, with the place in the code that began it."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane import Notice, dbapi, notices

SELECT = "SELECT x FROM t"

#: No limit on speed: how long a test waits for what must come.
PATIENCE = 60.0


def line() -> int:
    """Return the number of the line that calls this."""
    return sys._getframe(1).f_lineno


def wait_for(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (result := found()) and time.monotonic() < end:
        time.sleep(0.005)
    return result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path, telemetry=False) as db:
        db.execute("CREATE TABLE t(x)")
        db.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
    return path


@pytest.fixture
def db(path: Path) -> Iterator[writelane.Database]:
    with writelane.open(path, warn_after=None) as db:
        yield db


class Told(list[Notice]):
    """The snapshots of a database that were told of."""

    def __init__(self, db: writelane.Database, over: float) -> None:
        super().__init__()
        self.listening = notices.listen(db.file_telemetry(), over, self.tell, snapshots=True)

    def tell(self, notice: Notice) -> None:
        if notice.kind == "snapshot":
            self.append(notice)

    def first(self) -> Notice:
        assert wait_for(lambda: len(self) > 0)
        return self[0]

    def end(self) -> None:
        """Hear what has happened so far, and no more."""
        self.listening.close()
        barrier = list[Notice]()
        with notices.listen(self.listening.telemetry, 0, barrier.append, snapshots=True):
            place = dbapi.connect(self.listening.telemetry.path)
            cursor = place.execute("SELECT 'barrier' FROM t")
            assert wait_for(lambda: any("barrier" in notice.sql for notice in barrier))
            cursor.close()
            place.close()


def test_a_half_read_cursor_is_told_of_once(path: Path, db: writelane.Database) -> None:
    told = Told(db, 0.02)
    connection = dbapi.connect(path)
    cursor, begun = connection.execute(SELECT), line()
    cursor.fetchone()
    notice = told.first()
    assert (notice.kind, notice.sql, notice.location) == ("snapshot", SELECT, f"{__file__}:{begun}")
    assert notice.seconds >= 0.02
    assert notice.path == str(path)
    told.end()
    assert len(told) == 1, "while it was open, it was looked at again for the barrier"
    cursor.close()
    connection.close()


def test_a_snapshot_of_a_transaction_began_with_its_first_read(path: Path, db: writelane.Database) -> None:
    told = Told(db, 0.02)
    connection = dbapi.connect(path)
    connection.execute("BEGIN DEFERRED")
    connection.execute(SELECT).fetchall()
    begun = line() - 1
    connection.execute("SELECT count(*) FROM t").fetchall()
    notice = told.first()
    assert (notice.sql, notice.location) == (SELECT, f"{__file__}:{begun}")
    readers = db.telemetry().readers
    assert (readers["snapshots"], readers["oldest_sql"], readers["oldest_location"]) == (
        1,
        SELECT,
        f"{__file__}:{begun}",
    )
    connection.rollback()
    readers = db.telemetry().readers
    assert (readers["snapshots"], readers["oldest_sql"], readers["oldest_location"]) == (0, None, None)
    connection.close()


def test_each_snapshot_is_another(path: Path, db: writelane.Database) -> None:
    told = Told(db, 0.02)
    connection = dbapi.connect(path)
    for number in (1, 2):
        cursor = connection.execute(f"SELECT {number} FROM t")
        assert wait_for(lambda number=number: len(told) == number)
        cursor.close()
    assert [notice.sql for notice in told] == ["SELECT 1 FROM t", "SELECT 2 FROM t"]
    connection.close()


def test_an_interactive_transaction_is_told_of_while_it_lasts(path: Path, db: writelane.Database) -> None:
    told = Told(db, 0.02)
    begun = line() + 1
    with db.transaction(label="slow") as tx:
        tx.execute(SELECT)
        notice = told.first()
    assert (notice.sql, notice.location) == ("slow", f"{__file__}:{begun}")
    assert db.telemetry().readers["snapshots"] == 0


@pytest.mark.parametrize("face", ["database", "connection"])
def test_a_read_that_is_running_is_told_of_with_where_its_thread_stands(
    path: Path, db: writelane.Database, face: str
) -> None:
    told = Told(db, 0.02)
    connection = dbapi.connect(path)
    count = "WITH RECURSIVE c(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM c WHERE n < {}) SELECT max(n + x) FROM c, t"
    rows = 10
    while not any(notice.location for notice in told):
        # Longer and longer, so that it is long on any machine. One that ended before it was looked at has no place.
        sql = count.format(rows)
        ran = line() + 1
        db.execute(sql) if face == "database" else connection.execute(sql).fetchall()
        rows *= 2
    assert {notice.location for notice in told} - {None} == {f"{__file__}:{ran}"}
    assert told[0].sql.startswith("WITH RECURSIVE c")
    connection.close()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What our logger is given, whatever others have set for the rest."""
    records = list[logging.LogRecord]()

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    keeper = Keeper()
    notices.logger.addHandler(keeper)
    yield records
    notices.logger.removeHandler(keeper)


def test_everybody_is_told_at_their_own_age_and_once(
    path: Path, tmp_path: Path, logged: list[logging.LogRecord]
) -> None:
    file = tmp_path / "telemetry.jsonl"
    with writelane.open(path, telemetry=file, warn_after=0.3) as db:
        later = Told(db, 0.6)
        connection = dbapi.connect(path)
        cursor, begun = connection.execute(SELECT), line()
        later.first()
        later.end()
        cursor.close()
        connection.close()
    assert len(later) == 1

    def warnings() -> list[logging.LogRecord]:
        found = [record for record in logged if "a snapshot has been open" in record.getMessage()]
        return [record for record in found if SELECT in record.getMessage()]

    assert wait_for(warnings)
    (record,) = warnings()
    assert (record.name, record.levelno) == ("writelane", logging.WARNING)
    assert f"(begun at {__file__}:{begun})" in record.getMessage()
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    (told,) = [one for one in lines if one["kind"] == "snapshot" and one["sql"] == SELECT]
    assert (told["pid"], told["path"], told["location"]) == (os.getpid(), str(path), f"{__file__}:{begun}")
    assert 0.05 <= told["seconds"] < later[0].seconds


def test_nobody_is_told_of_what_ended_in_time(path: Path, db: writelane.Database) -> None:
    told = Told(db, 3600)
    connection = dbapi.connect(path)
    for _ in range(100):
        connection.execute(SELECT).fetchone()
        connection.execute(SELECT).fetchall()
    told.end()
    assert told == []
    connection.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_watch_sleeps_and_wakes_in_every_thread_and_after_a_fork(path: Path, db: writelane.Database) -> None:
    told = Told(db, 0.02)

    def read() -> None:
        connection = dbapi.connect(path)
        before = len(told)
        cursor = connection.execute(SELECT)
        assert wait_for(lambda: len(told) > before)
        cursor.close()
        connection.close()

    for pause in (0.0, 0.2):
        # After ten times its period without a snapshot it sleeps, or will do so very soon: both must be right.
        time.sleep(pause)
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert len(told) >= 2
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with writelane.open(path, warn_after=None) as mine:
                theirs = Told(mine, 0.02)
                connection = dbapi.connect(path)
                cursor = connection.execute(SELECT)
                status = 0 if theirs.first().sql == SELECT else 2
                cursor.close()
                connection.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
