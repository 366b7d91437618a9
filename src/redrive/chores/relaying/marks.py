"""What is noted of a delivery, for each thing that can become of it."""

from __future__ import annotations

import json

from redrive.core.auditing import ENGINE
from redrive.core.delivery import DeliveryMark
from redrive.core.events import Event
from redrive.core.quick import quick
from redrive.core.states import DeliveryStatus
from redrive.core.transition import AuditWrite
from redrive.store.outbox_records import ClaimedDelivery

__all__ = ["arrived", "dead", "death", "given_back", "put_off"]

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
