"""The outbox: sinks, handing out deliveries, noting what became of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from redrive.core.delivery import (
    BORN,
    Arrived,
    DeliveryMark,
    Due,
    Lane,
    Suspects,
    kept_back,
    lanes,
    waiting,
)
from redrive.core.states import DeliveryStatus
from redrive.core.transition import AuditWrite
from redrive.store.outbox import (
    BlockedKey,
    Deliveries,
    DeliveryChoice,
    DeliveryDecision,
    NewSink,
    SinkRow,
)
from redrive.store.outbox_rows import (
    Found,
    blocked_key,
    chosen,
    decided,
    mark_values,
    sink_row,
    taken,
    weighed,
)
from redrive.store.sqlite import writes
from redrive.store.statements import load

__all__ = [
    "any_due",
    "blocked_keys",
    "claim_deliveries",
    "decide_deliveries",
    "next_delivery",
    "note_deliveries",
    "purge",
    "put_sinks",
    "remove_sink",
    "sinks",
]

SQL = load(__package__, "outbox.sql")

_EVER = 1 << 62


# -- sinks ---------------------------------------------------------------------------------------------


def put_sinks(con: sqlite3.Connection, now: int, given: Sequence[NewSink]) -> None:
    """Have messages on their topics go to these sinks from now on."""
    for sink in given:
        con.execute(SQL["put_sink"], {"name": sink.name, "kind": sink.kind, "now": now})
        con.execute(SQL["drop_topics"], {"name": sink.name})
        con.executemany(SQL["put_topic"], [(sink.name, each.topic, each.wild) for each in sink.topics])


def sinks(con: sqlite3.Connection) -> list[SinkRow]:
    """All sinks, and how much waits for each."""
    return [sink_row(row) for row in con.execute(SQL["sinks"])]


def remove_sink(con: sqlite3.Connection, now: int, name: str, audit: AuditWrite) -> bool:
    """Let no message go to a sink any more; what waits for it is skipped."""
    if con.execute(SQL["drop_sink"], {"name": name}).fetchone() is None:
        return False
    con.execute(SQL["drop_topics"], {"name": name})
    _unfold(con, _expired(con, _EVER, name), name)
    con.execute(SQL["skip_all"], {"name": name, "now": now})
    writes.note(con, now, [audit])
    return True


# -- deliveries ----------------------------------------------------------------------------------------


def any_due(con: sqlite3.Connection, now: int, sink: str) -> bool:
    """True if a claim would find something."""
    return con.execute(SQL["any_due"], {"sink": sink, "now": now}).fetchone() is not None


def next_delivery(con: sqlite3.Connection, now: int, sink: str) -> int | None:
    """When the next delivery to a sink is due."""
    at: int | None = con.execute(SQL["next_delivery"], {"sink": sink, "now": now}).fetchone()[0]
    return at


def claim_deliveries(
    con: sqlite3.Connection, now: int, sink: str, limit: int, lease: int, suspects: Suspects
) -> Deliveries:
    """Take due deliveries; those that an earlier one of their key keeps back wait behind it."""
    _unfold(con, _expired(con, now, sink), sink)
    found = _due(con, now, sink, limit, suspect=True if suspects is Suspects.TAKE_ONE else None)
    rows, left = chosen(found, suspects)
    if left and len(found.rows) == limit:
        found = _due(con, now, sink, limit, suspect=False)
        rows = found.rows
    due = [Due(row[0], row[2], row[4]) for row in rows]
    back = _kept_back(con, sink, due)
    con.executemany(SQL["wait_behind"], [(behind, message, sink) for message, behind in back.items()])
    items = taken(rows, back)
    ids = json.dumps([each.message.id for each in items])
    con.execute(SQL["take_deliveries"], {"sink": sink, "until": now + lease, "messages": ids})
    return Deliveries(items=items, now=now, more=found.more, suspects=left)


def _due(con: sqlite3.Connection, now: int, sink: str, limit: int, *, suspect: bool | None) -> Found:
    """What is due and free: row after row, until they are enough or too large together."""
    values = {"sink": sink, "now": now, "most": limit, "suspect": suspect}
    return weighed(con.execute(SQL["due_deliveries"], values), limit)


def _kept_back(con: sqlite3.Connection, sink: str, due: Sequence[Due]) -> dict[int, int]:
    """Those that may not go yet, each with the one it waits behind."""
    keyed = lanes(due)
    if not keyed:
        return {}
    mine = json.dumps([message for messages in keyed.values() for message in messages])

    def ask(name: str, places: Mapping[Lane, int]) -> dict[Lane, int]:
        wanted = [[tenant, key, place] for (tenant, key), place in places.items()]
        values = {"sink": sink, "due": mine, "lanes": json.dumps(wanted, ensure_ascii=False)}
        found = con.execute(SQL[name], values)
        return {(tenant, key): message for tenant, key, message in found if message is not None}

    back = kept_back(due, ask("first_others", {lane: messages[-1] for lane, messages in keyed.items()}))
    return waiting(due, back, ask("ahead", back)) if back else {}


# -- bundles -------------------------------------------------------------------------------------------


def _expired(con: sqlite3.Connection, now: int, sink: str) -> list[int]:
    """Bundles that are nobody's any more."""
    return [id for (id,) in con.execute(SQL["expired_bundles"], {"sink": sink, "now": now})]


