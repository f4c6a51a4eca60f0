"""The workloads, by name; the durability is part of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BODY", "WORKLOADS", "Workload"]

#: What a row carries.
BODY = "x" * 100
EVERYBODY = ("sqlite3", "apsw", "sqliteq", "aiosqlite", "writelane")
WITH_LIMIT = (*EVERYBODY, "limit")
PAIR = ("sqlite3", "writelane")
DB_API = ("sqlite3", "apsw", "writelane")


@dataclass(frozen=True)
class Workload:
    """One row of processes and threads, and what they do."""

    name: str
    kind: str
    """``loop``: each thread waits for each write; ``stream``: one thread does not; the others: see worker.py."""
    drivers: tuple[str, ...]
    durability: str = "normal"
    processes: int = 1
    threads: int = 1
    table: str = ""
    rows: int = 0
    about: str = ""
    series: str = ""
    """Of workloads that are compared with each other: they have their turns like drivers."""

    @property
    def by_rate(self) -> bool:
        """Whether more rows a second are better; otherwise fewer seconds (or bytes) are."""
        return self.kind not in ("open", "backlog")


def _scale(processes: int) -> Workload:
    about = f"{processes} processes, one thread each"
    return Workload(f"processes-{processes}-full", "loop", PAIR, "full", processes, about=about, series="processes")


def _threads(threads: int) -> Workload:
    about = f"{threads} threads, each waits for its write"
    return Workload(f"threads-{threads}-full", "loop", PAIR, "full", threads=threads, about=about, series="threads")


ALL = [
    Workload("threads-16-full", "loop", WITH_LIMIT, "full", threads=16, about="16 threads, each waits for its write"),
    Workload("threads-16-normal", "loop", WITH_LIMIT, threads=16, about="16 threads, each waits for its write"),
    Workload("stream-normal", "stream", WITH_LIMIT, about="one thread that does not wait for each write"),
    Workload("single-normal", "loop", WITH_LIMIT, about="one thread, one write at a time, no one else"),
    Workload("single-full", "loop", WITH_LIMIT, "full", about="one thread, one write at a time, no one else"),
    Workload("processes-8-full", "loop", WITH_LIMIT, "full", 8, about="8 processes, one thread each"),
    Workload("processes-8-normal", "loop", WITH_LIMIT, "normal", 8, about="8 processes, one thread each"),
    _scale(2),
    _scale(4),
    _scale(16),
    _scale(32),
    _scale(64),
    _threads(2),
    _threads(4),
    _threads(8),
    _threads(32),
    Workload("fetch-rows", "fetch", DB_API, table="plain", about="DB-API, 300,000 rows of three numbers and a word"),
    Workload("fetch-wide", "fetch", DB_API, table="wide", about="DB-API, 30,000 rows of 40 columns"),
    Workload("fetch-text", "fetch", DB_API, table="texts", about="DB-API, 300,000 texts of 100 characters"),
    Workload("fetch-blob", "fetch", DB_API, table="blobs", about="DB-API, 300,000 blobs of 100 bytes"),
    Workload("executemany-normal", "many", DB_API, rows=300_000, about="DB-API, 300,000 rows in one transaction"),
    Workload("open-normal", "open", ("sqlite3", "apsw", "writelane"), about="open an existing file, first write done"),
    Workload(
        "backlog-normal", "backlog", ("sqliteq", "writelane"), rows=1_000_000, about="a million jobs, the lock is stuck"
    ),
]

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in ALL}
