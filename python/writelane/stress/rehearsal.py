"""One or several runs of a plan, each on a file of its own that begins as the others do."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from writelane.backup import backup
from writelane.errors import OperationalError
from writelane.stress.fleet import Fleet
from writelane.stress.measures import Run
from writelane.stress.plan import Plan
from writelane.stress.records import read_log
from writelane.stress.tables import fill, free_prefix, wipe
from writelane.stress.verification import verify

__all__ = ["Rehearsal", "rehearse"]

#: What waits for the end of this process, however it comes, and removes the folder.
JANITOR = """
import os, shutil, sys, time
os.read(0, 1)
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


@dataclass
class Rehearsal:
    """What came of it."""

    plan: Plan
    size: int
    """Bytes of the database when the clock started."""
    runs: list[Run]
    kept: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "plan": self.plan.to_dict(),
            "size": self.size,
            "runs": [run.to_dict() for run in self.runs],
            "kept": str(self.kept) if self.kept else None,
        }


def rehearse(
    plan: Plan,
    drivers: Sequence[str],
    *,
    real: Path | None = None,
    keep: Path | None = None,
    progress: Callable[[str, float, float], None] = lambda what, done, total: None,
) -> Rehearsal:
    """Run the plan with one driver after the other, each on a fresh file, and return the measures.

    ``real`` is a database whose copy is used; it is only read. ``keep`` is a folder where the files are made and stay;
    without it they are made in the temporary folder and are gone afterwards, also if this process is killed.
    ``progress`` is called with what is done, how much of it and out of how much.

    Raises OSError for a folder that cannot be written, OperationalError for a full disk, and
    :class:`~writelane.stress.FleetError` when a process dies or stands still.
    """
    with _folder(keep) as folder:
        template = folder / "template.db"
        if real is not None:
            progress("copying", 0, 1)
            backup(real, template, progress=lambda done, total: progress("copying", done, total))
            plan = plan.with_prefix(free_prefix(template, plan.prefix))
        fill(template, plan, lambda done: progress("filling (MB)", min(done, plan.size_mb), plan.size_mb))
        size = template.stat().st_size
        runs = []
        for position, driver in enumerate(drivers):
            database = folder / f"{driver}.db"
            if position == len(drivers) - 1:
                template.rename(database)
            else:
                shutil.copyfile(template, database)
            run_folder = folder / driver
            run_folder.mkdir()
            runs.append(_run(plan, driver, database, run_folder, progress))
            if keep is None:
                wipe(database)
        return Rehearsal(plan, size, runs, keep)


def _run(plan: Plan, driver: str, database: Path, folder: Path, progress: Callable[[str, float, float], None]) -> Run:
    with Fleet(plan, driver, database, folder) as fleet:
        fleet.run(lambda turns: progress(f"{driver}: turns", turns, plan.all_turns))
    progress(f"{driver}: checking", 0, 1)
    by_agent = [list(read_log(agent.log)) for agent in fleet.agents]
    others = [*fleet.foreigners, *([fleet.holder] if fleet.holder else [])]
    of_foreigners = [record for child in others for record in read_log(child.log)]
    everything = [record for records in by_agent for record in records] + of_foreigners
    return Run.of(
        driver,
        fleet.begun,
        by_agent,
        of_foreigners,
        [agent.report or {} for agent in fleet.agents],
        (fleet.log_peak, fleet.log_end),
        verify(database, plan, everything),
    )


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise FileExistsError(errno.EEXIST, "the folder to keep the files in is not empty", str(keep))
        if not os.access(keep, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "cannot write in the folder", str(keep))
        yield keep
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="writelane-stress-"))
    except OSError as error:
        raise OperationalError(
            f"cannot make files in the temporary folder ({error}); choose another with --keep or TMPDIR"
        ) from error
    # Its pipe closes with this process, also when that is killed.
    janitor = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JANITOR, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        assert janitor.stdin is not None, "asked for as a pipe"
        janitor.stdin.close()
        janitor.wait()
