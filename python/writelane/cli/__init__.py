"""The command line: ``writelane VERB`` and ``python -m writelane VERB``.

Each verb is a module of this package with two functions: ``configure(parser)`` adds its arguments, and
``run(arguments)`` does the work and returns an :class:`~writelane.cli.outcome.Outcome`, which is printed here, as text
or with ``--json`` as one JSON document. A verb whose output is not its own (``run``) or is live (``top``) prints by
itself and returns its exit status.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from writelane.cli.outcome import Outcome

__all__ = ["VERBS", "main"]

#: Verb, and what it does in one line. The module of that name is imported when the verb is used.
VERBS: dict[str, str] = {
    "backup": "copy a database consistently while it is being written",
    "check": "check a database: integrity, indexes against tables, foreign keys",
    "checkpoint": "copy the write-ahead log into the database now, and say how far that came",
    "doctor": "say what is the matter with a database and what surrounds it",
    "jobs": "list the jobs scheduled on a database: last run, result, next run",
    "prune": "delete old rows in small chunks, in the gaps between other work",
    "repair": "make a sound database of what can be read of a damaged one",
    "run": "run a program with writelane in the place of sqlite3, and tell its lock waits at the end",
    "stress": "replay a fleet of agents against one database, beside plain sqlite3 with --compare",
    "top": "show who holds a database's lock and who waits for it, live and from outside",
    "waits": "report the statements that lost time to waiting, and who was in the way",
}

#: Exit statuses: all is well; something was found; it could not be done or was not understood.
OK, FOUND, FAILED = 0, 1, 2
INTERRUPTED = 130


class UsageError(Exception):
    """What argparse has against the command line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    # SUPPRESS, so that `--json` before the verb is not undone by its absence after it.
    common.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print exactly one JSON document"
    )
    parser = _Parser(prog="writelane", description="One SQLite file, many writers.", parents=[common])
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    for verb, summary in VERBS.items():
        arguments = verbs.add_parser(verb, help=summary, description=summary.capitalize() + ".", parents=[common])
        # Only the verb that was asked for is imported, so that no verb pays for another.
        if verb in argv:
            importlib.import_module(f"writelane.cli.{verb}").configure(arguments)
    return parser


def _failure(verb: str | None, error: BaseException, status: int) -> Outcome:
    message = str(error) or type(error).__name__
    document: dict[str, object] = {"error": {"type": type(error).__name__, "message": message}}
    name = getattr(error, "sqlite_errorname", None)
    if name is not None:
        document["error"] = {"type": type(error).__name__, "message": message, "code": name}
    return Outcome(verb or "writelane", status, document, f"writelane: {message}", failed=True)


def _print(outcome: Outcome, as_json: bool) -> int:
    try:
        if as_json:
            document = {"command": outcome.command, "ok": outcome.ok, "status": outcome.status, **outcome.document}
            # ASCII, so that names that are no valid text (lone surrogates) still make a valid document.
            print(json.dumps(document, default=str, allow_nan=False))
        elif outcome.text:
            print(outcome.text, file=sys.stderr if outcome.failed else sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; what is still buffered must not raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: all is well. 1: something was found. 2: it could not be done, or the command line was not understood.
    With ``--json`` exactly one JSON document goes to standard output, also when the command fails; progress and
    warnings go to standard error.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    verb = next((word for word in argv if not word.startswith("-")), None)
    try:
        arguments = _parser(argv).parse_args(argv)
        as_json = getattr(arguments, "json", False)
        arguments.json = as_json
    except Exception as error:
        # A wrong command line, or a verb that cannot even be imported.
        return _print(_failure(verb if verb in VERBS else None, error, FAILED), "--json" in argv)
    try:
        outcome: Outcome | int = importlib.import_module(f"writelane.cli.{arguments.verb}").run(arguments)
    except KeyboardInterrupt as error:
        outcome = _failure(arguments.verb, error, INTERRUPTED)
    except Exception as error:
        if os.environ.get("WRITELANE_TRACEBACK"):
            raise
        outcome = _failure(arguments.verb, error, FAILED)
    return outcome if isinstance(outcome, int) else _print(outcome, as_json)
