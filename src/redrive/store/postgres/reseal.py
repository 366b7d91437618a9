"""A PostgreSQL schema as rows of texts: see `redrive.store.reseal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.clock import Clock
from redrive.store.postgres.address import locate
from redrive.store.postgres.line import session
from redrive.store.postgres.lines import Lines
from redrive.store.postgres.sql import load
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.reseal import Exchange, Table, TextRow

__all__ = ["PostgresTexts"]

SQL = load("reseal.sql")

_PATIENCE = 5.0


class PostgresTexts:
    """The texts of a schema, through a connection of its own, in the engine's role."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._lines = Lines(locate(url), 1, session(_PATIENCE), clock)

    async def page(self, table: Table, after: tuple[Any, ...], most: int) -> list[TextRow]:
        place = dict(zip(table.key, after, strict=True))
        rows = await self._lines.run(lambda line: line.rows(SQL[f"texts.{table.name}"], most=most, **place))
        end = 1 + len(table.key)
        return [TextRow(row[0], tuple(row[1:end]), tuple(as_given(row[end:]))) for row in rows]

    async def swap(self, table: Table, exchanges: Sequence[Exchange]) -> int:
        values: dict[str, list[Any]] = {}
        for number, name in enumerate(table.key):
            values[name] = [each.row.key[number] for each in exchanges]
        for number, name in enumerate(table.columns):
            values[f"old_{name}"] = [as_stored(each.row.texts[number]) for each in exchanges]
            values[f"new_{name}"] = [as_stored(each.texts[number]) for each in exchanges]
        done = await self._lines.run(lambda line: line.rows(SQL[f"swap.{table.name}"], **values))
        return len(done)

    async def close(self) -> None:
        await self._lines.close()
