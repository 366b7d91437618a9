"""The deliveries of a relay: one attempt for each message, in order of their keys, and the results to record.

add           messages were claimed, or came in a bundle from the commit that published them
keep          keep the result of a delivery; in a bundle, until all of its messages were delivered
split         end a bundle: results of its messages are recorded one by one
write_soon    record all results that were kept in one commit; further ones go into the next
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from redrive.clock import MICROS, Clock, resume_started
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.classify import Rule
from redrive.core.failure import capture_failure
from redrive.core.outbox import MAX_CLAIM_BYTES, DeliveredBundle, DeliveryResult, decide_retry_delay, is_poison
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import DataRefused
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.record_fields import replace
from redrive.sinks import SinkDefinition, read_message
from redrive.store.outbox_claims import ClaimedDelivery
from redrive.store.port import Store
from redrive.store.sql_store import repeat_until_answered
from redrive.time_values import to_micros

log = logging.getLogger("redrive.chores")


def make_result(
    claimed: ClaimedDelivery,
    status: DeliveryStatus = DeliveryStatus.DELIVERED,
    attempt: int | None = None,
    *,
    wake_in: int = 0,
    behind: int | None = None,
    error: str | None = None,
    tried: bool = True,
) -> DeliveryResult:
    """Return the result of a delivery: delivered, unless said otherwise.

    A `PENDING` delivery is tried again after `wake_in`, or waits for the message `behind`. `tried=False`: it
    was released without an attempt.
    """
    return DeliveryResult(
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


def make_dead_audit(claimed: ClaimedDelivery, result: DeliveryResult, sink: str) -> AuditWrite:
    """Return the audit entry of a delivery that is dead."""
    return AuditWrite(
        event=AuditEvent.MESSAGE_DEAD.value,
        tenant=claimed.message.tenant,
        by=ENGINE_ACTOR,
        subject=claimed.message.public_id,
        after=json.dumps({"sink": sink, "attempts": result.attempt, "error": result.error}),
        token=f"dead-{claimed.message.public_id}-{claimed.fence}-{sink}",
    )


class MessageDeliverer:
    """Delivers single messages to one sink. `deliver_once` returns the result to record: None if delivered."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule],
        counters: Counters | None,
        tracing: Tracing | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._rules = rules
        self._counters = counters
        self._tracing = tracing
        self.deliver_once = self._deliver if tracing is None else self._deliver_traced

    def count(self, claimed: ClaimedDelivery, result: DeliveryResult | None) -> None:
        """Count the result of a delivery in the metrics."""
        if self._counters is not None:
            ago = (self._store.now() - claimed.message.created_at) / MICROS
            status = DeliveryStatus.DELIVERED if result is None else result.status
            self._counters.count_delivery(self._sink.name, status.value, ago)

    async def _deliver_traced(self, claimed: ClaimedDelivery) -> DeliveryResult | None:
        assert self._tracing is not None
        with self._tracing.trace_delivery(claimed.message, self._sink.name) as failed:
            result = await self._deliver(claimed)
            if result is not None:
                failed()
            return result

    async def _deliver(self, claimed: ClaimedDelivery) -> DeliveryResult | None:
        if self._sink.user_code and is_poison(claimed.deaths):
            died = f"ProcessDied: {claimed.deaths} processes ended while they delivered this message"
            return self._make_dead(claimed, claimed.attempt, died)
        try:
            body = self._sink.sink.deliver(read_message(claimed.message)).__await__()
            try:
                waits_for = body.send(None)
            except StopIteration:
                return None  # it ended without waiting, so it needs no timer
            async with asyncio.timeout(self._sink.timeout):
                await resume_started(body, waits_for)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._make_failure_result(claimed, error)  # the sink cancelled something that it awaits
        except Exception as error:
            return self._make_failure_result(claimed, error)
        return None

    def _make_failure_result(self, claimed: ClaimedDelivery, error: BaseException) -> DeliveryResult:
        now = self._store.now()
        failure = capture_failure(error, self._rules, now / MICROS)
        attempt = claimed.attempt + 1
        delay = decide_retry_delay(
            failure,
            self._sink.retry,
            attempt=attempt,
            first_ago=(now - claimed.message.created_at) / MICROS,
            draw=self._clock.draw(),
        )
        text = failure.text
        if delay is None:
            return self._make_dead(claimed, attempt, text)
        log.info("delivery of message %s to sink %r failed: %s", claimed.message.public_id, self._sink.name, text)
        return make_result(claimed, DeliveryStatus.PENDING, attempt, error=text, wake_in=to_micros(delay))

    def _make_dead(self, claimed: ClaimedDelivery, attempt: int, text: str) -> DeliveryResult:
        log.error("delivery of message %s to sink %r is dead: %s", claimed.message.public_id, self._sink.name, text)
        return make_result(claimed, DeliveryStatus.DEAD, attempt, error=text)


