"""Saved views in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.store.postgres.confined import AnyLines
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.views import NewView, ViewPlace, ViewRow, view_row

__all__ = ["PostgresViews"]

SQL = load("views.sql")
MOMENT = load("chores.sql")["moment"]


class PostgresViews:
    """See `redrive.store.views` for what each call promises."""

    def __init__(self, lines: AnyLines, clock: DatabaseClock) -> None:
        self._lines = lines
        self._clock = clock

    async def known(self, tenant: str, owner: str | None) -> list[ViewRow]:
        async def read(line: Line) -> list[ViewRow]:
            return [view_row(row) for row in await line.rows(SQL["views"], tenant=tenant, owner=owner)]

        return await self._lines.run(read)

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await self._change("put_view", {**asdict(view), "most": most}, audit)

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        return await self._change("drop_view", asdict(place), audit)

    async def _change(self, name: str, values: Mapping[str, Any], audit: AuditWrite | None) -> bool:
        async def change(line: Line) -> bool:
            async with line.transaction():
                now = self._clock.heard(await line.value(MOMENT, now=self._clock.given()))
                changed = await line.rows(SQL[name], **values, now=now)
                if changed and audit is not None:
                    await note(line, self._clock, [audit])
            return bool(changed)

        return await self._lines.run(change)
