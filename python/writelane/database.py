"""The face of one open database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from writelane import _native, aio
from writelane.futures import WriteFuture
from writelane.telemetry import Telemetry

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from writelane.backup import Backup

__all__ = ["Batch", "Database", "Parameters", "open"]

#: The parameters of one statement: a sequence for ``?``, a mapping for ``:name``.
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]


class CallOptions(TypedDict, total=False):
    """What every call may say beside its statement."""

    #: Seconds it may wait; ``None`` without end; zero or less: it runs only if nothing is in its way.
    deadline: float | None


class Batch:
    """Statements that are sent as one atomic job when their block ends."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, Any]] = []
        #: The results, one for each statement, once the block has ended.
        self.results: list[_native.Result] = []

    def execute(self, sql: str, parameters: Parameters = (), /) -> None:
        """Add a statement. Nothing runs before the block ends."""
        self._calls.append((sql, parameters))

    def executemany(self, sql: str, rows: Iterable[Parameters], /) -> None:
        """Add a statement for every row of parameters."""
        self._calls.extend((sql, row) for row in rows)

    def __len__(self) -> int:
        return len(self._calls)


class Database(_native.Database):
    """One open database; made by :func:`open`. A context manager that closes it.

    All databases of one file in a process share one writer, whichever name they were opened under.
    """

    def submit(
        self, sql: str, parameters: Parameters = (), /, *, durable: bool = False, **options: Unpack[CallOptions]
    ) -> WriteFuture:
        """Queue a write and return its future. Blocks only while the queue is full, up to the deadline.

        Raises :class:`~writelane.QueueFull` if it stays full, and what cannot be a job at once; everything else is
        raised by the future's ``result()``.
        """
        return WriteFuture(self.queue_one(sql, parameters, durable=durable, **options))

    def submitmany(
        self,
        sql: str,
        rows: Iterable[Parameters],
        /,
        *,
        durable: bool = False,
        **options: Unpack[CallOptions],
    ) -> WriteFuture:
        """Queue one statement for every row of parameters as one atomic job, and return its future."""
        return WriteFuture(self.queue_many(sql, rows, durable=durable, **options))

    async def aexecute(
        self, sql: str, parameters: Parameters = (), /, *, durable: bool = False, **options: Unpack[CallOptions]
    ) -> _native.Result:
        """Run one statement from a coroutine; as :meth:`execute`, but awaits where that blocks.

        A read is run by the writer in turn. A full queue is awaited up to the deadline. Cancelling the task cancels
        a write that has not started.
        """
        ticket = self.queue_one(sql, parameters, durable=durable, wait=False, **options)
        result: _native.Result = await aio.answer(ticket)
        return result

    async def aexecutemany(
        self,
        sql: str,
        rows: Iterable[Parameters],
        /,
        *,
        durable: bool = False,
        **options: Unpack[CallOptions],
    ) -> _native.Result:
        """Run one statement for every row of parameters, as one atomic job, from a coroutine."""
        ticket = self.queue_many(sql, rows, durable=durable, wait=False, **options)
        result: _native.Result = await aio.answer(ticket)
        return result

    @contextmanager
    def batch(self, *, durable: bool = False, **options: Unpack[CallOptions]) -> Iterator[Batch]:
        """Collect statements and send them as one atomic job when the block ends; an exception sends nothing.

        Blocks and raises, at the end of the block, as :meth:`execute`.
        """
        batch = Batch()
        yield batch
        if batch._calls:
            batch.results = self.run_batch(batch._calls, durable=durable, **options)

    @contextmanager
    def transaction(
        self, *, label: str = "transaction", durable: bool = False, **options: Unpack[CallOptions]
    ) -> Iterator[_native.Transaction]:
        """Hold the lane and the write lock for a block that reads and writes; commit at its end.

        Everybody else waits meanwhile, so keep it short; ``label`` is what they are told they wait for. An exception
        rolls back. Use the yielded transaction inside the block: a write through the database itself would wait for
        the block's own end.
        """
        transaction = self.begin(label, durable=durable, **options)
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    def checkpoint(self, mode: str = "passive", **options: Unpack[CallOptions]) -> tuple[int, int, int]:
        """Copy the log into the database and return (busy, pages in the log, pages copied).

        ``mode``: ``"passive"`` waits for nobody; ``"full"`` waits for readers of old snapshots, up to the deadline;
        ``"truncate"`` likewise, and cuts the log file to nothing.
        """
        return self.run_checkpoint(mode, **options)

    def backup(
        self,
        destination: str | os.PathLike[str],
        *,
        force: bool = False,
        verify: bool = False,
        compress: str | None = None,
        keep: int | None = None,
        timeout: float = 30.0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Copy the database, as it is at one moment, to a file or into a folder; see :func:`writelane.backup.backup`.

        Has all writes that have returned. Writers go on meanwhile.
        """
        from writelane.backup import backup

        return backup(
            self.path,
            destination,
            force=force,
            verify=verify,
            compress=compress,
            keep=keep,
            timeout=timeout,
            progress=progress,
        )

    def telemetry(self) -> Telemetry:
        """Return a snapshot of what was measured until now."""
        return Telemetry(self.snapshot())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<writelane.Database {os.fspath(self.path)!r}{' closed' if self.closed else ''}>"


#: The environment variable that chooses the journal for a whole process.
JOURNAL_VARIABLE = "WRITELANE_JOURNAL"


def open(
    path: str | os.PathLike[str],
    *,
    durability: str = "normal",
    deadline: float | None = 30.0,
    queue_size: int = 1024,
    queue_bytes: int = 64 << 20,
    journal: str = "auto",
    access: str = "shared",
    readonly: bool = False,
    readers: int = 8,
) -> Database:
    """Open a database, creating the file where it is missing.

    ``durability``: how far a commit has come when its caller is answered. ``"normal"`` survives a crash of the process
    (SQLite's ``synchronous=NORMAL``), ``"full"`` and ``"extra"`` of the machine, ``"off"`` of neither.
    ``deadline``: seconds a call waits unless it says otherwise; ``None`` without end.
    ``queue_size``, ``queue_bytes``: the most jobs and bytes that wait in this process, for each of required and
    offered work.
    ``journal``: ``"auto"`` gives a new file on a local disk a write-ahead log and leaves an existing file as it is;
    ``"wal"`` and ``"delete"`` convert it, in turn; ``"keep"`` converts nothing.
    ``access``: ``"exclusive"`` makes this process the file's one owner.
    ``readonly``: open to read only; the file must exist.
    ``readers``: the most connections that read at once.

    The first open of a file in a process decides its queue. Blocks, up to the deadline, only where another process
    holds the file exclusively.

    Raises ``OperationalError`` for what cannot be opened, :class:`~writelane.UnsafeFilesystem` for a network
    filesystem, :class:`~writelane.OwnedElsewhere`, ``DatabaseError`` for a file that is no sound database,
    ``ValueError`` for an unknown option.
    """
    override = os.environ.get(JOURNAL_VARIABLE)
    return Database(
        path,
        durability=durability,
        deadline=deadline,
        queue_size=queue_size,
        queue_bytes=queue_bytes,
        journal=override or journal,
        access=access,
        readonly=readonly,
        readers=readers,
        trust_filesystem=override not in (None, "", "auto", "delete"),
    )
