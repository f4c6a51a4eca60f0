"""One shared SQLite file, many writers, and no write that dies of contention."""

from __future__ import annotations

from writelane._native import sqlite_version
from writelane.substitution import install

__all__ = ["install", "sqlite_version"]
