"""The tables of the load, made and filled before the clock starts."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from writelane.errors import OperationalError
from writelane.stress.plan import Plan

__all__ = ["beside", "fill", "free_prefix", "text_of", "wipe"]

#: Rows of the filling that go into one statement's run, between two looks at the size.
CHUNK_ROWS = 2000
#: Bytes of text of a row of the filling.
FILLER_BYTES = 2000
#: What is left free on the disk besides the database and its log.
SPARE_MB = 64
#: The files that may lie beside a database.
SUFFIXES = ("-wal", "-shm", "-journal", "-lane")

SCHEMA = """
CREATE TABLE {prefix}sessions(
    id INTEGER PRIMARY KEY, version INTEGER NOT NULL DEFAULT 0, title TEXT, updated REAL);
CREATE TABLE {prefix}messages(
    id INTEGER PRIMARY KEY, session INTEGER NOT NULL, mark INTEGER, body TEXT);
CREATE INDEX {prefix}messages_of_session ON {prefix}messages(session, id);
CREATE TABLE {prefix}events(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, mark INTEGER, body TEXT);
CREATE INDEX {prefix}events_of_session ON {prefix}events(session);
CREATE TABLE {prefix}facts(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, mark INTEGER, body TEXT);
CREATE TABLE {prefix}foreign(id INTEGER PRIMARY KEY, mark INTEGER, body TEXT);
"""


def beside(path: Path) -> list[Path]:
    """Return the files that may lie beside a database."""
    return [path.with_name(path.name + suffix) for suffix in SUFFIXES]


def wipe(path: Path) -> None:
    """Remove a database that nobody has open, and what lies beside it."""
    for each in (path, *beside(path)):
        each.unlink(missing_ok=True)


def text_of(bytes_: int, seed: int) -> str:
    """Return text of a length that is not all alike."""
    source = random.Random(seed)
    words = ["".join(source.choices("etaoinshrdlcumwfgypbvkjxqz", k=source.randint(2, 9))) for _ in range(400)]
    text = " ".join(source.choices(words, k=bytes_ // 4 + 2))
    return text[:bytes_]


def free_prefix(path: Path, prefix: str) -> str:
    """Return a prefix that no table of the database begins with: the one given, or it with a number."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        names = [str(name).lower() for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    finally:
        connection.close()
    stem, number = prefix.rstrip("_"), 1
    while any(name.startswith(prefix) for name in names):
        number += 1
        prefix = f"{stem}{number}_"
    return prefix


def fill(path: Path, plan: Plan, progress: Callable[[float], None]) -> None:
    """Make the tables in a database (a new one, or a copy of a user's) and fill it to its size.

    ``progress`` is called with the megabytes that are there. Nobody else may have the file open: nothing protects it
    from a crash while it is filled. Raises OperationalError for a full disk.
    """
    there_mb = path.stat().st_size / 1e6 if path.exists() else 0.0
    # The runs work on copies, one after the other, and the log of the standard module grows with the load.
    needed_mb = max(plan.size_mb - there_mb, 0) + max(plan.size_mb, there_mb) + SPARE_MB
    free_mb = shutil.disk_usage(path.parent).free / 1e6
    if free_mb < needed_mb:
        raise OperationalError(
            f"{path.parent} has {free_mb:.0f} MB free, and the run needs {needed_mb:.0f} MB; "
            "choose a smaller --size, or another folder with --keep or TMPDIR"
        )
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-64000")
        connection.executescript(SCHEMA.format(prefix=plan.prefix))
        connection.execute("BEGIN")
        connection.executemany(
            f"INSERT INTO {plan.table('sessions')}(id, title, updated) VALUES (?, ?, 0)",
            [(session, f"session {session}") for session in range(plan.sessions)],
        )
        connection.execute("COMMIT")
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        row = _fillers(plan)
        while True:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            size_mb = pages * page_size / 1e6
            progress(size_mb)
            missing = (plan.size_mb - size_mb) * 1e6 / FILLER_BYTES
            if missing < 1:
                break
            connection.execute("BEGIN")
            connection.executemany(
                f"INSERT INTO {plan.table('messages')}(session, body) VALUES (?, ?)",
                [next(row) for _ in range(min(CHUNK_ROWS, int(missing) + 1))],
            )
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


def _fillers(plan: Plan) -> Iterator[tuple[int, str]]:
    text = text_of(FILLER_BYTES * 50, plan.seed)
    source = random.Random(plan.seed)
    while True:
        begin = source.randrange(len(text) - FILLER_BYTES)
        yield source.randrange(plan.sessions), text[begin : begin + FILLER_BYTES]
