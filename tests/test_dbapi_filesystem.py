"""`writelane.dbapi.connect` refuses to write where `writelane.open` does, before anything is created."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import writelane.dbapi
from writelane.errors import UnsafeFilesystem

Mount = Callable[..., tuple[Path, Path]]


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    monkeypatch.delenv("WRITELANE_JOURNAL", raising=False)


@pytest.mark.parametrize("subtype", ["sshfs", "neverheardof"])
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}?cache=private", "file:{}?mode=rwc#?mode=ro"])
def test_a_database_to_be_written_there_is_refused_and_nothing_is_created(fuse: Mount, subtype, form):
    point, folder = fuse(subtype)
    with pytest.raises(UnsafeFilesystem) as caught:
        writelane.dbapi.connect(form.format(point / "app.db"), uri=form != "{}")
    assert isinstance(caught.value, sqlite3.OperationalError)
    assert caught.value.sqlite_errorname == "SQLITE_CANTOPEN"
    for part in (str(point / "app.db"), f"fuse.{subtype}", "WRITELANE_JOURNAL"):
        assert part in str(caught.value)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("query", ["mode=ro", "immutable=1"])
def test_a_database_that_is_only_read_is_opened_there(fuse: Mount, query):
    point, folder = fuse("sshfs")
    made = sqlite3.connect(folder / "app.db")
    made.execute("CREATE TABLE t(x)")
    made.close()
    connection = writelane.dbapi.connect(f"file:{point}/app.db?{query}", uri=True)
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("journal", ["wal", "keep"])
def test_the_environment_overrides_it(fuse: Mount, monkeypatch, journal):
    point, folder = fuse("sshfs")
    monkeypatch.setenv("WRITELANE_JOURNAL", journal)
    connection = writelane.dbapi.connect(point / "app.db")
    connection.close()
    assert (folder / "app.db").exists()


@pytest.mark.parametrize("journal", ["", "auto", "delete"])
def test_what_needs_an_owner_or_nothing_at_all_does_not_override_it(fuse: Mount, monkeypatch, journal):
    point, _ = fuse("sshfs")
    monkeypatch.setenv("WRITELANE_JOURNAL", journal)
    with pytest.raises(UnsafeFilesystem):
        writelane.dbapi.connect(point / "app.db")


@pytest.mark.parametrize(
    "name", [":memory:", "", "file::memory:", "file:a?mode=memory&cache=shared", "file:/a?vfs=memdb"]
)
def test_a_database_without_a_file_is_judged_nowhere(fuse: Mount, monkeypatch, name):
    point, _ = fuse("sshfs")
    monkeypatch.chdir(point)
    connection = writelane.dbapi.connect(name, uri=True)
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.close()


def test_a_filesystem_only_taken_for_local_is_logged_once(fuse: Mount, caplog):
    point, _ = fuse("mergerfs")
    with caplog.at_level(logging.WARNING, logger="writelane"):
        for name in ("app.db", "app.db", "other.db"):
            writelane.dbapi.connect(point / name).close()
    (record,) = caplog.records
    assert "fuse.mergerfs" in record.getMessage()


def test_a_missing_folder_is_said_as_there(tmp_path):
    for module in (sqlite3, writelane.dbapi):
        with pytest.raises(sqlite3.OperationalError, match=r"^unable to open database file$"):
            module.connect(tmp_path / "missing" / "app.db")
