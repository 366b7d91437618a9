"""Messages: writing them with the transitions they belong to."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from redrive.core.delivery import Bundle, Carrier
from redrive.core.states import DeliveryStatus
from redrive.core.transition import MessageWrite, Transition
from redrive.store.sqlite.many import write_many
from redrive.store.statements import load

__all__ = ["publish"]

SQL = load(__package__, "outbox.sql")


_Said = tuple[int, str, MessageWrite, Bundle | None]
"""A message with its number, its tenant, and the bundle it is in."""


def publish(
    con: sqlite3.Connection, now: int, transitions: Iterable[Transition], carriers: Sequence[Carrier] = ()
) -> list[tuple[int, Bundle] | None]:
    """Write the messages of transitions that were kept, and how they go to each sink that wants them.

    Returns which of them the carriers have from now on; none where some were written before.
    """
    (last,) = con.execute(SQL["last_message"]).fetchone()
    said = [(each.tenant, m) for each in transitions for m in each.messages]
    wants = {topic: _sinks_for(con, topic) for topic in {m.topic for _, m in said}}
    rows = _bundled(said, last + 1, wants, [each.sink for each in carriers])
    new = _put(con, now, rows)
    until = {each.sink: now + each.lease for each in carriers}
    write_many(con, SQL["put_bundle"], _bundle_rows(new, until))
    others = [
        (id, sink, tenant, m.key, DeliveryStatus.PENDING._value_, now)
        for id, tenant, m, bundle in new
        for sink in wants[m.topic]
        if bundle is None or sink not in bundle.sinks
    ]
    write_many(con, SQL["put_delivery"], others)
    if len(new) < len(rows):
        con.execute(SQL["no_bundle"], {"messages": json.dumps([m.public_id for _, m in said])})
        return []
    return [None if bundle is None else (id, bundle) for id, _, _, bundle in rows]


def _sinks_for(con: sqlite3.Connection, topic: str) -> list[str]:
    return [name for (name,) in con.execute(SQL["sinks_for"], {"topic": topic})]


def _put(con: sqlite3.Connection, now: int, rows: list[_Said]) -> list[_Said]:
    """Write messages; return those that were not there yet."""
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


def _bundled(
    said: Sequence[tuple[str, MessageWrite]], first: int, wants: Mapping[str, list[str]], carriers: list[str]
) -> list[_Said]:
    """Messages with their numbers. A bundle has the number of its first message."""
    carried = {topic: tuple(sink for sink in sinks if sink in carriers) for topic, sinks in wants.items()}
    bundles: dict[tuple[str, str], Bundle] = {}
    rows: list[_Said] = []
    for id, (tenant, m) in enumerate(said, first):
        bundle = None
        if m.key is None and carried[m.topic]:
            lane = (tenant, m.topic)
            if lane not in bundles:
                sinks = carried[m.topic]
                bundles[lane] = Bundle(id, sinks, len(sinks) == len(wants[m.topic]))
            bundle = bundles[lane]
        rows.append((id, tenant, m, bundle))
    return rows


def _bundle_rows(rows: Sequence[_Said], until: Mapping[str, int]) -> list[tuple[object, ...]]:
    found: dict[int, tuple[str, Bundle, list[int]]] = {}
    for id, tenant, _, bundle in rows:
        if bundle is not None:
            found.setdefault(bundle.id, (tenant, bundle, []))[2].append(id)
    return [
        (bundle.id, sink, tenant, ids[0], ids[-1], len(ids), until[sink])
        for tenant, bundle, ids in found.values()
        for sink in bundle.sinks
    ]
