"""Repair returns every row of undamaged tables, never crashes, never loses the damaged file, and tells what is lost."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from writelane import dbapi
from writelane.cli import main
from writelane.errors import DatabaseError, OperationalError
from writelane.repair import repair

PAGE = 1024
#: All of the variants are run by `make soak`.
VARIANTS = 200 if os.environ.get("WRITELANE_SOAK") else 25

Tables = dict[str, list[tuple[Any, ...]]]

SCHEMA = """
CREATE TABLE plain(id INTEGER PRIMARY KEY, name TEXT, value REAL);
CREATE TABLE blobs(id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB);
CREATE TABLE keyed(k TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
CREATE TABLE child(id INTEGER PRIMARY KEY, plain REFERENCES plain, note TEXT DEFAULT 'none');
CREATE TABLE small(x);
CREATE INDEX plain_name ON plain(name);
CREATE INDEX child_plain ON child(plain);
CREATE VIEW named AS SELECT name FROM plain;
CREATE TRIGGER stop BEFORE DELETE ON small BEGIN SELECT RAISE(ABORT, 'no'); END;
PRAGMA user_version = 7;
"""


def build(path: Path, journal: str = "delete") -> None:
    dice = random.Random(0)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size={PAGE}")
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.executescript(SCHEMA)
    connection.executemany("INSERT INTO plain VALUES (?, ?, ?)", ((n, f"name {n}", n / 3) for n in range(3000)))
    connection.executemany(
        "INSERT INTO blobs(data) VALUES (?)", ((dice.randbytes(dice.randrange(4000)),) for _ in range(200))
    )
    connection.executemany("INSERT INTO keyed VALUES (?, ?)", ((f"key {n}", n) for n in range(1500)))
    connection.executemany("INSERT INTO child(id, plain) VALUES (?, ?)", ((n, n) for n in range(2000)))
    connection.executemany("INSERT INTO small VALUES (?)", ((text,) for text in ("one", None, 3, b"four")))
    connection.commit()
    connection.close()


def tables_of(path: Path) -> Tables:
    connection = sqlite3.connect(path)
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr) for name in names}
    finally:
        connection.close()


def pages_of(path: Path) -> dict[int, str]:
    """Return the table, or index, of each page, as the database's own SQLite says before the damage."""
    connection = dbapi.connect(path)
    try:
        return dict(connection.execute("SELECT pageno, name FROM dbstat").fetchall())
    finally:
        connection.close()


def full_check_says_ok(path: Path) -> bool:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main([str(argument) for argument in arguments])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[bytes, dict[str, list[tuple[Any, ...]]], dict[int, str]]:
    path = tmp_path_factory.mktemp("original") / "app.db"
    build(path)
    return path.read_bytes(), tables_of(path), pages_of(path)


@pytest.mark.parametrize("seed", range(VARIANTS))
def test_pages_overwritten_at_random(
    original: tuple[bytes, Tables, dict[int, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seed: int,
) -> None:
    content, expected, owners = original
    dice = random.Random(seed)
    damaged = bytearray(content)
    hit: set[str] = set()
    for _ in range(dice.randint(1, 30)):
        # One in ten may hit the first page, whose loss is that of the schema.
        page = dice.randint(1 if seed % 10 == 0 else 2, len(content) // PAGE)
        start = (page - 1) * PAGE
        # Whole pages, and parts of pages.
        first, last = (0, PAGE) if dice.random() < 0.7 else sorted(dice.sample(range(PAGE), 2))
        damaged[start + first : start + last] = dice.randbytes(last - first)
        hit.add(owners.get(page, "(free)"))
    path = tmp_path / "app.db"
    path.write_bytes(damaged)

    status, checked = command(capsys, "check", "--json", path)
    assert (status == 0) == checked["ok"]
    if not full_check_says_ok(path):
        assert not checked["ok"]

    status, done = command(capsys, "repair", "--json", path)
    assert path.read_bytes() == damaged, "the damaged file is left as it is"
    if "sqlite_schema" in hit and status == 2:
        assert "error" in done
        return
    if checked["ok"]:
        # Bytes within a row, or of no page: nothing shows it.
        assert (status, done["repaired"]) == (0, None)
        return
    assert status == 0, done
    assert full_check_says_ok(Path(done["repaired"]))
    recovered = tables_of(Path(done["repaired"]))
    if "sqlite_schema" in hit:
        return
    for name, rows in expected.items():
        if name not in hit and name != "sqlite_sequence":
            assert recovered[name] == rows, f"{name} was not hit"
        told = next((table for table in done["tables"] if table["name"] == name), None)
        if told is not None:
            assert told["rows"] == len(recovered[name])
            assert told["whole"] is False or len(recovered[name]) == len(rows)


def damage(path: Path, *pages: int) -> bytes:
    content = bytearray(path.read_bytes())
    for page in pages:
        content[(page - 1) * PAGE : page * PAGE] = random.Random(page).randbytes(PAGE)
    path.write_bytes(content)
    return bytes(content)


def a_page_of(path: Path, name: str) -> int:
    return max(page for page, owner in pages_of(path).items() if owner == name)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    build(path)
    return path


def test_a_sound_database_is_left_alone(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, done = command(capsys, "repair", "--json", database)
    assert (status, done["state"], done["repaired"]) == (0, "sound", None)
    assert [path.name for path in database.parent.iterdir()] == ["app.db"]


def test_when_only_an_index_is_damaged_it_is_rebuilt_and_no_row_is_lost(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tables_of(database)
    damage(database, a_page_of(database, "plain_name"))
    status, done = command(capsys, "repair", "--json", database)
    assert status == 0
    assert done["state"] in ("reindexed", "recovered")
    assert done["complete"] is True
    assert tables_of(Path(done["repaired"])) == before


def test_an_index_that_disagrees_with_its_table_is_rebuilt(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA writable_schema=1")
    connection.execute(
        "UPDATE sqlite_master SET sql = 'CREATE INDEX plain_name ON plain(value)' WHERE name='plain_name'"
    )
    connection.commit()
    connection.close()
    status, done = command(capsys, "repair", "--json", database)
    assert (status, done["state"], done["complete"]) == (0, "reindexed", True)
    assert "plain_name" in done["summary"]
    assert full_check_says_ok(Path(done["repaired"]))


def test_without_swap_nothing_but_a_new_file_is_made(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = damage(database, a_page_of(database, "plain"))
    status, done = command(capsys, "repair", "--json", database)
    assert (status, done["swapped"], done["complete"]) == (0, False, False)
    assert database.read_bytes() == content
    assert {path.name for path in database.parent.iterdir()} == {"app.db", Path(done["repaired"]).name}
    assert any(table["name"] == "plain" and table["lost_rowids"] for table in done["tables"])


def test_a_swap_puts_the_new_file_in_place_and_keeps_the_old_one_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "app.db"
    build(path, "wal")
    page = a_page_of(path, "plain")
    # A process that dies with its last commit only in the log.
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('INSERT INTO small VALUES (?)',"
            "('in the log',)); c.commit(); os.kill(os.getpid(), 9)",
            str(path),
        ],
        check=False,
    )
    content = damage(path, page)
    log = Path(f"{path}-wal").read_bytes()
    os.chmod(path, 0o640)

    status, done = command(capsys, "repair", "--json", "--swap", path)
    assert (status, done["swapped"], done["repaired"]) == (0, True, str(path))
    kept, kept_log = map(Path, done["kept"])
    assert kept.read_bytes() == content
    assert (kept_log.name, kept_log.read_bytes()) == (f"{kept.name}-wal", log)
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert not Path(f"{path}-wal").exists()
    assert ("in the log",) in tables_of(path)["small"]
    assert full_check_says_ok(path)


def test_it_refuses_while_another_process_has_the_file_open(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = damage(database, a_page_of(database, "plain"))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT x FROM small').fetchall();"
            "print('open', flush=True); sys.stdin.read()",
            str(database),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        status, done = command(capsys, "repair", "--json", database)
        assert (status, done["ok"]) == (2, False)
        assert str(holder.pid) in done["error"]["message"]
        with pytest.raises(OperationalError, match="in use"):
            repair(database, swap=True)
        assert holder.stdin is not None
        holder.stdin.close()
    assert database.read_bytes() == content
    assert [path.name for path in database.parent.iterdir()] == ["app.db"]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_it_refuses_also_if_who_has_the_file_open_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    path = tmp_path / "app.db"
    build(path, journal)
    damage(path, a_page_of(path, "plain"))
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN');"
        "c.execute('SELECT x FROM small').fetchall(); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    # As from another container.
    monkeypatch.setattr("writelane.repair.openers", lambda _: ([], False))
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(OperationalError, match="cannot be seen"):
            repair(path)
        holder.stdin.close()
    assert repair(path).repaired is not None


def test_nobody_gets_in_while_it_works(database: Path) -> None:
    damage(database, a_page_of(database, "plain"))
    answers: list[str] = []

    def try_to_get_in(_: str) -> None:
        program = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0)\n"
            "try: print(c.execute('SELECT x FROM small').fetchall())\n"
            "except sqlite3.OperationalError as error: print(error)"
        )
        if len(answers) < 3:
            done = subprocess.run(
                [sys.executable, "-c", program, str(database)], capture_output=True, text=True, check=True
            )
            answers.append(done.stdout.strip())

    assert repair(database, swap=True, progress=try_to_get_in).swapped
    assert answers
    assert set(answers) == {"database is locked"}


def test_never_an_empty_database_of_one_that_had_rows(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size={PAGE}")
    connection.execute("CREATE TABLE t(x)")
    connection.execute("INSERT INTO t VALUES ('all there is')")
    connection.commit()
    connection.close()
    damage(path, 2)
    with pytest.raises(DatabaseError, match="not one row"):
        repair(path)
    assert [path.name for path in tmp_path.iterdir()] == ["app.db"]


@pytest.mark.parametrize(
    ("content", "type_of_error"),
    [(None, "FileNotFoundError"), (b"", "DatabaseError"), (b"no database\n" * 500, "DatabaseError")],
)
def test_what_cannot_be_repaired_is_said_in_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, type_of_error: str
) -> None:
    path = tmp_path / "app.db"
    if content is not None:
        path.write_bytes(content)
    status, done = command(capsys, "repair", "--json", path)
    assert (status, done["ok"], done["error"]["type"]) == (2, False, type_of_error)
    assert len(list(tmp_path.iterdir())) == (content is not None)


def test_rows_that_break_a_foreign_key_are_for_the_user_to_mend(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = sqlite3.connect(database)
    connection.execute("DELETE FROM plain WHERE id = 3")
    connection.commit()
    connection.close()
    status, done = command(capsys, "repair", "--json", database)
    assert (status, done["state"], done["repaired"]) == (1, "whole", None)
