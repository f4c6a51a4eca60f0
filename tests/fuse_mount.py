"""A FUSE filesystem of any subtype, mounted for the length of a test."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("fuse_server.py")
MNT_DETACH = 2


def unmount(point: Path) -> None:
    """Take a mount away, whoever still uses it."""
    ctypes.CDLL(None).umount2(os.fsencode(point), MNT_DETACH)


@contextlib.contextmanager
def mounted(subtype: str, source: str, folder: Path, point: Path) -> Iterator[None]:
    """Show ``folder`` at ``point``, or skip the test where that cannot be done."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here: real FUSE mounts are not tested")
    if os.geteuid() != 0:
        pytest.skip("only root may mount: real FUSE mounts are not tested")
    server = subprocess.Popen(
        [sys.executable, str(SERVER), subtype, source, str(folder), str(point)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        answer = server.stdout.readline().strip()
        if answer != "mounted":
            pytest.skip(f"this machine does not let us mount FUSE: {answer}")
        yield
    finally:
        unmount(point)
        # Who still has a file open there would keep the server waiting; without it such a file just fails.
        server.kill()
        server.communicate()
