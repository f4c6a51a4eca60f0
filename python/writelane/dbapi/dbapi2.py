"""The names of PEP 249 and of the interpreter's own ``sqlite3``."""

from __future__ import annotations

import collections.abc
import datetime
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from writelane import _native, telemetry_file
from writelane._native import (
    Connection,
    Cursor,
    PrepareProtocol,
    Row,
    adapt,
    adapters,
    complete_statement,
    constants,
    converters,
    enable_callback_tracebacks,
    register_adapter,
    register_converter,
    sqlite_version,
)
from writelane.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)

_VERSION = sys.version_info[:2]

apilevel = "2.0"
paramstyle = "qmark"
# From 3.11 on the module says what the library allows; before, the constant of PEP 249's cautious reading.
threadsafety = 3 if _VERSION >= (3, 11) else 1

sqlite_version_info = tuple(int(part) for part in sqlite_version.split("."))

PARSE_DECLTYPES = 1
PARSE_COLNAMES = 2

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = memoryview


def DateFromTicks(ticks: float) -> datetime.date:
    """Return the local date of a time in seconds since the epoch."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    """Return the local time of day of a time in seconds since the epoch."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """Return the local date and time of a time in seconds since the epoch."""
    return Timestamp(*time.localtime(ticks)[:6])


collections.abc.Sequence.register(Row)


_OBSERVED = (telemetry_file.VARIABLE, telemetry_file.WARN_VARIABLE)


def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
    """Open a connection to the database file `database`; ``:memory:`` opens one in memory.

    Takes what ``sqlite3.connect`` takes. `timeout` (seconds, by default 5) bounds every wait for a lock, that of a
    write for its turn included; ``begin="deferred"`` leaves a bare ``BEGIN`` as it is instead of taking the write
    lock with it; ``idle_rollback=SECONDS`` has a transaction that is left alone for longer rolled back for the sake of
    others, and its next use raise `OperationalError` with the reason. Raises `OperationalError` where the file
    cannot be opened.
    """
    if args and _VERSION >= (3, 13):
        warnings.warn(
            "Passing more than 1 positional argument to sqlite3.connect() is deprecated. Parameters 'timeout', "
            "'detect_types', 'isolation_level', 'check_same_thread', 'factory', 'cached_statements' and 'uri' "
            "will become keyword-only parameters in Python 3.15.",
            DeprecationWarning,
            stacklevel=2,
        )
    factory = args[4] if len(args) > 4 else kwargs.get("factory", Connection)
    connection = factory(database, *args, **kwargs)
    if any(variable in os.environ for variable in _OBSERVED):
        telemetry_file.observe(connection)
    return connection


class _CallSignature:
    """The signature of a connection that is called; the class itself keeps its own."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.Signature([inspect.Parameter("sql", inspect.Parameter.POSITIONAL_ONLY)])


Connection.__signature__ = _CallSignature()  # type: ignore[attr-defined]


def _warn_default(what: str) -> None:
    if _VERSION >= (3, 12):
        warnings.warn(
            f"The default {what} is deprecated as of Python 3.12; "
            "see the sqlite3 documentation for suggested replacement recipes",
            DeprecationWarning,
            stacklevel=3,
        )


def _adapt_date(value: datetime.date) -> str:
    _warn_default("date adapter")
    return value.isoformat()


def _adapt_datetime(value: datetime.datetime) -> str:
    _warn_default("datetime adapter")
    return value.isoformat(" ")


def _convert_date(value: bytes) -> datetime.date:
    _warn_default("date converter")
    year, month, day = value.split(b"-")
    return datetime.date(int(year), int(month), int(day))


def _convert_timestamp(value: bytes) -> datetime.datetime:
    _warn_default("timestamp converter")
    date, clock = value.split(b" ")
    year, month, day = (int(part) for part in date.split(b"-"))
    whole, *fraction = clock.split(b".")
    hours, minutes, seconds = (int(part) for part in whole.split(b":"))
    # Six digits are microseconds; fewer are padded on the right, more are cut.
    microseconds = int(fraction[0].decode().ljust(6, "0")[:6]) if len(fraction) == 1 else 0
    return datetime.datetime(year, month, day, hours, minutes, seconds, microseconds)


register_adapter(datetime.date, _adapt_date)
register_adapter(datetime.datetime, _adapt_datetime)
register_converter("date", _convert_date)
register_converter("timestamp", _convert_timestamp)

__all__ = [
    "PARSE_COLNAMES",
    "PARSE_DECLTYPES",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "PrepareProtocol",
    "ProgrammingError",
    "Row",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "adapt",
    "adapters",
    "apilevel",
    "complete_statement",
    "connect",
    "converters",
    "enable_callback_tracebacks",
    "paramstyle",
    "register_adapter",
    "register_converter",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
]

globals().update(constants)
__all__ += list(constants)

if _VERSION >= (3, 11):
    from writelane._native import Blob

    __all__ += ["Blob"]

if _VERSION < (3, 12):

    def enable_shared_cache(enable: bool) -> None:
        """Have connections opened from now on in this process share their caches, or not. Deprecated."""
        warnings.warn(
            "enable_shared_cache is deprecated and will be removed in Python 3.12. "
            "Shared cache is strongly discouraged by the SQLite 3 documentation. "
            "If shared cache must be used, open the database in URI mode using the "
            "cache=shared query parameter.",
            DeprecationWarning,
            stacklevel=2,
        )
        _native.enable_shared_cache(enable)

    __all__ += ["enable_shared_cache"]

if _VERSION >= (3, 12):
    LEGACY_TRANSACTION_CONTROL = -1
    __all__ += ["LEGACY_TRANSACTION_CONTROL"]

_DEPRECATED: dict[str, tuple[str, Callable[[], object]]] = {}
if _VERSION < (3, 12):
    version = "2.6.0"
    version_info = (2, 6, 0)
    __all__ += ["version", "version_info"]
    _DEPRECATED["OptimizedUnicode"] = (
        "OptimizedUnicode is deprecated and will be removed in Python 3.12. "
        "Since Python 3.3 it has simply been an alias for 'str'.",
        lambda: str,
    )
elif _VERSION < (3, 14):
    for _name, _value in (("version", "2.6.0"), ("version_info", (2, 6, 0))):
        _DEPRECATED[_name] = (
            f"{_name} is deprecated and will be removed in Python 3.14",
            lambda value=_value: value,  # type: ignore[misc]
        )


def _deprecated(module: str, name: str) -> object:
    """Return a name that the interpreter's own module still has, with its warning."""
    if name not in _DEPRECATED:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message, value = _DEPRECATED[name]
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return value()


def __getattr__(name: str) -> object:
    return _deprecated(__name__, name)
