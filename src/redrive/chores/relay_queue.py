"""What a relay has in hand: messages that are its own for a while, and what is to be noted of them.

have        messages came into its hands, one by one or in bundles
keep        what became of one; of a bundle it is kept back until all of it arrived
unfold      a bundle is no longer one: what arrived of it is noted message by message
note_soon   what was kept goes into one commit, and whatever comes meanwhile into the next
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from redrive.chores import relay_delivery as marks
from redrive.chores.relay_delivery import MessageDeliverer
from redrive.clock import Clock
from redrive.core.outbox import MAX_CLAIM_BYTES, DeliveredBundle, DeliveryResult
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import DataRefused
from redrive.records import replace
from redrive.sinks import SinkDefinition
from redrive.store.deliveries import ClaimedDelivery
from redrive.store.port import Store
from redrive.store.session import repeat_until_answered

# -- What a relay has in hand: messages that are its own for a while, and what is to be noted of the -----


log = logging.getLogger("redrive.chores")
MAX_HELD_MESSAGES = 1_000
"""Messages that a node has in hand for one sink, at most."""

_LARGE_MESSAGE = MAX_CLAIM_BYTES // MAX_HELD_MESSAGES  # smaller ones are few enough not to be counted


class OpenBundle:
    """A bundle in hand: how many it has, since when, and which of them arrived."""

    __slots__ = ("arrived", "since", "size")

    def __init__(self, items: Sequence[ClaimedDelivery], since: float) -> None:
        self.size = len(items)
        self.since = since
        self.arrived: list[ClaimedDelivery] = []


class HeldMessages:
    """The messages that a relay has and that are not noted yet: `count` of them.

    `noted` is called after each commit, with whether more than whole bundles was noted.
    """

    def __init__(self, sink: str, store: Store, clock: Clock, noted: Callable[[bool], None]) -> None:
        self.count = 0
        self.write_task: asyncio.Task[None] | None = None
        self._sink = sink
        self._store = store
        self._clock = clock
        self._noted = noted
        self._large: dict[int, int] = {}  # the sizes of large messages
        self._bundles: dict[int, OpenBundle] = {}
        self._marks: list[DeliveryResult] = []
        self._arrived: list[DeliveredBundle] = []
        self._audit: list[AuditWrite] = []

    # -- having ---------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many bytes the large ones have."""
        return sum(self._large.values())

    def add_claimed(self, items: Sequence[ClaimedDelivery]) -> None:
        """These were claimed."""
        self.count += len(items)
        for each in items:
            if len(each.message.payload) > _LARGE_MESSAGE:
                self._large[each.message.id] = len(each.message.payload)

    def add_bundle(self, bundle: int, items: Sequence[ClaimedDelivery]) -> None:
        """These are in hand from their commit on."""
        self.add_claimed(items)
        self._bundles[bundle] = OpenBundle(items, self._clock.monotonic())

    @property
    def has_bundles(self) -> bool:
        """True while some are kept back until all of their bundle arrived."""
        return bool(self._bundles)

    def bundles_older_than(self, moment: float) -> list[int]:
        """The bundles that are in hand since then or longer."""
        return [bundle for bundle, kept in self._bundles.items() if kept.since <= moment]

    # -- keeping --------------------------------------------------------------------------------------

    def keep(self, claimed: ClaimedDelivery, mark: DeliveryResult | None) -> None:
        """Have noted what became of a message, None if it arrived: with its bundle, if all of that does."""
        bundle = claimed.bundle
        kept = None if bundle is None else self._bundles.get(bundle)
        if bundle is None or kept is None or mark is not None:
            if bundle is not None and kept is not None:
                self.split_bundle(bundle)
            self._record_single(claimed, mark or marks.make_delivered_result(claimed))
            return
        kept.arrived.append(claimed)
        if len(kept.arrived) == kept.size:
            del self._bundles[bundle]
            self._arrived.append(DeliveredBundle(bundle, tuple([each.message.id for each in kept.arrived])))

    def _record_single(self, claimed: ClaimedDelivery, mark: DeliveryResult) -> None:
        self._marks.append(mark)
        if mark.status is DeliveryStatus.DEAD:
            self._audit.append(marks.make_dead_audit(claimed, mark, self._sink))

    def give_back(self, items: Iterable[ClaimedDelivery], behind: int | None = None) -> None:
        """Leave these to whoever claims them next, or once the message `behind` is over."""
        for each in items:
            self.keep(each, marks.make_untried_result(each, behind))

    def split_bundle(self, bundle: int) -> None:
        """Note what arrived of a bundle without waiting for the rest."""
        self._marks += [marks.make_delivered_result(each) for each in self._bundles.pop(bundle).arrived]

    def split_all_bundles(self) -> None:
        """Wait for the rest of no bundle."""
        for bundle in list(self._bundles):
            self.split_bundle(bundle)

    # -- noting ---------------------------------------------------------------------------------------

    def write_soon(self) -> None:
        """Have what came together noted in one commit: whatever comes meanwhile goes into the next."""
        if (self._marks or self._arrived) and (self.write_task is None or self.write_task.done()):
            self.write_task = asyncio.create_task(self._write_results(), name=f"redrive notes of {self._sink}")
            self.write_task.add_done_callback(log_task_failure)

    async def wait_written(self) -> None:
        """Wait for the commits that are under way."""
        while self.write_task is not None and not self.write_task.done():
            await asyncio.wait([self.write_task])

    async def _write_results(self) -> None:
        while self._marks or self._arrived:
            noted, self._marks = self._marks, []
            whole, self._arrived = self._arrived, []
            audit, self._audit = self._audit, []
            try:
                await self._write(noted, audit, whole)
            finally:
                self._remove([mark.message for mark in noted])
                for each in whole:
                    self._remove(each.messages)
                self._noted(bool(noted))

    def _remove(self, messages: Sequence[int]) -> None:
        self.count -= len(messages)
        for message in messages if self._large else ():
            self._large.pop(message, None)

    async def _write(self, noted: list[DeliveryResult], audit: list[AuditWrite], whole: list[DeliveredBundle]) -> None:
        name, store = self._sink, self._store
        try:
            await repeat_until_answered(lambda: store.record_deliveries(name, noted, audit, whole), self._clock)
        except DataRefused as refusal:
            log.error("the store refused what was noted of messages to %r: %s", name, refusal)
            plain = [replace(mark, error=None) for mark in noted]
            await repeat_until_answered(lambda: store.record_deliveries(name, plain, (), whole), self._clock)


