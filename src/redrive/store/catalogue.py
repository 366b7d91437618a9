"""Store calls about the catalogue: the workflows and steps that code registered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from redrive.store.session import Database, Session, Statements, reads
from redrive.store.workers import KnownItem

__all__ = ["CatalogueCalls"]

SQL = Statements("catalogue.sql")


_KNOWN = ("kind", "name", "version", "options", "schema_in", "schema_out")


def known_item(row: Sequence[Any]) -> KnownItem:
    """One row of `catalogue`."""
    return KnownItem(**dict(zip(_KNOWN, row, strict=True)))


class CatalogueCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @reads()
    async def known(self, session: Session, names: Sequence[str]) -> list[KnownItem]:
        return _newest(await session.rows(SQL["known"], names=list(names)))

    @reads()
    async def workflows(self, session: Session) -> list[KnownItem]:
        return _newest(await session.rows(SQL["workflows"]))


def _newest(rows: Iterable[Any]) -> list[KnownItem]:
    """Keep the first row of each workflow or step: the one that the newest code registered."""
    found = groupby(map(known_item, rows), key=lambda item: (item.kind, item.name))
    return [next(items) for _, items in found]
