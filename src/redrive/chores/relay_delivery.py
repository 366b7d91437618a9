"""One try to deliver one message, and what follows if it failed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from redrive.clock import MICROS, Clock, resume_started
from redrive.core.audit import ENGINE, Event
from redrive.core.classify import Rule
from redrive.core.failure import Failure, capture
from redrive.core.outbox import DeliveryMark, after_failure, is_poison
from redrive.core.quick import quick
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import AuditWrite
from redrive.duration import micros
from redrive.observability.counters import Tally
from redrive.observability.tracing import Tracing
from redrive.sinks import SinkDefinition, received
from redrive.store.outbox_records import ClaimedDelivery
from redrive.store.port import Store

__all__ = ["Courier", "arrived", "dead", "death", "given_back", "put_off"]


# -- What is noted of a delivery, for each thing that can become of it -----------------------------------


_DeliveryMark = quick(DeliveryMark)


def arrived(claimed: ClaimedDelivery) -> DeliveryMark:
    """It is over."""
    return _mark(claimed, DeliveryStatus.DELIVERED, claimed.attempt + 1)


def put_off(claimed: ClaimedDelivery, attempt: int, error: str, wake_in: int) -> DeliveryMark:
    """It failed, and is tried again after a while."""
    return _mark(claimed, DeliveryStatus.PENDING, attempt, error=error, wake_in=wake_in)


def dead(claimed: ClaimedDelivery, attempt: int, error: str) -> DeliveryMark:
    """It failed, and is not tried again before a person says so."""
    return _mark(claimed, DeliveryStatus.DEAD, attempt, error=error)


def given_back(claimed: ClaimedDelivery, behind: int | None) -> DeliveryMark:
    """It was not tried: it is as it was, and waits for the message `behind` it, if any."""
    return _mark(claimed, DeliveryStatus.PENDING, claimed.attempt, behind=behind, tried=False)


def death(claimed: ClaimedDelivery, mark: DeliveryMark, sink: str) -> AuditWrite:
    """The audit line of a delivery that is dead."""
    about = {"sink": sink, "attempts": mark.attempt, "error": mark.error}
    return AuditWrite(
        event=Event.MESSAGE_DEAD.value,
        tenant=claimed.message.tenant,
        by=ENGINE,
        subject=claimed.message.public_id,
        after=json.dumps(about),
        token=f"dead-{claimed.message.public_id}-{claimed.fence}-{sink}",
    )


def _mark(
    claimed: ClaimedDelivery,
    status: DeliveryStatus,
    attempt: int,
    *,
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


class Courier:
    """Brings single messages to one sink. `bring` answers what to note: None if the message arrived."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        definition: SinkDefinition,
        rules: Sequence[Rule],
        tally: Tally | None,
        tracing: Tracing | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._sink = definition
        self._rules = rules
        self._tally = tally
        self._tracing = tracing
        self.bring = self._try if tracing is None else self._try_traced

    def count(self, claimed: ClaimedDelivery, mark: DeliveryMark | None) -> None:
        """Let what became of a message be told as figures."""
        if self._tally is not None:
            ago = (self._store.now() - claimed.message.created_at) / MICROS
            status = DeliveryStatus.DELIVERED if mark is None else mark.status
            self._tally.delivered(self._sink.name, status.value, ago)

    async def _try_traced(self, claimed: ClaimedDelivery) -> DeliveryMark | None:
        assert self._tracing is not None
        with self._tracing.publishing(claimed.message, self._sink.name) as failed:
            mark = await self._try(claimed)
            if mark is not None:
                failed()
            return mark

    async def _try(self, claimed: ClaimedDelivery) -> DeliveryMark | None:
        if self._sink.user_code and is_poison(claimed.deaths):
            died = f"ProcessDied: {claimed.deaths} processes ended while they delivered this message"
            return self._give_up(claimed, claimed.attempt, died)
        try:
            body = self._sink.sink.deliver(received(claimed.message)).__await__()
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
            return self._give_up(claimed, attempt, text)
        log.info("message %s to %r failed: %s", claimed.message.public_id, self._sink.name, text)
        return put_off(claimed, attempt, text, micros(delay))

    def _give_up(self, claimed: ClaimedDelivery, attempt: int, text: str) -> DeliveryMark:
        log.error("message %s to %r is dead: %s", claimed.message.public_id, self._sink.name, text)
        return dead(claimed, attempt, text)


def _text(failure: Failure) -> str:
    return f"{failure.short_type}: {failure.message}" if failure.message else failure.short_type
