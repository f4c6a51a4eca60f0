"""PEP 249 over writelane's own SQLite: stands in for the standard library's ``sqlite3``.

Every write transaction waits its turn with every other writer of the file, at most the connection's `timeout`.
The exceptions are the standard module's own classes.
"""

from __future__ import annotations

import os

from writelane import _native
from writelane.dbapi import dbapi2
from writelane.dbapi.dbapi2 import *  # noqa: F403
from writelane.telemetry import Telemetry

__all__ = list(dbapi2.__all__)


def telemetry(target: Connection | str | os.PathLike[str]) -> Telemetry:  # noqa: F405
    """Return a snapshot of what this process has measured of a file: of its connections, and of its databases too.

    ``target``: a connection, or the path of a database. The counts outlive the connections. Raises ``ValueError`` for a
    database in memory.
    """
    return Telemetry(_native.FileTelemetry(target).snapshot())


def __getattr__(name: str) -> object:
    return dbapi2._deprecated(__name__, name)
