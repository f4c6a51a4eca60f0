"""When long work of ours should end early."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

__all__ = ["Stop", "stopping"]

#: The event that ends the scheduled job in which this code runs, if it runs in one.
stopping: ContextVar[threading.Event | None] = ContextVar("writelane_stopping", default=None)


class Stop:
    """A deadline, and the end of the scheduled job that the caller runs in."""

    def __init__(self, until: float | None) -> None:
        self._until = until
        self._event = stopping.get()

    def reason(self) -> str | None:
        """Say why to stop now; ``None``: go on."""
        if self._event is not None and self._event.is_set():
            return "the database is being closed"
        if self._until is not None and time.monotonic() >= self._until:
            return "the deadline passed"
        return None

    def wait(self, seconds: float) -> bool:
        """Wait, up to that many seconds, and say whether to stop now."""
        if self._until is not None:
            seconds = min(seconds, max(0.0, self._until - time.monotonic()))
        if self._event is not None:
            self._event.wait(seconds)
        elif seconds > 0:
            time.sleep(seconds)
        return self.reason() is not None
