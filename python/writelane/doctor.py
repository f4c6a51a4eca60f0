"""What is the matter with a database and with what surrounds it, in plain words, each with a next step."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from writelane import dbapi
from writelane._native import database_owner, judge_filesystem
from writelane.integrity import Examination, Progress, begin_reading, examine, open_read_only
from writelane.processes import SHM_BYTES, Lock, Opener, loaded, locks, openers

__all__ = ["SEVERITIES", "Diagnosis", "Finding", "diagnose"]

#: From well to bad. The exit status of the command is 0 for the first two, then 1 and 2.
SEVERITIES = ("ok", "info", "warning", "error")

#: A log of this size is more than any checkpoint policy lets grow: something keeps it.
LOG_BYTES_MAX = 64 << 20
#: With less than this free, the next checkpoint, VACUUM or backup may fail; with a tenth of it, the next write.
FREE_BYTES_MIN = 100 << 20
#: Free pages are worth a word from this share of the file and this size on.
FREELIST_SHARE, FREELIST_BYTES = 0.25, 10 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    severity: str
    summary: str
    next_step: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "topic": self.topic,
            "severity": self.severity,
            "summary": self.summary,
            "next_step": self.next_step,
            "details": self.details,
        }


@dataclass(frozen=True)
class Diagnosis:
    """All that was found."""

    path: str
    findings: list[Finding]

    @property
    def severity(self) -> str:
        """The worst severity among the findings."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    @property
    def status(self) -> int:
        """0 for well, 1 for warnings, 2 for errors."""
        return max(0, SEVERITIES.index(self.severity) - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "path": self.path,
            "severity": self.severity,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def diagnose(
    path: str | os.PathLike[str],
    *,
    full: bool = False,
    timeout: float = 5.0,
    progress: Callable[[Progress], None] | None = None,
) -> Diagnosis:
    """Look at a database, its files, its filesystem and the processes that use it, and say what is the matter.

    Changes nothing. Reads every page, with ``full`` also to compare indexes with their tables. Blocks up to
    ``timeout`` seconds on a lock. What is wrong is a finding; nothing of it is raised.
    """
    name = os.fspath(path)
    findings: list[Finding] = []
    for look in (_file, _filesystem, _permissions, _space, _ownership):
        findings += _safely(look, name)
    if os.path.isfile(name):
        seen, complete = openers(name, libraries=True)
        held = locks(name)
        findings += _processes(seen, complete)
        findings += _libraries_here()
        findings += _safely(lambda _: _journal(name, held, seen, timeout), name)
        findings += _lock_holders(held, seen)
        findings += _contents(examine(name, quick=not full, timeout=timeout, progress=progress))
    override = os.environ.get("WRITELANE_JOURNAL")
    if override:
        findings.append(
            Finding("environment", "info", f"WRITELANE_JOURNAL={override} overrides the journal mode of every process")
        )
    return Diagnosis(name, findings)


def _safely(look: Callable[[str], Iterator[Finding]], name: str) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(look(name))
    except (OSError, ValueError, dbapi.Error) as error:
        found.append(Finding(look.__name__.strip("_<>"), "warning", f"this could not be looked at: {error}"))
    return found


def _file(name: str) -> Iterator[Finding]:
    if not os.path.lexists(name):
        logs = [f"{name}{suffix}" for suffix in ("-wal", "-journal") if os.path.exists(f"{name}{suffix}")]
        if logs:
            yield Finding(
                "file",
                "error",
                f"there is no such file, but its log is there: {', '.join(logs)}",
                "the database was moved or deleted without its log, which has its newest commits: bring both together",
            )
        else:
            yield Finding("file", "error", "there is no such file", "check the path; opening it would create it")
        return
    if not os.path.exists(name):
        yield Finding("file", "error", f"it is a link to {os.readlink(name)}, which does not exist", "mend the link")
        return
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):
        yield Finding("file", "error", "it is not a regular file", "give the path of a database file")
        return
    size = {suffix or "database": _size(f"{name}{suffix}") for suffix in ("", "-wal", "-shm", "-journal")}
    told = ", ".join(f"{what} {_mb(bytes_)}" for what, bytes_ in size.items() if bytes_ is not None)
    yield Finding("file", "ok", told, details={"bytes": size, "real_path": os.path.realpath(name)})
    if status.st_nlink > 1:
        yield Finding(
            "file",
            "warning",
            f"it has {status.st_nlink} names (hard links); each name has a log of its own, which damages the database",
            "keep one name; use symbolic links for others",
        )