def _unfold(con: sqlite3.Connection, bundles: Iterable[int], sink: str | None) -> None:
    """Give the messages of bundles deliveries of their own, those to one sink or to all."""
    wanted = list(bundles)
    if wanted:
        values = {"bundles": json.dumps(wanted), "sink": sink}
        con.execute(SQL["unfold"], {**values, "fence": BORN})
        con.execute(SQL["drop_bundles"], values)


def _finish(
    con: sqlite3.Connection, now: int, sink: str, arrived: Sequence[Arrived]
) -> list[tuple[int, int]]:
    """Note bundles as arrived; the messages of those that were unfolded meanwhile, with their fence."""
    wanted = json.dumps([each.bundle for each in arrived])
    values = {"now": now, "sink": sink, "bundles": wanted}
    finished = {id for (id,) in con.execute(SQL["finish_bundles"], values).fetchall()}
    return [(id, BORN) for each in arrived if each.bundle not in finished for id in each.messages]


# -- noting --------------------------------------------------------------------------------------------


def note_deliveries(
    con: sqlite3.Connection,
    now: int,
    sink: str,
    marks: Sequence[DeliveryMark],
    audit: Sequence[AuditWrite],
    bundles: Sequence[Arrived] = (),
) -> None:
    """Write what became of deliveries; whoever waits behind one that is over is due."""
    _unfold(con, {mark.bundle for mark in marks if mark.bundle is not None}, sink)
    arrived = [(mark.message, mark.fence) for mark in marks if mark.status is DeliveryStatus.DELIVERED]
    arrived += _finish(con, now, sink, bundles) if bundles else ()
    others = [mark for mark in marks if mark.status is not DeliveryStatus.DELIVERED]
    going_on = _going_on(con, sink, marks) if others else set()
    if arrived:
        con.execute(SQL["mark_delivered"], {"sink": sink, "now": now, "marks": json.dumps(arrived)})
    values = [{**mark_values(mark, now, going_on), "sink": sink} for mark in others]
    con.executemany(SQL["mark_delivery"], values)
    _release(con, now, sink, [mark.message for mark in marks if mark.over and mark.keyed])
    writes.note(con, now, audit)


def _going_on(con: sqlite3.Connection, sink: str, marks: Sequence[DeliveryMark]) -> set[int]:
    """What may be waited for. Whoever waits behind a delivery that is over by the end would wait for ever."""
    ahead = [mark.behind for mark in marks if mark.behind is not None]
    found = con.execute(SQL["going_on"], {"sink": sink, "messages": json.dumps(ahead)})
    return {message for (message,) in found} - {mark.message for mark in marks if mark.over}


def _release(con: sqlite3.Connection, now: int, sink: str, messages: Sequence[int]) -> None:
    if messages:
        con.execute(SQL["release"], {"sink": sink, "now": now, "messages": json.dumps(messages)})


# -- people --------------------------------------------------------------------------------------------


def blocked_keys(con: sqlite3.Connection, tenant: str | None, limit: int) -> list[BlockedKey]:
    """Keys whose first message waits for a person."""
    return [blocked_key(row) for row in con.execute(SQL["blocked_keys"], {"tenant": tenant, "most": limit})]


def decide_deliveries(con: sqlite3.Connection, now: int, decision: DeliveryDecision) -> int:
    """Carry out a decision on a message's deliveries; return how many it changed."""
    _unfold(
        con, [id for (id,) in con.execute(SQL["bundle_of"], {"message": decision.message})], decision.sink
    )
    rows = con.execute(SQL["not_over"], {"message": decision.message, "sink": decision.sink}).fetchall()
    chosen = decided(rows, decision.choice, now)
    name = "skip" if decision.choice is DeliveryChoice.SKIP else "redeliver"
    for message, sink in chosen:
        con.execute(SQL[name], {"message": message, "sink": sink, "now": now})
        if decision.choice is DeliveryChoice.SKIP:
            _release(con, now, sink, [message])
    if chosen:
        writes.note(con, now, [decision.audit])
    return len(chosen)


def purge(con: sqlite3.Connection, before: int, limit: int) -> int:
    """Remove messages that were delivered long enough ago; return how many."""
    old = [id for (id,) in con.execute(SQL["old_messages"], {"before": before, "most": limit}).fetchall()]
    con.execute(SQL["old_deliveries"], {"messages": json.dumps(old)})
    con.execute(SQL["old_bundles"], {"before": before, "most": limit})
    return len(old)
