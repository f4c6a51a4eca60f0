"""A damaged database, as far as it can be read, as a new one. The damaged one is never written to."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from writelane import dbapi
from writelane._native import database_owner, recover, release_idle_files
from writelane.errors import DatabaseError, OperationalError
from writelane.integrity import Examination, examine
from writelane.processes import openers
from writelane.workshop import flush, workshop

__all__ = ["Repair", "repair"]

#: Start and number of the bytes that SQLite locks in a database. Source: https://www.sqlite.org/lockingv3.html.
LOCK_BYTES = (0x4000_0000, 512)
#: Of fcntl(2); Python has had a name for it since 3.9 only where it was built against new enough headers.
F_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", 37)

#: Bytes copied at once, and, where a disk cannot read them, one by one.
CHUNK = 1 << 20
SECTOR = 4096


@dataclass
class Repair:
    """What was done, table by table."""

    path: Path
    state: str = "sound"
    """``sound``: nothing to do; ``whole``: the file is, what is wrong is in its rows; ``unchecked``: only its own
    program can check all of it, and nothing else is wrong; ``reindexed``; ``recovered``."""
    repaired: Path | None = None
    """The new file; after a swap, the database itself."""
    kept: list[Path] = field(default_factory=list)
    """The damaged file and its log, where they are now."""
    complete: bool = True
    """Whether every row came through, as far as can be told."""
    summary: str = ""
    next_step: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)
    lost_and_found: str | None = None
    lost_and_found_rows: int = 0
    not_made: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    swapped: bool = False
    before: Examination | None = None
    after: Examination | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "path": str(self.path),
            "state": self.state,
            "repaired": None if self.repaired is None else str(self.repaired),
            "kept": [str(path) for path in self.kept],
            "complete": self.complete,
            "swapped": self.swapped,
            "summary": self.summary,
            "next_step": self.next_step,
            "tables": self.tables,
            "rows": sum(table["rows"] for table in self.tables),
            "lost_and_found": self.lost_and_found,
            "lost_and_found_rows": self.lost_and_found_rows,
            "not_made": [{"kind": kind, "name": name, "error": error} for kind, name, error in self.not_made],
            "notes": self.notes,
            "before": None if self.before is None else self.before.to_dict(),
            "after": None if self.after is None else self.after.to_dict(),
            "seconds": round(self.seconds, 6),
        }


def repair(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    swap: bool = False,
    deleted: bool = False,
    progress: Callable[[str], object] | None = None,
) -> Repair:
    """Make a sound database of what can be read of the one at ``path``, and return what came through and what did not.

    Works on a copy of the file and its log. If only indexes disagree with their tables they are rebuilt; otherwise
    every readable row is recovered into a new file, and rows that cannot be told a table go into a table
    ``lost_and_found`` of it. The result is checked before it gets its name: ``output``, or one beside the database.
    ``swap`` puts it in place of the database, which is kept under another name, with its log. ``deleted`` recovers
    deleted rows too, as far as their pages are free and not used again.

    Raises OperationalError if anyone has the database open, DatabaseError if nothing can be recovered,
    FileNotFoundError and FileExistsError. Blocks for as long as it takes, and needs room for two copies.
    """
    begun = time.monotonic()
    origin = Path(os.path.realpath(path))
    if not os.path.isfile(path):
        kind = "is not a regular file" if os.path.exists(path) else "does not exist"
        raise FileNotFoundError(f"{path} {kind}: there is nothing to repair")
    refuse_if_in_use(origin)
    target = Path(output) if output is not None else _name_beside(origin, "repaired")
    if os.path.lexists(target):
        raise FileExistsError(f"{target} is already there")
    tell = progress or (lambda _: None)
    done = Repair(Path(path))
    with _kept_out(origin), workshop(target) as folder:
        copy = folder / "damaged.db"
        done.notes += _copy_with_log(origin, copy, tell)
        tell("checking")
        done.before = examine(copy)
        if done.before.sound:
            done.summary = "it is sound: there is nothing to repair"
        elif done.before.state == "incomplete":
            done.state, done.summary = "unchecked", done.before.summary
            done.next_step = done.before.next_step
        elif done.before.state == "empty":
            raise DatabaseError(f"{path} has no bytes in it, and no log: nothing can be recovered; restore a backup")
        elif {problem.kind for problem in done.before.problems} <= {"foreign_key", "content", "unchecked"}:
            done.state, done.complete = "whole", True
            done.summary = f"the file is whole: {done.before.summary}; rows are for you to correct"
            done.next_step = f"writelane check {path}"
        else:
            fresh = folder / "repaired.db"
            if not (done.before.only_indexes and _reindex(copy, fresh, done, tell)):
                # The check may have rolled something back or made a log: what is recovered is the damage as it was.
                fresh.unlink(missing_ok=True)
                _copy_with_log(origin, copy, tell)
                _recover(copy, fresh, done, deleted, tell)
            tell("checking the result")
            done.after = examine(fresh, immutable=True)
            if any(problem.kind not in ("foreign_key", "content", "unchecked") for problem in done.after.problems):
                raise DatabaseError(
                    f"what was recovered of {path} did not pass its check ({done.after.summary}); nothing was changed. "
                    "Please report this, with the file if you can"
                )
            _finish(fresh, origin, target, done, swap)
    done.seconds = time.monotonic() - begun
    return done


def refuse_if_in_use(path: Path, *, by_others: bool = False) -> None:
    """Raise OperationalError if any process (``by_others``: but this one) has the database open, or owns it."""
    found = [opener for opener in openers(path)[0] if not (by_others and opener.pid == os.getpid())]
    if any(opener.pid == os.getpid() for opener in found):
        release_idle_files()
        found = openers(path)[0]
    if found:
        raise OperationalError(
            f"{path} is in use: {', '.join(map(str, found))} must close it first, or be stopped; nothing was changed"
        )
    owner = database_owner(path)
    if owner is not None:
        raise OperationalError(
            f"{path} is owned by process {owner['pid']} on host {owner['host']}; it must close it first; nothing was "
            "changed"
        )


@contextlib.contextmanager
def _kept_out(path: Path) -> Iterator[None]:
    """Hold the lock that every reader and writer of the file needs, so that nobody begins to use it meanwhile.

    Finds those, too, who cannot be seen: processes of other users and of other containers. A lock of the open file and
    not of the process, since the file is opened and closed again for copying.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        # Without the right to write there is no such lock to be had, nor anything to be swapped.
        yield
        return
    try:
        try:
            fcntl.fcntl(descriptor, F_OFD_SETLK, struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, *LOCK_BYTES, 0))
        except BlockingIOError:
            raise OperationalError(
                f"{path} is in use by a process that cannot be seen from here, of another user or another container; "
                "nothing was changed"
            ) from None
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield
    finally:
        os.close(descriptor)


