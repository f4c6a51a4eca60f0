"""Where a file is made before it gets its name: a folder of its own, beside it, that goes when the work is done."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["flush", "workshop"]


@contextlib.contextmanager
def workshop(beside: Path) -> Iterator[Path]:
    """Make a folder that only this user can read, on the same filesystem as ``beside``, so that a rename is enough."""
    made = Path(tempfile.mkdtemp(prefix=f".{beside.name}-", suffix=".tmp", dir=beside.parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, durable. Blocks on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
