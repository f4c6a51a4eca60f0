import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, final

from typing_extensions import Self, disjoint_base

from writelane import errors
from writelane.checkpoints import Checkpoints

_StrPath = str | PathLike[str]

sqlite_version: str

@final
class Filesystem:
    """What was found about the filesystem under a path."""

    @property
    def verdict(self) -> str:
        """``"local"``, ``"local with a warning"``, ``"network"`` or ``"unknown"``."""
    @property
    def refused(self) -> bool:
        """Whether a write-ahead log must not be used here."""
    @property
    def folder(self) -> Path:
        """The folder that was judged, without symbolic links."""
    @property
    def mount_point(self) -> Path | None:
        """The mount that the folder is on; None where the mount table could not be read."""
    @property
    def fs_type(self) -> str:
        """The filesystem type, with a FUSE subtype after a dot."""
    @property
    def source(self) -> str:
        """What is mounted there, as the mount table has it."""
    @property
    def reason(self) -> str:
        """Why the verdict is what it is, as the end of a sentence."""
    def refusal(self, database: _StrPath) -> str:
        """Return the text of the refusal to open a database here: mount, type, why, and the three ways out."""
    def warning(self, database: _StrPath) -> str | None:
        """Return the text of the warning to give once, or None."""

def judge_filesystem(path: _StrPath) -> Filesystem:
    """Judge the filesystem that the database at a path is on or would be created on.

    The path need not exist; symbolic links are followed. Creates and opens nothing. Raises OSError when the folder
    cannot be looked at.
    """

def database_owner(path: _StrPath) -> dict[str, Any] | None:
    """Say who owns a database exclusively: ``pid``, ``host``, ``since`` (seconds of the owner's clock), ``number``,
    ``lease`` (seconds) and ``certain``: whether this host's kernel vouches for the owner being alive.

    None if nobody does. Waits for nothing. Raises OSError when the owner files cannot be read.
    """

# writelane.dbapi

constants: dict[str, int]
adapters: dict[tuple[type, Any], Callable[[Any], Any]]
converters: dict[str, Callable[[bytes], Any]]