def _name_beside(origin: Path, what: str) -> Path:
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    number, name = 1, f"{origin.stem}.{what}-{stamp}{origin.suffix}"
    while os.path.lexists(origin.with_name(name)):
        number += 1
        name = f"{origin.stem}.{what}-{stamp}-{number}{origin.suffix}"
    return origin.with_name(name)


def _copy_with_log(origin: Path, copy: Path, tell: Callable[[str], object]) -> list[str]:
    notes = []
    for suffix in ("", "-wal", "-journal", "-shm"):
        source, target = Path(f"{origin}{suffix}"), Path(f"{copy}{suffix}")
        target.unlink(missing_ok=True)
        # The index of the log is made anew by whoever opens the copy.
        if suffix != "-shm" and source.exists():
            tell(f"copying {source.name}")
            unread = _copy_readable(source, target)
            if unread:
                notes.append(f"{unread} bytes of {source.name} cannot be read from the disk and count as zeros")
    return notes


def _copy_readable(source: Path, target: Path) -> int:
    """Copy a file; what the disk cannot read becomes zeros. Return how many bytes that are."""
    unread = 0
    with source.open("rb", buffering=0) as old, target.open("xb") as new:
        size = os.fstat(old.fileno()).st_size
        at = 0
        while at < size:
            length = min(CHUNK, size - at)
            chunk = _read(old.fileno(), length, at)
            if chunk is None:
                length = min(SECTOR, length)
                chunk = _read(old.fileno(), length, at)
            if chunk is None:
                chunk = bytes(length)
                unread += length
            if not chunk:
                break
            new.write(chunk)
            at += len(chunk)
    return unread


