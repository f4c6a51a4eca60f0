"""Rows hold what the standard module's rows hold, whatever is in them and however they are fetched."""

from __future__ import annotations

import gc
import math
import random
import sqlite3

import pytest

import writelane.dbapi

TEXTS = ["", "a", "\x7f", "\x80", "é", "ab", "a\0b", "naïve", "日本語", "🐟", "x" * 100, "x" * 99 + "é", "y" * 300_000]
BLOBS = [b"", b"\0", b"\xff", bytes(range(256)), b"z" * 300_000]
NUMBERS = [0, 1, -1, -6, 256, 257, 2**31, 2**63 - 1, -(2**63), 0.0, -0.0, 0.1, 1e308, 5e-324, math.inf, -math.inf]
VALUES = [None, *TEXTS, *BLOBS, *NUMBERS]


def exactly(rows):
    """Return the rows with the type of each value, and zeros with their sign."""
    return [[(type(value), repr(value)) for value in row] for row in rows]


def both(path, encoding="UTF-8"):
    standard = sqlite3.connect(path)
    standard.execute(f"PRAGMA encoding='{encoding}'")
    # Without an affinity, every value stays as it is.
    standard.execute("CREATE TABLE t(a, b, c, d)")
    dice = random.Random(7)
    rows = [[dice.choice(VALUES) for _ in range(4)] for _ in range(300)] + [[value] * 4 for value in VALUES]
    standard.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    standard.commit()
    return standard, writelane.dbapi.connect(path)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
@pytest.mark.parametrize("factory", [str, bytes, bytearray, lambda text: len(text)])
def test_every_value_is_the_standard_module_s(tmp_path, encoding, factory):
    standard, ours = both(tmp_path / "app.db", encoding)
    standard.text_factory = ours.text_factory = factory
    sql = "SELECT *, a, rowid, x'' FROM t"
    expected = exactly(standard.execute(sql))
    assert exactly(ours.execute(sql).fetchall()) == expected
    assert exactly(ours.execute(sql)) == expected
    cursor = ours.execute(sql)
    found = []
    while batch := cursor.fetchmany(7):
        found += exactly(batch)
    assert found == expected
    cursor = ours.execute(sql)
    assert exactly(iter(cursor.fetchone, None)) == expected
    ours.row_factory = writelane.dbapi.Row
    assert exactly(map(tuple, ours.execute(sql).fetchall())) == expected
    standard.close()
    ours.close()


@pytest.mark.parametrize("text", [b"\xff", b"ab\x80", b"\xc3", b"x" * 50 + b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_text_that_is_none_fails_as_in_the_standard_module(tmp_path, text):
    standard, ours = both(tmp_path / "app.db")
    sql = "SELECT 1 AS one, CAST(? AS TEXT) AS two"
    with pytest.raises(sqlite3.OperationalError) as expected:
        standard.execute(sql, (text,)).fetchall()
    for fetch in ("fetchall", "fetchone", "fetchmany"):
        with pytest.raises(sqlite3.OperationalError) as raised:
            getattr(ours.execute(sql, (text,)), fetch)()
        assert str(raised.value) == str(expected.value)
    ours.text_factory = bytes
    assert ours.execute(sql, (text,)).fetchall() == [(1, text)]
    standard.close()
    ours.close()


def test_rows_with_objects_of_the_application_are_collected(tmp_path):
    """A converter may put into a row what refers to the row."""
    ours = writelane.dbapi.connect(tmp_path / "app.db", detect_types=writelane.dbapi.PARSE_COLNAMES)
    alive = []

    class Node(list):
        def __del__(self):
            alive.remove(id(self))

    def convert(text):
        node = Node()
        alive.append(id(node))
        return node

    writelane.dbapi.register_converter("node", convert)
    rows = ours.execute("SELECT 'x' AS 'x [node]', 1 UNION ALL SELECT 'y', 2").fetchall()
    for row in rows:
        row[0].append(row)
    assert len(alive) == 2
    del rows, row
    gc.collect()
    assert alive == []
    ours.close()


def test_a_fetch_of_many_rows_does_not_keep_them(tmp_path):
    standard, ours = both(tmp_path / "app.db")
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        ours.execute("SELECT * FROM t").fetchall()
    gc.collect()
    assert len(gc.get_objects()) < before + 300
    standard.close()
    ours.close()
