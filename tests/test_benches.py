"""The benches run, small and unmeasured, so that they cannot rot; rivals that are not installed are left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Dozens of processes show nothing here that eight do not.
SKIPPED = "not processes-16 and not processes-32 and not processes-64"


def test_every_bench_runs():
    command = [sys.executable, "-m", "pytest", "benches", "-q", "--smoke", "--benchmark-disable", "-k", SKIPPED]
    command += ["-p", "no:cacheprovider", "--no-header", "-rf"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "writelane" in ran.stdout
