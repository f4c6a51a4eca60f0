"""Blocks whose writes are offers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from writelane import _native

__all__ = ["block", "is_offering"]

#: The databases whose best-effort blocks this thread or task is in.
_blocks: ContextVar[tuple[_native.Database, ...]] = ContextVar("writelane_best_effort", default=())


def is_offering(database: _native.Database) -> bool:
    """Say whether the calling thread or task is in a best-effort block of this database."""
    blocks = _blocks.get()
    return bool(blocks) and any(known is database for known in blocks)


@contextmanager
def block(database: _native.Database) -> Iterator[None]:
    """Make the block one of those."""
    token = _blocks.set((*_blocks.get(), database))
    try:
        yield
    finally:
        _blocks.reset(token)
