"""``writelane jobs``: what is scheduled on a database, and how it went."""

from __future__ import annotations

import argparse
import dataclasses
import time

from writelane.cli.outcome import Outcome
from writelane.database import open
from writelane.schedule import JobStatus

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("database", help="the database file")


def run(arguments: argparse.Namespace) -> Outcome:
    """List the jobs. The status is 1 if the last run of any of them failed."""
    with open(arguments.database, readonly=True) as db:
        found = db.jobs()
    now = time.time()
    lines = [f"{arguments.database}: {len(found)} scheduled job{'' if len(found) == 1 else 's'}"]
    lines += [line for job in found for line in describe(job, now)]
    document = {"database": arguments.database, "jobs": [dataclasses.asdict(job) for job in found]}
    return Outcome("jobs", 1 if any(job.failures for job in found) else 0, document, "\n".join(lines))


def describe(job: JobStatus, now: float) -> list[str]:
    """Describe a job to people."""
    state = f"runs in process {job.running}" if job.running is not None else f"next run {_when(job.next_run - now)}"
    lines = [f"  {job.name}: every {_duration(job.every)}, {state}, {job.runs} runs"]
    if job.last_end is not None and job.last_start is not None:
        outcome = f"failed ({job.failures} in a row): {job.last_error}" if job.failures else f"gave {job.last_result}"
        lines.append(f"    last run {_when(job.last_end - now)}: {outcome}")
    return lines


def _when(seconds: float) -> str:
    if seconds >= 0:
        return f"in {_duration(seconds)}" if seconds > 1 else "now"
    return f"{_duration(-seconds)} ago"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)}{unit}" + (f"{rest}{smaller_unit}" if rest else "")
    return f"{seconds:.0f}s"
