"""Rows about notifications as records, and what both stores do with them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redrive.clock import MICROS
from redrive.core.transition import Transition
from redrive.store.notices import (
    LaneCase,
    NoticeRow,
    NotificationFilter,
    NotificationRow,
    RuleRow,
    Telling,
)
from redrive.store.pages import Window

__all__ = [
    "MOST_UNREAD",
    "TOLD_KEPT",
    "case_of",
    "notice_row",
    "notification_row",
    "notification_values",
    "published",
    "rule_row",
    "telling_values",
    "wanted",
]

MOST_UNREAD = 1000
"""Unread notifications are counted up to this many."""

TOLD_KEPT = 86_400 * MICROS
"""How long facts are kept after they were told: a relay that repeats them later than that is none."""


def notice_row(row: Sequence[Any]) -> NoticeRow:
    """One row of `notices`."""
    id, tenant, created_at, notice = row
    return NoticeRow(id=id, tenant=tenant, created_at=created_at, notice=notice)


def case_of(row: Sequence[Any], notices: Iterable[NoticeRow], now: int) -> LaneCase:
    """A lane that is due, with its newest facts."""
    tenant, lane, version, count, first_at, last = row
    return LaneCase(
        tenant=tenant,
        lane=lane,
        version=version,
        count=count,
        first_at=first_at,
        last=last,
        notices=tuple(notices),
        now=now,
    )


def notification_row(row: Sequence[Any]) -> NotificationRow:
    """One row of the inbox."""
    id, public_id, tenant, event, workflow, count, created_at, content, read_at = row
    return NotificationRow(
        id=id,
        public_id=public_id,
        tenant=tenant,
        event=event,
        workflow=workflow,
        count=count,
        created_at=created_at,
        content=content,
        read_at=read_at,
    )


def rule_row(row: Sequence[Any]) -> RuleRow:
    """One stored rule."""
    tenant, workflow, rule, updated_at, updated_by = row
    return RuleRow(tenant=tenant, workflow=workflow, rule=rule, updated_at=updated_at, updated_by=updated_by)


def telling_values(telling: Telling, now: int) -> dict[str, Any]:
    """The parameters of the statements that turn a lane and mark what was told."""
    case = telling.case
    return {
        "tenant": case.tenant,
        "lane": case.lane,
        "version": case.version,
        "last": case.last,
        "next_at": now + telling.every,
        "now": now,
    }


def notification_values(telling: Telling, now: int) -> dict[str, Any]:
    """The parameters of the statement that writes what is told."""
    new = telling.notification
    return {
        "public_id": new.public_id,
        "tenant": new.tenant,
        "event": new.event,
        "workflow": new.workflow,
        "count": new.count,
        "in_app": new.in_app,
        "content": new.content,
        "now": now,
    }


def published(telling: Telling) -> list[Transition]:
    """The messages as stores write them: with a transition, of which they are all there is."""
    return [Transition(run=0, tenant=telling.case.tenant, fence=0, messages=telling.messages)]


def wanted(
    where: NotificationFilter, several: Callable[[list[str]], Any], window: Window | None = None
) -> dict[str, Any]:
    """What a filter says, by the names of the conditions; `several` is how a store takes a list of texts."""
    found: dict[str, Any] = {} if where.tenant is None else {"tenant": where.tenant}
    if where.workflows is not None:
        found["workflows"] = several(list(where.workflows))
    if where.ids is not None:
        found["ids"] = several(list(where.ids))
    if where.unread:
        found["unread"] = None
    if window is not None:
        places = {"below": window.below, "above": window.above}
        found |= {name: place for name, place in places.items() if place is not None}
    return found
