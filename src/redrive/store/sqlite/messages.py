"""Messages: writing them with the transitions they belong to, and reading them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from redrive.core.transition import Transition
from redrive.store.outbox import MessageRow
from redrive.store.outbox_rows import delivery_row, message_row, wanted_messages, with_deliveries
from redrive.store.pages import Request
from redrive.store.records import Page
from redrive.store.selection import OutboxFilter
from redrive.store.sqlite.lists import Query, json_list
from redrive.store.sqlite.many import write_many
from redrive.store.statements import load

__all__ = ["message", "messages", "publish"]

SQL = load(__package__, "outbox.sql")


def publish(con: sqlite3.Connection, now: int, transitions: Iterable[Transition]) -> None:
    """Write the messages of transitions that were kept, and a delivery for each sink that wants one."""
    rows = [
        (m.public_id, each.tenant, m.topic, m.key, m.run_id, m.correlation_id, now, m.payload, m.trace)
        for each in transitions
        for m in each.messages
    ]
    if not rows:
        return
    (last,) = con.execute(SQL["last_message"]).fetchone()
    write_many(con, SQL["put_message"], rows)
    con.execute(SQL["put_deliveries"], {"last": last, "now": now})


def message(con: sqlite3.Connection, public_id: str, tenant: str | None) -> MessageRow | None:
    """One message with its deliveries."""
    row = con.execute(SQL["message_by_id"], {"message": public_id, "tenant": tenant}).fetchone()
    return None if row is None else _with_deliveries(con, [message_row(row)])[0]


def messages(
    con: sqlite3.Connection, where: OutboxFilter, limit: int, cursor: str | None
) -> Page[MessageRow]:
    """A page of messages with their deliveries, newest first."""
    request = Request.of(limit, cursor)
    query = Query(con, "messages", wanted_messages(where, json_list), message_row)
    found = query.fetch(request.window, None)
    return request.page(_with_deliveries(con, found.rows), found.reached)


def _with_deliveries(con: sqlite3.Connection, rows: Sequence[MessageRow]) -> list[MessageRow]:
    found = con.execute(SQL["deliveries_of"], {"messages": json.dumps([row.id for row in rows])})
    return with_deliveries(rows, [(row[0], delivery_row(row[1:])) for row in found])
