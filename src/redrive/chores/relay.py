"""Relay: bring messages to a sink, at least once, in order where they have a key.

    claim       due deliveries, for as long as a lease lasts
    take        what was this node's from its commit on, in bundles (`chores/handover.py`)
    deliver     each to the sink; those with one key one after the other, the rest side by side
    note        what became of them, all that came together in one commit; bundles as a whole, if all arrived

Any number of nodes relay to the same sink. A node that dies leaves what it had to the others when the lease
has passed; what it delivered and did not note arrives once more. Nothing remembers how far it got: what is
to be delivered is what the store says is not delivered, whenever it was committed.

    suspects    what a process had that ended without a word, tried one at a time in the whole process;
                dead, when it has ended three of them
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from redrive.clock import MICROS, Clock, Timer
from redrive.core.auditing import ENGINE
from redrive.core.classify import Rule
from redrive.core.delivery import (
    MOST_BYTES,
    Arrived,
    Carrier,
    DeliveryMark,
    Suspects,
    after_failure,
    is_poison,
)
from redrive.core.events import Event
from redrive.core.failure import Failure, capture
from redrive.core.quick import quick
from redrive.core.states import DeliveryStatus
from redrive.core.transition import AuditWrite
from redrive.errors import DataRefused, StoreError
from redrive.halfway import rest_of
from redrive.settle.settler import until_answered
from redrive.signals.tally import Tally
from redrive.signals.traces import Tracing
from redrive.sinks import SinkDefinition, received
from redrive.store.outbox import ClaimedDelivery, Deliveries
from redrive.store.port import Store

__all__ = ["Relay"]

log = logging.getLogger("redrive.chores")

BATCH = 500
WINDOW = 1_000
"""Messages that a node has in hand for one sink, at most."""

_ROOM = 4_000  # the same with those that are taken from their commit on, where they leave quickly
_LARGE = MOST_BYTES // WINDOW  # smaller ones are few enough not to be counted
_SHORTEST_LEASE = 30.0
_PAUSE = 1.0  # how long to leave a store alone that does not answer
_SLOW = 1.0  # how long a bundle may be under way before the sink is not quick enough for more
_GRACE = 5.0  # how long a node that stops waits for deliveries under way

_DeliveryMark = quick(DeliveryMark)

Chain = deque[ClaimedDelivery]
"""Messages with one key, in order, or a single one without."""


class OpenBundle:
    """A bundle in hand: how many it has, since when, and which of them arrived."""

    __slots__ = ("arrived", "since", "size")

    def __init__(self, items: Sequence[ClaimedDelivery], since: float) -> None:
        self.size = len(items)
        self.since = since
        self.arrived: list[ClaimedDelivery] = []


class Relay:
    """Brings messages to one sink. `ring()` says that there may be some."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule] = (),
        tally: Tally | None = None,
        *,
        one_suspect: asyncio.Lock | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._rules = rules
        self._tally = tally
        self._tracing = tracing
        self._lease = max(_SHORTEST_LEASE, 3 * definition.timeout)
        self._chains: deque[tuple[Chain, float]] = deque()  # with when the last try of each may begin
        self._one_suspect = one_suspect or asyncio.Lock()
        self._suspects = Suspects.LEAVE if definition.user_code else Suspects.TAKE
        self._testing: asyncio.Task[None] | None = None
        self._large: dict[int, int] = {}  # the sizes of large messages in hand
        self._marks: list[DeliveryMark] = []
        self._arrived: list[Arrived] = []
        self._bundles: dict[int, OpenBundle] = {}
        self._slow: Timer | None = None
        self._audit: list[AuditWrite] = []
        self._in_hand = 0
        self._look_at = -1
        self._rung = True
        self._behind = True  # as far as anybody knows
        self._changed = asyncio.Event()
        self._idle = False
        self._pausing = False
        self._next_at: int | None = None
        self._stopping = False
        self._runners: set[asyncio.Task[None]] = set()
        self._noting: asyncio.Task[None] | None = None
        self.delivered = 0

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
        return self._pausing or (waits and not self._chains and not self.tasks)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way on its behalf."""
        own = [*self._runners, self._testing, self._noting]
        return [task for task in own if task is not None and not task.done()]

    async def run(self, poll: float) -> None:
        """Deliver whenever there is something, looking by itself every `poll` seconds."""
        while True:
            try:
                await self.run_once()
                await self._wait(poll)
            except StoreError as error:
                log.warning("messages to %r were put off: %s", self._sink.name, error)
                self._pausing = True
                await self._clock.sleep(_PAUSE)
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

    async def run_once(self) -> int:
        """Deliver until nothing more is due; returns how many messages arrived."""
        before = self.delivered
        self._rung = True
        while True:
            self._changed.clear()
            if self._should_claim():
                self._rung = False  # before: whoever rings meanwhile is heard
                if await self._claim():
                    self._rung = True
                continue
            if not self._in_hand and not self._is_testing:
                return self.delivered - before
            await self._changed.wait()

    def _should_claim(self) -> bool:
        """True if there may be something to claim, and room for it.

        Where nothing rings, it is looked for what waited behind messages of ours when half of them are noted.
        """
        wanted = self._rung or self._in_hand <= self._look_at
        room = self._in_hand <= WINDOW - BATCH and sum(self._large.values()) < MOST_BYTES
        return wanted and room and not self._stopping

    async def stop(self) -> None:
        """Begin nothing more; what is under way gets a moment, the rest is given back."""
        self._stopping = True
        for chain, _ in self._chains:
            self._give_back(chain)
        self._chains.clear()
        for bundle in list(self._bundles):
            self._unfold(bundle)
        self._note_soon()
        await self._end(_GRACE)
        await self._sink.sink.close()

    async def kill(self) -> None:
        """Vanish, as a crash would."""
        self._stopping = True
        await self._end(0.0)
        await self._sink.sink.close()

    async def _end(self, grace: float) -> None:
        if self._slow is not None:
            self._slow.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self.tasks:
                    await asyncio.wait(self.tasks)
                    self._note_soon()
        left = self.tasks
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- claiming -----------------------------------------------------------------------------------

    async def _claim(self) -> bool:
        """Take what is due; True if there may be more."""
        began = self._clock.monotonic()
        claims = await self._ask_for(BATCH, self._suspects)
        self._next_at, self._behind = claims.next_at, claims.more
        self._begin(claims, began + self._lease - self._sink.timeout)
        self._look_at = self._in_hand // 2 if self._in_hand else -1
        if claims.suspects and not self._is_testing:
            self._testing = asyncio.create_task(self._test(), name=f"redrive suspects of {self._sink.name}")
            self._testing.add_done_callback(_look)
        return claims.more

    async def _ask_for(self, limit: int, suspects: Suspects) -> Deliveries:
        claims = await self._store.claim_deliveries(
            self._sink.name, limit=limit, lease=int(self._lease * MICROS), suspects=suspects
        )
        self._have(claims.items)
        return claims

    def _have(self, items: Sequence[ClaimedDelivery]) -> None:
        self._in_hand += len(items)
        for each in items:
            if len(each.message.payload) > _LARGE:
                self._large[each.message.id] = len(each.message.payload)

    def _begin(self, claims: Deliveries, until: float) -> None:
        self._chains.extend((chain, until) for chain in _chains(claims.items))
        self._go()

    def _go(self) -> None:
        """Have as many at work as there is work for, and as the sink allows."""
        for _ in range(min(len(self._chains), self._sink.concurrency - len(self._runners))):
            runner = asyncio.create_task(self._work(), name=f"redrive relay to {self._sink.name}")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
            runner.add_done_callback(_look)

    # -- taking -------------------------------------------------------------------------------------

    @property
    def carrier(self) -> Carrier:
        """Whom it takes messages along for, and how long it has them."""
        return Carrier(self._sink.name, int(self._lease * MICROS))

    def has_room_for(self, messages: int, size: int) -> bool:
        """True if it may take messages from their commit on: it has room, and nobody is passed over."""
        caught_up = not (self._behind or self._pausing or self._stopping)
        room = self._in_hand + messages <= _ROOM and sum(self._large.values()) + size < MOST_BYTES
        return caught_up and room and not self._slow_bundles()

    def take(self, bundle: int, items: Sequence[ClaimedDelivery], began: float) -> None:
        """Deliver messages that are in its hands since a commit that `began` then.

        Those who wait for that commit go on first.
        """
        self._have(items)
        self._bundles[bundle] = OpenBundle(items, self._clock.monotonic())
        if self._stopping:
            self._give_back(deque(items))
            self._note_soon()
            return
        until = began + self._lease - self._sink.timeout
        self._chains.extend((deque((each,)), until) for each in items)
        if self._slow is None:
            self._slow = self._clock.call_later(_SLOW, self._unfold_slow)
        asyncio.get_running_loop().call_soon(self._go)

    def _keep(self, claimed: ClaimedDelivery, mark: DeliveryMark | None) -> None:
        """Have noted what became of a message, None if it arrived: with its bundle, if all of that does."""
        bundle = claimed.bundle
        kept = None if bundle is None else self._bundles.get(bundle)
        if bundle is None or kept is None or mark is not None:
            if bundle is not None and kept is not None:
                self._unfold(bundle)
            self._marks.append(mark or _mark(claimed, DeliveryStatus.DELIVERED))
            return
        kept.arrived.append(claimed)
        if len(kept.arrived) == kept.size:
            del self._bundles[bundle]
            self._arrived.append(Arrived(bundle, tuple([each.message.id for each in kept.arrived])))

    def _unfold(self, bundle: int) -> None:
        arrived = self._bundles.pop(bundle).arrived
        self._marks += [_mark(each, DeliveryStatus.DELIVERED) for each in arrived]

    def _slow_bundles(self) -> list[int]:
        before = self._clock.monotonic() - _SLOW
        return [bundle for bundle, kept in self._bundles.items() if kept.since <= before]

    def _unfold_slow(self) -> None:
        """Note what arrived of bundles that take long; others may have a part of what has not begun."""
        for bundle in self._slow_bundles():
            self._unfold(bundle)
            while len(self._chains) > WINDOW:
                self._give_back(self._chains.pop()[0])
        self._note_soon()
        self._slow = self._clock.call_later(_SLOW, self._unfold_slow) if self._bundles else None

    # -- suspects -----------------------------------------------------------------------------------

    @property
    def _is_testing(self) -> bool:
        return self._testing is not None and not self._testing.done()

    async def _test(self) -> None:
        """Try suspects one after the other; nobody else in this process tries one meanwhile."""
        try:
            async with self._one_suspect:
                while not self._stopping and await self._test_one():
                    pass
        finally:
            self.ring()  # what waited behind them may go

    async def _test_one(self) -> bool:
        """Try the next one until that is noted; False if there is none."""
        began = self._clock.monotonic()
        claims = await self._ask_for(1, Suspects.TAKE_ONE)
        for each in claims.items:
            await self._deliver_all(deque([each]), began + self._lease - self._sink.timeout)
            self._note_soon()
        while self._noting is not None and not self._noting.done():
            await asyncio.wait([self._noting])
        return claims.more

    def _poisonous(self, claimed: ClaimedDelivery) -> DeliveryMark:
        text = f"ProcessDied: {claimed.deaths} processes ended while they delivered this message"
        self._audit.append(self._dead(claimed, claimed.attempt, text))
        return _mark(claimed, DeliveryStatus.DEAD, attempt=claimed.attempt, error=text)

    # -- delivering ---------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self._chains and not self._stopping:
            chain, until = self._chains.popleft()
            try:
                await self._deliver_all(chain, until)
            finally:
                self._note_soon()

    async def _deliver_all(self, chain: Chain, until: float) -> None:
        while chain and not self._stopping and self._clock.monotonic() < until:
            claimed = chain.popleft()
            mark = await (self._deliver(claimed) if self._tracing is None else self._traced(claimed))
            self._keep(claimed, mark)
            if self._tally is not None:
                ago = (self._store.now() - claimed.message.created_at) / MICROS
                status = DeliveryStatus.DELIVERED if mark is None else mark.status
                self._tally.delivered(self._sink.name, status.value, ago)
            if mark is not None:
                self._give_back(chain, behind=claimed.message.id)
                return
            self.delivered += 1
            if chain:
                self._note_soon()
        self._give_back(chain)

    async def _traced(self, claimed: ClaimedDelivery) -> DeliveryMark | None:
        assert self._tracing is not None
        with self._tracing.publishing(claimed.message, self._sink.name) as failed:
            mark = await self._deliver(claimed)
            if mark is not None:
                failed()
            return mark

    async def _deliver(self, claimed: ClaimedDelivery) -> DeliveryMark | None:
        """Try it once; None if it arrived."""
        if self._sink.user_code and is_poison(claimed.deaths):
            return self._poisonous(claimed)
        try:
            body = self._sink.sink.deliver(received(claimed.message)).__await__()
            try:
                waits_for = body.send(None)
            except StopIteration:
                return None  # over before it waited for anything
            async with asyncio.timeout(self._sink.timeout):
                await rest_of(body, waits_for)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(claimed, error)  # something of the sink's own was cancelled
        except Exception as error:
            return self._failed(claimed, error)
        return None

    def _failed(self, claimed: ClaimedDelivery, error: BaseException) -> DeliveryMark:
        now = self._store.now()
        failure = capture(error, self._rules, now / MICROS)
        attempt = claimed.attempt + 1
        delay = after_failure(
            failure,
            self._sink.retry,
            attempt=attempt,
            first_ago=(now - claimed.message.created_at) / MICROS,
            draw=self._clock.draw(),
        )
        text = _text(failure)
        if delay is None:
            self._audit.append(self._dead(claimed, attempt, text))
            return _mark(claimed, DeliveryStatus.DEAD, attempt=attempt, error=text)
        log.info("message %s to %r failed: %s", claimed.message.public_id, self._sink.name, text)
        wake_in = math.ceil(delay * MICROS)
        return _mark(claimed, DeliveryStatus.PENDING, attempt=attempt, wake_in=wake_in, error=text)

    def _dead(self, claimed: ClaimedDelivery, attempt: int, text: str) -> AuditWrite:
        log.error("message %s to %r is dead: %s", claimed.message.public_id, self._sink.name, text)
        about = {"sink": self._sink.name, "attempts": attempt, "error": text}
        return AuditWrite(
            event=Event.MESSAGE_DEAD.value,
            tenant=claimed.message.tenant,
            by=ENGINE,
            subject=claimed.message.public_id,
            after=json.dumps(about),
            token=f"dead-{claimed.message.public_id}-{claimed.fence}-{self._sink.name}",
        )

    def _give_back(self, chain: Chain, behind: int | None = None) -> None:
        for each in chain:
            mark = _mark(each, DeliveryStatus.PENDING, attempt=each.attempt, behind=behind, tried=False)
            self._keep(each, mark)

    # -- noting -------------------------------------------------------------------------------------

    def _note_soon(self) -> None:
        """Have what came together noted in one commit: whatever comes meanwhile goes into the next."""
        if (self._marks or self._arrived) and (self._noting is None or self._noting.done()):
            self._noting = asyncio.create_task(self._note(), name=f"redrive notes of {self._sink.name}")
            self._noting.add_done_callback(_look)

    async def _note(self) -> None:
        while self._marks or self._arrived:
            marks, self._marks = self._marks, []
            arrived, self._arrived = self._arrived, []
            audit, self._audit = self._audit, []
            try:
                await self._write(marks, audit, arrived)
            finally:
                self._let_go([mark.message for mark in marks])
                for each in arrived:
                    self._let_go(each.messages)
                if marks and self._idle:
                    self._rung = True  # something may be due, or have a time when it will be
                self._changed.set()

    def _let_go(self, messages: Sequence[int]) -> None:
        self._in_hand -= len(messages)
        for message in messages if self._large else ():
            self._large.pop(message, None)

    async def _write(
        self, marks: list[DeliveryMark], audit: list[AuditWrite], arrived: list[Arrived]
    ) -> None:
        name, store = self._sink.name, self._store
        try:
            await until_answered(lambda: store.note_deliveries(name, marks, audit, arrived), self._clock)
        except DataRefused as refusal:
            log.error("the store refused what was noted of messages to %r: %s", name, refusal)
            plain = [replace(mark, error=None) for mark in marks]
            await until_answered(lambda: store.note_deliveries(name, plain, (), arrived), self._clock)


def _look(task: asyncio.Task[None]) -> None:
    """Nobody awaits these tasks. What they had in hand when they failed is due when its lease has passed."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        log.error("a relay failed; what it had is delivered later", exc_info=error)


def _chains(items: Sequence[ClaimedDelivery]) -> list[Chain]:
    found: dict[object, Chain] = {}
    for each in items:
        row = each.message
        lane: object = row.id if row.key is None else (row.tenant, row.key)
        found.setdefault(lane, deque()).append(each)
    return list(found.values())


def _mark(
    claimed: ClaimedDelivery,
    status: DeliveryStatus,
    *,
    attempt: int | None = None,
    wake_in: int = 0,
    behind: int | None = None,
    error: str | None = None,
    tried: bool = True,
) -> DeliveryMark:
    return _DeliveryMark(
        message=claimed.message.id,
        tenant=claimed.message.tenant,
        fence=claimed.fence,
        status=status,
        attempt=claimed.attempt + 1 if attempt is None else attempt,
        wake_in=wake_in,
        behind=behind,
        error=error,
        keyed=claimed.message.key is not None,
        tried=tried,
        bundle=claimed.bundle,
    )


def _text(failure: Failure) -> str:
    return f"{failure.short_type}: {failure.message}" if failure.message else failure.short_type
