"""A database on a filesystem that cannot be trusted is refused before anything is created, on real mounts too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fuse_mount import unmount
from writelane._native import judge_filesystem

LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096

Mount = Callable[..., tuple[Path, Path]]


def mount_by_kernel(source: Path | str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    done = LIBC.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode() or None)
    if done != 0:
        pytest.skip(f"this machine does not let us mount {kind}: {os.strerror(ctypes.get_errno())}")


UNSAFE = ["sshfs", "s3fs", "glusterfs", "neverheardof", "-"]


@pytest.mark.parametrize("subtype", UNSAFE)
def test_a_network_or_unknown_fuse_is_refused_with_mount_type_and_ways_out(fuse: Mount, subtype: str) -> None:
    point, folder = fuse(subtype)
    found = judge_filesystem(point / "sub" / "app.db")
    assert found.refused
    assert found.mount_point == point
    kind = "fuse" if subtype == "-" else f"fuse.{subtype}"
    assert found.fs_type == kind
    text = found.refusal(point / "app.db")
    for part in (str(point), kind, "local disk", 'journal="delete"', "WRITELANE_JOURNAL"):
        assert part in text
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("subtype", ["mergerfs", "bindfs", "gocryptfs"])
def test_a_fuse_known_to_be_local_is_used_with_a_warning(fuse: Mount, subtype: str) -> None:
    point, _ = fuse(subtype)
    found = judge_filesystem(point / "app.db")
    assert not found.refused
    warning = found.warning(point / "app.db")
    assert warning is not None
    assert f"fuse.{subtype}" in warning


def test_a_link_into_a_network_mount_is_refused(fuse: Mount, tmp_path: Path) -> None:
    point, _ = fuse("sshfs")
    (tmp_path / "link.db").symlink_to(point / "app.db")
    assert judge_filesystem(tmp_path / "link.db").refused
    assert not judge_filesystem(tmp_path / "app.db").refused


def test_a_local_fuse_that_stands_on_a_network_mount_is_refused(fuse: Mount) -> None:
    network, _ = fuse("sshfs")
    point, _ = fuse("bindfs", str(network))
    found = judge_filesystem(point / "app.db")
    assert found.refused
    assert str(network) in found.reason


def test_a_bind_mount_of_a_network_mount_is_refused(fuse: Mount, tmp_path: Path) -> None:
    network, folder = fuse("s3fs")
    (folder / "sub").mkdir()
    target = tmp_path / "bound"
    target.mkdir()
    mount_by_kernel(network / "sub", target, "none", MS_BIND)
    try:
        found = judge_filesystem(target / "app.db")
        assert found.refused
        assert found.mount_point == target
    finally:
        unmount(target)


def test_an_overlay_on_a_network_mount_is_refused(fuse: Mount, tmp_path: Path) -> None:
    network, _ = fuse("sshfs")
    local, target = tmp_path / "local", tmp_path / "over"
    local.mkdir()
    target.mkdir()
    mount_by_kernel("overlay", target, "overlay", 0, f"lowerdir={network}:{local}")
    try:
        assert judge_filesystem(target / "app.db").refused
    finally:
        unmount(target)


def test_a_mount_that_hides_a_network_mount_is_what_counts(fuse: Mount) -> None:
    point, _ = fuse("sshfs")
    mount_by_kernel("tmpfs", point, "tmpfs")
    try:
        assert judge_filesystem(point / "app.db").fs_type == "tmpfs"
    finally:
        unmount(point)


OPEN = textwrap.dedent(
    """
    import sys, warnings
    warnings.simplefilter("ignore")
    import writelane
    try:
        with writelane.open(sys.argv[1]) as db:
            db.execute("CREATE TABLE t(x)")
            db.execute("INSERT INTO t VALUES (1)")
            print(db.execute("PRAGMA journal_mode").rows[0][0])
    except writelane.UnsafeFilesystem as error:
        print("UnsafeFilesystem", error)
    """
)


def open_there(path: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("subtype", UNSAFE)
def test_open_refuses_there_and_creates_nothing(fuse: Mount, subtype: str) -> None:
    point, folder = fuse(subtype)
    answer = open_there(point / "app.db")
    assert answer.startswith("UnsafeFilesystem")
    assert answer.count(str(point / "app.db")) == 1
    assert str(point) in answer
    assert ("fuse" if subtype == "-" else f"fuse.{subtype}") in answer
    assert list(folder.iterdir()) == []


def test_the_rollback_journal_works_there_for_one_owner(fuse: Mount) -> None:
    point, folder = fuse("sshfs")
    assert open_there(point / "app.db", WRITELANE_JOURNAL="delete") == "delete"
    made = {path.name for path in folder.iterdir()}
    assert "app.db" in made
    assert not made & {"app.db-wal", "app.db-shm"}


def test_mergerfs_gets_a_write_ahead_log(fuse: Mount) -> None:
    point, folder = fuse("mergerfs")
    assert open_there(point / "app.db") == "wal"
    assert (folder / "app.db").exists()


OPEN_TWICE = """
import logging, sys
import writelane
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.WARNING)
for name in sys.argv[1:]:
    writelane.open(name).close()
"""


def warnings_of(*paths: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", OPEN_TWICE, *map(str, paths)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("WARNING")]


def test_a_fuse_known_to_be_local_is_warned_of_once_for_each_mount(fuse: Mount) -> None:
    point, _ = fuse("mergerfs")
    (warning,) = warnings_of(point / "app.db", point / "app.db", point / "other.db")
    assert "fuse.mergerfs" in warning
    assert str(point) in warning


def test_the_choice_of_the_environment_is_logged_once(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path / "app.db", tmp_path / "other.db", WRITELANE_JOURNAL="delete")
    assert "WRITELANE_JOURNAL=delete" in warning
    assert warnings_of(tmp_path / "third.db") == []