MAX_HELD_MESSAGES = 1_000
"""Messages that a process holds for one sink, at most."""

_LARGE_MESSAGE = MAX_CLAIM_BYTES // MAX_HELD_MESSAGES  # the size of smaller messages is not counted


class OpenBundle:
    """A bundle that is held: its size, since when, and its messages that were delivered."""

    __slots__ = ("delivered", "since", "size")

    def __init__(self, size: int, since: float) -> None:
        self.size = size
        self.since = since
        self.delivered: list[ClaimedDelivery] = []


class HeldMessages:
    """The messages that a relay holds and whose results are not recorded yet: `count` of them.

    `on_recorded` is called after each commit, with True if it recorded more than whole bundles.
    """

    def __init__(self, sink: str, store: Store, clock: Clock, on_recorded: Callable[[bool], None]) -> None:
        self.count = 0
        self.write_task: asyncio.Task[None] | None = None
        self._sink = sink
        self._store = store
        self._clock = clock
        self._on_recorded = on_recorded
        self._large: dict[int, int] = {}  # the sizes of large messages
        self._bundles: dict[int, OpenBundle] = {}
        self._results: list[DeliveryResult] = []
        self._delivered: list[DeliveredBundle] = []
        self._audit: list[AuditWrite] = []

    @property
    def size(self) -> int:
        """The size of all large messages."""
        return sum(self._large.values())

    def add_claimed(self, items: Sequence[ClaimedDelivery]) -> None:
        """Hold messages that were claimed."""
        self.count += len(items)
        for each in items:
            if len(each.message.payload) > _LARGE_MESSAGE:
                self._large[each.message.id] = len(each.message.payload)

    def add_bundle(self, bundle: int, items: Sequence[ClaimedDelivery]) -> None:
        """Hold messages that came from the commit that published them."""
        self.add_claimed(items)
        self._bundles[bundle] = OpenBundle(len(items), self._clock.monotonic())

    @property
    def has_bundles(self) -> bool:
        """True while results are kept until all of their bundle was delivered."""
        return bool(self._bundles)

    def bundles_older_than(self, moment: float) -> list[int]:
        """Return the bundles that are held since this moment or longer."""
        return [bundle for bundle, held in self._bundles.items() if held.since <= moment]

    def keep(self, claimed: ClaimedDelivery, result: DeliveryResult | None) -> None:
        """Keep the result of a message, None if it was delivered. A whole bundle is recorded as one."""
        bundle = claimed.bundle
        held = None if bundle is None else self._bundles.get(bundle)
        if bundle is None or held is None or result is not None:
            if bundle is not None and held is not None:
                self.split_bundle(bundle)
            result = result or make_result(claimed)
            self._results.append(result)
            if result.status is DeliveryStatus.DEAD:
                self._audit.append(make_dead_audit(claimed, result, self._sink))
            return
        held.delivered.append(claimed)
        if len(held.delivered) == held.size:
            del self._bundles[bundle]
            self._delivered.append(DeliveredBundle(bundle, tuple([each.message.id for each in held.delivered])))

    def release(self, items: Iterable[ClaimedDelivery], behind: int | None = None) -> None:
        """Release messages that were not tried, for any relay; with `behind`, after that message is done."""
        for each in items:
            self.keep(each, make_result(each, DeliveryStatus.PENDING, each.attempt, behind=behind, tried=False))

    def split_bundle(self, bundle: int) -> None:
        """Record the delivered messages of a bundle without waiting for the rest."""
        self._results += [make_result(each) for each in self._bundles.pop(bundle).delivered]

    def split_all_bundles(self) -> None:
        """Record the delivered messages of all bundles without waiting for the rest."""
        for bundle in list(self._bundles):
            self.split_bundle(bundle)

    def write_soon(self) -> None:
        """Record all results that are kept, in one commit. Results that come meanwhile go into the next."""
        if (self._results or self._delivered) and (self.write_task is None or self.write_task.done()):
            self.write_task = asyncio.create_task(self._write_results(), name=f"redrive results of {self._sink}")
            self.write_task.add_done_callback(log_task_failure)

    async def wait_written(self) -> None:
        """Wait for the commits that are under way."""
        while self.write_task is not None and not self.write_task.done():
            await asyncio.wait([self.write_task])

    async def _write_results(self) -> None:
        while self._results or self._delivered:
            results, self._results = self._results, []
            bundles, self._delivered = self._delivered, []
            audit, self._audit = self._audit, []
            try:
                await self._write(results, audit, bundles)
            except DataRefused as refusal:
                log.error("the store refused results of deliveries to %r: %s", self._sink, refusal)
                # The text of an error may be what the store refuses, so the results are recorded without texts.
                await self._write([replace(result, error=None) for result in results], [], bundles)
            finally:
                self._remove([result.message for result in results])
                for each in bundles:
                    self._remove(each.messages)
                self._on_recorded(bool(results))

    async def _write(
        self, results: list[DeliveryResult], audit: list[AuditWrite], bundles: list[DeliveredBundle]
    ) -> None:
        call = functools.partial(self._store.record_deliveries, self._sink, results, audit, bundles)
        await repeat_until_answered(call, self._clock)

    def _remove(self, messages: Sequence[int]) -> None:
        self.count -= len(messages)
        for message in messages if self._large else ():
            self._large.pop(message, None)


