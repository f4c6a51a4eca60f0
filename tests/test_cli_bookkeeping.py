"""`writelane prune` and `writelane jobs` do what they say, and say it as one JSON document."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import writelane
from writelane.cli import main


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path) as db:
        db.execute("CREATE TABLE usage(id INTEGER PRIMARY KEY, at REAL, day TEXT)")
        db.executemany("INSERT INTO usage(at, day) VALUES (?, ?)", [(n, f"2024-01-{n:02}") for n in range(1, 31)])
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, words), "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["status"] == status
    return status, document


def left(path: Path) -> int:
    with writelane.open(path) as db:
        rows: int = db.execute("SELECT count(*) FROM usage").rows[0][0]
        return rows


def test_prune_deletes_what_is_older(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "prune", path, "usage", "--older-than", "at", "11", "--chunk", "3")
    assert status == 0
    assert (document["pruned"]["deleted"], document["pruned"]["finished"]) == (10, True)
    assert document["pruned"]["chunks"] >= 4
    assert main(["prune", str(path), "usage", "--older-than", "day", "2024-01-16"]) == 0
    assert "deleted 5 rows of usage" in capsys.readouterr().out
    assert main(["prune", str(path), "usage", "--where", "at > 25", "--older-than", "at", "28.5"]) == 0
    assert left(path) == 12


def test_a_dry_run_counts_and_deletes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "prune", path, "usage", "--older-than", "at", "11", "--dry-run")
    assert (status, document["would_delete"], left(path)) == (0, 10, 30)


def test_an_unfinished_prune_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(capsys, "prune", path, "usage", "--where", "1", "--chunk", "1", "--deadline", "0")
    assert status == 1
    assert (document["pruned"]["finished"], document["pruned"]["reason"]) == (False, "the deadline passed")
    assert left(path) >= 29


def test_foreign_keys_are_enforced_when_asked_for(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with writelane.open(path) as db:
        db.execute("CREATE TABLE detail(usage REFERENCES usage(id) ON DELETE CASCADE)")
        db.execute("INSERT INTO detail SELECT id FROM usage")
    assert run(capsys, "prune", path, "usage", "--older-than", "at", "11", "--foreign-keys")[0] == 0
    with writelane.open(path) as db:
        assert db.execute("SELECT count(*) FROM detail").rows == [(20,)]


def test_what_cannot_be_done_is_one_document_too(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in [
        ((path, "missing", "--where", "1"), "no such table: missing"),
        ((path, "usage"), "say which rows"),
        ((path.with_name("none.db"), "usage", "--where", "1"), "does not exist"),
    ]:
        status, document = run(capsys, "prune", *words)
        assert status == 2
        assert message in document["error"]["message"]
    assert not path.with_name("none.db").exists()
    assert left(path) == 30


def test_jobs_lists_last_run_result_and_next_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "jobs", path) == (
        0,
        {"command": "jobs", "ok": True, "status": 0, "database": str(path), "jobs": []},
    )
    pause = threading.Event()
    with writelane.open(path) as db:
        db.every("90m", "well", lambda: "all well")
        while not any(job.runs for job in db.jobs()):
            pause.wait(0.005)
    status, document = run(capsys, "jobs", path)
    (job,) = document["jobs"]
    assert (status, job["name"], job["every"], job["runs"], job["last_result"]) == (0, "well", 5400, 1, "'all well'")
    with writelane.open(path) as db:
        db.every("1h", "badly", lambda: 1 // 0)
        while not any(job.failures for job in db.jobs()):
            pause.wait(0.005)
    assert main(["jobs", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "2 scheduled jobs" in shown
    assert "well: every 1h30m, next run in 1h" in shown
    assert "ZeroDivisionError" in shown