def _filesystem(name: str) -> Iterator[Finding]:
    found = judge_filesystem(name)
    details = {
        "verdict": found.verdict,
        "mount_point": found.mount_point and str(found.mount_point),
        "type": found.fs_type,
        "source": found.source,
    }
    where = f"{found.mount_point or found.folder} ({found.fs_type}): {found.reason}"
    if found.refused:
        step = 'move it to a local disk, or open it with journal="delete" from one host at a time'
        yield Finding("filesystem", "error", where, step, details)
    elif found.warning(name) is not None:
        yield Finding("filesystem", "warning", where, "a local disk without FUSE is the safer place", details)
    else:
        yield Finding("filesystem", "ok", where, details=details)


def _permissions(name: str) -> Iterator[Finding]:
    if not os.path.exists(name):
        return
    real = os.path.realpath(name)
    folder = os.path.dirname(real)
    problems = 0
    if not os.access(folder, os.W_OK | os.X_OK):
        problems += 1
        yield Finding(
            "permissions",
            "warning",
            f"the folder {folder} cannot be written by this user: no log or journal can be made in it",
            "give the user write permission on the folder, or open the database read-only",
        )
    owner = os.stat(real)
    for suffix in ("", "-wal", "-shm", "-journal", "-lane"):
        path = real + suffix
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        lacking = [what for what, mode in (("read", os.R_OK), ("written", os.W_OK)) if not os.access(path, mode)]
        if lacking:
            problems += 1
            yield Finding(
                "permissions",
                "error" if "read" in lacking else "warning",
                f"{path} cannot be {' or '.join(lacking)} by this user (it is uid {status.st_uid}'s, mode "
                f"{stat.S_IMODE(status.st_mode):o})",
                f"chown or chmod {path} so that all who use the database can read and write it",
            )
        if suffix and suffix != "-lane" and (status.st_uid, status.st_gid) != (owner.st_uid, owner.st_gid):
            problems += 1
            yield Finding(
                "permissions",
                "warning",
                f"{path} belongs to {status.st_uid}:{status.st_gid}, the database to {owner.st_uid}:{owner.st_gid}: "
                "somebody opened it as another user",
                f"with nobody using it: chown {owner.st_uid}:{owner.st_gid} {path}",
            )
    if not problems:
        yield Finding("permissions", "ok", "this user can read and write the files and their folder")


