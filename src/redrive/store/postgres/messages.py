"""Messages: the columns they are written as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from redrive.core.delivery import Bundle, Carrier
from redrive.core.transition import Transition
from redrive.store.postgres.columns import always, seldom
from redrive.store.postgres.text import as_stored

__all__ = ["NOTHING", "bundled", "columns", "grouped"]

_NAMES = (
    "m_t", "m_public_id", "m_tenant", "m_topic", "m_key", "m_run_id", "m_correlation_id", "m_payload",
    "m_trace",
)  # fmt: skip
_ALWAYS = frozenset({"m_tenant", "m_topic"})
_GROUPED = ("m_group", "g_topic", "c_sink", "c_lease")


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
            None if m.correlation_id == m.run_id else as_stored(m.correlation_id),
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


NOTHING: dict[str, Sequence[Any] | None] = dict.fromkeys((*_NAMES, *_GROUPED))
"""The columns where no transition has a message."""


def grouped(
    transitions: Sequence[Transition], carriers: Sequence[Carrier]
) -> dict[str, Sequence[Any] | None]:
    """The columns that say who takes which messages along: in which group each is, 0 if in none."""
    if not carriers:
        return dict.fromkeys(_GROUPED)
    groups: dict[tuple[str, str], int] = {}
    numbers = [
        0 if m.key is not None else groups.setdefault((each.tenant, m.topic), len(groups) + 1)
        for each in transitions
        for m in each.messages
    ]
    return {
        "m_group": always(numbers),
        "g_topic": [topic for _, topic in groups],
        "c_sink": [each.sink for each in carriers],
        "c_lease": [each.lease for each in carriers],
    }


def bundled(
    transitions: Sequence[Transition],
    kept: Sequence[bool],
    groups: Mapping[str, Sequence[Any] | None],
    said: Any,
) -> list[tuple[tuple[int, Bundle] | None, ...]]:
    """For each transition, which of its messages the carriers have from now on, as `publish_bundled` told."""
    ids, bundles, topics, sinks = said
    if not bundles:
        return [()] * len(transitions)
    made = _bundles(groups, bundles, list(zip(topics or (), sinks or (), strict=True)))
    numbers = groups["m_group"] or ()
    number = repeat(numbers[0]) if len(numbers) == 1 else iter(numbers)
    place = iter(ids)
    found: list[tuple[tuple[int, Bundle] | None, ...]] = []
    for each, yes in zip(transitions, kept, strict=True):
        mine = [made[next(number)] for _ in each.messages]
        found.append(tuple([_place(next(place), bundle) for bundle in mine]) if yes else ())
    return found


def _bundles(
    groups: Mapping[str, Sequence[Any] | None], bundles: Sequence[int | None], wants: list[tuple[str, str]]
) -> list[Bundle | None]:
    """The bundles by the numbers of the groups; 0 is none."""
    carriers = groups["c_sink"] or ()
    found: list[Bundle | None] = [None]
    for topic, id in zip(groups["g_topic"] or (), bundles, strict=True):
        sinks = [sink for wanted, sink in wants if wanted == topic]
        carried = tuple(sink for sink in sinks if sink in carriers)
        found.append(None if id is None else Bundle(id, carried, len(carried) == len(sinks)))
    return found


def _place(id: int, bundle: Bundle | None) -> tuple[int, Bundle] | None:
    return None if bundle is None else (id, bundle)
