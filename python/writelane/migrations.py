"""The schema of a file, brought up to date by exactly one of all the processes that start at once.

The version of a file is SQLite's own ``PRAGMA user_version``: how many of the program's migrations it has had. Each
step runs in a write transaction of its own together with the new version, so that it is there wholly or not at all.
Everybody else waits for that transaction in the lane and then finds the step done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from writelane import _native
from writelane.errors import MigrationFailed, NewerSchema

__all__ = ["Migration", "migrate", "statements"]

#: One step: SQL text of one or more statements, or a callable that is given the open transaction.
Migration: TypeAlias = str | Callable[[_native.Transaction], object]

_COMMENTS = re.compile(r"--[^\n]*|/\*.*?(\*/|\Z)", re.DOTALL)


def statements(script: str) -> Iterator[str]:
    """Split SQL text into its statements, those of triggers kept whole."""
    from writelane.dbapi import complete_statement

    start = 0
    for end in (match.end() for match in re.finditer(";", script)):
        piece = script[start:end]
        if complete_statement(piece):
            start = end
            if _COMMENTS.sub("", piece).strip(" \t\r\n\f;"):
                yield piece.strip()
    rest = script[start:]
    if _COMMENTS.sub("", rest).strip():
        yield rest.strip()


def _describe(step: Migration) -> str:
    if callable(step):
        return getattr(step, "__qualname__", None) or repr(step)
    line = _COMMENTS.sub("", step).strip().split("\n")[0]
    return line if len(line) <= 60 else line[:57] + "..."


def _version(run: Callable[[str], _native.Result]) -> int:
    version: int = run("PRAGMA user_version").rows[0][0]
    return version


def _refuse_newer(database: _native.Database, version: int, known: int) -> None:
    if version > known:
        raise NewerSchema(
            f"{database.path} is at schema version {version}, and this program knows {known}: it was written by a "
            "newer version of the program; update the program, nothing was changed"
        )


def _apply(transaction: _native.Transaction, step: Migration) -> None:
    if callable(step):
        step(transaction)
        return
    for statement in statements(step):
        transaction.execute(statement)


def migrate(database: _native.Database, migrations: Sequence[Migration]) -> int:
    """Apply the migrations that the file has not had, in order, and return how many this call applied.

    Blocks for as long as other processes migrate. Raises :class:`~writelane.NewerSchema` for a file that has had more
    than these, :class:`~writelane.MigrationFailed` for a step that failed and was rolled back.
    """
    for position, step in enumerate(migrations, 1):
        if not callable(step) and not isinstance(step, str):
            raise TypeError(f"migration {position} must be SQL text or a callable, not {type(step).__name__}")
    known, applied = len(migrations), 0
    while True:
        version = _version(database.execute)
        _refuse_newer(database, version, known)
        if version == known:
            return applied
        # The wait for whoever migrates is not an error, however long it takes.
        transaction = database.begin(f"migration {version + 1} of {known}", deadline=None)
        try:
            version = _version(transaction.execute)
            _refuse_newer(database, version, known)
            if version == known:
                return applied
            step = migrations[version]
            try:
                _apply(transaction, step)
                transaction.execute(f"PRAGMA user_version = {version + 1}")
                transaction.commit()
            except Exception as error:
                transaction.rollback()
                failed = MigrationFailed(
                    f"migration {version + 1} of {known} ({_describe(step)}) failed and was rolled back; "
                    f"{database.path} stays at version {version}: {error}"
                )
                failed.step = version + 1
                for name in ("sqlite_errorcode", "sqlite_errorname"):
                    if hasattr(error, name):
                        setattr(failed, name, getattr(error, name))
                raise failed from error
            applied += 1
        finally:
            transaction.rollback()
