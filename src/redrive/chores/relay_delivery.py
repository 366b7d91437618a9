"""One try to deliver one message, and what follows if it failed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from redrive.clock import MICROS, Clock, resume_started
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.classify import Rule
from redrive.core.failure import Failure, capture_failure
from redrive.core.outbox import DeliveryResult, decide_retry_delay, is_poison
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.duration import to_micros
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.sinks import SinkDefinition, read_message
from redrive.store.deliveries import ClaimedDelivery
from redrive.store.port import Store

# -- What is noted of a delivery, for each thing that can become of it -----------------------------------


def make_delivered_result(claimed: ClaimedDelivery) -> DeliveryResult:
    """It is over."""
    return _make_result(claimed, DeliveryStatus.DELIVERED, claimed.attempt + 1)


def make_retry_result(claimed: ClaimedDelivery, attempt: int, error: str, wake_in: int) -> DeliveryResult:
    """It failed, and is tried again after a while."""
    return _make_result(claimed, DeliveryStatus.PENDING, attempt, error=error, wake_in=wake_in)


def make_dead_result(claimed: ClaimedDelivery, attempt: int, error: str) -> DeliveryResult:
    """It failed, and is not tried again before a person says so."""
    return _make_result(claimed, DeliveryStatus.DEAD, attempt, error=error)


def make_untried_result(claimed: ClaimedDelivery, behind: int | None) -> DeliveryResult:
    """It was not tried: it is as it was, and waits for the message `behind` it, if any."""
    return _make_result(claimed, DeliveryStatus.PENDING, claimed.attempt, behind=behind, tried=False)


def make_dead_audit(claimed: ClaimedDelivery, mark: DeliveryResult, sink: str) -> AuditWrite:
    """The audit line of a delivery that is dead."""
    about = {"sink": sink, "attempts": mark.attempt, "error": mark.error}
    return AuditWrite(
        event=AuditEvent.MESSAGE_DEAD.value,
        tenant=claimed.message.tenant,
        by=ENGINE_ACTOR,
        subject=claimed.message.public_id,
        after=json.dumps(about),
        token=f"dead-{claimed.message.public_id}-{claimed.fence}-{sink}",
    )


def _make_result(
    claimed: ClaimedDelivery,
    status: DeliveryStatus,
    attempt: int,
    *,
    wake_in: int = 0,
    behind: int | None = None,
    error: str | None = None,
    tried: bool = True,
) -> DeliveryResult:
    return DeliveryResult(
        message=claimed.message.id,
        tenant=claimed.message.tenant,
        fence=claimed.fence,
        status=status,
        attempt=attempt,
        wake_in=wake_in,
        behind=behind,
        error=error,
        keyed=claimed.message.key is not None,
        tried=tried,
        bundle=claimed.bundle,
    )


# -- One try to deliver one message, and what follows if it failed ---------------------------------------


log = logging.getLogger("redrive.chores")


class MessageDeliverer:
    """Brings single messages to one sink. `bring` answers what to note: None if the message arrived."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule],
        tally: Counters | None,
        tracing: Tracing | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._rules = rules
        self._tally = tally
        self._tracing = tracing
        self.deliver_once = self._deliver if tracing is None else self._deliver_traced

    def count(self, claimed: ClaimedDelivery, mark: DeliveryResult | None) -> None:
        """Let what became of a message be told as figures."""
        if self._tally is not None:
            ago = (self._store.now() - claimed.message.created_at) / MICROS
            status = DeliveryStatus.DELIVERED if mark is None else mark.status
            self._tally.delivered(self._sink.name, status.value, ago)

    async def _deliver_traced(self, claimed: ClaimedDelivery) -> DeliveryResult | None:
        assert self._tracing is not None
        with self._tracing.trace_delivery(claimed.message, self._sink.name) as failed:
            mark = await self._deliver(claimed)
            if mark is not None:
                failed()
            return mark

    async def _deliver(self, claimed: ClaimedDelivery) -> DeliveryResult | None:
        if self._sink.user_code and is_poison(claimed.deaths):
            died = f"ProcessDied: {claimed.deaths} processes ended while they delivered this message"
            return self._make_dead(claimed, claimed.attempt, died)
        try:
            body = self._sink.sink.deliver(read_message(claimed.message)).__await__()
            try:
                waits_for = body.send(None)
            except StopIteration:
                return None  # over before it waited for anything
            async with asyncio.timeout(self._sink.timeout):
                await resume_started(body, waits_for)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._make_failure_result(claimed, error)  # something of the sink's own was cancelled
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
        text = _failure_text(failure)
        if delay is None:
            return self._make_dead(claimed, attempt, text)
        log.info("message %s to %r failed: %s", claimed.message.public_id, self._sink.name, text)
        return make_retry_result(claimed, attempt, text, to_micros(delay))

    def _make_dead(self, claimed: ClaimedDelivery, attempt: int, text: str) -> DeliveryResult:
        log.error("message %s to %r is dead: %s", claimed.message.public_id, self._sink.name, text)
        return make_dead_result(claimed, attempt, text)


def _failure_text(failure: Failure) -> str:
    return f"{failure.short_type}: {failure.message}" if failure.message else failure.short_type
