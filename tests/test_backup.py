"""A backup is one consistent snapshot, ends under load, and never leaves or destroys what it should not."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import writelane
from writelane.backup import backup
from writelane.cli import main
from writelane.errors import OperationalError
from writelane.integrity import examine

#: A writer that keeps two tables equal in every commit, and grows them, until it is killed.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
print("writing", flush=True)
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO one(x) VALUES (randomblob(500))")
    connection.execute("INSERT INTO two SELECT id, x FROM one ORDER BY id DESC LIMIT 1")
    connection.execute("UPDATE total SET rows = rows + 1")
    connection.execute("COMMIT")
"""


@pytest.fixture(params=["wal", "delete"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={request.param}")
    connection.executescript(
        """
        CREATE TABLE one(id INTEGER PRIMARY KEY, x BLOB);
        CREATE TABLE two(id INTEGER PRIMARY KEY, x BLOB);
        CREATE TABLE total(rows INTEGER);
        INSERT INTO total VALUES (2000);
        """
    )
    connection.executemany("INSERT INTO one(x) VALUES (randomblob(500))", [()] * 2000)
    connection.execute("INSERT INTO two SELECT * FROM one")
    connection.commit()
    connection.close()
    return path


def assert_consistent(path: Path) -> int:
    connection = sqlite3.connect(path)
    one, two, total, different = connection.execute(
        "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two), (SELECT rows FROM total),"
        "(SELECT count(*) FROM one JOIN two USING (id) WHERE one.x IS NOT two.x)"
    ).fetchone()
    connection.close()
    assert one == two == total
    assert different == 0
    return int(one)


def test_a_copy_is_consistent_and_ends_under_four_busy_writers(database: Path, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(database)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        seen: list[tuple[int, int]] = []
        for number in range(3):
            made = backup(
                database,
                tmp_path / f"copy{number}.db",
                verify=True,
                timeout=120,
                progress=lambda done, total: seen.append((done, total)),
            )
            assert made.verified
            assert assert_consistent(made.path) >= 2000
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    # Each copy went through its pages once: what was copied never fell back to the start within one of them.
    finished = [done for done, total in seen if done == total]
    assert len(finished) == 3


def test_an_open_database_copies_itself_with_every_write_that_has_returned(tmp_path: Path) -> None:
    with writelane.open(tmp_path / "app.db") as db:
        db.execute("CREATE TABLE t(x)")
        for number in range(20):
            db.execute("INSERT INTO t VALUES (?)", (number,))
        made = db.backup(tmp_path / "copy.db", verify=True)
        db.execute("INSERT INTO t VALUES (-1)")
    copy = sqlite3.connect(made.path)
    assert copy.execute("SELECT count(*) FROM t").fetchone() == (20,)
    copy.close()


@pytest.mark.skipif(not os.environ.get("WRITELANE_SOAK"), reason="takes a while: make soak runs it")
@pytest.mark.timeout(900)
def test_a_copy_of_300_mb_under_four_busy_writers_ends_and_passes_its_check(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE one(id INTEGER PRIMARY KEY, x BLOB)")
    connection.execute("CREATE TABLE two(id INTEGER PRIMARY KEY, x BLOB)")
    connection.execute("CREATE TABLE total(rows INTEGER)")
    connection.executemany("INSERT INTO one(x) VALUES (randomblob(15000))", [()] * 10_000)
    connection.execute("INSERT INTO two SELECT * FROM one")
    connection.execute("INSERT INTO total SELECT count(*) FROM one")
    connection.commit()
    connection.close()
    assert path.stat().st_size > 300_000_000
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        made = backup(path, tmp_path / "copy.db", verify=True, timeout=120)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert made.verified
    assert assert_consistent(made.path) >= 10_000


def test_the_copy_has_what_only_the_log_has(database: Path, tmp_path: Path) -> None:
    writer = sqlite3.connect(database)
    writer.execute("UPDATE total SET rows = -1")
    writer.commit()
    backup(database, tmp_path / "copy.db")
    writer.close()
    # The source is left as it was, and nothing but the copy is new.
    assert {path.name for path in tmp_path.iterdir()} - {"app.db-wal", "app.db-shm"} == {"app.db", "copy.db"}
    copy = sqlite3.connect(tmp_path / "copy.db")
    assert copy.execute("SELECT rows FROM total").fetchone() == (-1,)
    copy.close()


def test_the_copy_of_a_file_with_another_page_size_and_an_empty_one(tmp_path: Path) -> None:
    source = sqlite3.connect(tmp_path / "source.db")
    source.execute("PRAGMA page_size=512")
    source.execute("CREATE TABLE t(x)")
    source.close()
    assert backup(tmp_path / "source.db", tmp_path / "copy.db", verify=True).page_size == 512
    assert examine(tmp_path / "copy.db").page_size == 512


def test_what_is_there_is_kept_unless_forced(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(FileExistsError, match="--force"):
        backup(database, target)
    assert target.read_text() == "precious"
    backup(database, target, force=True)
    assert_consistent(target)
    with pytest.raises(FileExistsError, match="itself"):
        backup(database, database, force=True)


def test_a_log_beside_the_destination_is_never_applied_to_the_copy(database: Path, tmp_path: Path) -> None:
    Path(f"{tmp_path / 'copy.db'}-wal").write_bytes(b"another's log")
    with pytest.raises(FileExistsError, match="-wal"):
        backup(database, tmp_path / "copy.db", force=True)
    assert not (tmp_path / "copy.db").exists()


def test_a_failed_copy_leaves_nothing(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(database, folder / "copy.db", progress=fail)
    assert list(folder.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        backup(tmp_path / "missing.db", folder / "copy.db")
    assert list(folder.iterdir()) == []
    assert not (tmp_path / "missing.db").exists()


def test_a_full_disk_is_told_before_anything_is_written(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OperationalError, match="MB free"):
        backup(database, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_a_compressed_copy_unpacks_to_the_database(database: Path, tmp_path: Path) -> None:
    made = backup(database, tmp_path / "copy.db.gz", compress="gzip", verify=True)
    (tmp_path / "back.db").write_bytes(gzip.decompress(made.path.read_bytes()))
    assert assert_consistent(tmp_path / "back.db") == 2000
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_zstd_works_where_python_has_it_and_says_so_where_not(database: Path, tmp_path: Path) -> None:
    if sys.version_info >= (3, 14):
        assert backup(database, tmp_path / "copy.zst", compress="zstd", verify=True).size > 0
    else:
        with pytest.raises(ValueError, match=r"3\.14"):
            backup(database, tmp_path / "copy.zst", compress="zstd")


def test_a_folder_gets_dated_names_and_keeps_the_newest(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    strange = [folder / "app-notes.db", folder / "app-20200101T000000.000Z.db.bak", folder / "other.db"]
    for path in strange:
        path.write_text("mine")
    old = [folder / f"app-202001{day:02d}T000000.000Z.db" for day in range(1, 6)]
    for path in old:
        path.write_text("old")
    made = backup(database, folder, keep=3)
    assert made.path.parent == folder
    assert set(made.removed) == set(old[:3])
    assert set(folder.iterdir()) == {made.path, *old[3:], *strange}
    with pytest.raises(ValueError, match="keep"):
        backup(database, folder, keep=0)


def test_the_copy_has_the_permissions_of_its_source(database: Path, tmp_path: Path) -> None:
    os.chmod(database, 0o640)
    assert os.stat(backup(database, tmp_path / "copy.db").path).st_mode & 0o777 == 0o640


def test_verify_refuses_a_copy_of_a_damaged_database(database: Path, tmp_path: Path) -> None:
    content = bytearray(database.read_bytes())
    content[-3 * 4096 : -2 * 4096] = b"\xa5" * 4096
    database.write_bytes(content)
    status = main(["backup", str(database), str(tmp_path / "copy.db"), "--verify"])
    assert status == 2
    assert not (tmp_path / "copy.db").exists()


def test_the_command_prints_one_document(database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "--json", "--progress", str(database), str(tmp_path / "copy.db")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["backup"]["path"] == str(tmp_path / "copy.db")
    assert main(["backup", "--json", str(database), str(tmp_path / "copy.db")]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "FileExistsError"
