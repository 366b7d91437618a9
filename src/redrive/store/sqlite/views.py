"""Saved views in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.writes import note
from redrive.store.statements import load
from redrive.store.views import NewView, ViewPlace, ViewRow, view_row

__all__ = ["SqliteViews"]

SQL = load(__package__, "views.sql")


class SqliteViews:
    """See `redrive.store.views` for what each call promises."""

    def __init__(self, lines: Threaded | Inline, now: Callable[[], int]) -> None:
        self._lines = lines
        self._now = now

    async def known(self, tenant: str, owner: str | None) -> list[ViewRow]:
        values = {"tenant": tenant, "owner": owner}
        return await self._lines.read(
            lambda con: [view_row(row) for row in con.execute(SQL["views"], values)]
        )

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await self._change("put_view", {**asdict(view), "most": most}, audit)

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        return await self._change("drop_view", asdict(place), audit)

    async def _change(self, name: str, values: Mapping[str, Any], audit: AuditWrite | None) -> bool:
        def change(con: sqlite3.Connection) -> bool:
            now = self._now()
            changed = con.execute(SQL[name], {**values, "now": now}).fetchall()
            if changed and audit is not None:
                note(con, now, [audit])
            return bool(changed)

        return await self._lines.write(change)