def log_task_failure(task: asyncio.Task[None]) -> None:
    """Log the error of a task that is not awaited. Its messages are due again when their leases expire."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        log.error("unexpected error in a relay; its messages are delivered later", exc_info=error)


class SuspectTrial:
    """Delivers the suspects of one sink, one at a time in the whole process.

    A suspect is a message that a process held when it died. While only one of them is delivered, a further
    death identifies the message. `try_next` delivers one, and returns True if there may be more. `on_end` is
    called after the last one.
    """

    def __init__(
        self, sink: str, one_suspect: asyncio.Lock, try_next: Callable[[], Awaitable[bool]], on_end: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._one_suspect = one_suspect
        self._try_next = try_next
        self._on_end = on_end
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True until no suspect is left."""
        return self.task is not None and not self.task.done()

    def begin(self) -> None:
        """Begin to deliver suspects, if that is not under way."""
        if not self.is_running:
            self.task = asyncio.create_task(self._run(), name=f"redrive suspects of {self._sink}")
            self.task.add_done_callback(log_task_failure)

    async def _run(self) -> None:
        try:
            async with self._one_suspect:
                while await self._try_next():
                    pass
        finally:
            self._on_end()  # messages that waited behind the suspects may be due


KeyQueue = deque[ClaimedDelivery]
"""Messages with one key, in order, or a single message without a key."""


class DeliveryQueue:
    """Queues of messages that wait for a sink, one for each key, and the tasks that deliver them.

    A message that fails ends its queue for now: the messages behind it are released. So are messages that
    could not be tried before a stop or the end of the lease.
    """

    def __init__(
        self, definition: SinkDefinition, clock: Clock, deliverer: MessageDeliverer, held: HeldMessages
    ) -> None:
        self.delivered = 0
        self.stopped = False
        self._sink = definition
        self._clock = clock
        self._deliverer = deliverer
        self._held = held
        self._waiting: deque[tuple[KeyQueue, float]] = deque()  # each with the latest time to begin a delivery
        self.tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Queue messages, those with one key in order. No delivery of them begins after `until`."""
        queues: dict[object, KeyQueue] = {}
        for each in items:
            row = each.message
            key: object = row.id if row.key is None else (row.tenant, row.key)
            queues.setdefault(key, deque()).append(each)
        self._waiting.extend((queue, until) for queue in queues.values())

    def add_unkeyed(self, items: Sequence[ClaimedDelivery], until: float) -> None:
        """Queue messages that have no key."""
        self._waiting.extend((deque((each,)), until) for each in items)

    def start_tasks(self) -> None:
        """Start tasks for the queues that wait, as many as the sink allows."""
        for _ in range(min(len(self._waiting), self._sink.concurrency - len(self.tasks))):
            task = asyncio.create_task(self._run(), name=f"redrive relay to {self._sink.name}")
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            task.add_done_callback(log_task_failure)

    async def _run(self) -> None:
        while self._waiting and not self.stopped:
            queue, until = self._waiting.popleft()
            try:
                await self.deliver(queue, until)
            finally:
                self._held.write_soon()

    async def deliver(self, queue: KeyQueue, until: float) -> None:
        """Deliver the messages of a queue, up to the first that fails."""
        held, deliverer = self._held, self._deliverer
        while queue and not self.stopped and self._clock.monotonic() < until:
            claimed = queue.popleft()
            result = await deliverer.deliver_once(claimed)
            held.keep(claimed, result)
            deliverer.count(claimed, result)
            if result is not None:
                held.release(queue, behind=claimed.message.id)
                return
            self.delivered += 1
            if queue:
                held.write_soon()
        held.release(queue)

    def release_beyond(self, most: int) -> None:
        """Release the last queues, until at most this many wait."""
        while len(self._waiting) > most:
            self._held.release(self._waiting.pop()[0])

    def stop(self) -> None:
        """Begin no further delivery, and release all messages that wait."""
        self.stopped = True
        for queue, _ in self._waiting:
            self._held.release(queue)
        self._waiting.clear()
