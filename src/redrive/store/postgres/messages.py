"""Messages: the columns they are written as, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core.transition import Transition
from redrive.store import statements
from redrive.store.outbox import MessageRow
from redrive.store.outbox_rows import delivery_row, message_row, wanted_messages, with_deliveries
from redrive.store.pages import Request
from redrive.store.postgres.columns import always, seldom
from redrive.store.postgres.line import Line
from redrive.store.postgres.lists import Query
from redrive.store.postgres.sql import prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import Page
from redrive.store.selection import OutboxFilter

__all__ = ["NOTHING", "columns", "message", "messages"]

SQL = statements.load(__package__, "outbox.sql")

_NAMES = (
    "m_t", "m_public_id", "m_tenant", "m_topic", "m_key", "m_run_id", "m_correlation_id", "m_payload",
    "m_trace",
)  # fmt: skip
_ALWAYS = frozenset({"m_tenant", "m_topic"})


def columns(transitions: Sequence[Transition]) -> dict[str, Sequence[Any] | None] | None:
    """The messages of a call as columns, each under the number of its transition; None if there are none."""
    rows = [
        (
            number,
            m.public_id,
            each.tenant,
            m.topic,
            m.key,
            m.run_id,
            as_stored(m.correlation_id),
            m.payload,
            m.trace,
        )
        for number, each in enumerate(transitions, 1)
        for m in each.messages
    ]
    if not rows:
        return None
    return {
        name: always(column) if name in _ALWAYS else seldom(column)
        for name, column in zip(_NAMES, zip(*rows, strict=True), strict=True)
    }


NOTHING: dict[str, Sequence[Any] | None] = dict.fromkeys(_NAMES)
"""The columns where no transition has a message."""


async def message(line: Line, public_id: str, tenant: str | None) -> MessageRow | None:
    """One message with its deliveries."""
    row = await line.row(prepare(SQL["message_by_id"]), message=public_id, tenant=tenant)
    return None if row is None else (await _with_deliveries(line, [message_row(as_given(row))]))[0]


async def messages(line: Line, where: OutboxFilter, limit: int, cursor: str | None) -> Page[MessageRow]:
    """A page of messages with their deliveries, newest first."""
    request = Request.of(limit, cursor)
    query = Query(line, "messages", wanted_messages(where, list), message_row)
    found = await query.fetch(request.window, None)
    return request.page(await _with_deliveries(line, found.rows), found.reached)


async def _with_deliveries(line: Line, rows: Sequence[MessageRow]) -> list[MessageRow]:
    found = await line.rows(prepare(SQL["deliveries_of"]), messages=[row.id for row in rows])
    return with_deliveries(rows, [(row[0], delivery_row(as_given(row)[1:])) for row in found])
