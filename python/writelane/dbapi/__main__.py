"""A small shell: ``python -m writelane.dbapi [FILE [SQL]]``."""

from __future__ import annotations

import code
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from textwrap import dedent
from typing import Any

import writelane.dbapi as sqlite3

PROMPT = "sqlite> "
CONTINUATION = "    ... "


def execute(cursor: Any, sql: str) -> bool:
    """Run one statement and print its rows; say what is wrong on standard error. Return whether all went well."""
    try:
        for row in cursor.execute(sql):
            print(row)
    except sqlite3.Error as error:
        kind = type(error).__name__
        name = getattr(error, "sqlite_errorname", None)
        print(f"{kind} ({name}): {error}" if name else f"{kind}: {error}", file=sys.stderr)
        return False
    return True


class Shell(code.InteractiveConsole):
    """Reads statements that end with a semicolon, and commands that begin with a dot."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._cursor = connection.cursor()

    def runsource(self, source: str, filename: str = "<input>", symbol: str = "single") -> bool:
        """Run a command or a complete statement; True asks for more lines."""
        if not source or source.isspace():
            return False
        if source.startswith("."):
            self._command(source[1:].strip())
            return False
        if not sqlite3.complete_statement(source):
            return True
        execute(self._cursor, source)
        return False

    def _command(self, command: str) -> None:
        if command == "version":
            print(sqlite3.sqlite_version)
        elif command == "help":
            print("Enter SQL code, or one of these: .help, .quit, .version")
        elif command == "quit":
            sys.exit(0)
        else:
            print(f'Error: unknown command ".{command}"; .help lists them', file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the shell, or one statement, and exit."""
    parser = ArgumentParser(description="Python sqlite3 CLI", prog="python -m sqlite3")
    parser.add_argument("filename", nargs="?", default=":memory:", help="the database, by default one in memory")
    parser.add_argument("sql", nargs="?", help="a statement to run; without it, they are read")
    parser.add_argument(
        "-v",
        "--version",
        action="version",
        version=f"SQLite version {sqlite3.sqlite_version}",
        help="print the version of SQLite",
    )
    options = parser.parse_args(arguments)
    place = "a transient in-memory database" if options.filename == ":memory:" else repr(options.filename)
    connection = sqlite3.connect(options.filename, isolation_level=None)
    try:
        if options.sql is not None:
            sys.exit(0 if execute(connection.cursor(), options.sql) else 1)
        banner = dedent(f"""\
            sqlite3 shell, running on SQLite version {sqlite3.sqlite_version}
            Connected to {place}

            Each command will be run when it ends with a semicolon.
            Type ".help" for more, ".quit" to leave.""")
        sys.ps1, sys.ps2 = PROMPT, CONTINUATION
        Shell(connection).interact(banner, exitmsg="")
    finally:
        connection.close()
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
