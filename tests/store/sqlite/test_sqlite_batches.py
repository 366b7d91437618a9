"""Writes of many rows by few statements: none is left out, added or reordered."""

from __future__ import annotations

import sqlite3

import pytest

from redrive.store.sqlite.connection import write_many

PUT = "INSERT INTO things (id, name) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name"
RENAME = "WITH new (name, id) AS (VALUES (?, ?)) UPDATE things SET name = new.name FROM new WHERE things.id = new.id"


@pytest.fixture
def con():
    con = sqlite3.connect(":memory:", isolation_level=None)
    con.execute("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT)")
    yield con
    con.close()


def things(con: sqlite3.Connection) -> list[tuple[int, str]]:
    return con.execute("SELECT id, name FROM things ORDER BY id").fetchall()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 32, 33, 63, 100, 255, 256, 257, 300, 600])
def test_every_row_is_written_once(con: sqlite3.Connection, count: int) -> None:
    rows = [(number, f"thing {number}") for number in range(count)]
    write_many(con, PUT, rows)
    assert things(con) == rows


def test_the_later_of_two_rows_with_the_same_key_wins(con: sqlite3.Connection) -> None:
    write_many(con, PUT, [(1, "old"), (2, "other"), (1, "new")])
    assert things(con) == [(1, "new"), (2, "other")]


def test_rows_can_be_updated(con: sqlite3.Connection) -> None:
    write_many(con, PUT, [(number, "old") for number in range(200)])
    write_many(con, RENAME, [(f"new {number}", number) for number in range(100, 200)])
    assert things(con) == [(n, "old") for n in range(100)] + [(n, f"new {n}") for n in range(100, 200)]


def test_a_statement_without_a_list_of_values_is_run_row_by_row(con: sqlite3.Connection) -> None:
    write_many(con, PUT, [(1, "one"), (2, "two"), (3, "three")])
    write_many(con, "DELETE FROM things WHERE id = ?", [(1,), (3,)])
    assert things(con) == [(2, "two")]


def test_a_batch_needs_few_statements(con: sqlite3.Connection) -> None:
    seen: list[str] = []
    con.set_trace_callback(seen.append)
    write_many(con, PUT, [(number, "x") for number in range(250)])
    assert len(seen) == 5  # 192 + 32 + 16 + 8 + 2


def test_null_and_booleans_are_written_unchanged(con: sqlite3.Connection) -> None:
    con.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text, flag)")
    put = "INSERT INTO notes (id, text, flag) VALUES (?, ?, ?)"
    rows: list[tuple[int, str | None, bool | int | None]] = [
        *((number, None, True) for number in range(4)),  # equal values in a whole statement
        *((number, "NULL" if number == 4 else None, number % 2 == 0) for number in range(4, 6)),
        (6, "", None),
    ]
    write_many(con, put, rows)
    assert con.execute("SELECT id, text, flag FROM notes ORDER BY id").fetchall() == rows


def test_rows_of_nulls_are_written(con: sqlite3.Connection) -> None:
    con.execute("CREATE TABLE notes (text)")
    write_many(con, "INSERT INTO notes (text) VALUES (?)", [(None,)] * 3)
    assert con.execute("SELECT text FROM notes").fetchall() == [(None,)] * 3


def test_rows_of_different_lengths_are_refused(con: sqlite3.Connection) -> None:
    with pytest.raises(ValueError):
        write_many(con, PUT, [(1, None), (2,)])
    assert things(con) == []
