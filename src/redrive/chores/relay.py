"""Relay: bring messages to a sink, at least once, in order where they have a key.

    claim       due deliveries, for as long as a lease lasts
    take        what was this node's from its commit on, in bundles (`chores/relay.py`)
    deliver     each to the sink; those with one key one after the other, the rest side by side
    note        what became of them, all that came together in one commit; bundles as a whole, if all arrived

Any number of nodes relay to the same sink. A node that dies leaves what it had to the others when the lease
has passed; what it delivered and did not note arrives once more. Nothing remembers how far it got: what is
to be delivered is what the store says is not delivered, whenever it was committed.

This is the loop that claims and waits. Its parts are in `chores/relaying/`:

    in_hand     what it has, and what is to be noted of it
    lines       delivering side by side, in order per key
    courier     one try, and what its failure amounts to
    suspects    what may have killed a process, tried alone
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from redrive.chores.relay_delivery import MessageDeliverer
from redrive.chores.relay_queue import MAX_HELD_MESSAGES, DeliveryQueue, HeldMessages, SuspectTrial
from redrive.clock import MICROS, Clock, Timer
from redrive.core.classify import Rule
from redrive.core.outbox import INITIAL_FENCE, MAX_CLAIM_BYTES, Bundle, SinkLease, Suspects
from redrive.core.transitions import MessageWrite, Transition, TransitionResult
from redrive.errors import StoreError
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.sinks import SinkDefinition
from redrive.store.deliveries import ClaimedDeliveries, ClaimedDelivery, MessageRow
from redrive.store.port import Store

# -- Relay: bring messages to a sink, at least once, in order where they have a key ----------------------


log = logging.getLogger("redrive.chores")
CLAIM_BATCH = 500
_MAX_HELD_DIRECT = 4_000  # messages in hand with those taken from their commit on, where they leave quickly
_MIN_LEASE = 30.0
_STORE_RETRY_PAUSE = 1.0  # how long to leave a store alone that does not answer
_SLOW_AFTER = 1.0  # how long a bundle may be under way before the sink is not quick enough for more
_STOP_GRACE = 5.0  # how long a node that stops waits for deliveries under way


class Relay:
    """Brings messages to one sink. `ring()` says that there may be some."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule] = (),
        tally: Counters | None = None,
        *,
        one_suspect: asyncio.Lock | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._lease = max(_MIN_LEASE, 3 * definition.timeout)
        self._in_hand = HeldMessages(definition.name, store, clock, self._on_recorded)
        courier = MessageDeliverer(store, clock, definition, rules, tally, tracing)
        self._lines = DeliveryQueue(definition, clock, courier, self._in_hand)
        self._suspects = Suspects.LEAVE if definition.user_code else Suspects.TAKE
        self._testing = SuspectTrial(definition.name, one_suspect or asyncio.Lock(), self._try_suspect, self.ring)
        self._slow: Timer | None = None
        self._look_at = -1
        self._rung = True
        self._behind = True  # as far as anybody knows
        self._changed = asyncio.Event()
        self._idle = False
        self._pausing = False
        self._next_at: int | None = None

    # -- life ---------------------------------------------------------------------------------------

    def ring(self) -> None:
        """There may be messages."""
        self._rung = True
        self._changed.set()

    @property
    def name(self) -> str:
        """What its sink is called."""
        return self._sink.name

    @property
    def is_idle(self) -> bool:
        """True while it waits for a ring, or for time to pass."""
        waits = self._idle and not self._changed.is_set()
        return self._pausing or (waits and not self._lines and not self.tasks)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way on its behalf."""
        own = [*self._lines.tasks, self._testing.task, self._in_hand.write_task]
        return [task for task in own if task is not None and not task.done()]

    async def run(self, poll: float) -> None:
        """Deliver whenever there is something, looking by itself every `poll` seconds."""
        while True:
            try:
                await self.run_once()
                await self._wait(poll)
            except StoreError as error:
                log.warning("messages to %r were put off: %s", self._sink.name, error)
                await self._pause()
            except Exception:  # whatever it is, a relay that gives up for ever would make it worse
                log.exception("a relay to %r failed; it goes on in a moment", self._sink.name)
                await self._pause()

    async def _pause(self) -> None:
        self._pausing = True
        await self._clock.sleep(_STORE_RETRY_PAUSE)
        self._pausing = False

    async def _wait(self, poll: float) -> None:
        """Until the bell rings or the next delivery is due."""
        left = math.inf if self._next_at is None else (self._next_at - self._store.now()) / MICROS
        wait = min(poll, max(left, 0.0))
        timer = None if wait == math.inf else self._clock.call_later(wait, self.ring)
        self._idle = True
        try:
            while not self._rung:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._idle = False
            if timer is not None:
                timer.cancel()

    def _on_recorded(self, some_singly: bool) -> None:
        if some_singly and self._idle:
            self._rung = True  # something may be due, or have a time when it will be
        self._changed.set()

    async def run_once(self) -> int:
        """Deliver until nothing more is due; returns how many messages arrived."""
        before = self._lines.delivered
        self._rung = True
        while True:
            self._changed.clear()
            if self._should_claim():
                self._rung = False  # before: whoever rings meanwhile is heard
                if await self._claim():
                    self._rung = True
                continue
            if not self._in_hand.count and not self._testing.is_running:
                return self._lines.delivered - before
            await self._changed.wait()

    async def stop(self) -> None:
        """Begin nothing more; what is under way gets a moment, the rest is given back."""
        self._lines.stop()
        self._in_hand.split_all_bundles()
        self._in_hand.write_soon()
        await self._cancel_tasks(_STOP_GRACE)
        await self._sink.sink.close()

    async def kill(self) -> None:
        """Vanish, as a crash would."""
        self._lines.stopped = True
        await self._cancel_tasks(0.0)
        await self._sink.sink.close()

    async def _cancel_tasks(self, grace: float) -> None:
        if self._slow is not None:
            self._slow.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.tasks:
                    await asyncio.wait(self.tasks)
                    self._in_hand.write_soon()
        left = self.tasks
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- claiming -----------------------------------------------------------------------------------

    def _should_claim(self) -> bool:
        """True if there may be something to claim, and room for it.

        Where nothing rings, it is looked for what waited behind messages of ours when half of them are noted.
        """
        wanted = self._rung or self._in_hand.count <= self._look_at
        room = self._in_hand.count <= MAX_HELD_MESSAGES - CLAIM_BATCH and self._in_hand.size < MAX_CLAIM_BYTES
        return wanted and room and not self._lines.stopped

    async def _claim(self) -> bool:
        """Take what is due; True if there may be more."""
        began = self._clock.monotonic()
        claims = await self._claim_deliveries(CLAIM_BATCH, self._suspects)
        self._next_at, self._behind = claims.next_at, claims.more
        self._lines.add(claims.items, self._latest_start(began))
        self._lines.go()
        self._look_at = self._in_hand.count // 2 if self._in_hand.count else -1
        if claims.suspects:
            self._testing.begin()
        return claims.more

    async def _claim_deliveries(self, limit: int, suspects: Suspects) -> ClaimedDeliveries:
        claims = await self._store.claim_deliveries(
            self._sink.name, limit=limit, lease=int(self._lease * MICROS), suspects=suspects
        )
        self._in_hand.add_claimed(claims.items)
        return claims

    def _latest_start(self, began: float) -> float:
        """When a try may begin at the latest so that it ends within a lease that `began` then."""
        return began + self._lease - self._sink.timeout

    async def _try_suspect(self) -> bool:
        """Try the next suspect until that is noted; False if there is none, or it is time to stop."""
        if self._lines.stopped:
            return False
        began = self._clock.monotonic()
        claims = await self._claim_deliveries(1, Suspects.TAKE_ONE)
        for each in claims.items:
            await self._lines.deliver(deque([each]), self._latest_start(began))
            self._in_hand.write_soon()
        await self._in_hand.wait_written()
        return claims.more

    # -- taking -------------------------------------------------------------------------------------

    @property
    def carrier(self) -> SinkLease:
        """Whom it takes messages along for, and how long it has them."""
        return SinkLease(self._sink.name, int(self._lease * MICROS))

    def has_room_for(self, messages: int, size: int) -> bool:
        """True if it may take messages from their commit on: it has room, and nobody is passed over."""
        caught_up = not (self._behind or self._pausing or self._lines.stopped)
        room = self._in_hand.count + messages <= _MAX_HELD_DIRECT and self._in_hand.size + size < MAX_CLAIM_BYTES
        return caught_up and room and not self._slow_bundles()

    def take(self, bundle: int, items: Sequence[ClaimedDelivery], began: float) -> None:
        """Deliver messages that are in its hands since a commit that `began` then.

        Those who wait for that commit go on first.
        """
        self._in_hand.add_bundle(bundle, items)
        if self._lines.stopped:
            self._in_hand.give_back(items)
            self._in_hand.write_soon()
            return
        self._lines.add_unkeyed(items, self._latest_start(began))
        if self._slow is None:
            self._slow = self._clock.call_later(_SLOW_AFTER, self._split_slow_bundles)
        asyncio.get_running_loop().call_soon(self._lines.go)

    def _slow_bundles(self) -> list[int]:
        return self._in_hand.bundles_older_than(self._clock.monotonic() - _SLOW_AFTER)

    def _split_slow_bundles(self) -> None:
        """Note what arrived of bundles that take long; others may have a part of what has not begun."""
        slow = self._slow_bundles()
        for bundle in slow:
            self._in_hand.split_bundle(bundle)
        if slow:
            self._lines.give_back_beyond(MAX_HELD_MESSAGES)
        self._in_hand.write_soon()
        again = self._in_hand.has_bundles
        self._slow = self._clock.call_later(_SLOW_AFTER, self._split_slow_bundles) if again else None


# -- Hand-over: messages go from the commit that publishes them straight to the relays of this proce -----


DeliveryList = list[ClaimedDelivery]


class RelayForwarder:
    """Between a settler and the relays that are there at the moment."""

    def __init__(self, relays: Callable[[], Iterable[Relay]]) -> None:
        self._relays = relays

    def carriers(self, transitions: Sequence[Transition]) -> list[SinkLease]:
        """The sinks whose relays take the messages of these transitions along."""
        sizes = [len(message.payload) for each in transitions for message in each.messages]
        if not sizes:
            return []
        return [each.carrier for each in self._relays() if each.has_room_for(len(sizes), sum(sizes))]

    def committed(
        self,
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        carriers: Sequence[SinkLease],
        began: float,
    ) -> None:
        """Give the carriers what they have since a commit that `began` then; ring for the rest."""
        said = [pair for pair in zip(transitions, answers, strict=True) if pair[0].messages]
        if not said:
            return
        bundles, whole = _collect_bundles(said)
        named = {each.sink for each in carriers}
        for relay in self._relays():
            for bundle, items in bundles:
                if relay.name in bundle.sinks:
                    relay.take(bundle.id, items, began)
            if not whole or relay.name not in named:
                relay.ring()


def _collect_bundles(
    said: Sequence[tuple[Transition, TransitionResult]],
) -> tuple[list[tuple[Bundle, DeliveryList]], bool]:
    """What was bundled, and whether that is all. A repeat may have been kept, and written, before."""
    found: dict[int, tuple[Bundle, DeliveryList]] = {}
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
            row = _make_message_row(message, id, transition.tenant, answer.now)
            found[bundle.id][1].append(ClaimedDelivery(message=row, fence=INITIAL_FENCE, attempt=0, bundle=bundle.id))
    return list(found.values()), whole


def _make_message_row(written: MessageWrite, id: int, tenant: str, now: int) -> MessageRow:
    return MessageRow(
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
