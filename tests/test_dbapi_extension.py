"""A real loadable extension is loaded by `writelane.dbapi` under the rules of the standard module."""

from __future__ import annotations

import sqlite3
import sys

import pytest

import writelane.dbapi

#: The head of SQLite's table of routines, as it has been since 3.3: new ones are added at its end.
SOURCE = """
#include <stddef.h>
typedef struct sqlite3 sqlite3;
typedef struct context context;
typedef struct value value;
typedef struct routines {
  void *before_create_function[45];
  int (*create_function)(sqlite3 *, const char *, int, int, void *, void (*)(context *, int, value **), void *, void *);
  void *before_result_int64[37];
  void (*result_int64)(context *, long long);
  void *before_value_int64[23];
  long long (*value_int64)(value *);
} routines;
static const routines *api;

static void twice(context *context, int count, value **values) {
  api->result_int64(context, 2 * api->value_int64(values[0]));
}

int sqlite3_twice_init(sqlite3 *db, char **message, const routines *given) {
  api = given;
  return api->create_function(db, "twice", 1, 1 /* UTF-8 */, NULL, twice, NULL, NULL);
}

int other_entry(sqlite3 *db, char **message, const routines *given) {
  api = given;
  return api->create_function(db, "twice_too", 1, 1 /* UTF-8 */, NULL, twice, NULL, NULL);
}

int failing_entry(sqlite3 *db, char **message, const routines *given) {
  return 1;
}
"""


@pytest.fixture(scope="module")
def extension(library):
    return str(library("twice", SOURCE))


@pytest.fixture
def connection():
    connection = writelane.dbapi.connect(":memory:")
    yield connection
    connection.close()


def test_an_extension_is_loaded_once_that_is_allowed(extension, connection):
    with pytest.raises(sqlite3.OperationalError, match="not authorized"):
        connection.load_extension(extension)
    connection.enable_load_extension(True)
    connection.load_extension(extension)
    assert connection.execute("SELECT twice(21)").fetchone() == (42,)
    connection.enable_load_extension(False)
    with pytest.raises(sqlite3.OperationalError, match="not authorized"):
        connection.load_extension(extension)
    # What is loaded stays.
    assert connection.execute("SELECT twice(4)").fetchone() == (8,)


def test_it_belongs_to_the_connection_alone(extension, connection):
    connection.enable_load_extension(True)
    connection.load_extension(extension)
    other = writelane.dbapi.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError, match="no such function: twice"):
        other.execute("SELECT twice(1)")
    other.close()


def test_sql_may_load_it_too_once_that_is_allowed(extension, connection):
    with pytest.raises(sqlite3.OperationalError, match="not authorized"):
        connection.execute("SELECT load_extension(?)", (extension,))
    connection.enable_load_extension(True)
    connection.execute("SELECT load_extension(?)", (extension,)).fetchone()
    assert connection.execute("SELECT twice(3)").fetchone() == (6,)


def test_what_cannot_be_loaded_says_why(extension, connection, tmp_path):
    connection.enable_load_extension(True)
    with pytest.raises(sqlite3.OperationalError, match="cannot open shared object file"):
        connection.load_extension(str(tmp_path / "missing"))
    with pytest.raises(TypeError):
        connection.load_extension(5)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the entry point is an argument from 3.12 on")
def test_the_entry_point_can_be_named(extension, connection):
    connection.enable_load_extension(True)
    connection.load_extension(extension, entrypoint="other_entry")
    assert connection.execute("SELECT twice_too(5)").fetchone() == (10,)
    with pytest.raises(sqlite3.OperationalError, match="error during initialization"):
        connection.load_extension(extension, entrypoint="failing_entry")
    with pytest.raises(sqlite3.OperationalError, match="undefined symbol"):
        connection.load_extension(extension, entrypoint="no_entry")


def test_both_are_audited(extension, connection):
    events = []
    listening = True

    def hook(event, arguments):
        if listening and event.startswith("sqlite3."):
            events.append((event, arguments[1:]))

    sys.addaudithook(hook)
    try:
        connection.enable_load_extension(True)
        connection.load_extension(extension)
    finally:
        listening = False
    assert events == [("sqlite3.enable_load_extension", (True,)), ("sqlite3.load_extension", (extension,))]
