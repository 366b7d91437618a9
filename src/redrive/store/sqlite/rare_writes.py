"""Rare writes of a transition, which most transitions do not have: messages, reopened runs, closed letters, replays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redrive.core.outbox import Bundle, SinkLease
from redrive.core.states import CLOSED_LETTER_STATUSES, DeliveryStatus
from redrive.core.transitions import LetterStatusWrite, MessageWrite, ReopenWrite, RunWrite, Transition
from redrive.record_fields import as_dict
from redrive.store.sql_statements import load_statements
from redrive.store.sqlite.connection import write_many
from redrive.store.sqlite.starts import drop_index, put_index, start

SQL = load_statements(__package__, "outbox.sql")
WRITE_SQL = load_statements(__package__, "writes.sql")
_Row = dict[str, Any]
_CHANGED = ("status", "wake_in", "release", "take", "deaths", "diverged", "parked_on")  # columns of a reopened run
_NumberedMessage = tuple[int, str, MessageWrite, Bundle | None]
"""A message's id, tenant, content and bundle."""


def publish(
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


def write_rare(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    """Write the rest of transitions, one kind after the other, as the PostgreSQL store does."""
    _reopen_runs(con, now, [each for each in transitions if each.reopens])
    if begun := [run for each in transitions for run in each.starts]:
        start(con, now, begun)
        replaced = [{"old": run.replay_of, "new": run.public_id} for run in begun if run.replay_of is not None]
        for name in ("copy_events", "copy_wakeups", "replace_run", "copy_owner", "move_children"):
            con.executemany(WRITE_SQL[name], replaced)
    moves = [each.move for each in transitions if each.move]
    con.executemany(WRITE_SQL["move_letter_to_run"], [{"letter": m.letter, "run": m.run} for m in moves if m.run])
    _write_grouped(con, "move_letter", [(_make_move_values(move, now), move.letter) for move in moves])
    _write_grouped(
        con,
        "end_replay",
        [
            ({"outcome": each.change.status.value, "now": now}, each.ends_replay)
            for each in transitions
            if each.ends_replay and each.change
        ],
    )
    replays = [({**as_dict(each.replay), "tenant": each.tenant, "now": now}) for each in transitions if each.replay]
    _write_grouped(con, "count_replay", [({}, row["letter"]) for row in replays])
    _write_grouped(con, "put_replay", [(row, [row.pop("letter"), row.pop("run_id")]) for row in replays])


def _write_grouped(con: sqlite3.Connection, statement: str, rows: Iterable[tuple[_Row, Any]]) -> None:
    """Run a statement once for all rows with equal values; `:these` is the list of their keys."""
    groups: dict[tuple[tuple[str, Any], ...], list[Any]] = {}
    for values, key in rows:
        groups.setdefault(tuple(values.items()), []).append(key)
    for items, keys in groups.items():
        con.execute(WRITE_SQL[statement], {**dict(items), "these": json.dumps(keys)})


def _reopen_runs(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    pairs = [(each, each.reopens) for each in transitions if each.reopens]
    _write_grouped(
        con, "reopen_run", [(_make_reopened_values(r, each.change, now), [each.run, r.letter]) for each, r in pairs]
    )
    edited = [
        {"run": each.run, "input": r.input, "options": r.options}
        for each, r in pairs
        if r.input is not None or r.options is not None
    ]
    con.executemany(WRITE_SQL["edit_input"], edited)
    for name, field in (
        ("supersede", "supersedes"),
        ("return_events", "supersedes"),
        ("drop_superseded_waits", "supersedes"),
        ("loosen", "loosens"),
    ):
        indexes = [(getattr(r, field), each.run) for each, r in pairs]
        _write_grouped(con, name, [({"indexes": json.dumps(found)}, run) for found, run in indexes if found])
    for each, r in pairs:
        if r.index is not None:
            drop_index(con, [each.run])
            put_index(con, each.run, each.tenant, r.index)


def _make_reopened_values(reopening: ReopenWrite, change: RunWrite | None, now: int) -> _Row:
    """Return the values of a reopened run, its change included, so that its row is written once."""
    values = {"sole_step": reopening.sole_step, "new_operation": reopening.new_operation, "now": now}
    if change is None:
        return {**values, **dict.fromkeys(_CHANGED), "release": False, "take": False}
    return {**values, **{name: getattr(change, name) for name in _CHANGED}}


def _make_move_values(move: LetterStatusWrite, now: int) -> _Row:
    closed = move.status in CLOSED_LETTER_STATUSES
    change = {"by": move.by, "resolution": move.resolution, "expires_in": move.expires_in}
    return {"status": move.status._value_, "closed": closed, **change, "now": now}
