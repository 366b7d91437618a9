"""Delivery of one message: one attempt, and the result to record."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from redrive.clock import MICROS, Clock, resume_started
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.classify import Rule
from redrive.core.failure import capture_failure
from redrive.core.outbox import DeliveryResult, decide_retry_delay, is_poison
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.duration import to_micros
from redrive.observability.counters import Counters
from redrive.observability.tracing import Tracing
from redrive.sinks import SinkDefinition, read_message
from redrive.store.outbox_claims import ClaimedDelivery
from redrive.store.port import Store

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
            self._counters.delivered(self._sink.name, status.value, ago)

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
        text = f"{failure.short_type}: {failure.message}" if failure.message else failure.short_type
        if delay is None:
            return self._make_dead(claimed, attempt, text)
        log.info("message %s to %r failed: %s", claimed.message.public_id, self._sink.name, text)
        return make_result(claimed, DeliveryStatus.PENDING, attempt, error=text, wake_in=to_micros(delay))

    def _make_dead(self, claimed: ClaimedDelivery, attempt: int, text: str) -> DeliveryResult:
        log.error("message %s to %r is dead: %s", claimed.message.public_id, self._sink.name, text)
        return make_result(claimed, DeliveryStatus.DEAD, attempt, error=text)
