"""``writelane run``: a program as it is, with `writelane.dbapi` in the place of ``sqlite3``."""

from __future__ import annotations

import argparse
import atexit
import os
import runpy
import sys

from writelane.dbapi import measure
from writelane.substitution import install

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, with its arguments behind it",
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the file to run, with its arguments behind it"
    )


def _report() -> None:
    print(measure.report(), file=sys.stderr)


def run(arguments: argparse.Namespace) -> int:
    """Run the program; its exit status is its own. What waited for a lock is told on standard error at its end."""
    command: list[str] = arguments.module or arguments.program
    if not command:
        print("writelane: give a program to run, or -m and a module", file=sys.stderr)
        return 2
    install()
    # Registered before the program's own, so that it comes after them.
    atexit.register(_report)
    sys.argv[:] = command
    if arguments.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
        runpy.run_path(command[0], run_name="__main__")
    return 0
