"""Tests of the interpreter's own suite that `writelane.dbapi` fails on purpose, each with its reason.

A test that is listed here and passes is a failure too, so the list cannot rot.
"""

from __future__ import annotations

_ACKNOWLEDGE = (
    "After an error that rolled the whole transaction back, later writes and commit() of that transaction are refused "
    "until rollback() acknowledges the loss; the standard module silently commits the second half of it."
)

_ROLLBACK_IN_3_10 = (
    "3.10 makes half-read cursors fail after rollback(); 3.11 stopped that, and rows read on are the rows selected."
)
_FIRST_ROW_IN_3_10 = (
    "3.10 converts the first row inside execute(); as from 3.11 on, it is converted when it is fetched."
)
_MISSING_METHOD_IN_3_10 = (
    "3.10 lets the AttributeError of an aggregate without a step method escape from execute(); as from 3.11 on, it is "
    "the statement's error."
)

#: The end of a test's id, the minor versions of Python it is listed for, and why.
DEVIATIONS: list[tuple[str, range, str]] = [
    ("RegressionTests.test_on_conflict_rollback", range(10, 100), _ACKNOWLEDGE),
    ("SqliteOnConflictTests.test_on_conflict_rollback_with_explicit_transaction", range(10, 100), _ACKNOWLEDGE),
    ("RegressionTests.test_cursor_registration", range(10, 11), _ROLLBACK_IN_3_10),
    ("TransactionTests.test_rollback_cursor_consistency", range(10, 11), _ROLLBACK_IN_3_10),
    ("RecursiveUseOfCursors.test_recursive_cursor_init", range(10, 11), _FIRST_ROW_IN_3_10),
    ("RecursiveUseOfCursors.test_recursive_cursor_close", range(10, 11), _FIRST_ROW_IN_3_10),
    ("AggregateTests.test_aggr_no_step", range(10, 11), _MISSING_METHOD_IN_3_10),
]
