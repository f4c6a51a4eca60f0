"""One shared SQLite file, many writers, and no write that dies of contention."""

from __future__ import annotations

from writelane._native import sqlite_version

__all__ = ["sqlite_version"]
