"""Store calls that read outbox messages."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.store.lists import SQL, Query
from redrive.store.outbox import MessageRow
from redrive.store.outbox_rows import delivery_row, message_row, wanted_messages, with_deliveries
from redrive.store.pages import Request
from redrive.store.records import Page
from redrive.store.selection import OutboxFilter
from redrive.store.session import Database, Session, reads

__all__ = ["MessageCalls"]


class MessageCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @reads()
    async def message(
        self, session: Session, public_id: str, *, tenant: str | None = None
    ) -> MessageRow | None:
        row = await session.row(SQL["message_by_id"], message=public_id, tenant=tenant)
        return None if row is None else (await _with_deliveries(session, [message_row(row)]))[0]

    @reads()
    async def messages(
        self, session: Session, where: OutboxFilter, *, limit: int, cursor: str | None
    ) -> Page[MessageRow]:
        request = Request.of(limit, cursor)
        query = Query(session, "messages", wanted_messages(where, list), message_row)
        found = await query.fetch(request.window, None)
        return request.page(await _with_deliveries(session, found.rows), found.reached)


async def _with_deliveries(session: Session, rows: Sequence[MessageRow]) -> list[MessageRow]:
    found = await session.rows(SQL["deliveries_of"], messages=[row.id for row in rows])
    return with_deliveries(rows, [(row[0], delivery_row(row[1:])) for row in found])
