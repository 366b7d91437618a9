"""Rare writes of a transition as parameters: messages, reopened and new runs, letters, replays, audit lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from redrive.core.outbox import Bundle, SinkLease
from redrive.core.payload.plain import to_json_text
from redrive.core.states import CLOSED_LETTER_STATUSES
from redrive.core.transitions import AuditWrite, NewRun, Transition
from redrive.record_fields import as_dict
from redrive.store.postgres.connection import (
    Connection,
    DatabaseClock,
    dense_column,
    escape_nul,
    needs_no_escape,
    sparse_column,
)
from redrive.store.sql_statements import load_numbered_statements

WRITES = load_numbered_statements(__package__, "writes.sql")
_NAMES = (
    "m_t", "m_public_id", "m_tenant", "m_topic", "m_key", "m_run_id", "m_correlation_id", "m_payload",
    "m_trace",
)  # fmt: skip
_DENSE = frozenset({"m_tenant", "m_topic"})
_GROUPED = ("m_group", "g_topic", "c_sink", "c_lease")


def make_message_columns(transitions: Sequence[Transition]) -> dict[str, Sequence[Any] | None] | None:
    """Return the messages of a call as columns, each with the number of its transition; None if there are none."""
    rows = [
        (
            number,
            m.public_id,
            each.tenant,
            m.topic,
            m.key,
            m.run_id,
            None if m.correlation_id == m.run_id else escape_nul(m.correlation_id),
            m.payload,
            m.trace,
        )
        for number, each in enumerate(transitions, 1)
        for m in each.messages
    ]
    if not rows:
        return None
    return {
        name: dense_column(column) if name in _DENSE else sparse_column(column)
        for name, column in zip(_NAMES, zip(*rows, strict=True), strict=True)
    }


NO_MESSAGES: dict[str, Sequence[Any] | None] = dict.fromkeys((*_NAMES, *_GROUPED))
"""The columns of a call without messages."""


def make_group_columns(
    transitions: Sequence[Transition], carriers: Sequence[SinkLease]
) -> dict[str, Sequence[Any] | None]:
    """Return the columns for the carriers: the group of each message (0 for none), and the sinks."""
    if not carriers:
        return dict.fromkeys(_GROUPED)
    groups: dict[tuple[str, str], int] = {}
    numbers = [
        0 if m.key is not None else groups.setdefault((each.tenant, m.topic), len(groups) + 1)
        for each in transitions
        for m in each.messages
    ]
    return {
        "m_group": dense_column(numbers),
        "g_topic": [topic for _, topic in groups],
        "c_sink": [each.sink for each in carriers],
        "c_lease": [each.lease for each in carriers],
    }


def find_bundles(
    transitions: Sequence[Transition], kept: Sequence[bool], groups: Mapping[str, Sequence[Any] | None], published: Any
) -> list[tuple[tuple[int, Bundle] | None, ...]]:
    """Return the messages of each transition that the carriers have claimed, from the reply of `publish_bundled`."""
    ids, bundles, topics, sinks = published
    if not bundles:
        return [()] * len(transitions)
    made = _find_bundles_by_group(groups, bundles, list(zip(topics or (), sinks or (), strict=True)))
    numbers = groups["m_group"] or ()
    number = repeat(numbers[0]) if len(numbers) == 1 else iter(numbers)
    message_ids = iter(ids)
    found: list[tuple[tuple[int, Bundle] | None, ...]] = []
    for each, yes in zip(transitions, kept, strict=True):
        mine = [made[next(number)] for _ in each.messages]
        if not yes:
            found.append(())
            continue
        pairs = [(next(message_ids), bundle) for bundle in mine]
        found.append(tuple([None if bundle is None else (id, bundle) for id, bundle in pairs]))
    return found


def _find_bundles_by_group(
    groups: Mapping[str, Sequence[Any] | None], bundles: Sequence[int | None], wants: list[tuple[str, str]]
) -> list[Bundle | None]:
    """Return the bundles by the numbers of their groups. Group 0 has none."""
    carriers = groups["c_sink"] or ()
    found: list[Bundle | None] = [None]
    for topic, id in zip(groups["g_topic"] or (), bundles, strict=True):
        sinks = [sink for wanted, sink in wants if wanted == topic]
        carried = tuple(sink for sink in sinks if sink in carriers)
        found.append(None if id is None else Bundle(id, carried, len(carried) == len(sinks)))
    return found


_Row = dict[str, Any]
_Write = Callable[[_Row], _Row]


def encode_rare_writes(transitions: Sequence[Transition]) -> str | None:
    """Return the other rows by kind as JSON, each with the number of its transition; None if there are none."""
    rows = _collect_rows(transitions, _drop_none)
    if not rows:
        return None
    text = _to_json(rows)
    return text if needs_no_escape(text) else _to_json(_collect_rows(transitions, _escape_row))


def encode_starts(transitions: Sequence[Transition]) -> str | None:
    """Return the runs that transitions start as JSON; None if there are none."""
    rows = [{"t": number, **_make_start_row(run)} for number, each in enumerate(transitions, 1) for run in each.starts]
    return _to_json(rows) if rows else None


def encode_audit(lines: Iterable[AuditWrite]) -> str:
    """Return audit lines that belong to no transition as JSON."""
    return _to_json({"audit": [{"t": 1, **_escape_row(as_dict(line))} for line in lines]})


def _collect_rows(transitions: Sequence[Transition], write: _Write) -> dict[str, list[_Row]]:
    rows: dict[str, list[_Row]] = {}
    for number, transition in enumerate(transitions, 1):
        for kind, row in _list_rows(transition, write):
            row["t"] = number
            rows.setdefault(kind, []).append(row)
    return rows


def _list_rows(transition: Transition, write: _Write) -> Iterator[tuple[str, _Row]]:
    if transition.reopens is not None:
        row = {**as_dict(transition.reopens), "new_operation": int(transition.reopens.new_operation)}
        del row["index"]  # other statements write it
        if (change := transition.change) is not None:  # in the same row: so the run is written once, not twice
            row |= {**as_dict(change), "status": change.status.value, "take": int(change.take)}
        yield "reopens", write(row)
    if transition.move is not None:
        status = transition.move.status
        closed = status in CLOSED_LETTER_STATUSES
        yield "moves", write({**as_dict(transition.move), "status": status.value, "closed": closed})
    if transition.ends_replay is not None and transition.change is not None:
        yield "ends", {"letter": transition.ends_replay, "outcome": transition.change.status.value}
    if transition.replay is not None:
        yield "replays", {**write(as_dict(transition.replay)), "tenant": transition.tenant}
    for sample in transition.samples:
        yield "samples", {**as_dict(sample), "tenant": transition.tenant}
    for line in transition.audit:
        yield "audit", write(as_dict(line))


def _make_start_row(run: NewRun) -> _Row:
    """Return a run as a row. Its names are not escaped: one with a NUL is refused, as by `start`."""
    texts = {name: getattr(run, name) for name in ("input", "options", "correlation_id", "parent")}
    row = as_dict(run)
    del row["index"]
    return {**row, **_escape_row(texts), "rank": -run.priority}


def _drop_none(row: _Row) -> _Row:
    """Leave out empty fields, which the server would parse a thousand times for nothing."""
    return {name: value for name, value in row.items() if value is not None}


def _escape_row(row: _Row) -> _Row:
    return {name: escape_nul(value) for name, value in row.items() if value is not None}


def _to_json(rows: dict[str, list[_Row]] | list[_Row]) -> str:
    # Not escaped: a lone surrogate must be refused, as everywhere else, not stored as \\ud800.
    return to_json_text(rows)


async def write_audit(connection: Connection, clock: DatabaseClock, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    await connection.rows(WRITES["note"], now=clock.given(), told=encode_audit(lines))