class PrepareProtocol:
    """The protocol that a value is asked to conform to when it is bound to a parameter."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...

def adapt(obj: Any, proto: Any = ..., alt: Any = ..., /) -> Any:
    """Adapt a value to a protocol, by default for SQLite.

    Raises `ProgrammingError` where nothing adapts it and no alternative is given.
    """

def register_adapter(type: type, adapter: Callable[[Any], Any], /) -> None:
    """Register a function that adapts values of exactly the type `type` for SQLite."""

def register_converter(typename: str, converter: Callable[[bytes], Any], /) -> None:
    """Register a function that turns the bytes of columns with the declared type `typename` into a value."""

@disjoint_base
class Connection:
    """A connection to a database.

    It stands in for `sqlite3.Connection`; its write transactions wait their turn with every other writer.
    """

    DataError: type[errors.DataError]
    DatabaseError: type[errors.DatabaseError]
    Error: type[errors.Error]
    IntegrityError: type[errors.IntegrityError]
    InterfaceError: type[errors.InterfaceError]
    InternalError: type[errors.InternalError]
    NotSupportedError: type[errors.NotSupportedError]
    OperationalError: type[errors.OperationalError]
    ProgrammingError: type[errors.ProgrammingError]
    Warning: type[errors.Warning]

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def __init__(
        self,
        database: str | bytes | PathLike[str] | PathLike[bytes],
        timeout: float = 5.0,
        detect_types: int = 0,
        isolation_level: str | None = ...,
        check_same_thread: bool = True,
        factory: Any = None,
        cached_statements: int = ...,
        uri: bool = False,
        *,
        autocommit: bool | int = ...,
        begin: str = "immediate",
        idle_rollback: float | None = None,
    ) -> None: ...
    def __call__(self, sql: str = ..., /) -> Statement:
        """Prepare a statement without running it."""
    def __enter__(self) -> Self: ...
    def __exit__(self, type: Any = None, value: Any = None, traceback: Any = None, /) -> bool:
        """Commit, or after an exception roll back; where the commit fails, roll back and raise its error."""
    def backup(
        self,
        target: Connection,
        *,
        pages: int = ...,
        progress: Callable[[int, int, int], object] | None = None,
        name: str = "main",
        sleep: float = 0.25,
    ) -> None:
        """Copy a database of this connection over that of another, `pages` at a time.

        `progress` is told, after each step, its result code, the pages left and the pages in all; `sleep` is the
        pause in seconds after a step that met a lock. Both connections can be used between the steps.
        """
    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Callable[[], Any]) -> None:
        """Make an aggregate callable from SQL: a class with `step` and `finalize`."""
    def create_collation(self, name: str, callback: Callable[[str, str], int] | None, /) -> None:
        """Make a collation usable from SQL: a function of two strings whose result's sign is their order; None takes it
        away.
        """
    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Make a function callable from SQL.

        `narg` is the number of arguments, -1 for any; `deterministic` promises the same result for the same
        arguments. Raises `OperationalError` where it cannot be made.
        """
    def enable_load_extension(self, enable: bool, /) -> None:
        """Allow extensions to be loaded, or forbid it."""
    def iterdump(self, *, filter: str | None = None) -> Iterator[str]:
        """Return an iterator over the statements that make the database again; `filter` is a LIKE pattern for names."""
    def load_extension(self, name: str, /, *, entrypoint: str | None = None) -> None:
        """Load an extension of SQLite from a shared library."""
    def set_authorizer(self, authorizer_callback: Callable[..., int] | None) -> None:
        """Have a function asked about every action of the statements prepared from now on; None: nobody."""
    def set_progress_handler(self, progress_handler: Callable[[], object] | None, n: int) -> None:
        """Have a function asked every `n` steps of a statement whether to end it; None: nobody."""
    def set_trace_callback(self, trace_callback: Callable[[str], object] | None) -> None:
        """Have a function told of every statement that begins to run, its values filled in; None: nobody."""
    def close(self) -> None:
        """Close the connection. A transaction that is open is rolled back."""
    def commit(self) -> None:
        """Commit the open transaction; without one, do nothing.

        Blocks while readers of a database without a log are in the way, at most the connection's time-out.
        """
    def cursor(self, factory: Callable[[Any], Any] = ...) -> Any:
        """Return a cursor for the connection."""
    def execute(self, sql: str, parameters: Any = None, /) -> Any:
        """Create a cursor, run a statement on it, and return it."""
    def executemany(self, sql: str, parameters: Any, /) -> Any:
        """Create a cursor, run a statement on it with many parameters, and return it."""
    def executescript(self, sql_script: str, /) -> Any:
        """Create a cursor, run a script on it, and return it."""
    def interrupt(self) -> None:
        """End the statement, or the wait for a lock, that the connection is in. For any thread; never blocks."""
    def rollback(self) -> None:
        """Roll the open transaction back; without one, do nothing."""
    if sys.version_info >= (3, 11):
        def blobopen(self, table: str, column: str, row: int, /, *, readonly: bool = False, name: str = "main") -> Blob:
            """Open a value of a table in pieces."""
        def create_window_function(
            self, name: str, num_params: int, aggregate_class: Callable[[], Any] | None, /
        ) -> None:
            """Make an aggregate window function callable from SQL: a class with `step`, `inverse`, `value` and
            `finalize`; None takes it away.
            """
        def deserialize(self, data: Any, /, *, name: str = "main") -> None:
            """Replace a database of this connection by one in memory with these bytes."""
        def getlimit(self, category: int, /) -> int:
            """Return a run-time limit."""
        def serialize(self, *, name: str = "main") -> bytes:
            """Return the bytes of a database, as a file of it would hold them."""
        def setlimit(self, category: int, limit: int, /) -> int:
            """Set a run-time limit and return its former value."""

    if sys.version_info >= (3, 12):
        def getconfig(self, op: int, /) -> bool:
            """Return a boolean setting of the connection."""
        def setconfig(self, op: int, enable: bool = True, /) -> None:
            """Set a boolean setting of the connection."""
        @property
        def autocommit(self) -> bool | int:
            """When a transaction begins by itself: `LEGACY_TRANSACTION_CONTROL`, True (never) or False (always)."""
        @autocommit.setter
        def autocommit(self, autocommit: bool | int) -> None: ...

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
    @property
    def isolation_level(self) -> str | None:
        """When a transaction begins by itself under the legacy control: None (never), '', 'DEFERRED', 'IMMEDIATE' or
        'EXCLUSIVE'.
        """
    @isolation_level.setter
    def isolation_level(self, level: str | None) -> None: ...
    @property
    def row_factory(self) -> Any:
        """What makes a row of a cursor and a tuple; None: the tuple is the row. For cursors made from now on."""
    @row_factory.setter
    def row_factory(self, factory: Any) -> None: ...
    @property
    def text_factory(self) -> Any:
        """What makes a value of the bytes of a text; by default `str`."""
    @text_factory.setter
    def text_factory(self, factory: Any) -> None: ...
    @property
    def total_changes(self) -> int:
        """The rows changed since the connection was opened."""

