"""Messages that transitions publish: their rows, with a delivery or a bundle for each sink that wants them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from redrive.core.outbox import Bundle, SinkLease
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import MessageWrite, Transition
from redrive.store.sql_files import load_statements
from redrive.store.sqlite.connection import write_many

SQL = load_statements(__package__, "outbox.sql")
_NumberedMessage = tuple[int, str, MessageWrite, Bundle | None]


def publish_messages(
    con: sqlite3.Connection,
    now: int,
    transitions: Iterable[Transition],
    carriers: Sequence[SinkLease] = (),
    worker: int | None = None,
) -> list[tuple[int, Bundle] | None]:
    """Write the messages of kept transitions, with a bundle or a delivery for each sink of their topics.

    Return the messages that the carriers, of this worker, have claimed; none if some messages were written before.
    """
    (last,) = con.execute(SQL["last_message"]).fetchone()
    messages = [(each.tenant, m) for each in transitions for m in each.messages]
    sinks = {
        topic: [name for (name,) in con.execute(SQL["sinks_for"], {"topic": topic})]
        for topic in {m.topic for _, m in messages}
    }
    rows = _assign_bundles(messages, last + 1, sinks, [each.sink for each in carriers])
    new = _insert_messages(con, now, rows)
    until = {each.sink: now + each.lease for each in carriers}
    bundled: dict[int, tuple[str, Bundle, list[int]]] = {}
    for id, tenant, _, bundle in new:
        if bundle is not None:
            bundled.setdefault(bundle.id, (tenant, bundle, []))[2].append(id)
    bundles = [
        (bundle.id, sink, tenant, ids[0], ids[-1], len(ids), until[sink], worker)
        for tenant, bundle, ids in bundled.values()
        for sink in bundle.sinks
    ]
    write_many(con, SQL["put_bundle"], bundles)
    others = [
        (id, sink, tenant, m.key, DeliveryStatus.PENDING._value_, now)
        for id, tenant, m, bundle in new
        for sink in sinks[m.topic]
        if bundle is None or sink not in bundle.sinks
    ]
    write_many(con, SQL["put_delivery"], others)
    if len(new) < len(rows):
        con.execute(SQL["clear_bundles"], {"messages": json.dumps([m.public_id for _, m in messages])})
        return []
    return [None if bundle is None else (id, bundle) for id, _, _, bundle in rows]


def _insert_messages(con: sqlite3.Connection, now: int, rows: list[_NumberedMessage]) -> list[_NumberedMessage]:
    """Write messages; return those that did not exist before."""
    before = con.total_changes
    write_many(
        con,
        SQL["put_message"],
        [
            (id, m.public_id, tenant, m.topic, m.key, m.run_id, m.correlation_id, now, m.payload, m.trace,
             None if bundle is None else bundle.id)
            for id, tenant, m, bundle in rows
        ],
    )  # fmt: skip
    if con.total_changes - before == len(rows):
        return rows
    first, last = rows[0][0], rows[-1][0]
    there = {id for (id,) in con.execute(SQL["messages_between"], {"first": first, "last": last})}
    return [row for row in rows if row[0] in there]


def _assign_bundles(
    messages: Sequence[tuple[str, MessageWrite]], first: int, sinks: Mapping[str, list[str]], carriers: list[str]
) -> list[_NumberedMessage]:
    """Return the messages with ids and bundles. A bundle has the id of its first message."""
    carried = {topic: tuple(sink for sink in names if sink in carriers) for topic, names in sinks.items()}
    bundles: dict[tuple[str, str], Bundle] = {}
    rows: list[_NumberedMessage] = []
    for id, (tenant, m) in enumerate(messages, first):
        bundle = None
        if m.key is None and carried[m.topic]:
            lane = (tenant, m.topic)
            if lane not in bundles:
                names = carried[m.topic]
                bundles[lane] = Bundle(id, names, len(names) == len(sinks[m.topic]))
            bundle = bundles[lane]
        rows.append((id, tenant, m, bundle))
    return rows
