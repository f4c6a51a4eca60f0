"""``writelane doctor`` names what is the matter, with a next step, and its exit status is the severity."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from writelane import processes
from writelane.cli import main
from writelane.doctor import Finding, diagnose


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE child(id INTEGER PRIMARY KEY, parent REFERENCES parent, name TEXT)")
    connection.execute("CREATE INDEX child_name ON child(name)")
    connection.executemany("INSERT INTO child VALUES (?, NULL, ?)", ((n, f"name {n}") for n in range(3000)))
    connection.commit()
    connection.close()
    return path


@contextlib.contextmanager
def another_process(path: Path, *statements: str) -> Iterator[int]:
    """Run statements in another process, with the standard module, and keep its connection open."""
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "[c.execute(s).fetchone() for s in sys.argv[2:]]; print('ready', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "ready\n"
        yield other.pid
        other.stdin.close()


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json", *map(str, arguments)])
    return status, json.loads(capsys.readouterr().out)


def bad(path: Path, topic: str, **options: Any) -> list[Finding]:
    return [f for f in diagnose(path, **options).findings if f.topic == topic and f.severity in ("warning", "error")]


def test_a_healthy_database_is_well(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = doctor(capsys, database)
    assert status == 0, document
    assert document["severity"] in ("ok", "info")
    topics = {finding["topic"] for finding in document["findings"]}
    assert topics >= {
        "file",
        "filesystem",
        "permissions",
        "space",
        "processes",
        "this process",
        "journal",
        "integrity",
        "pages",
    }


@pytest.mark.parametrize("content", [None, b"", b"text " * 1000, random.Random(1).randbytes(8192)])
def test_a_file_that_is_no_database_is_an_error_in_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "app.db"
    if content is not None:
        path.write_bytes(content)
    status, document = doctor(capsys, path)
    assert (status, document["severity"]) == (2, "error")
    assert path.exists() is (content is not None)
    worst = [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert all(finding["next_step"] for finding in worst)


def test_a_directory_and_a_dangling_link_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link.db").symlink_to("nowhere.db")
    assert doctor(capsys, tmp_path)[0] == 2
    assert doctor(capsys, tmp_path / "link.db")[0] == 2


def test_a_log_without_its_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "app.db-wal").write_bytes(bytes(100))
    (finding,) = bad(tmp_path / "app.db", "file")
    assert "app.db-wal" in finding.summary


def test_damage_is_an_error_and_repair_the_next_step(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[-4096 * 3 : -4096 * 2] = random.Random(2).randbytes(4096)
    database.write_bytes(content)
    (finding,) = bad(database, "integrity")
    assert finding.severity == "error"
    assert "repair" in finding.next_step


def test_an_index_that_disagrees_is_found_when_asked_for_in_full(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA writable_schema=1")
    connection.execute(
        "UPDATE sqlite_master SET sql='CREATE INDEX child_name ON child(parent)' WHERE name='child_name'"
    )
    connection.commit()
    connection.close()
    (finding,) = bad(database, "integrity", full=True)
    assert "index" in finding.summary


def test_violated_foreign_keys_are_a_warning(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    connection = sqlite3.connect(database)
    connection.execute("UPDATE child SET parent = 5 WHERE id < 10")
    connection.commit()
    connection.close()
    assert doctor(capsys, database)[0] == 1
    assert "foreign key" in bad(database, "integrity")[0].summary


def test_who_has_it_open_and_who_pins_a_large_log_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writelane.doctor.LOG_BYTES_MAX", 10_000)
    writer = sqlite3.connect(database)
    writer.execute("INSERT INTO child VALUES (-1, NULL, 'x')")
    writer.commit()
    with another_process(database, "BEGIN", "SELECT * FROM child") as pid:
        writer.execute("UPDATE child SET name = name || '!'")
        writer.commit()
        found = diagnose(database).findings
        (open_in,) = [finding for finding in found if finding.topic == "processes"]
        assert str(pid) in open_in.summary
        (pinned,) = [finding for finding in found if finding.topic == "journal"]
        assert pinned.severity == "warning"
        assert str(pid) in pinned.summary
    writer.close()


def test_who_holds_the_write_lock_is_named(database: Path) -> None:
    with another_process(database, "BEGIN IMMEDIATE") as pid:
        found = [finding for finding in diagnose(database).findings if finding.topic == "locks"]
        assert any(str(pid) in finding.summary and "write lock" in finding.summary for finding in found)


def test_a_process_with_an_old_sqlite_is_named_with_its_version(database: Path) -> None:
    old = sqlite3.sqlite_version_info < (3, 44, 6)
    with another_process(database, "SELECT * FROM child") as pid:
        (opener,) = [opener for opener in processes.openers(database, libraries=True)[0] if opener.pid == pid]
        assert [library.version for library in opener.libraries] in ([sqlite3.sqlite_version], [None])
        found = bad(database, "sqlite version")
        assert bool(found) is old
        if old:
            assert str(pid) in found[0].summary
            assert "3.51.3" in found[0].summary


@pytest.mark.parametrize(
    ("version", "day", "has_bug"),
    [
        ("3.40.1", None, True),
        ("3.51.2", None, True),
        ("3.51.3", None, False),
        ("3.54.1", None, False),
        ("3.50.6", None, True),
        ("3.50.7", None, False),
        ("3.44.6", None, False),
        ("3.45.1", None, True),
        (None, "2025-11-01", True),
        (None, "2026-04-01", False),
        (None, None, None),
    ],
)
def test_which_versions_have_the_reset_bug(version: str | None, day: str | None, has_bug: bool | None) -> None:
    assert processes.Library("x", version, day).has_reset_bug is has_bug


def test_the_other_sqlite_of_this_process_is_told(database: Path) -> None:
    (finding,) = [finding for finding in diagnose(database).findings if finding.topic == "this process"]
    assert "libsqlite3" in finding.summary or finding.severity == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_a_log_that_belongs_to_another_user_is_told(database: Path) -> None:
    writer = sqlite3.connect(database)
    writer.execute("INSERT INTO child VALUES (-1, NULL, 'x')")
    writer.commit()
    os.chown(f"{database}-wal", 1234, 1234)
    (finding,) = bad(database, "permissions")
    assert "1234" in finding.summary
    assert "chown" in finding.next_step
    writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="root must become somebody else")
def test_a_folder_that_cannot_be_written_is_told_to_who_cannot(database: Path, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o555)
    for folder in tmp_path.parents:
        if folder != Path("/") and folder != Path("/tmp"):
            os.chmod(folder, os.stat(folder).st_mode | 0o055)
    # Once as root first: the interpreter's own modules may lie where only root can read them.
    program = (
        "import contextlib, io, os, sys; from writelane.cli import main; command = ['doctor', '--json', sys.argv[1]]\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(command)\n"
        "os.setgid(65534); os.setuid(65534); sys.exit(main(command))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(database)], capture_output=True, text=True, check=False, cwd="/"
    )
    document = json.loads(done.stdout)
    found = [finding for finding in document["findings"] if finding["topic"] == "permissions"]
    assert any(str(tmp_path) in finding["summary"] for finding in found), document
    assert done.returncode in (1, 2)


def test_little_room_is_told(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writelane.doctor.FREE_BYTES_MIN", 1 << 60)
    (finding,) = bad(database, "space")
    assert "free" in finding.summary


def test_a_journal_left_by_a_dead_process_is_told_and_left(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('PRAGMA cache_size=1'); c.execute('BEGIN');"
        "c.executemany('INSERT INTO t VALUES (zeroblob(2000))', [()] * 500); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    journal = Path(f"{path}-journal")
    assert journal.stat().st_size > 0
    found = bad(path, "journal")
    assert any("rollback journal" in finding.summary for finding in found)