def enable_callback_tracebacks(enable: bool, /) -> None:
    """Have exceptions in functions called from SQL reported through `sys.unraisablehook`, or not."""

def complete_statement(statement: str) -> bool:
    """Say whether a text ends with a complete statement."""

def enable_shared_cache(do_enable: bool) -> None:
    """Have connections opened from now on in this process share their caches, or not."""

@final
class Blob:
    """A value of a table, read and written in pieces; its length cannot change."""

    def __delitem__(self, key: Any, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, type: Any = None, val: Any = None, tb: Any = None, /) -> bool: ...
    def __getitem__(self, key: int | slice, /) -> Any: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: int | slice, value: Any, /) -> None: ...
    def close(self) -> None:
        """Close the blob; one that is closed stays so."""
    def read(self, length: int = ..., /) -> bytes:
        """Return up to `length` bytes from the current place on (negative: all that are left), and move it behind
        them.
        """
    def seek(self, offset: int, origin: int = ..., /) -> None:
        """Move the current place to `offset` from the start (0), the current place (1) or the end (2)."""
    def tell(self) -> int:
        """Return the current place."""
    def write(self, data: Any, /) -> None:
        """Write bytes from the current place on, and move it behind them. The length of the value stays."""

@final
class Statement:
    """A statement that was prepared and not run."""

@disjoint_base
class Cursor:
    """A cursor: a statement and the rows it has yet to give."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def __init__(self, connection: Connection, /) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def close(self) -> None:
        """Close the cursor; its rows are dropped."""
    def execute(self, sql: str, parameters: Any = None, /) -> Self:
        """Run a statement, with the values of its placeholders in a sequence or a mapping; return the cursor.

        A write waits its turn, at most the connection's time-out, and then raises `WriteTimeout`.
        """
    def executemany(self, sql: str, seq_of_parameters: Any, /) -> Self:
        """Run a statement that changes rows once for each item of an iterable; return the cursor."""
    def executescript(self, sql_script: str, /) -> Self:
        """Run every statement of a script, dropping their rows; under the legacy control, commit first."""
    def fetchall(self) -> list[Any]:
        """Return all the rows that are left."""
    def fetchmany(self, size: int = 1) -> list[Any]:
        """Return the next `size` rows, by default `arraysize`."""
    def fetchone(self) -> Any:
        """Return the next row, or None."""
    def setinputsizes(self, sizes: Any, /) -> None:
        """Do nothing; required by PEP 249."""
    def setoutputsize(self, size: Any, column: Any = None, /) -> None:
        """Do nothing; required by PEP 249."""
    @property
    def arraysize(self) -> int:
        """How many rows `fetchmany` returns by default."""
    @arraysize.setter
    def arraysize(self, size: int) -> None: ...
    @property
    def connection(self) -> Connection:
        """The connection the cursor belongs to."""
    @property
    def description(self) -> tuple[tuple[str, None, None, None, None, None, None], ...] | None:
        """The columns of the result, a tuple of 7 each, or None."""
    @property
    def lastrowid(self) -> int | None:
        """The rowid of the row inserted last, as of this cursor's own last statement."""
    @property
    def row_factory(self) -> Any:
        """What makes a row of this cursor and a tuple; None: the tuple is the row."""
    @row_factory.setter
    def row_factory(self, factory: Any) -> None: ...
    @property
    def rowcount(self) -> int:
        """The rows changed by this cursor's own last statement, or -1."""

@disjoint_base
class Row:
    """A row of a result: a sequence, and a mapping by column name without regard to ASCII case."""

    def __new__(cls, cursor: Cursor, data: tuple[Any, ...], /) -> Self: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...
    def __getitem__(self, index: int | slice | str, /) -> Any: ...
    def __hash__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[str]:
        """Return the names of the columns."""

