"""Failure groups as people see them: what failed, how often, since when, with one letter to look at."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import Any

from redrive.core.ending import Ending
from redrive.desk.shapes import fields_for
from redrive.desk.shaping import Shaper
from redrive.duration import moment
from redrive.frozen import dataclass
from redrive.reasons import Reason
from redrive.store.records import GroupPage, GroupRow

__all__ = ["FailureGroup", "GroupList", "list_groups"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """The letters of a tenant that have one cause.

    `open` of `total` wait for a decision. `trend` counts failures by hour over the last 24 hours, the
    present hour last; `message` says why the letter `sample_id` is there, which stands for all: it is
    the English sentence for `reason_code` and `reason_params`. `error` says what went wrong in it.
    """

    fingerprint: str
    tenant: str
    open: int
    total: int
    first_seen: datetime
    last_seen: datetime
    trend: tuple[int, ...]
    workflows: tuple[str, ...]
    steps: tuple[str, ...]
    sample_id: str | None
    message: str | None
    code: str | None
    category: str | None
    error: str | None = None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """A page of groups. All that happened before `as_of` is counted."""

    items: list[FailureGroup]
    next: str | None
    prev: str | None
    as_of: datetime


def list_groups(page: GroupPage, shaper: Shaper) -> GroupList:
    """A page of groups as it is shown, with secrets hidden."""
    items = [_group(row, shaper) for row in page.items]
    return GroupList(items=items, next=page.next, prev=page.prev, as_of=moment(page.as_of))


def _group(row: GroupRow, shaper: Shaper) -> FailureGroup:
    reason = None if row.reason is None else shaper.reason(Reason.from_text(row.reason))
    return FailureGroup(
        fingerprint=row.fingerprint,
        tenant=row.tenant,
        open=row.open,
        total=row.total,
        first_seen=moment(row.first_seen),
        last_seen=moment(row.last_seen),
        trend=row.trend,
        workflows=(row.workflow,),  # a fingerprint is made of one workflow and one step, among other things
        steps=() if row.step is None else (row.step,),
        sample_id=row.letter,
        message=None if reason is None else str(reason),
        **fields_for(reason),
        code=row.code,
        category=row.category,
        error=None if row.failure is None else shaper.text(Ending.from_json(row.failure).failure.message),
    )
