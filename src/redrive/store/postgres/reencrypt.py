"""A PostgreSQL schema as rows of texts: see `redrive.store.encryption.reencrypt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.clock import Clock
from redrive.store.encryption.reencrypt import TEXT_TABLES, TextRow, TextSwap, TextTable
from redrive.store.postgres.connection import engine_settings, escape_nul, parse_url, unescape_row
from redrive.store.postgres.pool import ConnectionPool
from redrive.store.postgres.sql import NumberedStatement, number_parameters
from redrive.store.sql_files import load_statements

SQL = load_statements(__package__, "reseal.sql")
_PATIENCE = 5.0


def _page_statement(table: TextTable) -> NumberedStatement:
    text = SQL["texts"].format(
        table=table.name,
        owner=table.owner,
        key=", ".join(table.key),
        place=", ".join(f":{name}" for name in table.key),
        columns=", ".join(table.columns),
    )
    return number_parameters(text)


def _swap_statement(table: TextTable) -> NumberedStatement:
    kinds = {name: "text" if isinstance(at, str) else "bigint" for name, at in zip(table.key, table.start, strict=True)}
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
    return number_parameters(text)


class PostgresTextStore:
    """The texts of a schema, through a connection of its own, in the engine's role."""

    tables = TEXT_TABLES

    def __init__(self, url: str, clock: Clock) -> None:
        self._lines = ConnectionPool(parse_url(url), 1, engine_settings(_PATIENCE), clock)

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        place = dict(zip(table.key, after, strict=True))
        rows = await self._lines.run(lambda line: line.rows(_page_statement(table), most=most, **place))
        end = 1 + len(table.key)
        return [TextRow(row[0], tuple(row[1:end]), tuple(unescape_row(row[end:]))) for row in rows]

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        values: dict[str, list[Any]] = {}
        for number, name in enumerate(table.key):
            values[name] = [each.row.key[number] for each in exchanges]
        for number, name in enumerate(table.columns):
            values[f"old_{name}"] = [escape_nul(each.row.texts[number]) for each in exchanges]
            values[f"new_{name}"] = [escape_nul(each.texts[number]) for each in exchanges]
        done = await self._lines.run(lambda line: line.rows(_swap_statement(table), **values))
        return len(done)

    async def close(self) -> None:
        await self._lines.close()
