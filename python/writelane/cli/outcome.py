"""What a verb hands back to be printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "ProgressLine"]


@dataclass(frozen=True)
class Outcome:
    """The result of a command: an exit status, a document for ``--json`` and a text for people."""

    command: str
    status: int
    document: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    failed: bool = False

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self.status == 0


class ProgressLine:
    """One line on standard error that is written over, at most every ``every`` seconds; silent off a terminal."""

    def __init__(self, wanted: bool | None = None, every: float = 0.2) -> None:
        self._shown = sys.stderr.isatty() if wanted is None else wanted
        self._every = every
        self._next = 0.0
        self._width = 0

    def __call__(self, text: str) -> None:
        """Show a text in place of the last one."""
        if self._shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)

    def close(self) -> None:
        """Wipe the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