def _read(descriptor: int, length: int, at: int) -> bytes | None:
    try:
        return os.pread(descriptor, length, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def _reindex(copy: Path, fresh: Path, done: Repair, tell: Callable[[str], object]) -> bool:
    """Rebuild the indexes; say whether that was all it needed."""
    tell("rebuilding indexes")
    try:
        connection = dbapi.connect(copy, isolation_level=None)
        try:
            connection.text_factory = bytes
            # So that the log is folded in and the copy is one file.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("REINDEX")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            tables = [
                name.decode("utf-8", "replace")
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY rowid"
                )
            ]
            counted = []
            for table in tables:
                quoted = table.replace('"', '""')
                (rows,) = connection.execute(f'SELECT count(*) FROM "{quoted}" NOT INDEXED').fetchone()
                counted.append({"name": table, "rows": rows, "whole": True, "refused": 0, "lost_pages": 0})
        finally:
            connection.close()
        after = examine(copy)
    except dbapi.DatabaseError as error:
        done.notes.append(f"indexes could not be rebuilt in place: {error}")
        return False
    if any(problem.kind not in ("foreign_key", "content", "unchecked") for problem in after.problems):
        done.notes.append("rebuilding the indexes was not enough")
        return False
    os.rename(copy, fresh)
    indexes = sorted({str(problem.index) for problem in (done.before or after).problems if problem.index})
    done.state, done.tables = "reindexed", counted
    done.summary = f"every row is there; indexes rebuilt: {', '.join(indexes)}"
    return True


def _recover(copy: Path, fresh: Path, done: Repair, deleted: bool, tell: Callable[[str], object]) -> None:
    beside = [Path(f"{copy}{suffix}") for suffix in ("-wal", "-journal")]
    wal, journal = (path if path.exists() else None for path in beside)

    def report(what: str, at: int, total: int) -> None:
        tell(f"recovering {what}: {at} of {total} pages")

    found = recover(copy, wal, journal, fresh, deleted=deleted, progress=report)
    done.state = "recovered"
    done.tables = [table for table in found["tables"] if table["name"].lower() != "sqlite_sequence"]
    done.lost_and_found, done.lost_and_found_rows = found["lost_and_found"], found["lost_and_found_rows"]
    done.not_made, done.notes = found["not_made"], done.notes + found["notes"]
    rows = sum(table["rows"] for table in found["tables"]) + done.lost_and_found_rows
    damaged = [table["name"] for table in done.tables if not table["whole"]]
    done.complete = found["schema_whole"] and not damaged and not done.lost_and_found_rows and not done.not_made
    if rows == 0 and not done.complete:
        raise DatabaseError(
            f"not one row of {done.path} can be read; no empty database is made of it: restore a backup, or keep the "
            "file for somebody who can look at its bytes"
        )
    done.summary = f"{rows} rows recovered"
    if damaged:
        done.summary += f"; rows are lost in {', '.join(damaged)}"
    elif done.complete:
        done.summary += ", every table whole"
    if not found["schema_whole"]:
        done.notes.append("the schema was damaged: whole tables may be missing, or be in lost_and_found")
    if done.lost_and_found_rows:
        done.notes.append(
            f"{done.lost_and_found_rows} rows that cannot be told a table are in the table {done.lost_and_found}"
        )


def _finish(fresh: Path, origin: Path, target: Path, done: Repair, swap: bool) -> None:
    status = os.stat(origin)
    os.chmod(fresh, status.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(fresh, status.st_uid, status.st_gid)
    flush(fresh)
    if os.path.lexists(target):
        raise FileExistsError(f"{target} was made by somebody else meanwhile")
    os.rename(fresh, target)
    flush(target.parent)
    done.repaired = target
    if not swap:
        done.kept = [Path(f"{origin}{suffix}") for suffix in ("", "-wal") if os.path.exists(f"{origin}{suffix}")]
        done.next_step = f"look at {target}, then move it in place of {origin}, with nobody using it (or use --swap)"
        return
    refuse_if_in_use(origin, by_others=True)
    aside = _name_beside(origin, "damaged")
    # The name is never without a database: the old one gets a second name, then the new one takes the first. Its log
    # goes first, since nobody may ever read it with the new one.
    os.link(origin, aside)
    done.kept.append(aside)
    for suffix in ("-wal", "-journal"):
        if os.path.exists(f"{origin}{suffix}"):
            os.rename(f"{origin}{suffix}", f"{aside}{suffix}")
            done.kept.append(Path(f"{aside}{suffix}"))
    Path(f"{origin}-shm").unlink(missing_ok=True)
    flush(origin.parent)
    os.replace(target, origin)
    flush(origin.parent)
    done.repaired, done.swapped = origin, True
    done.next_step = f"the damaged file is kept as {aside}; remove it when you have seen that all is well"
