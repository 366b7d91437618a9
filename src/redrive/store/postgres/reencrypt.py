"""A PostgreSQL schema as rows of texts: see `redrive.store.encryption.reencrypt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.clock import Clock
from redrive.store.encryption.reencrypt import TABLES, Exchange, Table, TextRow
from redrive.store.postgres.connection import as_given, as_stored, locate, session
from redrive.store.postgres.pool import Lines
from redrive.store.postgres.sql import Statement, prepare
from redrive.store.statements import load

__all__ = ["PostgresTexts"]


SQL = load(__package__, "reseal.sql")
_PATIENCE = 5.0


def _texts(table: Table) -> Statement:
    text = SQL["texts"].format(
        table=table.name,
        owner=table.owner,
        key=", ".join(table.key),
        place=", ".join(f":{name}" for name in table.key),
        columns=", ".join(table.columns),
    )
    return prepare(text)


def _swap(table: Table) -> Statement:
    kinds = {
        name: "text" if isinstance(at, str) else "bigint"
        for name, at in zip(table.key, table.start, strict=True)
    }
    texts = [f"{which}_{name}" for which in ("old", "new") for name in table.columns]
    kinds |= dict.fromkeys(texts, "text")
    text = SQL["swap"].format(
        table=table.name,
        arrays=", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in kinds.items()),
        names=", ".join(kinds),
        found=" AND ".join(f"t.{name} = n.{name}" for name in table.key),
        same=" AND ".join(f"t.{name} IS NOT DISTINCT FROM n.old_{name}" for name in table.columns),
        new=", ".join(f"{name} = n.new_{name}" for name in table.columns),
    )
    return prepare(text)


class PostgresTexts:
    """The texts of a schema, through a connection of its own, in the engine's role."""

    tables = TABLES

    def __init__(self, url: str, clock: Clock) -> None:
        self._lines = Lines(locate(url), 1, session(_PATIENCE), clock)

    async def page(self, table: Table, after: tuple[Any, ...], most: int) -> list[TextRow]:
        place = dict(zip(table.key, after, strict=True))
        rows = await self._lines.run(lambda line: line.rows(_texts(table), most=most, **place))
        end = 1 + len(table.key)
        return [TextRow(row[0], tuple(row[1:end]), tuple(as_given(row[end:]))) for row in rows]

    async def swap(self, table: Table, exchanges: Sequence[Exchange]) -> int:
        values: dict[str, list[Any]] = {}
        for number, name in enumerate(table.key):
            values[name] = [each.row.key[number] for each in exchanges]
        for number, name in enumerate(table.columns):
            values[f"old_{name}"] = [as_stored(each.row.texts[number]) for each in exchanges]
            values[f"new_{name}"] = [as_stored(each.texts[number]) for each in exchanges]
        done = await self._lines.run(lambda line: line.rows(_swap(table), **values))
        return len(done)

    async def close(self) -> None:
        await self._lines.close()