def _space(name: str) -> Iterator[Finding]:
    folder = os.path.dirname(os.path.realpath(name)) or "."
    if not os.path.isdir(folder):
        yield Finding("space", "error", f"there is no folder {folder}", "make the folder, or mount what belongs there")
        return
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    size = sum(_size(f"{name}{suffix}") or 0 for suffix in ("", "-wal"))
    details = {"free_bytes": free, "database_bytes": size, "free_inodes": space.f_favail}
    if free < FREE_BYTES_MIN // 10 or (space.f_files and not space.f_favail):
        yield Finding("space", "error", f"{_mb(free)} free: writes fail, or soon will", "make room", details)
    elif free < max(FREE_BYTES_MIN, size // 10):
        yield Finding("space", "warning", f"{_mb(free)} free for a database of {_mb(size)}", "make room", details)
    else:
        yield Finding("space", "ok", f"{_mb(free)} free", details=details)


def _ownership(name: str) -> Iterator[Finding]:
    owner = database_owner(name)
    if owner is not None:
        who = f"process {owner['pid']} on host {owner['host']} owns it exclusively"
        summary = who if owner["certain"] else f"{who}, or did: its lease may have run out"
        yield Finding("ownership", "info", summary, "go through that process, or close it there", owner)


def _processes(seen: list[Opener], complete: bool) -> Iterator[Finding]:
    others = [opener for opener in seen if opener.pid != os.getpid()]
    details = {"processes": [opener.to_dict() for opener in seen], "complete": complete}
    hidden = "" if complete else " (processes of other users cannot be seen from here)"
    if others:
        yield Finding("processes", "info", f"open in {', '.join(map(str, others))}{hidden}", details=details)
    else:
        yield Finding("processes", "ok", f"no other process has it open{hidden}", details=details)
    for opener in others:
        for library in opener.libraries:
            if library.has_reset_bug:
                told = library.version or f"of {library.day}"
                yield Finding(
                    "sqlite version",
                    "warning",
                    f"{opener} uses SQLite {told} ({library.path}), older than 3.51.3: a checkpoint by it can lose or "
                    "damage data (the WAL-reset bug)",
                    "update that SQLite, or let it not checkpoint: PRAGMA wal_autocheckpoint=0 in its connections",
                    {"pid": opener.pid, **library.to_dict()},
                )
        ours = any("_native" in library.path for library in opener.libraries)
        if len(opener.libraries) > 1 and not ours:
            yield Finding(
                "two sqlite libraries",
                "warning",
                f"{opener} has loaded {len(opener.libraries)} copies of SQLite: if both open this file, each drops the "
                "other's locks and commits are lost",
                "use one of them for this file: " + ", ".join(library.path for library in opener.libraries),
                {"pid": opener.pid},
            )


def _libraries_here() -> Iterator[Finding]:
    libraries = loaded()
    details = {"libraries": [library.to_dict() for library in libraries]}
    others = [library for library in libraries if "_native" not in library.path]
    if others:
        yield Finding(
            "this process",
            "info",
            f"another SQLite is loaded beside the one of writelane: {', '.join(library.path for library in others)}; "
            "their locks on one file do not disturb each other",
            details=details,
        )
    else:
        yield Finding("this process", "ok", "no other SQLite is loaded", details=details)


def _journal(name: str, held: list[Lock], seen: list[Opener], timeout: float) -> Iterator[Finding]:
    in_use = {suffix for opener in seen if opener.pid != os.getpid() for suffix in opener.files}
    journal = _size(f"{name}-journal")
    if journal and not in_use:
        yield Finding(
            "journal",
            "warning",
            f"a rollback journal of {_mb(journal)} was left by a process that died",
            "opening the database rolls its last transaction back; do not delete the journal",
        )
    connection = open_read_only(name)
    try:
        begin_reading(connection, timeout)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    finally:
        connection.close()
    log = _size(f"{name}-wal")
    details: dict[str, Any] = {"journal_mode": mode, "log_bytes": log}
    if mode != "wal":
        yield Finding(
            "journal",
            "info",
            f"journal mode {mode}: readers and writers exclude each other",
            'writelane.open(path, journal="wal") converts it, if all who use it are on this host',
            details,
        )
        return
    pins = sorted({lock.pid for lock in held if lock.kind == "read" and not lock.waiting})
    details["readers"] = pins
    if log is not None and log > LOG_BYTES_MAX:
        named = ", ".join("one of ours" if pid < 0 else f"process {pid}" for pid in pins)
        yield Finding(
            "journal",
            "warning",
            f"the log is {_mb(log)}" + (f"; readers that may pin it: {named}" if pins else "; nobody reads it now"),
            "end the long read" if pins else "writelane checkpoint --mode truncate empties it",
            details,
        )
    else:
        yield Finding("journal", "ok", f"write-ahead log, {_mb(log or 0)}", details=details)


def _lock_holders(held: list[Lock], seen: list[Opener]) -> Iterator[Finding]:
    commands = {opener.pid: str(opener) for opener in seen}
    for lock in held:
        if lock.kind in ("write", "checkpoint", "recovery") and lock.exclusive and not lock.waiting:
            who = "a process of writelane" if lock.pid < 0 else commands.get(lock.pid, f"process {lock.pid}")
            who = "a process of another container" if lock.pid == 0 else who
            yield Finding("locks", "info", f"{who} holds the {lock.kind} lock", details=lock.to_dict())
    waiting = [lock for lock in held if lock.waiting]
    if waiting:
        details = {"waiting": [lock.to_dict() for lock in waiting], "bytes": {str(k): v for k, v in SHM_BYTES.items()}}
        yield Finding("locks", "info", f"{len(waiting)} wait for a lock in the kernel", details=details)


def _contents(found: Examination) -> Iterator[Finding]:
    details = found.to_dict()
    if found.sound:
        yield Finding("integrity", "ok", found.summary, "" if found.full else "--full compares indexes too", details)
    elif found.state == "incomplete":
        yield Finding("integrity", "warning", found.summary, found.next_step, details)
    elif found.state == "busy":
        yield Finding("integrity", "warning", found.summary, "try again, or with a longer --timeout", details)
    else:
        only_rows = {problem.kind for problem in found.problems} <= {"foreign_key", "content", "unchecked"}
        yield Finding("integrity", "warning" if only_rows else "error", found.summary, found.next_step, details)
    if found.pages and found.page_size and found.freelist is not None:
        free = found.freelist * found.page_size
        told = f"{found.pages} pages of {found.page_size} bytes, {found.freelist} of them free"
        much = free > FREELIST_BYTES and found.freelist > FREELIST_SHARE * found.pages
        step = "VACUUM gives the space back, and needs as much again while it runs" if much else ""
        yield Finding("pages", "info" if much else "ok", told, step)


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"
