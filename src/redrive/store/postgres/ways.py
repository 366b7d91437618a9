"""Ways to read a list, on PostgreSQL: conditions and an order that leave the planner one index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redrive.store import statements
from redrive.store.filters import clauses
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import prepare
from redrive.store.ways import SCANNED, Choice, Way, edge_of, furthest, is_whole, on_the_way, ways

__all__ = ["PLANS", "SQL", "along", "choose"]

SQL = {
    **statements.load(__package__, "lists.sql"),
    **statements.load(__package__, "outbox.sql"),
}  # messages are listed as well

PLANS = {"enable_sort": "off", "random_page_cost": "0", "seq_page_cost": "0"}
"""What holds the planner to rows that come in order, and lets it go by the number of those it meets."""

# What an index has, and what it is asked for, where both are not simply called like what a filter says.
_KEYS = {
    "correlation_id": ("CAST(r.correlation_id AS name)", "CAST(:correlation_id AS name)"),
    "early_or_late": ("l.stage", ":early_or_late"),
    "person": ("a.by", ":person"),
}


async def choose(line: Line, table: str, values: Mapping[str, Any], *, newest_first: bool) -> Choice:
    """The way to rows with these values, and how far to look on it."""
    edges: list[Choice] = []
    for way in ways(table, values):
        edge = None if is_whole(way, values) else await _edge(line, table, way, values, newest_first)
        if edge is None:
            return Choice(way)
        edges.append(Choice(way, edge))
    return furthest(edges, newest_first=newest_first)


async def _edge(
    line: Line, table: str, way: Way, values: Mapping[str, Any], newest_first: bool
) -> int | None:
    known = on_the_way(way, values)
    wanted, order = along(table, way, known, newest_first=newest_first)
    statement = prepare(SQL[f"{table}.edge"].format(conditions=wanted, order=order))
    count, lowest, highest = await line.row(statement, **known, scanned=SCANNED)
    return edge_of(count, lowest, highest, newest_first=newest_first)


def along(table: str, way: Way, values: Mapping[str, Any], *, newest_first: bool) -> tuple[str, str]:
    """The conditions of these values and an order, so that there is one good index.

    An order that no other index has, for one. Of a column that an equation names PostgreSQL knows that it
    decides nothing, and reads by the id alone along whatever index it likes; of a choice between a value and
    the same value it does not. That does not help with tenants, which policies name in equations in any case.
    For another, ends that say nothing new about the first column: they are taken to leave one row of two
    hundred, by an index that can use them. Few rows come in no order: an index is good for finding them.
    """
    id, direction = f"{table[0]}.id", "DESC" if newest_first else "ASC"
    keys = [_KEYS.get(name, (f"{table[0]}.{name}", f":{name}")) for name in way.columns]
    wanted = [f"{column} >= {asked} AND {column} <= {asked}" for column, asked in keys[:1]]
    if "tenant" in way.columns or not keys:
        wanted += [f"{column} = {asked}" for column, asked in keys]
        order = [f"{id} + 0" if way.few else id]
    else:
        wanted += [f"{column} = ANY (ARRAY[{asked}, {asked}])" for column, asked in keys]
        order = [*(column for column, _ in keys), id]
    wanted += [clauses(SQL, table, [*values, *way.said])]
    return " AND ".join(wanted), ", ".join(f"{each} {direction}" for each in order)