def log_task_failure(task: asyncio.Task[None]) -> None:
    """Nobody awaits these tasks. What they had in hand when they failed is due when its lease has passed."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        log.error("a relay failed; what it had is delivered later", exc_info=error)


# -- Suspects: what a process had that ended without a word, tried one at a time in the whole proces -----


class SuspectTrial:
    """Tries the suspects of one sink while `one_suspect` says that nobody else in this process tries one.

    `try_next` tries one until that is noted, and says whether there may be more. `over` is called at the end.
    """

    def __init__(
        self, sink: str, one_suspect: asyncio.Lock, try_next: Callable[[], Awaitable[bool]], over: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._one_suspect = one_suspect
        self._try_next = try_next
        self._over = over
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True from its begin until there is no suspect left."""
        return self.task is not None and not self.task.done()

    def begin(self) -> None:
        """There are suspects."""
        if not self.is_running:
            self.task = asyncio.create_task(self._run(), name=f"redrive suspects of {self._sink}")
            self.task.add_done_callback(log_task_failure)

    async def _run(self) -> None:
        try:
            async with self._one_suspect:
                while await self._try_next():
                    pass
        finally:
            self._over()  # what waited behind them may go


# -- Lines: messages with one key go one after the other, the lines side by side, as many as the sin -----


KeyQueue = deque[ClaimedDelivery]
"""Messages with one key, in order, or a single one without."""


class DeliveryQueue:
    """The lines that wait for a sink, and the tasks that deliver them.

    A message that fails ends its line for now: those behind it are given back, as is what a stop or the end
    of the lease keeps from being tried.
    """

    def __init__(
        self, definition: SinkDefinition, clock: Clock, courier: MessageDeliverer, in_hand: HeldMessages
    ) -> None:
        self.delivered = 0
        self.stopped = False
        self._sink = definition
        self._clock = clock
        self._courier = courier
        self._in_hand = in_hand
        self._waiting: deque[tuple[KeyQueue, float]] = deque()  # with when the last try of each may begin
        self._runners: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Those that deliver at the moment."""
        return self._runners

    def add(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Let messages wait, each behind those of its key; no try of them begins after `until`."""
        self._waiting.extend((line, until) for line in group_by_key(items))

    def add_unkeyed(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Let messages wait that have no key."""
        self._waiting.extend((deque((each,)), until) for each in items)

    def go(self) -> None:
        """Have as many at work as there is work for, and as the sink allows."""
        for _ in range(min(len(self._waiting), self._sink.concurrency - len(self._runners))):
            runner = asyncio.create_task(self._run(), name=f"redrive relay to {self._sink.name}")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
            runner.add_done_callback(log_task_failure)

    async def _run(self) -> None:
        while self._waiting and not self.stopped:
            line, until = self._waiting.popleft()
            try:
                await self.deliver(line, until)
            finally:
                self._in_hand.write_soon()

    async def deliver(self, line: KeyQueue, until: float) -> None:
        """Bring the messages of a line, up to the first that fails."""
        hand, courier = self._in_hand, self._courier
        while line and not self.stopped and self._clock.monotonic() < until:
            claimed = line.popleft()
            mark = await courier.deliver_once(claimed)
            hand.keep(claimed, mark)
            courier.count(claimed, mark)
            if mark is not None:
                hand.give_back(line, behind=claimed.message.id)
                return
            self.delivered += 1
            if line:
                hand.write_soon()
        hand.give_back(line)

    def give_back_beyond(self, most: int) -> None:
        """Give the last lines back to others, until no more than so many wait."""
        while len(self._waiting) > most:
            self._in_hand.give_back(self._waiting.pop()[0])

    def stop(self) -> None:
        """Begin no further try, and give back what waits for one."""
        self.stopped = True
        for line, _ in self._waiting:
            self._in_hand.give_back(line)
        self._waiting.clear()


def group_by_key(items: Sequence[ClaimedDelivery]) -> list[KeyQueue]:
    """Messages in order, those with one key together."""
    found: dict[object, KeyQueue] = {}
    for each in items:
        row = each.message
        lane: object = row.id if row.key is None else (row.tenant, row.key)
        found.setdefault(lane, deque()).append(each)
    return list(found.values())
