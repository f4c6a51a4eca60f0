"""Which processes have a database open, and with which SQLite. Read from /proc; no file of the database is opened."""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Library", "Lock", "Opener", "locks", "openers"]

#: The files of one database.
SUFFIXES = ("", "-wal", "-shm", "-journal")
#: Programs larger than this are not searched for a SQLite of their own.
SEARCH_BYTES = 256 << 20

#: The first releases without the WAL-reset bug, by branch, and the day of the first of them.
#: Source: https://www.sqlite.org/wal.html, "The WAL-Reset Bug".
FIXED_RELEASES = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
FIXED_DAY = "2026-03-06"

#: Bytes of the -shm file that are locked. Source: https://www.sqlite.org/walformat.html, "WAL Locks".
SHM_BYTES = {120: "write", 121: "checkpoint", 122: "recovery", 128: "open", **dict.fromkeys(range(123, 128), "read")}

_SOURCE = re.compile(rb"(20\d\d-\d\d-\d\d) \d\d:\d\d:\d\d [0-9a-f]{60,64}")
_VERSION = re.compile(rb"\x00(3\.\d{1,2}\.\d{1,2})\x00")
_MAPPED = re.compile(r"(?:libsqlite3[^/]*|_sqlite3[^/]*|_native[^/]*|__init__[^/]*|.*sqlite[^/]*)\.so[^/]*$")


@dataclass(frozen=True)
class Library:
    """A copy of SQLite that a process has loaded."""

    path: str
    version: str | None
    """``3.40.1``, or None if the file does not tell."""
    day: str | None
    """The day of its source, ``2022-12-28``."""

    @property
    def has_reset_bug(self) -> bool | None:
        """Whether a checkpoint by this copy can lose or damage data; None if it cannot be told."""
        if self.version is not None:
            version = tuple(int(part) for part in self.version.split("."))
            if version >= FIXED_RELEASES[-1] or version < (3, 7, 0):
                return False
            return not any(version[:2] == fixed[:2] and version >= fixed for fixed in FIXED_RELEASES)
        return None if self.day is None else self.day < FIXED_DAY

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {"path": self.path, "version": self.version, "day": self.day, "has_reset_bug": self.has_reset_bug}


@dataclass
class Opener:
    """A process that has files of the database open."""

    pid: int
    command: str
    files: set[str] = field(default_factory=set)
    """``app.db``, ``app.db-wal`` ..."""
    libraries: list[Library] = field(default_factory=list)

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "pid": self.pid,
            "command": self.command,
            "files": sorted(self.files),
            "sqlite": [library.to_dict() for library in self.libraries],
        }


@dataclass(frozen=True)
class Lock:
    """A lock on a file of the database, as the kernel lists it."""

    file: str
    pid: int
    """-1: held by an open file and not by a process, as ours are. 0: by a process of another container."""
    kind: str
    """``write``, ``checkpoint``, ``recovery``, ``read``, ``open``, or ``database`` for those on the file itself."""
    exclusive: bool
    waiting: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "file": self.file,
            "pid": self.pid,
            "kind": self.kind,
            "exclusive": self.exclusive,
            "waiting": self.waiting,
        }


def _identities(path: str | os.PathLike[str]) -> dict[tuple[int, int], str]:
    real = os.path.realpath(os.fspath(path))
    found = {}
    for suffix in SUFFIXES:
        try:
            status = os.stat(real + suffix)
        except OSError:
            continue
        found[status.st_dev, status.st_ino] = os.path.basename(real) + suffix
    return found


def openers(path: str | os.PathLike[str], *, libraries: bool = False) -> tuple[list[Opener], bool]:
    """Return the processes that have the database or its log open, this one among them, and whether all were seen.

    Not all are seen without the rights to look at other users' processes. ``libraries``: also find the copies of
    SQLite that they have loaded, which reads those files.
    """
    identities = _identities(path)
    found: list[Opener] = []
    complete = True
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        files: set[str] = set()
        try:
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                try:
                    status = os.stat(f"/proc/{entry}/fd/{descriptor}")
                except OSError:
                    continue
                name = identities.get((status.st_dev, status.st_ino))
                if name is not None:
                    files.add(name)
        except PermissionError:
            complete = False
        except OSError:
            # It has ended meanwhile.
            continue
        if files:
            opener = Opener(int(entry), _command(entry), files)
            if libraries:
                opener.libraries = loaded(entry)
            found.append(opener)
    return sorted(found, key=lambda opener: opener.pid), complete


def _command(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\x00")
    except OSError:
        return "?"
    # A program given on the command line has line ends in it.
    return " ".join(" ".join(word.decode("utf-8", "replace").split()) for word in words if word)[:100] or "?"


def loaded(pid: int | str = "self") -> list[Library]:
    """Return the copies of SQLite that a process has loaded; of a program with its own, the program itself."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/") and len(line.split()) >= 6}
    found = []
    for path in sorted(paths):
        if _MAPPED.search(os.path.basename(path)) or path == _program(pid):
            library = _library(f"/proc/{pid}/root{path}", path)
            if library is not None:
                found.append(library)
    return found


def _program(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return None


def _library(visible: str, path: str) -> Library | None:
    try:
        with open(visible, "rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size <= SEARCH_BYTES:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                # A module that only links to a library has no source of its own in it.
                source = _SOURCE.search(content)
                if source is None:
                    return None
                day = source[1].decode()
                versions = {match[1].decode() for match in _VERSION.finditer(content)}
                # Years rule out stray numbers: SQLite 3.7 is of 2010, 3.40 of 2022.
                version = versions.pop() if len(versions) == 1 else None
    except (OSError, ValueError):
        return None
    return Library(path, version, day)


def locks(path: str | os.PathLike[str]) -> list[Lock]:
    """Return the locks that processes hold, or wait for, on the files of the database, as this kernel lists them."""
    # Some filesystems show another device here than in stat, so the inode alone decides; two of one number on two
    # devices are rare enough for a report.
    names = {inode: name for (_, inode), name in _identities(path).items()}
    found = []
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        words = line.replace("->", " -> ").split()
        waiting = "->" in words
        if waiting:
            words.remove("->")
        if len(words) < 8:
            continue
        inode = int(words[5].rsplit(":", 1)[-1])
        name = names.get(inode)
        if name is None:
            continue
        first = int(words[6])
        last = first if words[7] == "EOF" else int(words[7])
        kinds = ["database"]
        if name.endswith("-shm"):
            kinds = [SHM_BYTES[byte] for byte in range(first, min(last, 128) + 1) if byte in SHM_BYTES] or ["?"]
        found += [Lock(name, int(words[4]), kind, words[3] == "WRITE", waiting) for kind in kinds]
    return found
