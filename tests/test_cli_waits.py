"""``writelane top`` and ``writelane waits`` tell who waits for whom, from outside and afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import writelane
from test_checkpoints import Reader
from test_telemetry import INSERT, outsider
from writelane.cli import main
from writelane.outside import look
from writelane.report import from_file
from writelane.telemetry_file import TelemetryFile

WAITER = """
import sys, writelane
with writelane.open(sys.argv[1], warn_after=None) as db:
    print("waits", flush=True)
    db.execute("INSERT INTO t(x) VALUES (?)", ("waited",))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with writelane.open(path, telemetry=False) as db:
        db.execute("CREATE TABLE t(x UNIQUE)")
    return path


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def wait_for(found: Any) -> Any:
    """Wait until ``found()`` is true; the time limit of the test ends a wait that never does."""
    while not (result := found()):
        time.sleep(0.02)
    return result


def test_top_names_the_holder_and_the_waiter_and_what_it_waits_with(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with outsider(path, 3.0) as pid, subprocess.Popen([sys.executable, "-c", WAITER, path]) as waiter:
        wait_for(lambda: [one for one in look(path)["waiters"] if one["pid"] == waiter.pid])
        seen = document(capsys, "top", path, "--once")
        assert main(["top", "--once", str(path)]) == 0
        shown = capsys.readouterr().out
    assert seen["holder"]["pid"] == pid
    assert "outsider.py" in seen["holder"]["command"]
    (waiting,) = seen["waiters"]
    assert (waiting["pid"], waiting["statement"], waiting["in_front"]) == (waiter.pid, INSERT, True)
    assert waiting["seconds"] > 0
    assert pid in seen["foreign"]
    assert seen["log_bytes"] is not None
    assert seen["checkpoint"] == {"running": False, "foreign_pid": None}
    assert re.search(rf"holds +{pid} ", shown)
    assert re.search(rf"next +{waiter.pid} .*{re.escape(INSERT)}", shown)


def test_top_works_while_every_writer_is_stopped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys, writelane\n"
        "with writelane.open(sys.argv[1]) as db, db.transaction(label='import') as tx:\n"
        "    tx.execute('DELETE FROM t')\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, path], **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        holder.send_signal(signal.SIGSTOP)
        wait_for(lambda: (look(path)["holder"] or {}).get("stopped"))
        seen = document(capsys, "top", path)
        holder.send_signal(signal.SIGCONT)
        holder.communicate("")
    assert seen["holder"]["pid"] == holder.pid
    assert seen["holder"]["stopped"] is True
    assert seen["holder"]["statement"] == "DELETE FROM t"
    assert document(capsys, "top", path)["locked"] is False


def test_top_says_that_there_is_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(tmp_path / "none.db"), "--once", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "FileNotFoundError"


def test_top_refreshes_in_place_until_it_is_interrupted(path: Path) -> None:
    leader, follower = os.openpty()
    # Whoever runs the tests may have Ctrl-C ignored, which children inherit.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from writelane.cli import main; "
    command = [sys.executable, "-c", f"{code}raise SystemExit(main())", "top", path, "--interval", "0.05"]
    with subprocess.Popen(command, stdout=follower, stderr=follower) as top:
        os.close(follower)
        shown = b""
        while shown.count(b"nobody holds the lock") < 3:
            shown += os.read(leader, 4096)
        top.send_signal(signal.SIGINT)
        assert top.wait(30) == 0
    os.close(leader)
    assert shown.count(b"\x1b[H") >= 3


@pytest.fixture
def recorded(path: Path, tmp_path: Path) -> tuple[Path, int]:
    """A telemetry file of a wait for a foreign process, and that process's pid."""
    file = tmp_path / "telemetry.jsonl"
    with writelane.open(path, telemetry=file, warn_after=None) as db:
        db.execute("UPDATE t SET x = x")
        with outsider(path, 2.0) as pid:
            db.execute(INSERT, ("<b>inside</b>",))
        with pytest.raises(writelane.IntegrityError):
            db.execute(INSERT, ("<b>inside</b>",))
    wait_for(lambda: '"kind":"wait"' in file.read_text())
    return file, pid


def test_waits_reports_the_statement_that_lost_time_and_who_was_in_the_way(
    recorded: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    file, pid = recorded
    found = document(capsys, "waits", file)
    worst, other = found["statements"]
    assert (worst["sql"], worst["count"], worst["errors"]) == (INSERT, 2, {"SQLITE_CONSTRAINT_UNIQUE": 1})
    assert 1.0 < worst["lock"] <= worst["lost"] < 20
    assert worst["longest"] > 1.0
    assert other["sql"] == "UPDATE t SET x = x"
    assert other["lost"] < 0.5
    (blocker,) = [one for one in found["blockers"] if one["pid"] == pid]
    assert blocker["victims"] == [{"sql": INSERT, "seconds": blocker["seconds"]}]
    assert found["processes"] == [os.getpid()]
    assert found["unread"] == 0
    assert main(["waits", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "█" in shown
    assert shown.index(INSERT) < shown.index("UPDATE t")
    assert f"process {pid}" in shown


def test_the_page_of_plots_needs_no_network(
    recorded: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, pid = recorded
    page = tmp_path / "waits.html"
    with file.open("a") as lines:
        hostile = {"kind": "hold", "at": time.time(), "pid": 1, "path": "x", "sql": "</script><script>", "seconds": 1.0}
        lines.write(json.dumps(hostile) + "\n")
    assert main(["waits", str(file), "--html", str(page)]) == 0
    text = page.read_text()
    assert f"process {pid}" in text
    assert text.count("<svg") >= 3
    assert "<circle" in text
    assert "<polyline" in text
    for outside in ("http:", "https:", "src=", "@import", "url(", "<script"):
        assert outside not in text


def test_waits_reports_who_kept_the_log_from_shrinking(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, html = tmp_path / "telemetry.jsonl", tmp_path / "waits.html"
    options = writelane.Checkpoints(idle=3600, pinned_after=0)
    readers = list[Reader]()
    try:
        with writelane.open(path, telemetry=file, warn_after=None, checkpoints=options) as db:
            for ends in (True, False):
                db.checkpoint()
                readers.append(Reader(path))
                db.execute("INSERT INTO t(x) VALUES (?)", (ends,))
                db.checkpoint()
                db.checkpoint()
                if ends:
                    readers[0].end()
                    db.checkpoint()
                wait_for(lambda: file.exists() and file.read_text().count('"kind":"pinned"') == len(readers))
                wait_for(lambda: '"kind":"unpinned"' in file.read_text())
    finally:
        for reader in readers:
            reader.kill()
    pids = [reader.process.pid for reader in readers]
    first, second = document(capsys, "waits", file)["pinned"]
    assert [who["pid"] for who in first["readers"]] == pids[:1]
    assert [who["pid"] for who in second["readers"]] == pids[1:]
    assert (first["over"], second["over"]) == (True, False)
    assert first["database"] == second["database"] == str(path)
    assert first["pages"] >= 1
    assert first["since"] + first["seconds"] <= second["since"]
    assert main(["waits", str(file), "--html", str(html)]) == 0
    shown = capsys.readouterr().out
    assert "the log could not shrink" in shown
    for pid in pids:
        assert f"read by process {pid} " in shown
        assert f"process {pid} " in html.read_text()


def test_the_log_that_several_processes_saw_pinned_is_one_time(tmp_path: Path) -> None:
    def line(kind: str, pid: int, since: float, seconds: float, reader: int) -> str:
        told = {"since": since, "seconds": seconds, "over": kind == "unpinned", "pages": pid, "after": 1, "marks": [1]}
        told["readers"] = [{"pid": reader, "command": None}]
        return json.dumps({"kind": kind, "at": since + seconds, "pid": pid, "path": "a.db", "sql": "", "pinned": told})

    file = tmp_path / "telemetry.jsonl"
    lines = [line("pinned", 1, 100, 1, 7), line("pinned", 2, 100.5, 1, 8), line("unpinned", 1, 100, 9, 7)]
    file.write_text("\n".join([*lines, line("pinned", 3, 300, 1, 9)]))
    first, second = from_file(file).pinned
    assert (first.since, first.seconds, first.pages, sorted(first.readers)) == (100, 9, 2, [7, 8])
    assert (first.watchers, second.watchers) == ({2}, {3})


def test_a_torn_line_is_counted_and_the_rest_is_read(recorded: tuple[Path, int]) -> None:
    file, _ = recorded
    whole = from_file(file)
    with file.open("ab") as lines:
        lines.write(b'{"kind":"wait","at":1,"pi\n[]\n{"kind":"wait"}\n\xff\xfe\n')
    torn = from_file(file)
    assert torn.unread == 4
    assert torn.to_dict()["statements"] == whole.to_dict()["statements"]


def test_what_was_put_aside_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.jsonl"
    writer = TelemetryFile(str(file), 2_000)
    record = {"kind": "wait", "at": 1.0, "path": "app.db", "sql": INSERT, "seconds": 0.1, "phase": "lock"}
    writer.write([record] * 20)
    assert file.with_name(file.name + ".1").exists()
    assert 10 < len(from_file(file).events) <= 20


def test_waits_watches_a_database_from_outside(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with outsider(path, 3.0) as pid, subprocess.Popen([sys.executable, "-c", WAITER, path]) as waiter:
        wait_for(lambda: [one for one in look(path)["waiters"] if one["pid"] == waiter.pid])
        found = document(capsys, "waits", path, "--for", "1")
    assert found["how"] == "outside"
    (worst,) = found["statements"]
    assert worst["sql"] == INSERT
    assert worst["count"] == 1
    assert 0 < worst["lock"] < 10
    assert found["blockers"][0]["pid"] == pid


def test_waits_without_a_file_says_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["waits", "--json"]) == 2
    assert "WRITELANE_TELEMETRY" in json.loads(capsys.readouterr().out)["error"]["message"]
