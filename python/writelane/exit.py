"""The exit of the interpreter: work that was queued is done, and no thread comes back to what is gone."""

from __future__ import annotations

import atexit
import os

from writelane import _native, notices, telemetry_file
from writelane.futures import stop_collector

__all__ = ["DRAIN_SECONDS"]

#: The longest that the exit waits for queued work whose own deadline is later.
DRAIN_SECONDS = 30.0

_pid = os.getpid()


def _exit() -> None:
    if os.getpid() != _pid:
        # A forked child has no work of its parent's; what it opened itself is drained all the same.
        _native.cancel_exit()
    _native.announce_exit()
    _native.close_all(DRAIN_SECONDS)
    stop_collector()
    notices.stop()
    telemetry_file.flush()
    _native.begin_exit()


atexit.register(_exit)
