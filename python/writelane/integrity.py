"""Is a database sound? SQLite's full check, foreign keys, and a clear word on files that are no databases."""

from __future__ import annotations

import math
import os
import random
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from writelane import dbapi

__all__ = ["Examination", "Problem", "Progress", "examine"]

#: How many problems are kept of each kind; all are counted as far as SQLite lists them.
KEPT = 100
#: Steps of SQLite's virtual machine between two looks at the clock; some milliseconds of work.
STEPS = 100_000

#: Between two attempts to begin reading. Not one number, so that it does not keep step with a writer.
RETRY_SECONDS = (0.0005, 0.003)

HEADER = b"SQLite format 3\x00"

#: What the full check says when an index and its table disagree though both can be read.
_INDEX = re.compile(
    r"(?:row \S+ missing from index |wrong # of entries in index |non-unique entry in index |"
    r"(?:row \S+ )?values differ from index |rowid not at end-of-record for row \S+ of index )(?P<index>.+)$"
)
_TREE = re.compile(r"\bTree (?P<root>\d+)\b")
_TABLE = re.compile(
    r"(?:NULL value in|CHECK constraint failed in|TEXT value in|NUMERIC value in|non-\w+ value in) (?P<table>[^.]+)"
)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    kind: str
    """``structure``, ``index``, ``content``, ``schema``, ``foreign_key``, ``file``, or ``unchecked``: only the program
    that the database belongs to has what the check needs, a collation or a function of its own."""
    message: str
    table: str | None = None
    index: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {"kind": self.kind, "message": self.message, "table": self.table, "index": self.index}


@dataclass(frozen=True)
class Progress:
    """How far a check has come."""

    phase: str
    steps: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.phase}: {self.steps / 1e6:.1f} million steps, {self.seconds:.0f} s"


