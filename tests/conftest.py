"""What several tests share."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuse_mount import mounted


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Callable[..., tuple[Path, Path]]]:
    """Mount a FUSE filesystem of a subtype; return the mount point and the folder behind it."""
    with contextlib.ExitStack() as stack:

        def mount(subtype: str, source: str = "somewhere") -> tuple[Path, Path]:
            number = len(list(tmp_path.glob("mount*")))
            folder, point = tmp_path / f"behind{number}", tmp_path / f"mount{number}"
            folder.mkdir()
            point.mkdir()
            stack.enter_context(mounted(subtype, source, folder, point))
            return point, folder

        yield mount


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Make a shared library of this name of C; without a compiler the test is skipped."""

    def build(name: str, code: str) -> Path:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip(f"no C compiler here to make {name} with")
        folder = tmp_path_factory.mktemp(name)
        source, made = folder / f"{name}.c", folder / f"{name}.so"
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
        return made

    return build


def pytest_configure() -> None:
    # A suite that is started in the background of a shell ignores SIGINT, and every process it starts would too.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