# writelane.Database

_Parameters = Sequence[Any] | Mapping[str, Any] | None

@final
class Result:
    """The result of one statement."""

    def __new__(cls) -> Self:
        """Make the result of a call that gave nothing."""
    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows, each a tuple; read to the end before the call returned."""
    @property
    def rowcount(self) -> int:
        """Rows inserted, updated or deleted; -1 for a statement that is none of these."""
    @property
    def lastrowid(self) -> int | None:
        """The rowid of the last insert of this statement; None if it inserted nothing."""
    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of `rows`."""
    @property
    def waited(self) -> dict[str, float]:
        """Where the time went, in seconds: a mapping with `queue`, `lock`, `run` and `commit`."""
    @property
    def retries(self) -> int:
        """How often the lock was busy, or the transaction was run again."""
    @property
    def group(self) -> int:
        """How many jobs shared the transaction; 0 for a read."""
    @property
    def holder(self) -> dict[str, Any] | None:
        """Who held the lock that this call waited for: a mapping with `pid`, `command`, `statement`, `seconds` and
        `stopped`; None if it did not wait, or it cannot be told.
        """

@final
class Ticket:
    """The claim on the answer of one submitted job."""

    @property
    def state(self) -> str:
        """`"queued"`, `"running"`, `"answered"` or `"cancelled"`."""
    def cancel(self) -> bool:
        """Cancel the job if it has not started; True if it will never run."""
    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: without end) and return whether the job is answered or cancelled."""
    def result(self) -> Any:
        """Return the result of an answered job, or raise its error."""
    def notify(self, completions: Completions, token: int) -> None:
        """Have `completions` told, under the number `token`, when the job is answered or cancelled."""

@final
class Completions:
    """A file descriptor that becomes readable when jobs are answered, and the numbers of those jobs."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """Return the descriptor, for `select` and its kin."""
    def wake(self) -> None:
        """Make the descriptor readable though nothing was answered."""
    def drain(self) -> list[int]:
        """Return the numbers of the jobs answered since the last call."""

@final
class Transaction:
    """An open write transaction: it holds the lane and the lock until it is committed or rolled back."""

    @property
    def active(self) -> bool:
        """Whether the transaction is open."""
    @property
    def waited(self) -> dict[str, float]:
        """Where the time of the whole transaction went until now, in seconds: a mapping with `queue` and `lock`, before
        it began, `run`, everything since, and `commit`."""
    def execute(self, sql: str, parameters: _Parameters = None, /) -> Result:
        """Run one statement inside the transaction and return its result. Reads see the transaction's own writes."""
    def executemany(self, sql: str, rows: Iterable[_Parameters], /) -> Result:
        """Run one statement for every row of parameters, all or none, and return its result."""
    def next_id(self, name: str, key: str | float | bytes | None = None, /) -> int:
        """Return the next number of a sequence; it is used up when the transaction commits. See `Database.next_id`."""
    def commit(self) -> None:
        """Commit and give the lane up. Raises why it was not committed; then it is rolled back."""
    def rollback(self) -> None:
        """Roll back and give the lane up. Harmless when the transaction has ended."""

