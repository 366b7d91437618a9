"""Messages that transitions publish: their columns in a call, and the bundles that the carriers have claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from redrive.core.outbox import Bundle, SinkLease
from redrive.core.transitions import Transition
from redrive.store.postgres.connection import dense_column, escape_nul, sparse_column

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
