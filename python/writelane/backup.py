"""A consistent copy of a database that is being written: one snapshot, a temporary name, a rename."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Protocol, cast

from writelane import dbapi
from writelane.errors import DatabaseError, OperationalError
from writelane.integrity import begin_reading, examine, open_read_only
from writelane.workshop import flush, workshop

__all__ = ["Backup", "backup"]

#: Pages copied between two reports; 4 MB at the usual page size.
STEP_PAGES = 1024
#: Bytes read at once when a copy is compressed or compared.
CHUNK = 1 << 20
#: What is left free on the disk besides the copy itself.
SPARE_BYTES = 1 << 20

SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}


class HasPath(Protocol):
    """A database that knows its file, as what :func:`writelane.open` returns."""

    @property
    def path(self) -> str | os.PathLike[str]:
        """The database file."""


@dataclass(frozen=True)
class Backup:
    """What was made."""

    path: Path
    pages: int
    page_size: int
    size: int
    """Bytes of the file that was made, compressed if it is."""
    seconds: float
    verified: bool
    """Whether the copy passed the full check before it got its name."""
    compressed: str | None = None
    removed: list[Path] = field(default_factory=list)
    """Older copies that were removed for ``keep``."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "path": str(self.path),
            "pages": self.pages,
            "page_size": self.page_size,
            "size": self.size,
            "seconds": round(self.seconds, 6),
            "verified": self.verified,
            "compressed": self.compressed,
            "removed": [str(path) for path in self.removed],
        }


def backup(
    source: str | os.PathLike[str] | HasPath,
    destination: str | os.PathLike[str],
    *,
    force: bool = False,
    verify: bool = False,
    compress: str | None = None,
    keep: int | None = None,
    timeout: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Backup:
    """Copy the database ``source`` to ``destination`` as it is at one moment, and return what was made.

    The copy is one snapshot: writers neither restart it nor show in it. With a write-ahead log they go on meanwhile,
    and the log cannot be reset until the copy is done; with a rollback journal their commits wait for it. The copy
    is written under a temporary name, flushed, and then renamed, so that ``destination`` is whole or not there.

    A ``destination`` that is a folder gets a name with the time (UTC) in it; with ``keep`` only that many of those
    names stay. ``verify`` runs the full check on the copy first; ``compress`` is ``"gzip"`` or ``"zstd"`` (Python
    3.14 and later). ``progress`` is called with the pages copied and the pages in all. Blocks up to ``timeout``
    seconds on a lock, then as long as the copying takes.

    Raises FileExistsError if ``destination`` is there and ``force`` is not set, or if a log or journal lies beside it
    (it would be applied to the copy); OperationalError for a lock or a full disk; DatabaseError if ``verify`` finds
    the copy unsound.
    """
    begun = time.monotonic()
    origin = Path(os.fspath(cast(HasPath, source).path if hasattr(source, "path") else cast(Any, source)))
    if keep is not None and keep < 1:
        raise ValueError("keep must be at least 1: the copy that is made now")
    if compress is not None and compress not in SUFFIXES:
        raise ValueError(f"compress must be one of {', '.join(SUFFIXES)}, not {compress!r}")
    into_folder = Path(destination).is_dir()
    target = _name_in(Path(destination), origin, compress) if into_folder else Path(destination)
    if keep is not None and not into_folder:
        raise ValueError("keep needs a folder as destination, where the copies get names with the time in them")
    _refuse_unsafe_target(origin, target, force, compress)

    with workshop(target) as folder:
        plain = folder / "copy.db"
        pages, page_size = _copy(origin, plain, timeout, progress)
        if verify:
            found = examine(plain, immutable=True)
            # Rows that break a foreign key were so in the source: the copy is true to it.
            if any(problem.kind != "foreign_key" for problem in found.problems) or not found.looked:
                raise DatabaseError(f"the copy of {origin} is not sound: {found.summary}; see writelane check {origin}")
        made = plain
        if compress:
            made = folder / f"copy{SUFFIXES[compress]}"
            _pack(plain, made, compress, verify)
        os.chmod(made, os.stat(origin).st_mode & 0o777)
        flush(made)
        _place(made, target, force)
    removed = _prune(target, origin, compress, keep) if keep is not None else []
    size = os.stat(target).st_size
    return Backup(target, pages, page_size, size, time.monotonic() - begun, verify, compress, removed)


def _refuse_unsafe_target(origin: Path, target: Path, force: bool, compress: str | None) -> None:
    if not origin.exists():
        raise FileNotFoundError(f"there is no database {origin}")
    if not origin.is_file():
        raise OperationalError(f"{origin} is not a regular file, so it is no database")
    if target.exists() and os.path.samefile(origin, target):
        raise FileExistsError(f"{target} is the database itself")
    if not force and os.path.lexists(target):
        raise FileExistsError(f"{target} is already there; --force (force=True) replaces it")
    if compress is None:
        for beside in ("-wal", "-journal"):
            if os.path.exists(f"{target}{beside}"):
                raise FileExistsError(
                    f"{target}{beside} lies there: it belongs to another database of that name and would be applied to "
                    "the copy; close that database or move the file away"
                )


def _copy(
    origin: Path, temporary: Path, timeout: float, progress: Callable[[int, int], None] | None
) -> tuple[int, int]:
    reader = _snapshot(origin, timeout)
    try:
        (page_size,) = reader.execute("PRAGMA page_size").fetchone()
        (pages,) = reader.execute("PRAGMA page_count").fetchone()
        free, needed = shutil.disk_usage(temporary.parent).free, pages * page_size
        if free < needed + SPARE_BYTES:
            raise OperationalError(
                f"{temporary.parent} has {free >> 20} MB free, and the copy of {origin} needs {needed >> 20} MB"
            )
        writer = dbapi.connect(temporary, isolation_level=None)
        try:
            # A copy that is cut short is thrown away whole, so it needs no journal; it is flushed at the end.
            writer.execute("PRAGMA journal_mode=OFF")
            writer.execute("PRAGMA synchronous=OFF")
            reader.backup(
                writer,
                pages=STEP_PAGES,
                progress=(lambda _, left, total: progress(total - left, total)) if progress else None,
            )
        finally:
            writer.close()
        reader.execute("ROLLBACK")
    finally:
        reader.close()
    return pages, page_size


def _snapshot(origin: Path, timeout: float) -> dbapi.Connection:
    """Open the database in a read transaction, which the backup then stays in from its first page to its last."""
    for mode in ("ro", "rw"):
        reader = open_read_only(origin, mode)
        try:
            begin_reading(reader, timeout)
        except dbapi.OperationalError as error:
            reader.close()
            # Read-only cannot roll back the journal of a dead process, which any opening does.
            if mode == "ro" and str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY"):
                continue
            raise
        except BaseException:
            reader.close()
            raise
        return reader
    raise AssertionError("the second mode either returns or raises")


def _pack(temporary: Path, packed: Path, how: str, verify: bool) -> None:
    summed = 0
    with temporary.open("rb") as plain, _writer(packed, how) as out:
        while chunk := plain.read(CHUNK):
            summed = zlib.crc32(chunk, summed)
            out.write(chunk)
    if verify:
        read = 0
        with _reader(packed, how) as back:
            while chunk := back.read(CHUNK):
                read = zlib.crc32(chunk, read)
        if read != summed:
            raise DatabaseError(f"the compressed copy {packed} does not read back as it was written")


@contextlib.contextmanager
def _writer(path: Path, how: str) -> Iterator[IO[bytes]]:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as raw:
        if how == "gzip":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6) as out:
                yield cast(IO[bytes], out)
        else:
            with _zstd().ZstdFile(raw, "wb") as out:
                yield out


