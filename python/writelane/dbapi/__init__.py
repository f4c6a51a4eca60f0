"""PEP 249 over writelane's own SQLite: stands in for the standard library's ``sqlite3``.

Every write transaction waits its turn with every other writer of the file, at most the connection's `timeout`.
The exceptions are the standard module's own classes.
"""

from __future__ import annotations

from writelane.dbapi import dbapi2
from writelane.dbapi.dbapi2 import *  # noqa: F403

__all__ = list(dbapi2.__all__)


def __getattr__(name: str) -> object:
    return dbapi2._deprecated(__name__, name)
