"""The interface of `writelane.dbapi` is that of the running interpreter's ``sqlite3``."""

from __future__ import annotations

import sqlite3
import sys
import types
import warnings

import pytest

import writelane.dbapi

#: Depends on how the interpreter was built.
OPTIONAL = {"enable_load_extension", "load_extension"}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_name_of_the_module_is_there():
    # Modules that it happens to import are no part of it.
    standard = {name for name in public(sqlite3) if not isinstance(vars(sqlite3).get(name), types.ModuleType)}
    assert not standard - public(writelane.dbapi)


def test_no_constant_is_there_that_the_interpreter_has_not_got():
    ours = {name for name in public(writelane.dbapi) if name.startswith("SQLITE_")}
    standard = {name for name in public(sqlite3) if name.startswith("SQLITE_")}
    # Those that depend on the version of SQLite, the standard module's own being older.
    assert {name for name in ours - standard if not name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN"))} == set()


def test_the_constants_have_the_same_values():
    for name in public(sqlite3):
        if name.startswith(("SQLITE_", "PARSE_", "LEGACY_")):
            assert getattr(writelane.dbapi, name) == getattr(sqlite3, name), name


@pytest.mark.parametrize("name", ["Connection", "Cursor", "Row", "Blob"])
def test_the_classes_have_the_same_members(name):
    if not hasattr(sqlite3, name):
        assert not hasattr(writelane.dbapi, name)
        return
    ours, standard = getattr(writelane.dbapi, name), getattr(sqlite3, name)
    assert public(ours) - OPTIONAL == public(standard) - OPTIONAL


def test_the_exceptions_are_the_standard_modules_own():
    for name in ("Warning", "Error", "OperationalError", "IntegrityError", "ProgrammingError", "InterfaceError"):
        assert getattr(writelane.dbapi, name) is getattr(sqlite3, name)
        assert getattr(writelane.dbapi.Connection, name) is getattr(sqlite3, name)


def test_names_on_their_way_out_warn_as_they_do_there():
    for name in ("OptimizedUnicode", "version", "version_info"):
        with warnings.catch_warnings(record=True) as standard:
            warnings.simplefilter("always")
            expected = getattr(sqlite3, name, None)
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            assert getattr(writelane.dbapi, name, None) == expected
        assert [entry.category for entry in ours] == [entry.category for entry in standard]
        assert all(entry.filename == __file__ for entry in ours)


@pytest.mark.parametrize(
    "call",
    [
        lambda module, connection: connection.execute("SELECT ?", (1, 2)),
        lambda module, connection: connection.execute("SELECT :a", {"b": 1}),
        lambda module, connection: connection.execute("SELECT ?", {"a": 1}),
        lambda module, connection: connection.execute("SELECT ?", (object(),)),
        lambda module, connection: connection.execute("SELECT ?", (2**63,)),
        lambda module, connection: connection.execute("SELECT ?", ("\ud800",)),
        lambda module, connection: connection.execute("SELECT ?", 5),
        lambda module, connection: connection.execute("SELECT 1; SELECT 2"),
        lambda module, connection: connection.execute("SELECT 1\0"),
        lambda module, connection: connection.execute("SELEC"),
        lambda module, connection: connection.execute(5),
        lambda module, connection: connection.executemany("SELECT 1", []),
        lambda module, connection: connection.executescript("SELECT 1;\0"),
        lambda module, connection: connection.executescript(b""),
        lambda module, connection: connection.create_function("f", -100, int),
        lambda module, connection: connection.create_aggregate("f", -100, int),
        lambda module, connection: delattr(connection, "isolation_level"),
        lambda module, connection: connection.cursor(None),
        lambda module, connection: connection.set_trace_callback(),
        lambda module, connection: module.connect("/"),
        lambda module, connection: module.connect(None),
        lambda module, connection: module.connect("a\0b"),
        lambda module, connection: module.connect(":memory:", isolation_level="x"),
        lambda module, connection: module.Row(1, 2),
        lambda module, connection: module.Cursor(1),
    ],
)
def test_what_is_wrong_is_said_in_the_same_class(call):
    def outcome(module):
        connection = module.connect(":memory:")
        try:
            call(module, connection)
        except Exception as error:
            return type(error), getattr(error, "sqlite_errorname", None)
        finally:
            connection.close()

    expected = outcome(sqlite3)
    if expected is None and sys.version_info < (3, 11):
        pytest.skip("let pass by the standard module of that version")
    assert expected is not None
    ours = outcome(writelane.dbapi)
    assert ours[0] is expected[0]
    # The standard module does not name codes before 3.11.
    assert expected[1] is None or ours[1] == expected[1]


@pytest.mark.parametrize(
    "value",
    [None, 0, -(2**63), 2**63 - 1, 0.5, float("inf"), "", "a\0b", "ü€😀", b"", b"\0\xff", bytearray(b"x"), True],
)
def test_values_come_back_as_they_do_there(value):
    def back(module):
        connection = module.connect(":memory:")
        (result,) = connection.execute("SELECT ?", (value,)).fetchone()
        connection.close()
        return type(result), result

    assert back(writelane.dbapi) == back(sqlite3)


def test_rows_iterate_slice_and_compare_as_they_do_there():
    def look(module):
        connection = module.connect(":memory:")
        connection.row_factory = module.Row
        row = connection.execute("SELECT 1 AS a, 'x' AS B, NULL AS a").fetchone()
        other = connection.execute("SELECT 1 AS a, 'x' AS B, NULL AS a").fetchone()
        connection.close()
        return row.keys(), tuple(row), row["A"], row["b"], row[-1], row[::2], len(row), row == other, dict(row)

    assert look(writelane.dbapi) == look(sqlite3)


@pytest.mark.parametrize("size", [0, -1, 2, 2**33, -(2**70), 1.5, None, "default"])
def test_a_number_of_rows_means_what_it_means_there(size):
    def outcome(module):
        connection = module.connect(":memory:")
        try:
            cursor = connection.execute("SELECT 1 UNION SELECT 2 UNION SELECT 3")
            return cursor.fetchmany() if size == "default" else cursor.fetchmany(size)
        except Exception as error:
            return type(error)
        finally:
            connection.close()

    assert outcome(writelane.dbapi) == outcome(sqlite3)


def test_what_a_collation_raises_is_raised_by_the_statement_that_met_it():
    def compare(a, b):
        raise ZeroDivisionError

    for module in (sqlite3, writelane.dbapi):
        connection = module.connect(":memory:")
        connection.create_collation("c", compare)
        with pytest.raises(ZeroDivisionError):
            connection.execute("SELECT 'a' = 'b' COLLATE c")
        connection.execute("CREATE TABLE t(x TEXT COLLATE c)")
        connection.execute("INSERT INTO t VALUES ('a'), ('b')")
        with pytest.raises(ZeroDivisionError):
            connection.execute("UPDATE t SET x = 'd' WHERE x = 'e'")
        # Nothing of the failed statement is left running.
        connection.rollback()
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        connection.close()


def test_opening_is_audited_as_there():
    heard = []
    listening = True

    def hook(event, arguments):
        if listening and event.startswith("sqlite3."):
            heard.append((event, type(arguments[0]).__name__))

    sys.addaudithook(hook)
    try:
        told = []
        for module in (sqlite3, writelane.dbapi):
            connection = module.connect(":memory:")
            connection.close()
            told.append(heard[:])
            heard.clear()
    finally:
        listening = False
    assert told[0] == told[1]
    assert [event for event, _ in told[0]] == ["sqlite3.connect", "sqlite3.connect/handle"]


@pytest.mark.parametrize("broken", ["step", "finalize"])
def test_an_aggregate_that_raises_is_asked_as_often_as_there(broken):
    def calls(module):
        made = []

        class Sum:
            def step(self, value):
                made.append("step")
                if broken == "step":
                    raise ZeroDivisionError

            def finalize(self):
                made.append("finalize")
                if broken == "finalize":
                    raise ZeroDivisionError

        connection = module.connect(":memory:")
        connection.create_aggregate("s", 1, Sum)
        with pytest.raises(module.OperationalError, match=broken):
            connection.execute("SELECT s(x) FROM (SELECT 1 AS x UNION SELECT 2)").fetchall()
        connection.close()
        return made

    assert calls(writelane.dbapi) == calls(sqlite3)