@disjoint_base
class Database:
    """One open database: the native base of `writelane.Database`."""

    def __new__(
        cls,
        path: _StrPath,
        *,
        durability: str = "normal",
        deadline: float | None = ...,
        queue_size: int = 1024,
        queue_bytes: int = ...,
        journal: str = "auto",
        access: str = "shared",
        readonly: bool = False,
        readers: int = 8,
        trust_filesystem: bool = False,
        checkpoints: Checkpoints | None = None,
    ) -> Self: ...
    @property
    def path(self) -> Path:
        """The path the database was opened under."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def execute(
        self, sql: str, parameters: _Parameters = None, /, *, durable: bool = False, deadline: float | None = ...
    ) -> Result:
        """Run one statement and return its `Result`.

        A read goes to a reader, never behind a writer. A write goes to the writer and is committed, as durably as the
        database was opened, when this returns; with `durable=True` it is synced to disk. Blocks, without the GIL, up
        to `deadline` seconds (default: that of the database; None: without end; zero or less: runs only if nothing is
        in its way).

        Raises the standard library's exceptions: `IntegrityError` and its kin for what SQLite refuses, `WriteTimeout`,
        `QueueFull`, `CommitUncertain`, `Closed`, `ForkError`, `ProgrammingError`.
        """
    def executemany(
        self, sql: str, rows: Iterable[_Parameters], /, *, durable: bool = False, deadline: float | None = ...
    ) -> Result:
        """Run one statement for every row of parameters, as one atomic job, and return its `Result`.

        Blocks and raises as `execute`; an error names the row (from 0) in `position`.
        """
    def run_batch(
        self,
        calls: Iterable[tuple[str, _Parameters]],
        /,
        *,
        durable: bool = False,
        deadline: float | None = ...,
    ) -> list[Result]:
        """Run several statements as one atomic job and return the list of their results.

        Blocks and raises as `execute`; an error names the call (from 0) in `position`.
        """
    def queue_one(
        self,
        sql: str,
        parameters: _Parameters = None,
        /,
        *,
        durable: bool = False,
        wait: bool = True,
        deadline: float | None = ...,
    ) -> Ticket:
        """Queue one statement and return the claim on its answer. `wait`: wait for room in a full queue."""
    def queue_many(
        self,
        sql: str,
        rows: Iterable[_Parameters],
        /,
        *,
        durable: bool = False,
        wait: bool = True,
        deadline: float | None = ...,
    ) -> Ticket:
        """Queue one statement for many rows of parameters, as one atomic job."""
    def queue_batch(
        self,
        calls: Iterable[tuple[str, _Parameters]],
        /,
        *,
        durable: bool = False,
        wait: bool = True,
        deadline: float | None = ...,
    ) -> Ticket:
        """Queue several statements as one atomic job."""
    def offer(self, sql: str, parameters: _Parameters = None, /, *, coalesce: str | None = None) -> bool:
        """Queue best-effort work and return whether it is queued.

        Never waits and never raises for contention, a full queue or what SQLite will say of it. Newer offers push out
        older ones when their share of the queue is full; `coalesce` replaces an offer of the same key that has not
        run. Every drop is counted in the telemetry, by statement and reason. Raises for what is wrong whatever the
        state of the file: a closed database or a parent's, a type that cannot be stored, a statement that cannot be a
        job.
        """
    def offer_many(self, sql: str, rows: Iterable[_Parameters], /, *, coalesce: str | None = None) -> bool:
        """Offer one statement for every row of parameters, as one atomic job."""
    def offer_batch(self, calls: Iterable[tuple[str, _Parameters]], /, *, coalesce: str | None = None) -> bool:
        """Offer several statements as one atomic job."""
    def queue_offered(self, sql: str, rows: Iterable[_Parameters], /) -> Ticket | None:
        """Offer one statement for every row of parameters and return the claim on its answer; None: it is dropped.

        What newer offers push out later is answered with an `OperationalError` of the code `SQLITE_INTERRUPT`.
        """
    def reads(self, sql: str, /) -> bool:
        """Say whether a statement only reads, so that `execute` runs it on a reader."""
    def activity(self) -> tuple[int, int]:
        """Return (jobs committed by this process, waits for the turn of other processes), since the file was opened.

        For work that makes way for others: where these rise, there are others.
        """
    def begin(
        self, label: str, /, *, task: int = 0, durable: bool = False, deadline: float | None = ...
    ) -> Transaction:
        """Begin an interactive transaction, in turn; `label` is what others are told holds the lock, `task` the task of
        this thread that it belongs to, 0 for the thread itself."""
    def refuse_own_transaction(self, task: int) -> None:
        """Raise ProgrammingError if task `task` of this thread would wait for its own `transaction()`."""
    def flush(self, *, deadline: float | None = ...) -> None:
        """Wait until everything queued before, offered work too, is answered."""
    def run_checkpoint(self, mode: str = "passive", *, deadline: float | None = ...) -> tuple[int, int, int]:
        """Copy the log into the database, in turn; return (busy, pages in the log, pages copied)."""
    def checkpoint_aside(self, pages: int, /) -> tuple[bool, int, int] | None:
        """Copy the log into the database on this thread, while others go on writing, if at least `pages` of it are not
        copied; return (busy, pages in the log, pages copied), or None if there was nothing to do.
        """
    def close(self) -> None:
        """Do what is queued and let the file go; the writer stops with the file's last database.

        Closing twice is no error.
        """
    def snapshot(self) -> dict[str, Any]:
        """Return the telemetry as nested dictionaries."""
    def reset_telemetry(self) -> None:
        """Start the counts of the telemetry again from nothing."""
    def file_telemetry(self) -> FileTelemetry:
        """Return the counts of the file, which outlive this database."""

# Telemetry

@final
class FileTelemetry:
    """What this process has counted of one file, whoever used it: databases and connections alike."""

    def __new__(cls, target: Connection | _StrPath) -> Self: ...
    @staticmethod
    def all() -> list[FileTelemetry]:
        """Return the counts of every file of this process, in the order in which they were first opened.

        Of those that nobody has open, the latest few are known.
        """
    @property
    def number(self) -> int:
        """The number that events of this file carry."""
    @property
    def path(self) -> Path:
        """The file, links resolved."""
    def snapshot(self) -> dict[str, Any]:
        """Return the counts as nested dictionaries."""
    def latencies(self) -> list[tuple[str, list[tuple[float, int]]]]:
        """Return how each statement's latencies are distributed: its text and a list of (seconds, count)."""
    def phases(self) -> dict[str, list[tuple[float, int]]]:
        """Return how each phase's times are distributed over all statements: lists of (seconds, count)."""
    def reset(self) -> None:
        """Start the counts again from nothing."""
    def publish_over(self, seconds: float | None) -> None:
        """Publish waits and holds of at least so many seconds to `Events`, and what befalls the log; None: nothing."""
    def publish_snapshots_over(self, seconds: Sequence[float]) -> None:
        """Publish to `Events` each snapshot that is open for so many seconds, once for each of these numbers."""
    @property
    def on(self) -> bool:
        """Whether anything is counted."""
    @on.setter
    def on(self, on: bool, /) -> None: ...

