"""Relays: deliver messages to sinks, at least once, in order for messages with the same key.

    claim       due deliveries, for the time of a lease
    take        messages in bundles, from the commit of this process that publishes them
    deliver     each to the sink; those with one key one after the other, the rest concurrently
    record      the results, all that came together in one commit; a bundle as one, if all of it was delivered

Any number of processes relay to the same sink. If a process dies, others claim its messages when the lease of its
worker has expired; a message that was delivered and not recorded is delivered once more. A relay has no position: it
delivers what the store lists as not delivered, no matter when that was committed.

This module has the loop that claims and waits. `relay_deliveries.py` has the messages that a relay holds, and the
attempts to deliver them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from redrive.chores.relay_deliveries import (
    MAX_HELD_MESSAGES,
    DeliveryQueue,
    HeldMessages,
    MessageDeliverer,
    SuspectTrial,
)
from redrive.clock import MICROS, Clock, Timer
from redrive.core.classify import Rule
from redrive.core.outbox import INITIAL_FENCE, MAX_CLAIM_BYTES, Bundle, SinkLease, Suspects
from redrive.errors import StoreError
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.settle.settler import Settled
from redrive.sinks import SinkDefinition
from redrive.store.outbox import MessageRow
from redrive.store.outbox_claims import ClaimedDeliveries, ClaimedDelivery
from redrive.store.port import Store

log = logging.getLogger("redrive.chores")

CLAIM_BATCH = 500
_MAX_HELD_DIRECT = 4_000  # messages that a relay may hold if it takes them from their commits
_MIN_LEASE = 30.0
_STORE_RETRY_PAUSE = 1.0  # seconds to wait for a store that does not answer
_SLOW_AFTER = 1.0  # seconds that a bundle may take before the sink counts as too slow for more bundles
_STOP_GRACE = 5.0  # seconds that a process that stops waits for deliveries under way


class Relay:
    """Delivers messages to one sink. `wake` makes it claim."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule] = (),
        counters: Counters | None = None,
        *,
        one_suspect: asyncio.Lock | None = None,
        tracing: Tracing | None = None,
        worker: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._worker = worker
        # Longer than an attempt may take. Messages of a dead process are free earlier, with the lease of its worker.
        self._lease = max(_MIN_LEASE, 3 * definition.timeout)
        self._held = HeldMessages(definition.name, store, clock, self._on_recorded)
        deliverer = MessageDeliverer(store, clock, definition, rules, counters, tracing)
        self._queue = DeliveryQueue(definition, clock, deliverer, self._held)
        self._suspects = Suspects.LEAVE if definition.user_code else Suspects.TAKE
        self._trial = SuspectTrial(definition.name, one_suspect or asyncio.Lock(), self._try_suspect, self.wake)
        self._slow: Timer | None = None
        self._claim_below = -1
        self._woken = True
        self._behind = True  # as far as is known, there are due messages that were not claimed
        self._changed = asyncio.Event()
        self._idle = False
        self._pausing = False
        self._next_at: int | None = None

    def wake(self) -> None:
        """Wake the relay, because there may be messages."""
        self._woken = True
        self._changed.set()

    @property
    def name(self) -> str:
        """The name of its sink."""
        return self._sink.name

    @property
    def is_idle(self) -> bool:
        """True while it waits for `wake`, or for time to pass."""
        waits = self._idle and not self._changed.is_set()
        return self._pausing or (waits and not self._queue and not self.tasks)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of this relay that are under way."""
        tasks = [*self._queue.tasks, self._trial.task, self._held.write_task]
        return [task for task in tasks if task is not None and not task.done()]

    async def run(self, poll: float) -> None:
        """Deliver messages for as long as the task lives, claiming at least every `poll` seconds."""
        while True:
            try:
                await self.run_once()
                await self._wait(poll)
            except StoreError as error:
                log.warning("messages to %r were postponed: %s", self._sink.name, error)
                await self._pause()
            except Exception:  # of any kind: a relay must not give up
                log.exception("unexpected error in the relay to %r; it continues in a moment", self._sink.name)
                await self._pause()

    async def _pause(self) -> None:
        self._pausing = True
        await self._clock.sleep(_STORE_RETRY_PAUSE)
        self._pausing = False

    async def _wait(self, poll: float) -> None:
        """Wait until the relay is woken or the next delivery is due."""
        left = math.inf if self._next_at is None else (self._next_at - self._store.now()) / MICROS
        wait = min(poll, max(left, 0.0))
        timer = None if wait == math.inf else self._clock.call_later(wait, self.wake)
        self._idle = True
        try:
            while not self._woken:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._idle = False
            if timer is not None:
                timer.cancel()

    def _on_recorded(self, some_singly: bool) -> None:
        if some_singly and self._idle:
            self._woken = True  # a failed message has a new due time, and those behind a delivered one may be due
        self._changed.set()

    async def run_once(self) -> int:
        """Deliver until nothing more is due; return the number of delivered messages."""
        before = self._queue.delivered
        self._woken = True
        while True:
            self._changed.clear()
            # Without being woken, it claims when half of its messages are recorded: others may have waited behind them.
            due = self._woken or self._held.count <= self._claim_below
            room = self._held.count <= MAX_HELD_MESSAGES - CLAIM_BATCH and self._held.size < MAX_CLAIM_BYTES
            if due and room and not self._queue.stopped:
                self._woken = False  # before the claim, so that a wake-up meanwhile is not lost
                if await self._claim():
                    self._woken = True
                continue
            if not self._held.count and not self._trial.is_running:
                return self._queue.delivered - before
            await self._changed.wait()

    async def stop(self) -> None:
        """Begin nothing more; wait a moment for deliveries under way, and release the rest."""
        self._queue.stop()
        self._held.split_all_bundles()
        self._held.write_soon()
        await self._cancel_tasks(_STOP_GRACE)
        await self._sink.sink.close()

    async def kill(self) -> None:
        """End as a crash would: nothing is released or recorded."""
        self._queue.stopped = True
        await self._cancel_tasks(0.0)
        await self._sink.sink.close()

    async def _cancel_tasks(self, grace: float) -> None:
        if self._slow is not None:
            self._slow.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.tasks:
                    await asyncio.wait(self.tasks)
                    self._held.write_soon()
        left = self.tasks
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _claim(self) -> bool:
        """Claim due messages and begin to deliver them; return True if there may be more."""
        began = self._clock.monotonic()
        claims = await self._claim_deliveries(CLAIM_BATCH, self._suspects)
        self._next_at, self._behind = claims.next_at, claims.more
        self._queue.add(claims.items, self._latest_start(began))
        self._queue.start_tasks()
        self._claim_below = self._held.count // 2 if self._held.count else -1
        if claims.suspects:
            self._trial.begin()
        return claims.more

    async def _claim_deliveries(self, limit: int, suspects: Suspects) -> ClaimedDeliveries:
        claims = await self._store.claim_deliveries(
            self._sink.name, limit=limit, lease=int(self._lease * MICROS), suspects=suspects, worker=self._worker()
        )
        self._held.add_claimed(claims.items)
        return claims

    def _latest_start(self, began: float) -> float:
        """Return the latest time to begin a delivery, so that it ends within a lease that `began` then."""
        return began + self._lease - self._sink.timeout

    async def _try_suspect(self) -> bool:
        """Deliver the next suspect and record the result; return False if there is none, or the relay stops."""
        if self._queue.stopped:
            return False
        began = self._clock.monotonic()
        claims = await self._claim_deliveries(1, Suspects.TAKE_ONE)
        for each in claims.items:
            await self._queue.deliver(deque([each]), self._latest_start(began))
            self._held.write_soon()
        await self._held.wait_written()
        return claims.more

    @property
    def carrier(self) -> SinkLease:
        """The sink and the lease under which the relay takes messages from their commits."""
        return SinkLease(self._sink.name, int(self._lease * MICROS))

    def has_room_for(self, messages: int, size: int) -> bool:
        """Return True if the relay may take messages from their commit: it has room, and no older ones are due."""
        caught_up = not (self._behind or self._pausing or self._queue.stopped)
        room = self._held.count + messages <= _MAX_HELD_DIRECT and self._held.size + size < MAX_CLAIM_BYTES
        return caught_up and room and not self._slow_bundles()

    def take(self, bundle: int, items: Sequence[ClaimedDelivery], began: float) -> None:
        """Deliver messages that the relay holds since a commit that `began` then."""
        self._held.add_bundle(bundle, items)
        if self._queue.stopped:
            self._held.release(items)
            self._held.write_soon()
            return
        self._queue.add_unkeyed(items, self._latest_start(began))
        if self._slow is None:
            self._slow = self._clock.call_later(_SLOW_AFTER, self._split_slow_bundles)
        # Not at once: callers that wait for the commit continue first.
        asyncio.get_running_loop().call_soon(self._queue.start_tasks)

    def _slow_bundles(self) -> list[int]:
        return self._held.bundles_older_than(self._clock.monotonic() - _SLOW_AFTER)

    def _split_slow_bundles(self) -> None:
        """Record results of slow bundles one by one, and release messages that other processes may deliver."""
        slow = self._slow_bundles()
        for bundle in slow:
            self._held.split_bundle(bundle)
        if slow:
            self._queue.release_beyond(MAX_HELD_MESSAGES)
        self._held.write_soon()
        again = self._held.has_bundles
        self._slow = self._clock.call_later(_SLOW_AFTER, self._split_slow_bundles) if again else None


class RelayForwarder:
    """Passes messages from the commit that publishes them to the relays of this process."""

    def __init__(self, relays: Callable[[], Iterable[Relay]]) -> None:
        self._relays = relays

    def carriers(self, messages: int, size: int) -> list[SinkLease]:
        """Return the sinks whose relays have room for this many messages, with `size` characters of payload."""
        return [relay.carrier for relay in self._relays() if relay.has_room_for(messages, size)]

    def forward(self, settled: Sequence[Settled], carriers: Sequence[SinkLease], began: float) -> None:
        """Pass the messages of a commit that `began` then to their carriers; wake the other relays."""
        bundles, complete = _collect_bundles([each for each in settled if each.transition.messages])
        carrying = {carrier.sink for carrier in carriers}
        for relay in self._relays():
            for bundle, items in bundles:
                if relay.name in bundle.sinks:
                    relay.take(bundle.id, items, began)
            if not complete or relay.name not in carrying:
                relay.wake()


def _collect_bundles(published: Sequence[Settled]) -> tuple[list[tuple[Bundle, list[ClaimedDelivery]]], bool]:
    """Return the bundles of a commit with their messages, and True if each message is in a bundle.

    A repeated commit has none: the first one, whose answer was lost, wrote its messages.
    """
    found: dict[int, tuple[Bundle, list[ClaimedDelivery]]] = {}
    complete = True
    for each in published:
        if not each.bundled:
            complete = False
            continue
        for message, reference in zip(each.transition.messages, each.bundled, strict=True):
            if reference is None:
                complete = False
                continue
            id, bundle = reference
            row = MessageRow(
                id=id,
                public_id=message.public_id,
                tenant=each.transition.tenant,
                topic=message.topic,
                key=message.key,
                payload=message.payload,
                run_id=message.run_id,
                correlation_id=message.correlation_id,
                created_at=each.now,
                trace=message.trace,
            )
            _, items = found.setdefault(bundle.id, (bundle, []))
            items.append(ClaimedDelivery(message=row, fence=INITIAL_FENCE, attempt=0, bundle=bundle.id))
    return list(found.values()), complete
