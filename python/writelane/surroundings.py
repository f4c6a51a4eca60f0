"""What a process is told once about where its databases are, and how it was told to open them."""

from __future__ import annotations

import logging
import os
import threading

from writelane import _native

__all__ = ["announce_filesystem", "announce_journal"]

_log = logging.getLogger("writelane")
_lock = threading.Lock()
_said: set[str] = set()


def _once(key: str) -> bool:
    with _lock:
        first = key not in _said
        _said.add(key)
        return first


def announce_journal(variable: str, journal: str) -> None:
    """Log, once a process, that the environment chooses the journal of every database."""
    if _once(f"{variable}={journal}"):
        _log.warning("%s=%s: every database of this process is opened so, whatever its open() says", variable, journal)


def announce_filesystem(path: str | os.PathLike[str]) -> None:
    """Log, once for each mount, that the database at ``path`` is on a filesystem that is used as if it were local."""
    try:
        found = _native.judge_filesystem(path)
    except OSError as error:
        # The database was opened all the same, so this is only what could not be told.
        _log.debug("the filesystem of %s cannot be judged: %s", path, error)
        return
    warning = found.warning(path)
    if warning is not None and _once(f"mount {found.mount_point}"):
        _log.warning("%s", warning)


def _renew_lock() -> None:
    # A thread of the parent may have held it.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
