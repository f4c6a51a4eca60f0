"""Let `writelane.dbapi` stand in for the standard library's ``sqlite3``."""

from __future__ import annotations

import sys


def install() -> None:
    """Make every later ``import sqlite3`` of this process give `writelane.dbapi`.

    Call it before the program's own imports: a module that has imported ``sqlite3`` already keeps what it has.
    Calling it again does nothing.
    """
    import writelane.dbapi as module
    from writelane.dbapi import dbapi2

    sys.modules["sqlite3"] = module
    sys.modules["sqlite3.dbapi2"] = dbapi2
    # What the standard package has imported of itself would bring the other library back.
    for name in [name for name in sys.modules if name.startswith("sqlite3.") and name != "sqlite3.dbapi2"]:
        del sys.modules[name]
