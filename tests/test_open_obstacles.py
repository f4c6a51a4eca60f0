"""What stands in the way of opening a database is named: which file, and why."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534

OPEN = f"""
import os, sys
import writelane
os.setgid({NOBODY})
os.setuid({NOBODY})
try:
    writelane.open(sys.argv[1], readonly=sys.argv[2] == "r").execute("SELECT * FROM t")
except writelane.Error as error:
    print(f"{{type(error).__name__}} {{error.sqlite_errorname}} {{error}}")
else:
    print("opened")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = tmp_path / "data"
    folder.mkdir()
    for part in [folder, *tmp_path.parents[:2], tmp_path]:
        part.chmod(0o777)
    return folder


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    path.chmod(0o666)
    return connection


def open_as_nobody(path: Path, mode: str = "w") -> str:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), mode], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_that_may_not_be_written_is_named_with_its_owner(folder: Path) -> None:
    database(folder / "app.db").close()
    (folder / "app.db").chmod(0o444)
    said = open_as_nobody(folder / "app.db")
    assert said.startswith("OperationalError SQLITE_READONLY ")
    assert f"{folder / 'app.db'} belongs to user 0 with mode 444" in said
    assert "readonly=True" in said
    assert open_as_nobody(folder / "app.db", "r") == "opened\n"


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_or_shared_memory_of_another_user_is_named(folder: Path, suffix: str) -> None:
    keeper = database(folder / "app.db")
    for other in ["-wal", "-shm"]:
        Path(f"{folder / 'app.db'}{other}").chmod(0o600 if other == suffix else 0o666)
    said = open_as_nobody(folder / "app.db")
    keeper.close()
    assert f"{folder / 'app.db'}{suffix} belongs to user 0 with mode 600" in said


def test_a_folder_that_may_not_be_written_is_named(folder: Path) -> None:
    database(folder / "app.db").close()
    folder.chmod(0o555)
    for name in ["app.db", "new.db"]:
        said = open_as_nobody(folder / name)
        assert f"the folder {folder} cannot be written by this user" in said, name
