"""``writelane check`` never calls a damaged database sound, and always answers in one document."""

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

from writelane.cli import main


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE parent(id INTEGER PRIMARY KEY, name TEXT);
        CREATE TABLE child(id INTEGER PRIMARY KEY, parent REFERENCES parent, name TEXT);
        CREATE INDEX child_name ON child(name);
        """
    )
    connection.executemany("INSERT INTO parent VALUES (?, ?)", ((n, f"p{n}") for n in range(500)))
    connection.executemany("INSERT INTO child VALUES (?, ?, ?)", ((n, n % 500, f"name{n}") for n in range(5000)))
    connection.commit()
    connection.close()
    return path


def check(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main(["check", "--json", *map(str, arguments)])
    return status, json.loads(capsys.readouterr().out)


def test_a_sound_database_is_sound(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = database.read_bytes()
    status, document = check(capsys, database)
    assert status == 0
    assert document["ok"] is True
    assert document["command"] == "check"
    assert document["state"] == "sound"
    assert document["pages"] * document["page_size"] == len(before)
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "state", "status"),
    [
        ("missing.db", None, "missing", 2),
        ("empty.db", b"", "empty", 1),
        ("random.db", random.Random(1).randbytes(8192), "encrypted", 1),
        ("text.db", b"to whom it may concern\n" * 100, "not a database", 1),
        ("archive.db", b"PK\x03\x04" + bytes(2000), "not a database", 1),
        ("zeros.db", bytes(8192), "not a database", 1),
        ("short.db", b"SQLite format 3\x00\x10", "not a database", 1),
        ("name%20with space?#.db", b"hello", "not a database", 1),
    ],
)
def test_a_file_that_is_no_database_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, state: str, status: int
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert check(capsys, path)[0] == status
    status, document = check(capsys, path)
    assert document["ok"] is False
    assert document["state"] == state
    assert document["summary"]
    assert path.exists() is (content is not None)


def test_a_directory_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = check(capsys, tmp_path)
    assert (status, document["state"]) == (2, "not a file")
    assert "directory" in document["summary"]


def test_an_index_that_lacks_rows_is_found_and_named(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA writable_schema=1")
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name='child_name'").fetchone()
    connection.execute("DELETE FROM sqlite_master WHERE name='child_name'")
    connection.commit()
    connection.close()
    connection = sqlite3.connect(database)
    connection.execute("UPDATE child SET name='other' WHERE id=17")
    root = 3
    connection.execute("PRAGMA writable_schema=1")
    pages = [int(row[0]) for row in connection.execute("SELECT rootpage FROM sqlite_master")]
    root = next(page for page in range(2, 10) if page not in pages)
    connection.execute("INSERT INTO sqlite_master VALUES ('index','child_name','child',?,?)", (root, sql))
    connection.commit()
    connection.close()

    status, document = check(capsys, database)
    assert status == 1
    assert {problem["kind"] for problem in document["problems"]} == {"index"}
    assert document["problems"][0]["index"] == "child_name"
    assert document["problems"][0]["table"] == "child"
    assert "indexes" in document["summary"]


def test_violated_foreign_keys_are_counted(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(database)
    connection.execute("DELETE FROM parent WHERE id IN (1, 2)")
    connection.commit()
    connection.close()
    status, document = check(capsys, database)
    assert status == 1
    assert document["foreign_keys"]["found"] == 20
    assert {problem["kind"] for problem in document["problems"]} == {"foreign_key"}


def test_a_damaged_page_is_found(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(database.read_bytes())
    content[8 * 4096 : 9 * 4096] = random.Random(2).randbytes(4096)
    database.write_bytes(content)
    status, document = check(capsys, database)
    assert status == 1
    assert document["state"] == "unsound"
    assert "repair" in document["next_step"]


@pytest.mark.parametrize(("at", "length"), [(0, 4096), (16, 2), (0, 16)])
def test_a_damaged_first_page_is_damage_and_not_another_format(
    database: Path, capsys: pytest.CaptureFixture[str], at: int, length: int
) -> None:
    content = bytearray(database.read_bytes())
    content[at : at + length] = random.Random(3).randbytes(length)
    database.write_bytes(content)
    status, document = check(capsys, database)
    assert (status, document["state"]) == (1, "unsound")
    assert "repair" in document["next_step"]


def test_what_is_only_in_the_log_is_checked_and_left_there(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = sqlite3.connect(database)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("INSERT INTO child VALUES (9999, 1, 'new')")
    writer.commit()
    log = Path(f"{database}-wal")
    before = log.read_bytes()
    status, document = check(capsys, database)
    assert (status, document["journal_mode"]) == (0, "wal")
    assert log.read_bytes() == before
    writer.close()


def test_a_locked_database_is_called_busy_and_not_unsound(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
            "c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()",
            str(database),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        status, document = check(capsys, "--timeout", "0.05", database)
        assert (status, document["state"]) == (2, "busy")
        assert holder.stdin is not None
        holder.stdin.close()


@pytest.fixture
def of_its_own(tmp_path: Path) -> Path:
    """A database that needs a function and a collation that only its own program has."""
    path = tmp_path / "own.db"
    connection = sqlite3.connect(path)
    connection.create_function("own", 1, lambda x: x, deterministic=True)
    connection.create_collation("mine", lambda a, b: (a > b) - (a < b))
    connection.executescript(
        """
        CREATE TABLE t(x); CREATE INDEX tx ON t(own(x)); INSERT INTO t VALUES (1), (2);
        CREATE TABLE u(x TEXT COLLATE mine PRIMARY KEY); INSERT INTO u VALUES ('a'), ('b');
        CREATE TABLE big(x);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) INSERT INTO big SELECT i FROM n;
        """
    )
    connection.close()
    return path


def test_what_only_its_own_program_can_check_is_neither_sound_nor_damaged(
    of_its_own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = check(capsys, of_its_own)
    assert (status, document["state"], document["ok"]) == (2, "incomplete", False)
    assert {problem["kind"] for problem in document["problems"]} == {"unchecked"}
    assert main(["repair", "--json", str(of_its_own)]) == 1
    assert json.loads(capsys.readouterr().out)["repaired"] is None


def test_damage_beside_what_only_its_own_program_can_check_is_found(
    of_its_own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(of_its_own.read_bytes())
    content[-4096:] = random.Random(4).randbytes(4096)
    of_its_own.write_bytes(content)
    status, document = check(capsys, of_its_own)
    assert (status, document["state"]) == (1, "unsound")
    assert main(["repair", "--json", str(of_its_own)]) == 0
    done = json.loads(capsys.readouterr().out)
    assert {table["name"]: table["rows"] for table in done["tables"] if table["name"] != "big"} == {"t": 2, "u": 2}


@pytest.mark.parametrize("verb", ["check", "doctor", "repair", "backup"])
@pytest.mark.parametrize("kind", ["pipe", "circle", "folder", "device", "nothing", "bytes"])
def test_whatever_the_path_there_is_one_document_and_no_hang(tmp_path: Path, verb: str, kind: str) -> None:
    path: str | bytes = os.fspath(tmp_path / "thing")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "circle":
        os.symlink("thing", path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "device":
        path = "/dev/null"
    elif kind == "bytes":
        path = os.fsencode(tmp_path) + b"/\xff\xfe.db"
    more = [str(tmp_path / "copy.db")] if verb == "backup" else []
    done = subprocess.run(
        [sys.executable, "-m", "writelane", verb, "--json", path, *more], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["ok"] is False
    assert done.stderr == b""


@pytest.mark.parametrize(
    "arguments",
    [["check", "--json"], ["--json"], ["--json", "nonsense"], ["check", "--json", "--nonsense", "x"]],
)
def test_a_wrong_command_line_is_one_document_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["error"]["type"] == "UsageError"


def test_the_module_is_a_command_and_prints_text_without_json(database: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "writelane", "check", os.fspath(database)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "ok" in done.stdout
    assert done.stderr == ""