@dataclass
class Examination:
    """What a check found."""

    path: str
    state: str = "sound"
    """``sound``, ``unsound``, ``incomplete`` (what could be checked is sound), ``missing``, ``empty``, ``not a file``,
    ``encrypted``, ``not a database``, ``busy``, ``unreadable``."""
    summary: str = ""
    next_step: str = ""
    problems: list[Problem] = field(default_factory=list)
    problems_found: int = 0
    foreign_keys: list[dict[str, Any]] = field(default_factory=list)
    foreign_keys_found: int = 0
    full: bool = True
    page_size: int | None = None
    pages: int | None = None
    freelist: int | None = None
    journal_mode: str | None = None
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing at all is wrong."""
        return self.state == "sound"

    @property
    def looked(self) -> bool:
        """Whether the file could be looked at, so that the verdict is about the file and not about the way to it."""
        return self.state not in ("missing", "not a file", "busy", "unreadable", "incomplete")

    @property
    def only_indexes(self) -> bool:
        """Whether rebuilding indexes would mend all that was found."""
        return bool(self.problems) and all(problem.kind == "index" for problem in self.problems)

    def add(self, problem: Problem) -> None:
        """Count a problem, and keep it while there are few."""
        self.problems_found += 1
        if len(self.problems) < KEPT:
            self.problems.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "path": self.path,
            "state": self.state,
            "summary": self.summary,
            "next_step": self.next_step,
            "check": "full" if self.full else "quick",
            "problems": [problem.to_dict() for problem in self.problems],
            "problems_found": self.problems_found,
            "foreign_keys": {"found": self.foreign_keys_found, "violations": self.foreign_keys},
            "page_size": self.page_size,
            "pages": self.pages,
            "freelist": self.freelist,
            "journal_mode": self.journal_mode,
            "seconds": round(self.seconds, 6),
        }


def examine(
    path: str | os.PathLike[str],
    *,
    quick: bool = False,
    timeout: float = 30.0,
    progress: Callable[[Progress], None] | None = None,
    immutable: bool = False,
) -> Examination:
    """Check the database at ``path`` in one snapshot and return what was found; a bad file is a result, not an error.

    Reads every page (``quick``: without comparing indexes with tables). Blocks up to ``timeout`` seconds on a lock,
    then as long as the reading takes; the log cannot be reset meanwhile. Opens the file read-only, and for writing
    only when a journal of a dead process has to be rolled back first. ``immutable`` promises that nobody else has the
    file, so that no lock is taken and no log or index of one is made beside it.
    """
    found = Examination(os.fspath(path), full=not quick)
    begun = time.monotonic()
    try:
        if _is_database_file(found):
            _examine_database(found, "ro&immutable=1" if immutable else "ro", timeout, progress, begun)
    finally:
        found.seconds = time.monotonic() - begun
    return found


def open_read_only(path: str | os.PathLike[str], mode: str = "ro") -> dbapi.Connection:
    """Open an existing database without the means to change it (``mode="rw"``: with). Waits for no lock by itself."""
    uri = f"file:{quote(os.path.abspath(os.fsencode(path)))}?mode={mode}"
    connection: dbapi.Connection = dbapi.connect(uri, uri=True, timeout=0, isolation_level=None)
    return connection


def begin_reading(connection: dbapi.Connection, timeout: float) -> None:
    """Begin a transaction and take its snapshot, trying for up to ``timeout`` seconds while the database is locked.

    Tries again soon, unlike SQLite's own back-off: under busy writers with a rollback journal the moments in which a
    reader can begin are short, and one that polls ever more slowly misses them all.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return
        except dbapi.OperationalError as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            busy = (_code(error) or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"))
            if not busy or time.monotonic() >= until:
                raise
            time.sleep(random.uniform(*RETRY_SECONDS))


def _is_database_file(found: Examination) -> bool:
    """Look at the file from outside, and settle the cases in which SQLite would only say that it cannot."""
    try:
        status = os.stat(found.path)
    except FileNotFoundError:
        found.state = "missing"
        found.summary = "there is no such file"
        if os.path.islink(found.path):
            found.summary = f"it is a link to {os.readlink(found.path)}, which does not exist"
    except (OSError, ValueError) as error:
        found.state, found.summary = "unreadable", f"it cannot be looked at: {error}"
    else:
        if stat.S_ISREG(status.st_mode):
            if status.st_size == 0 and not _has_bytes(found.path + "-wal"):
                found.state = "empty"
                found.summary = "the file has no bytes in it: a database that was never written, or one that was lost"
                found.next_step = "if it should have had data, restore a backup"
                found.add(Problem("file", "the file is empty"))
                return False
            return True
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
        found.state, found.summary = "not a file", f"it is {kind}"
    found.add(Problem("file", found.summary))
    return False


def _has_bytes(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _examine_database(
    found: Examination, mode: str, timeout: float, progress: Callable[[Progress], None] | None, begun: float
) -> None:
    try:
        try:
            _read(found, mode, timeout, progress, begun)
        except dbapi.Error as error:
            # A journal of a dead process: whoever opens the database next rolls it back, so it may as well be us.
            if _code(error) not in ("SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY", "SQLITE_READONLY_CANTINIT"):
                raise
            found.problems.clear()
            found.problems_found = 0
            _read(found, "rw", timeout, progress, begun)
    except dbapi.Error as error:
        _explain(found, error)
    else:
        _conclude(found)


def _read(
    found: Examination, mode: str, timeout: float, progress: Callable[[Progress], None] | None, begun: float
) -> None:
    connection = open_read_only(found.path, mode)
    try:
        phase, steps = "opening", 0

        def report() -> int:
            nonlocal steps
            steps += STEPS
            if progress is not None:
                progress(Progress(phase, steps, time.monotonic() - begun))
            return 0

        if progress is not None:
            connection.set_progress_handler(report, STEPS)
        # What is stored need not be UTF-8, least of all in a damaged file.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        begin_reading(connection, timeout)
        found.journal_mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        found.page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        found.pages = connection.execute("PRAGMA page_count").fetchone()[0]
        found.freelist = connection.execute("PRAGMA freelist_count").fetchone()[0]
        phase = "integrity"
        _integrity(found, connection)
        phase = "foreign keys"
        _foreign_keys(found, connection)
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _integrity(found: Examination, connection: dbapi.Connection) -> None:
    # One of the rows may be an error of its own, so rows are taken one by one and what came before it is kept.
    roots: dict[int, tuple[str, str, str]] = {}
    try:
        for kind, name, table, root in connection.execute(
            "SELECT type, name, tbl_name, rootpage FROM sqlite_master WHERE rootpage > 0"
        ):
            roots[root] = (kind, name, table)
    except dbapi.DatabaseError as error:
        if _code(error) == "SQLITE_NOTADB" or not _is_damage(error):
            raise
        found.add(Problem("schema", str(error)))
    pragma = "integrity_check" if found.full else "quick_check"
    try:
        _run_check(found, connection, f"PRAGMA {pragma}(1000)", roots)
    except dbapi.DatabaseError as error:
        if not _needs_its_program(error):
            raise
        # One such table or index stops the whole check: the others are checked one by one.
        for kind, name, _ in list(roots.values()):
            if kind != "table":
                continue
            quoted = name.replace("'", "''")
            try:
                _run_check(found, connection, f"PRAGMA {pragma}('{quoted}')", roots)
            except dbapi.DatabaseError as one:
                if not _needs_its_program(one):
                    raise
                found.add(Problem("unchecked", f"table {name} cannot be checked here: {one}", name))


def _run_check(
    found: Examination, connection: dbapi.Connection, sql: str, roots: dict[int, tuple[str, str, str]]
) -> None:
    try:
        for (message,) in connection.execute(sql):
            if message == "ok":
                continue
            # A row can be several lines, one to a problem.
            for line in str(message).splitlines():
                if line.strip() and not line.startswith("*** in database"):
                    found.add(_problem(line.strip(), roots))
    except dbapi.DatabaseError as error:
        if _needs_its_program(error) or not _is_damage(error):
            raise
        found.add(Problem("structure", str(error)))


def _problem(line: str, roots: dict[int, tuple[str, str, str]]) -> Problem:
    if match := _INDEX.search(line):
        index = match["index"]
        table = next((of for _, name, of in roots.values() if name == index), None)
        return Problem("index", line, table, index)
    if match := _TREE.search(line):
        kind, name, table = roots.get(int(match["root"]), ("", "", ""))
        if kind == "index":
            # The entries of a table WITHOUT ROWID are its rows: no index to rebuild from them.
            return Problem("index", line, table, name)
        return Problem("structure", line, table or None)
    if match := _TABLE.search(line):
        return Problem("content", line, match["table"])
    return Problem("structure", line)


def _foreign_keys(found: Examination, connection: dbapi.Connection) -> None:
    try:
        for table, row, parent, number in connection.execute("PRAGMA foreign_key_check"):
            found.foreign_keys_found += 1
            if len(found.foreign_keys) < KEPT:
                found.foreign_keys.append({"table": table, "rowid": row, "parent": parent, "key": number})
    except dbapi.DatabaseError as error:
        if _needs_its_program(error):
            found.add(Problem("unchecked", f"foreign keys cannot be checked here: {error}"))
        elif _code(error) in ("SQLITE_ERROR", None) and not found.problems:
            found.add(Problem("foreign_key", f"foreign keys cannot be checked: {error}"))
        elif not _is_damage(error) and not found.problems:
            raise
    if found.foreign_keys_found:
        tables = sorted({str(violation["table"]) for violation in found.foreign_keys})
        found.add(
            Problem(
                "foreign_key",
                f"{found.foreign_keys_found} rows of {', '.join(tables)} point to rows that are not there",
            )
        )


def _conclude(found: Examination) -> None:
    if not found.problems:
        found.state = "sound"
        found.summary = f"ok: {found.pages} pages of {found.page_size} bytes"
        found.summary += ", every page and index read" if found.full else ", indexes not compared with tables"
        return
    kinds = {problem.kind for problem in found.problems}
    if kinds == {"unchecked"}:
        found.state = "incomplete"
        found.summary = "what could be checked is sound, but some of it only the database's own program can check"
        found.next_step = "run PRAGMA integrity_check from that program, which has the functions and collations named"
        return
    found.state = "unsound"
    kinds.discard("unchecked")
    if kinds == {"foreign_key"}:
        found.summary = "the file is whole, but foreign keys are violated"
        found.next_step = "add the missing rows or delete those that point to them"
    elif kinds <= {"index", "foreign_key"}:
        found.summary = "the tables are whole, but indexes do not agree with them"
        found.next_step = f"writelane repair {found.path}"
    elif kinds <= {"content", "foreign_key"}:
        found.summary = "the file is whole, but rows break the constraints of their tables"
        found.next_step = "correct the rows named"
    else:
        found.summary = f"damaged: {found.problems_found} problems found"
        found.next_step = f"stop all who use it, then writelane repair {found.path}"


def _explain(found: Examination, error: dbapi.Error) -> None:
    """Say in plain words why SQLite would not read the file."""
    code, message = _code(error), str(error)
    if code == "SQLITE_NOTADB" or (code is None and "not a database" in message):
        found.state, found.summary = _foreign_file(found.path)
        if found.state == "unsound":
            found.add(Problem("structure", found.summary))
            found.next_step = f"stop all who use it, then writelane repair {found.path}"
            return
        found.next_step = (
            "open it with the program that wrote it"
            if found.state != "encrypted"
            else ("open it with the key and the program that encrypted it, or restore a backup")
        )
        found.add(Problem("file", found.summary))
    elif (code or "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        found.state, found.summary = "busy", f"somebody holds a lock on it: {message}"
        found.next_step = f"writelane doctor {found.path} names who"
    elif _is_damage(error):
        found.add(Problem("structure", message))
        _conclude(found)
    else:
        found.state, found.summary = "unreadable", f"it cannot be read: {message}" + (f" ({code})" if code else "")
        found.next_step = f"writelane doctor {found.path} looks at permissions and folders"
        found.add(Problem("file", found.summary))


#: The first bytes of files that are found under a database's name.
_MAGIC = (
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "an image"),
    (b"DUCK", "a DuckDB database", 8),
    (b"\x37\x7f\x06\x82", "a write-ahead log"),
    (b"\x37\x7f\x06\x83", "a write-ahead log"),
    (b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", "a rollback journal"),
)


def _foreign_file(path: str) -> tuple[str, str]:
    try:
        with Path(path).open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        return "unreadable", f"it cannot be read: {error}"
    if start.startswith(HEADER):
        if os.stat(path).st_size <= 512:
            return "not a database", "it has SQLite's header, but nothing after it"
        return "unsound", "the header of the file is damaged"
    if _has_tree_pages(path):
        return "unsound", "the first page of the file is damaged"
    for magic, name, *at in _MAGIC:
        offset = at[0] if at else 0
        if start[offset : offset + len(magic)] == magic:
            return "not a database", f"it is {name}, not a SQLite database"
    if not any(start):
        return "not a database", "its first page is all zeros: lost in a crash of the disk, or never written"
    if all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in start) and _is_text(start):
        return "not a database", "it is text, not a SQLite database"
    if os.stat(path).st_size % 512 == 0 and _bits_per_byte(start) > 7.0:
        return "encrypted", "it does not begin as a SQLite database does; its bytes look encrypted"
    return "not a database", "it does not begin as a SQLite database does: another format, or the first page is damaged"


def _has_tree_pages(path: str) -> bool:
    """Say whether several blocks after the first begin as pages of SQLite's trees do, their cell counts plausible."""
    alike = 0
    with Path(path).open("rb") as file:
        file.seek(4096)
        while alike < 3 and (block := file.read(4096)) and file.tell() < 1 << 26:
            flag, cells, content = block[0], int.from_bytes(block[3:5], "big"), int.from_bytes(block[5:7], "big")
            head = 8 if flag in (10, 13) else 12
            alike += flag in (2, 5, 10, 13) and len(block) == 4096 and head + 2 * cells <= content <= 4096
    return alike >= 3 or (alike > 0 and os.stat(path).st_size < 4 * 4096)


def _is_text(start: bytes) -> bool:
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        # The last character may have been cut.
        return error.start > len(start) - 4
    return True


def _bits_per_byte(sample: bytes) -> float:
    counts = [sample.count(byte) for byte in set(sample)]
    return -sum(count / len(sample) * math.log2(count / len(sample)) for count in counts)


def _code(error: BaseException) -> str | None:
    # Python 3.10's own module has no such attribute; ours has it everywhere.
    return getattr(error, "sqlite_errorname", None)


def _needs_its_program(error: BaseException) -> bool:
    """Say whether a check failed for want of a function, collation or module that only the database's program has."""
    return str(error).startswith(
        ("no such collation sequence", "unknown function", "no such function", "no such module", "no such tokenizer")
    )


def _is_damage(error: BaseException) -> bool:
    """Say whether an error is about what is in the file, not about the way to it."""
    code = _code(error)
    if code is None:
        return "malformed" in str(error)
    return code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")) or (
        code in ("SQLITE_ERROR", "SQLITE_TOOBIG", "SQLITE_FORMAT", "SQLITE_IOERR_CORRUPTFS")
    )
