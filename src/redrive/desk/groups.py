"""The calls of `app.dlq` about failure groups: failures by cause, who works on a cause, and causes that are muted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.failure_reason import FailureReason
from redrive.core.roles import Permission
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.models import AuditRecord
from redrive.desk.presenter import Presenter, make_reason_fields, present_row
from redrive.desk.validation import in_thread_if_large, measure_size, require_long_text, require_text
from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.filters import AuditFilter, GroupFilter, make_value_error, parse_time
from redrive.store.groups import GroupChange, GroupOrder, GroupRow, GroupVerb
from redrive.store.port import DeskStore
from redrive.time_values import to_datetime

_MAX_HISTORY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingVersion:
    """A version of the code in which a cause was `seen`."""

    version: str
    first_seen: datetime
    last_seen: datetime
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """The letters of a tenant that have one cause.

    `open` of `total` wait for a decision. `trend` counts failures by hour over the last 24 hours, the
    present hour last. The letter `sample_id` is an example: `message` is its reason, the English sentence for
    `reason_code` and `reason_params`, and `error` its error message.

    `owner` is the assignee. A cause that is `muted` without `muted_until` is muted until it has more open letters.
    `resolved_version` is the newest code when a bulk action resolved the cause, `back_version` the code in which it
    failed again. `retried_bulk` is the last bulk action that retried it. `versions` and `history` are filled in by
    `dlq.group` only.
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
    owner: str | None = None
    muted: bool = False
    muted_by: str | None = None
    muted_until: datetime | None = None
    resolved_at: datetime | None = None
    resolved_by: str | None = None
    resolved_version: str | None = None
    back_version: str | None = None
    retried_at: datetime | None = None
    retried_by: str | None = None
    retried_bulk: str | None = None
    versions: tuple[FailingVersion, ...] = ()
    history: tuple[AuditRecord, ...] = ()

    @property
    def comments(self) -> tuple[AuditRecord, ...]:
        """The comments of users, in order of time."""
        return tuple(line for line in self.history if line.event == AuditEvent.GROUP_COMMENTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """A page of groups, of which `total` match. All that happened before `as_of` is counted."""

    items: list[FailureGroup]
    next: str | None
    prev: str | None
    as_of: datetime
    total: int


class GroupActions:
    """The calls of `app.dlq` for failure groups."""

    _store: DeskStore
    _clock: Clock
    _presenter: Presenter

    @operation("GET /workflow-dlq/groups", Permission.LOOK)
    async def groups(
        self,
        tenant: str | None = None,
        *,
        status: str | None = "OPEN",
        muted: bool | None = None,
        sort: str = "count",
        limit: int = 50,
        cursor: str | None = None,
    ) -> GroupList:
        """Return a page of failures grouped by their cause, the one with most open letters first.

        Only those with open letters; `status=None` lists all. `sort="trend"` begins with the one that failed most in
        the last 24 hours, `sort="newest"` with the one seen last. `muted` selects muted causes, or those that are not.
        Counts are a few seconds late: they contain everything before `as_of`.
        """
        where = GroupFilter(tenant=tenant, status=status, muted=muted)
        if sort not in set(GroupOrder):
            known = tuple(order.value for order in GroupOrder)
            raise make_value_error("sort", Reason(ReasonCode.ONE_OF, options=known, more=None), sort)
        page = await self._store.groups(where, order=GroupOrder(sort), limit=limit, cursor=cursor)
        totals = await self._store.group_totals(where)
        present = partial(map, partial(present_group, presenter=self._presenter), page.items)
        items = await in_thread_if_large(lambda: list(present()), measure_size(page.items))
        return present_row(GroupList, page, items=items, total=totals.groups)

    @operation("GET /workflow-dlq/groups/{fingerprint}", Permission.LOOK, id="show_group")
    async def group(self, fingerprint: str, *, tenant: str | None = None) -> FailureGroup:
        """Return one cause with the versions of the code in which it failed, and what users did about it."""
        row = await self._find_group(fingerprint, tenant)
        where = AuditFilter(subject=row.fingerprint, tenant=row.tenant)
        lines = await self._store.audit(where, limit=_MAX_HISTORY, cursor=None)
        return present_group(
            row,
            self._presenter,
            versions=tuple(present_row(FailingVersion, each) for each in await self._store.group_versions(row)),
            history=tuple(map(self._presenter.line, reversed(lines.items))),
        )

    @operation("POST /workflow-dlq/groups/{fingerprint}/assign", Permission.NOTE, id="assign_group")
    async def assign_group(
        self, fingerprint: str, *, to: str | None, by: str = "unknown", tenant: str | None = None
    ) -> FailureGroup:
        """Assign a cause to a user; `to=None` leaves it unassigned."""
        assignee = None if to is None else require_text("to", to)
        row = await self._find_group(fingerprint, tenant)
        line = self._audit_group(AuditEvent.GROUP_ASSIGNED, row, Actor(by), before=row.owner, after=assignee)
        await self._store.change_group(_make_change(row, GroupVerb.ASSIGN, line, owner=assignee))
        return await self.group(row.fingerprint, tenant=row.tenant)

    @operation("POST /workflow-dlq/groups/{fingerprint}/comment", Permission.NOTE, id="comment_group")
    async def comment_group(
        self, fingerprint: str, text: str, *, by: str = "unknown", tenant: str | None = None
    ) -> FailureGroup:
        """Add a comment to a cause."""
        require_long_text("a comment", text)
        row = await self._find_group(fingerprint, tenant)
        await self._store.note([self._audit_group(AuditEvent.GROUP_COMMENTED, row, Actor(by), after=text)])
        return await self.group(row.fingerprint, tenant=row.tenant)

    @operation("POST /workflow-dlq/groups/{fingerprint}/mute", Permission.DECIDE, id="mute_group")
    async def mute_group(
        self, fingerprint: str, *, until: datetime | None = None, tenant: str | None = None, **acting: Unpack[Acting]
    ) -> FailureGroup:
        """Mute a cause until a time, or without one until it has more open letters than now.

        A muted cause is not counted on the overview, and its failures send no notifications.
        """
        end = None if until is None else self._read_end(until)
        row = await self._find_group(fingerprint, tenant)
        after = None if end is None else f"{to_datetime(end):%Y-%m-%d %H:%M} UTC"
        line = self._audit_group(AuditEvent.GROUP_MUTED, row, Actor(**acting), after=after)
        await self._store.change_group(_make_change(row, GroupVerb.MUTE, line, until=end))
        return await self.group(row.fingerprint, tenant=row.tenant)

    @operation("POST /workflow-dlq/groups/{fingerprint}/unmute", Permission.DECIDE, id="unmute_group")
    async def unmute_group(
        self, fingerprint: str, *, tenant: str | None = None, **acting: Unpack[Acting]
    ) -> FailureGroup:
        """End the mute of a cause; one that is not muted stays as it is."""
        row = await self._find_group(fingerprint, tenant)
        line = self._audit_group(AuditEvent.GROUP_UNMUTED, row, Actor(**acting))
        await self._store.change_group(_make_change(row, GroupVerb.UNMUTE, line))
        return await self.group(row.fingerprint, tenant=row.tenant)

    async def _find_group(self, fingerprint: str, tenant: str | None) -> GroupRow:
        """Return the group of a cause. Fingerprints of two tenants differ, so the tenant need not be named."""
        where = GroupFilter(tenant=tenant, status=None, fingerprint=require_text("fingerprint", fingerprint))
        found = (await self._store.groups(where, limit=1, cursor=None)).items
        if not found:
            raise NotFound(Reason(ReasonCode.GROUP_NOT_FOUND, id=quote(fingerprint)))
        return found[0]

    def _read_end(self, until: datetime) -> int:
        """Return the time at which a mute ends; it must be in the future."""
        if not isinstance(until, datetime):
            raise make_value_error("until", Reason(ReasonCode.KIND_TIME), until)
        end = parse_time("until", until)
        if end <= self._store.now():
            raise InputError(Reason(ReasonCode.MUTE_TIME_PAST, given=f"{until.astimezone(UTC):%Y-%m-%d %H:%M}"))
        return end

    def _audit_group(
        self, event: AuditEvent, row: GroupRow, actor: Actor, before: str | None = None, after: str | None = None
    ) -> Any:
        values = {"before": before, "after": after}
        texts = {
            name: None if value is None else json.dumps(value, ensure_ascii=False) for name, value in values.items()
        }
        return actor.make_audit(self._clock, event, row.tenant, row.fingerprint, **texts)


def _make_change(row: GroupRow, verb: GroupVerb, audit: Any, **more: Any) -> GroupChange:
    return GroupChange(tenant=row.tenant, fingerprint=row.fingerprint, verb=verb, audit=audit, **more)


def present_group(row: GroupRow, presenter: Presenter, **more: Any) -> FailureGroup:
    """Return a group, redacted."""
    reason = None if row.reason is None else presenter.reason(Reason.from_text(row.reason))
    return present_row(
        FailureGroup,
        row,
        workflows=(row.workflow,),  # a fingerprint is made of one workflow and one step, among other things
        steps=() if row.step is None else (row.step,),
        sample_id=row.letter,
        **make_reason_fields(reason, "message"),
        error=None if row.failure is None else presenter.text(FailureReason.from_json(row.failure).failure.message),
        **more,
    )
