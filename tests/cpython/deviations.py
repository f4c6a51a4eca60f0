"""Tests of the interpreter's own suite that `writelane.dbapi` fails on purpose, each with its reason.

A test that is listed here and passes is a failure too, so the list cannot rot.
"""

from __future__ import annotations

_ACKNOWLEDGE = (
    "After an error that rolled the whole transaction back, later writes and commit() of that transaction are refused "
    "until rollback() acknowledges the loss; the standard module silently commits the second half of it."
)

#: The end of a test's id, the minor versions of Python it is listed for, and why.
DEVIATIONS: list[tuple[str, range, str]] = [
    ("RegressionTests.test_on_conflict_rollback", range(10, 100), _ACKNOWLEDGE),
    ("SqliteOnConflictTests.test_on_conflict_rollback_with_explicit_transaction", range(10, 100), _ACKNOWLEDGE),
]