@contextlib.contextmanager
def _reader(path: Path, how: str) -> Iterator[IO[bytes]]:
    if how == "gzip":
        with gzip.open(path, "rb") as back:
            yield cast(IO[bytes], back)
    else:
        with _zstd().ZstdFile(path, "rb") as back:
            yield back


def _zstd() -> Any:
    import importlib

    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        raise ValueError("zstd comes with Python 3.14 and later; use compress='gzip' here") from None


def _place(packed: Path, target: Path, force: bool) -> None:
    """Give the copy its name, durably."""
    if force:
        os.replace(packed, target)
    else:
        try:
            # Unlike a rename this fails if somebody has made the name meanwhile.
            os.link(packed, target)
        except FileExistsError:
            raise FileExistsError(f"{target} is already there; --force (force=True) replaces it") from None
        except OSError:
            if os.path.lexists(target):
                raise FileExistsError(f"{target} is already there; --force (force=True) replaces it") from None
            os.rename(packed, target)
    flush(target.parent)


def _name_in(folder: Path, origin: Path, compress: str | None) -> Path:
    now = datetime.now(timezone.utc)
    stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
    return folder / f"{origin.stem}-{stamp}{origin.suffix}{SUFFIXES.get(compress or '', '')}"


def _prune(target: Path, origin: Path, compress: str | None, keep: int) -> list[Path]:
    suffixes = "|".join(re.escape(suffix) for suffix in SUFFIXES.values())
    name = re.compile(
        rf"{re.escape(origin.stem)}-(\d{{8}}T\d{{6}}\.\d{{3}}Z){re.escape(origin.suffix)}(?:{suffixes})?\Z"
    )
    dated = sorted(
        ((match[1], path) for path in target.parent.iterdir() if (match := name.match(path.name)) and path != target),
        reverse=True,
    )
    removed = [path for _, path in dated[keep - 1 :]]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed
