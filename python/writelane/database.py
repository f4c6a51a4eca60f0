"""The face of one open database."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from writelane import _native, aio, best_effort, history, notices, retention, schedule, sequences, telemetry_file
from writelane.checkpoints import Checkpoints
from writelane.futures import OfferedFuture, WriteFuture
from writelane.migrations import Migration, migrate
from writelane.surroundings import announce_filesystem, announce_journal
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

    def __init__(self, database: _native.Database | None = None) -> None:
        self._database = database
        self._calls: list[tuple[str, Any]] = []
        #: The results, one for each statement, once the block has ended.
        self.results: list[_native.Result] = []

    def execute(self, sql: str, parameters: Parameters = (), /) -> None:
        """Add a statement. Nothing runs before the block ends."""
        self._calls.append((sql, parameters))

    def executemany(self, sql: str, rows: Iterable[Parameters], /) -> None:
        """Add a statement for every row of parameters."""
        self._calls.extend((sql, row) for row in rows)

    def next_id(self, name: str, key: sequences.Key = None, /) -> sequences.NextId:
        """Take the next number of a sequence when the batch runs; see :meth:`Database.next_id`.

        Returns a placeholder, to be a parameter of later statements of this batch. Its ``value`` is the number, once
        the block has ended. The first use of sequences on a file blocks and raises as a write, to make their table.
        """
        if self._database is not None:
            sequences.prepare(self._database)
        return sequences.next_in_batch(self, name, key)

    def __len__(self) -> int:
        return len(self._calls)


class Database(_native.Database):
    """One open database; made by :func:`open`. A context manager that closes it.

    All databases of one file in a process share one writer, whichever name they were opened under.
    """

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self._schedules: list[schedule.Schedule] = []

    def best_effort(self) -> AbstractContextManager[None]:
        """Make the writes of a block offers: they can be dropped, and never raise or wait for contention.

        It holds for this thread or task and this database object. ``execute``, ``executemany``, ``aexecute`` and
        ``aexecutemany`` then return an empty result (no rows, ``rowcount`` -1, ``lastrowid`` None) at once,
        ``submit`` and ``submitmany`` a future that is done with one, and a ``batch`` gets empty results. What only
        reads is run as always, with ``execute``. ``transaction``, ``next_id``, ``replace`` and ``prune`` do not change.
        """
        # Not before somebody needs it: the native methods are called with nothing in between, which is most of a read.
        Database.execute = _execute_or_offer  # type: ignore[assignment, method-assign]
        Database.executemany = _executemany_or_offer  # type: ignore[assignment, method-assign]
        return best_effort.block(self)

    def next_id(self, name: str, key: sequences.Key = None, /) -> int:
        """Return the next number, from 1, of the sequence ``name``, or of its part ``key`` (one of SQLite's types).

        Dense, never given twice, also across processes and crashes: durable as a write when this returns. To give a
        row its number in one transaction, use :meth:`Batch.next_id` or ``next_id`` of a :meth:`transaction`; a number
        taken here and then not used leaves a gap. Kept in the table ``writelane_sequences``. Blocks and raises as
        :meth:`execute`.
        """
        return sequences.next_id(self, name, key)

    def replace(
        self,
        table: str,
        /,
        *,
        key: history.Row,
        rows: Sequence[history.Row],
        expected: Sequence[history.Row] | int | None = None,
        **options: Unpack[CallOptions],
    ) -> history.Replaced:
        """Rewrite the rows of ``table`` that have ``key``, as far as the caller knew them, in one transaction.

        ``rows``: the new rows, mappings of column to value; the columns of ``key`` may be left out.
        ``expected``: what the caller had read and these rows take the place of. Rows as mappings, each of which must
        still be there unchanged; or how many, the first ones in the order of the table's primary key. ``None``:
        nothing is removed.

        Rows that others appended meanwhile survive. A new row that is there already, equal in every column given, is
        left as it is. Raises :class:`Conflict`, and writes nothing, if an expected row was changed or removed, or a
        different row has a new row's place in a unique index. Blocks and raises as :meth:`transaction`.
        """
        return history.replace(self, table, key, rows, expected, **options)

    def prune(
        self,
        table: str,
        /,
        *,
        older_than: Mapping[str, Any] | None = None,
        where: str | None = None,
        parameters: Parameters = (),
        chunk: int | None = None,
        pause: float | None = None,
        progress: Callable[[retention.Pruned], object] | None = None,
        deadline: float | None = None,
    ) -> retention.Pruned:
        """Delete the rows of ``table`` that are older, in small chunks in the gaps between required work.

        ``older_than``: columns and cutoffs; a row goes if each column is less than its cutoff. NULL is older than
        nothing, a number not older than a text. ``where``, ``parameters``: a condition in SQL, instead or beside.
        ``chunk``: the most rows deleted in one transaction; within it the number is fitted to a hold of 1 to 20 ms.
        ``pause``: seconds between chunks; by default by the last one's hold, longer while others work.
        ``progress``: called with the :class:`Pruned` so far after each chunk. ``deadline``: seconds after which it
        ends unfinished; ``None``: when all is done.

        Blocks until then. It never delays required work by more than one chunk, nor lets the log grow: where a reader
        keeps it from shrinking, it waits a minute and then ends unfinished, and says why. Foreign keys and triggers act
        as the connection has them. Each chunk is durable on its own, so that a killed run is continued by calling
        again. Raises ``OperationalError`` for a table or column that is not there, ``IntegrityError`` for a row that a
        foreign key holds; ``pruned`` of the error says what was done before.
        """
        return retention.prune(
            self,
            table,
            older_than=older_than,
            where=where,
            parameters=parameters,
            chunk=chunk,
            pause=pause,
            progress=progress,
            deadline=deadline,
        )

    def every(self, interval: schedule.Interval, name: str, job: Callable[..., object], /) -> schedule.Schedule:
        """Run ``job`` once per interval over all processes that schedule this name on the file.

        ``interval``: seconds, a text like ``"30m"`` or ``"1h30m"``, or a timedelta. ``job`` is called with the database
        if it must have an argument, on a thread of ours, at once if the interval since its last run has passed.

        It never overlaps itself. A run whose process was killed is taken over. An error is logged (logger
        ``writelane.schedule``), kept, and the job tried again after 1, 2, 4 ... seconds, at most the interval. Kept in
        the table ``writelane_jobs``; see :meth:`jobs`. Ends with the database object, the process, or ``cancel()``.

        Blocks and raises as a write; ``ValueError`` for a name this object schedules already, or a bad interval.
        """
        if any(known.name == name and not known.join(0) for known in self._schedules):
            raise ValueError(f"this database object schedules a job named {name!r} already")
        scheduled = schedule.Schedule(self, name, schedule.seconds(interval), job)
        scheduled.start()
        self._schedules = [known for known in self._schedules if known.name != name] + [scheduled]
        return scheduled

    def jobs(self) -> list[schedule.JobStatus]:
        """Return the last run, result and next run of every job scheduled on the file, by any process."""
        return schedule.jobs(self)

    def close(self) -> None:
        """End the schedules, do what is queued and let the file go; the writer stops with the file's last database.

        A scheduled job that runs is waited for, up to 5 seconds; ``prune`` in it ends at its next chunk. Closing twice
        is no error.
        """
        schedule.stop(self._schedules)
        super().close()
        for listening in self._listening:
            listening.close()
        if self._write_telemetry is not None:
            self._write_telemetry()

    def submit(
        self, sql: str, parameters: Parameters = (), /, *, durable: bool = False, **options: Unpack[CallOptions]
    ) -> WriteFuture:
        """Queue a write and return its future. Blocks only while the queue is full, up to the deadline.

        Raises :class:`~writelane.QueueFull` if it stays full, and what cannot be a job at once; everything else is
        raised by the future's ``result()``.
        """
        if best_effort.is_offering(self) and not self.reads(sql):
            self.offer(sql, parameters)
            return OfferedFuture()
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
        if best_effort.is_offering(self):
            self.offer_many(sql, rows)
            return OfferedFuture()
        return WriteFuture(self.queue_many(sql, rows, durable=durable, **options))

    async def aexecute(
        self, sql: str, parameters: Parameters = (), /, *, durable: bool = False, **options: Unpack[CallOptions]
    ) -> _native.Result:
        """Run one statement from a coroutine; as :meth:`execute`, but awaits where that blocks.

        A read is run by the writer in turn. A full queue is awaited up to the deadline. Cancelling the task cancels
        a write that has not started.
        """
        if best_effort.is_offering(self) and not self.reads(sql):
            self.offer(sql, parameters)
            return _native.Result()
        self.refuse_own_transaction(aio.task_number())
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
        if best_effort.is_offering(self):
            self.offer_many(sql, rows)
            return _native.Result()
        self.refuse_own_transaction(aio.task_number())
        ticket = self.queue_many(sql, rows, durable=durable, wait=False, **options)
        result: _native.Result = await aio.answer(ticket)
        return result

    @contextmanager
    def batch(self, *, durable: bool = False, **options: Unpack[CallOptions]) -> Iterator[Batch]:
        """Collect statements and send them as one atomic job when the block ends; an exception sends nothing.

        Blocks and raises, at the end of the block, as :meth:`execute`.
        """
        batch = Batch(self)
        yield batch
        if not batch._calls:
            return
        if best_effort.is_offering(self):
            self.offer_batch(batch._calls)
            batch.results = [_native.Result() for _ in batch._calls]
        else:
            batch.results = self.run_batch(batch._calls, durable=durable, **options)

    @contextmanager
    def transaction(
        self, *, label: str = "transaction", durable: bool = False, **options: Unpack[CallOptions]
    ) -> Iterator[_native.Transaction]:
        """Hold the lane and the write lock for a block that reads and writes; commit at its end.

        Everybody else waits meanwhile, so keep it short; ``label`` is what they are told they wait for. An exception
        rolls back. Use the yielded transaction inside the block: what would wait for the block's own end (a write
        through the database itself, ``close``) raises ``ProgrammingError`` there.
        """
        transaction = self.begin(label, task=aio.task_number(), durable=durable, **options)
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        # Committed or rolled back inside the block already: that was its end.
        if transaction.active:
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

    def on_wait(self, callback: Callable[[notices.Notice], object], over: float = 0.1) -> notices.Listening:
        """Have ``callback`` called with a :class:`~writelane.Notice` for every wait of at least ``over`` seconds.

        Waits of this process for this file, in the queue and for the lock, of databases and connections alike. It is
        called on a thread of its own, so it may block and use the database; what it raises is logged. The returned
        object's ``close()`` ends it, as does closing the database.
        """

        def tell(notice: notices.Notice) -> None:
            if notice.kind == "wait":
                callback(notice)

        if not callable(callback):
            raise TypeError(f"a callback must be callable, not {callback!r}")
        listening = notices.listen(self.file_telemetry(), over, tell)
        self._listening.append(listening)
        return listening

    def on_pinned(self, callback: Callable[[notices.Notice], object]) -> notices.Listening:
        """Have ``callback`` called with a :class:`~writelane.Notice` when a reader keeps the log from shrinking.

        Once when a checkpoint of this process finds it so (``kind`` is ``"pinned"``, after a second), and once when it
        is over (``"unpinned"``); ``pinned`` of the notice says who reads, how many pages and since when. It is called
        and ended as with :meth:`on_wait`.
        """

        def tell(notice: notices.Notice) -> None:
            if notice.pinned is not None:
                callback(notice)

        listening = notices.listen(self.file_telemetry(), float("inf"), tell)
        self._listening.append(listening)
        return listening

    @property
    def _listening(self) -> list[notices.Listening]:
        listening: list[notices.Listening] = self.__dict__.setdefault("_all_listening", [])
        return listening

    @property
    def _write_telemetry(self) -> Callable[[], None] | None:
        write: Callable[[], None] | None = self.__dict__.get("_telemetry_writer")
        return write

    def _watch(self, warn_after: float | None, telemetry: str | os.PathLike[str] | bool | None) -> None:
        counts = self.file_telemetry()
        counts.on = telemetry is not False
        if telemetry is False:
            return
        if warn_after is not None:
            listening = notices.listen(counts, warn_after, notices.warn, snapshots=True)
            self._listening.append(listening)
            # A database that is dropped and not closed must not keep the thread.
            weakref.finalize(self, listening.close).atexit = False
        file = os.environ.get(telemetry_file.VARIABLE) if telemetry in (None, True) else telemetry
        if file:
            self.__dict__["_telemetry_writer"] = telemetry_file.attach(str(file), counts)

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


def _execute_or_offer(
    self: Database,
    sql: str,
    parameters: Parameters | None = None,
    /,
    *,
    durable: bool = False,
    **options: Unpack[CallOptions],
) -> _native.Result:
    """Do the work of ``execute``, which says more, in a process that has best-effort blocks."""
    if best_effort.is_offering(self) and not self.reads(sql):
        self.offer(sql, parameters)
        return _native.Result()
    return _native.Database.execute(self, sql, parameters, durable=durable, **options)


def _executemany_or_offer(
    self: Database,
    sql: str,
    rows: Iterable[Parameters | None],
    /,
    *,
    durable: bool = False,
    **options: Unpack[CallOptions],
) -> _native.Result:
    """Do the work of ``executemany``, likewise."""
    if best_effort.is_offering(self):
        self.offer_many(sql, rows)
        return _native.Result()
    return _native.Database.executemany(self, sql, rows, durable=durable, **options)


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
    migrations: Sequence[Migration] | None = None,
    checkpoints: Checkpoints | None = None,
    warn_after: float | None = 1.0,
    telemetry: str | os.PathLike[str] | bool | None = None,
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
    ``migrations``: the steps of the schema, SQL texts or callables that get the open transaction. Those the file has
    not had (``PRAGMA user_version`` counts them) are applied, each in a transaction of its own, by one of all processes
    that start at once; the others wait, however long that takes.
    ``checkpoints``: a :class:`~writelane.Checkpoints`, when the log is copied into the database and how long it may
    grow; ``None``: what ``WRITELANE_CHECKPOINTS`` says, or its defaults.
    ``warn_after``: seconds from which a wait, a hold of the lock, or a snapshot that is still open, is logged as a
    warning, as is a log that a reader keeps from shrinking, or that cannot be copied; ``None``: never.
    ``telemetry``: a file to write telemetry to, as JSON lines; ``None``: that of ``WRITELANE_TELEMETRY``, if it is set;
    ``False``: count nothing.

    The first open of a file in a process decides its queue and its checkpoints. Blocks, up to the deadline, only where
    another process holds the file exclusively.

    Raises ``OperationalError`` for what cannot be opened, :class:`~writelane.UnsafeFilesystem` for a network
    filesystem, :class:`~writelane.OwnedElsewhere`, ``DatabaseError`` for a file that is no sound database,
    ``ValueError`` for an unknown option, :class:`~writelane.MigrationFailed` for a migration that was rolled back,
    :class:`~writelane.NewerSchema` for a file that has had more migrations than there are.
    """
    override = os.environ.get(JOURNAL_VARIABLE)
    if override:
        announce_journal(JOURNAL_VARIABLE, override)
    database = Database(
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
        checkpoints=checkpoints,
    )
    announce_filesystem(path)
    database._watch(warn_after, telemetry)
    if migrations is not None:
        try:
            migrate(database, migrations)
        except BaseException:
            database.close()
            raise
    return database
