"""When the write-ahead log is copied into the database, and how long it may grow."""

from __future__ import annotations

from dataclasses import dataclass

from writelane import _native

__all__ = ["Checkpoints"]

_DEFAULTS = _native.checkpoint_defaults()


@dataclass(frozen=True)
class Checkpoints:
    """The thresholds of checkpoints, for ``writelane.open(..., checkpoints=...)``, which says what it does not take.

    ``WRITELANE_CHECKPOINTS``, as ``pages=500,idle=2``, sets them for databases opened without, and for connections.
    """

    #: Pages not yet copied at which the log is copied, 1 to 999: at SQLite's own 1,000, connections of others on the
    #: same file would come to do it inside their commits, and versions before 3.51.3 can damage the database by it.
    pages: int = _DEFAULTS["pages"]
    #: Seconds without a commit after which a log is copied however short, so that the file alone is whole. Over 0.
    idle: float = _DEFAULTS["idle"]
    #: Bytes of a log file that is kept for use again; a larger one is cut when it is idle.
    keep_bytes: int = _DEFAULTS["keep_bytes"]
    #: Bytes past which a log file is cut also while others write, who then wait up to 50 ms; at least ``keep_bytes``.
    limit_bytes: int = _DEFAULTS["limit_bytes"]
    #: Seconds for which a reader has to keep the log from shrinking until it is told of. 0 or more.
    pinned_after: float = _DEFAULTS["pinned_after"]
