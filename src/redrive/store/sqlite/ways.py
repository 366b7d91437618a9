"""Ways to read a list, on SQLite, which can be told the index."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from redrive.store.filters import clauses
from redrive.store.statements import load
from redrive.store.ways import SCANNED, Choice, Way, edge_of, furthest, is_whole, on_the_way, ways

__all__ = ["SQL", "by", "choose"]

SQL = {**load(__package__, "lists.sql"), **load(__package__, "outbox.sql")}  # messages are listed as well

# What the indexes that come with a table are called here.
_OWN = {
    "runs_pkey": "NOT INDEXED",
    "letters_pkey": "NOT INDEXED",
    "audit_pkey": "NOT INDEXED",
    "messages_pkey": "NOT INDEXED",
    "letters_run_tenant_key": "INDEXED BY sqlite_autoindex_letters_2",
    "messages_public_id_key": "INDEXED BY sqlite_autoindex_messages_1",
}


def choose(con: sqlite3.Connection, table: str, values: Mapping[str, Any], *, newest_first: bool) -> Choice:
    """The way to rows with these values, and how far to look on it."""
    edges: list[Choice] = []
    for way in ways(table, values):
        edge = None if is_whole(way, values) else _edge(con, table, way, values, newest_first)
        if edge is None:
            return Choice(way)
        edges.append(Choice(way, edge))
    return furthest(edges, newest_first=newest_first)


def _edge(
    con: sqlite3.Connection, table: str, way: Way, values: Mapping[str, Any], newest_first: bool
) -> int | None:
    known = on_the_way(way, values)
    wanted = clauses(SQL, table, [*known, *way.said])
    order = "DESC" if newest_first else "ASC"
    statement = SQL[f"{table}.edge"].format(conditions=wanted, order=order, by=by(way))
    row = con.execute(statement, {**known, "scanned": SCANNED}).fetchone()
    return edge_of(*row, newest_first=newest_first)


def by(way: Way) -> str:
    """What holds the planner to a way."""
    return _OWN.get(way.index, f"INDEXED BY {way.index}")
