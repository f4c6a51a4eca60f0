"""A process with the standard library's ``sqlite3`` that holds the write lock: ``outsider.py DB SECONDS``.

Prints ``locked`` when it has the lock, and ends when it has given it up.
"""

from __future__ import annotations

import sqlite3
import sys
import time

connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO t(x) VALUES ('outside')")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("COMMIT")