@final
class Events:
    """A file descriptor that becomes readable when something waited or held the lock for long, a snapshot
    is open for long, or a log is pinned, and what that was."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """Return the descriptor, for `select` and its kin."""
    def wake(self) -> None:
        """Make the descriptor readable though nothing happened."""
    def close(self) -> None:
        """Take no more events."""
    def drain(self) -> tuple[list[dict[str, Any]], int]:
        """Return what happened since the last call, and how many more events were dropped."""

def checkpoint_defaults() -> dict[str, Any]:
    """Return the defaults, by the names of `writelane.Checkpoints`."""

def look(path: _StrPath, /) -> dict[str, Any]:
    """Look at a database: who holds its write lock, who waits, who has it open.

    Opens neither it, nor its log, nor its shared memory, and takes no lock. Some 200 us.
    """

@disjoint_base
class Earlier:
    """The value that an earlier call of the same batch will give: the first column of its first row."""

    def __new__(cls, call: int) -> Self: ...
    @property
    def call(self) -> int:
        """Which call of the batch, from 0."""

def uuid7() -> str:
    """Return a new UUID of version 7 as text; later ones of a process sort after earlier ones."""

def close_all(seconds: float) -> None:
    """Stop every writer of this process, doing what is queued within `seconds`. For the exit of the interpreter."""

def announce_exit() -> None:
    """Say that the databases of this process are being closed because it exits."""

def stay_awake() -> None:
    """Let this thread of ours see errors also during the exit, which waits for it."""

def begin_exit() -> None:
    """From now on no other thread comes back to the interpreter; those on their way are waited for."""

def cancel_exit() -> None:
    """Undo `begin_exit` in a child that was forked during the exit of its parent."""

def recover(
    database: _StrPath,
    wal: _StrPath | None,
    journal: _StrPath | None,
    output: _StrPath,
    *,
    deleted: bool = False,
    progress: Callable[[str, int, int], object] | None = None,
) -> dict[str, Any]:
    """Recover every readable row of a damaged database, with its log or journal, into a new one at ``output``.

    Nobody may change the files meanwhile; nothing may be at ``output`` yet. ``deleted`` recovers deleted rows too.
    Returns what was recovered table by table. Raises DatabaseError if there is nothing to recover, OperationalError
    if the new database cannot be written; what is at ``output`` then is of no use. Blocks for as long as it takes,
    without the GIL; Ctrl-C works.
    """

def release_idle_files() -> None:
    """Close the files of databases that no connection of this process uses any more.

    They are kept open otherwise, since a close would drop the locks that other code of the process has on them.
    """
