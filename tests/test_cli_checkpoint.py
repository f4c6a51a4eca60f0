"""`writelane checkpoint` copies the log into the database, and says how far it came and who was in the way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import writelane
from test_checkpoints import Reader
from writelane import dbapi
from writelane.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Give a database that somebody has open, so that its log is there after a command has closed it."""
    path = tmp_path / "app.db"
    with writelane.open(path) as db:
        db.execute("CREATE TABLE t(x)")
        db.executemany("INSERT INTO t VALUES (randomblob(4000))", [()] * 20)
        yield path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    status = main(["checkpoint", *map(str, words), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["status"] == status
    return status, document


def test_all_of_the_log_is_copied_and_counted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, path)
    assert (status, document["busy"], document["mode"], document["readers"]) == (0, False, "passive", [])
    assert document["log"] == document["checkpointed"] > 20
    assert main(["checkpoint", str(path), "--mode", "full"]) == 0
    assert f"{document['log']} pages in the log, {document['log']} of them in the database" in capsys.readouterr().out


def test_truncate_cuts_the_log(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert os.path.getsize(f"{path}-wal") > 0
    status, document = run(capsys, path, "--mode", "truncate")
    assert (status, document["busy"], document["log"], document["checkpointed"]) == (0, False, 0, 0)
    assert os.path.getsize(f"{path}-wal") == 0


def test_a_reader_in_the_way_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(path)
    try:
        with writelane.open(path) as db:
            db.execute("INSERT INTO t VALUES (1)")
        status, document = run(capsys, path)
        assert (status, document["busy"], document["readers"]) == (1, False, [reader.process.pid])
        assert document["checkpointed"] < document["log"]
        status, document = run(capsys, path, "--mode", "truncate", "--timeout", "0.2")
        assert (status, document["busy"], document["readers"]) == (1, True, [reader.process.pid])
        assert main(["checkpoint", str(path)]) == 1
        assert f"process {reader.process.pid}" in capsys.readouterr().out
        reader.end()
        assert run(capsys, path, "--mode", "truncate")[0] == 0
    finally:
        reader.kill()


def test_a_database_without_a_log_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "app.db"
    connection = dbapi.connect(path)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    status, document = run(capsys, path)
    assert (status, document["log"], document["checkpointed"]) == (0, -1, -1)
    assert main(["checkpoint", str(path)]) == 0
    assert "no write-ahead log" in capsys.readouterr().out
    assert not path.with_name("app.db-wal").exists()


def test_what_cannot_be_done_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, tmp_path / "none.db")
    assert status == 2
    assert "does not exist" in document["error"]["message"]
    assert list(tmp_path.iterdir()) == []
    status, document = run(capsys, tmp_path / "none.db", "--mode", "restart")
    assert status == 2
    assert "restart" in document["error"]["message"]
