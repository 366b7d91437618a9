"""Hand-over: messages go from the commit that publishes them straight to the relays of this process.

A relay that has caught up, and has room, is named in the commit as a carrier. What the store bundled for it
is in its hands then and needs no claim. All the rest is for whoever claims it first, and the relays are rung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from redrive.chores.relay import Relay
from redrive.core.delivery import BORN, Bundle, Carrier
from redrive.core.quick import quick
from redrive.core.transition import Answer, MessageWrite, Transition
from redrive.store.outbox_records import ClaimedDelivery, MessageRow

__all__ = ["Handover"]

_MessageRow, _Claimed = quick(MessageRow), quick(ClaimedDelivery)

Items = list[ClaimedDelivery]


class Handover:
    """Between a settler and the relays that are there at the moment."""

    def __init__(self, relays: Callable[[], Iterable[Relay]]) -> None:
        self._relays = relays

    def carriers(self, transitions: Sequence[Transition]) -> list[Carrier]:
        """The sinks whose relays take the messages of these transitions along."""
        sizes = [len(message.payload) for each in transitions for message in each.messages]
        if not sizes:
            return []
        return [each.carrier for each in self._relays() if each.has_room_for(len(sizes), sum(sizes))]

    def committed(
        self,
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        carriers: Sequence[Carrier],
        began: float,
    ) -> None:
        """Give the carriers what they have since a commit that `began` then; ring for the rest."""
        said = [pair for pair in zip(transitions, answers, strict=True) if pair[0].messages]
        if not said:
            return
        bundles, whole = _bundles(said)
        named = {each.sink for each in carriers}
        for relay in self._relays():
            for bundle, items in bundles:
                if relay.name in bundle.sinks:
                    relay.take(bundle.id, items, began)
            if not whole or relay.name not in named:
                relay.ring()


def _bundles(said: Sequence[tuple[Transition, Answer]]) -> tuple[list[tuple[Bundle, Items]], bool]:
    """What was bundled, and whether that is all. A repeat may have been kept, and written, before."""
    found: dict[int, tuple[Bundle, Items]] = {}
    whole = True
    for transition, answer in said:
        if not answer.bundled:
            whole = False
            continue
        for message, place in zip(transition.messages, answer.bundled, strict=True):
            if place is None:
                whole = False
                continue
            id, bundle = place
            if bundle.id not in found:
                found[bundle.id] = (bundle, [])
            row = _row(message, id, transition.tenant, answer.now)
            found[bundle.id][1].append(_Claimed(message=row, fence=BORN, attempt=0, bundle=bundle.id))
    return list(found.values()), whole


def _row(written: MessageWrite, id: int, tenant: str, now: int) -> MessageRow:
    return _MessageRow(
        id=id,
        public_id=written.public_id,
        tenant=tenant,
        topic=written.topic,
        key=written.key,
        payload=written.payload,
        run_id=written.run_id,
        correlation_id=written.correlation_id,
        created_at=now,
        trace=written.trace,
    )
