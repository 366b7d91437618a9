"""`app.notifications`: the inbox, and the rules about who is told of what that people store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.notifications import Notification, build_notification, render_notification
from redrive.core.notify_rules import NotifyRule
from redrive.core.redact import Redactor
from redrive.core.transitions import AuditWrite
from redrive.desk.presenter import in_thread_if_large, measure_size
from redrive.desk.validation import require_actor, require_text
from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.http.ssrf import check_url
from redrive.reasons import Reason, ReasonCode, quote
from redrive.sinks.webhook import read_secrets
from redrive.store.encryption.keyring import Unreadable
from redrive.store.list_query import Page
from redrive.store.notifications import NotificationFilter, NotificationRow, RuleRow
from redrive.store.port import DeskStore


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """A notification in the inbox. `read_at` is when whoever looks read it, None if that is still to come."""

    id: str
    event: str
    tenant: str
    workflow: str
    title: str
    text: str
    count: int
    at: datetime
    read_at: datetime | None
    notification: Notification


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRule:
    """A stored rule and what it applies to; None means any. Of URLs only the host is shown."""

    on: tuple[str, ...]
    targets: tuple[str, ...]
    app: bool
    workflow: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str


class NotificationDisplay(msgspec.Struct, frozen=True, kw_only=True):
    """How notifications are shown: what is hidden, where links lead."""

    redactor: Redactor
    base_url: str = ""


class Notifications:
    """The inbox of whoever looks, and the stored rules. `changed` hears that a rule was stored."""

    def __init__(
        self, store: DeskStore, clock: Clock, showing: NotificationDisplay, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._showing = showing
        self._changed = changed

    # -- the inbox -------------------------------------------------------------------------------------

    async def list(
        self,
        *,
        reader: str = "unknown",
        tenant: str | None = None,
        workflow: str | None = None,
        unread: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[InboxItem]:
        """A page of the inbox, newest first, as this reader sees it."""
        where = _make_filter(tenant, workflow, unread=unread)
        page = await self._store.notices.inbox(where, require_actor(reader), limit=limit, cursor=cursor)
        items = await in_thread_if_large(
            lambda: [self._present_item(row) for row in page.items], measure_size(page.items)
        )
        return Page(items, page.next, page.prev)

    async def get(self, id: str, *, reader: str = "unknown", tenant: str | None = None) -> InboxItem:
        """One notification of the inbox."""
        where = NotificationFilter(tenant=tenant, ids=(id,))
        page = await self._store.notices.inbox(where, require_actor(reader), limit=1, cursor=None)
        if not page.items:
            raise NotFound(Reason(ReasonCode.NOTIFICATION_NOT_FOUND, id=quote(id)))
        return await in_thread_if_large(lambda: self._present_item(page.items[0]), measure_size(page.items))

    async def unread(self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None) -> int:
        """How many this reader has not read, counted up to 1,000."""
        return await self._store.notices.unread(_make_filter(tenant, workflow), require_actor(reader))

    async def mark_read(
        self, ids: Sequence[str] | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> int:
        """Note that this reader has read these, or all there are; returns of how many that was new."""
        named = None if ids is None else tuple(ids)
        where = NotificationFilter(tenant=tenant, ids=named)
        return await self._store.notices.mark_read(where, require_actor(reader))

    def _present_item(self, row: NotificationRow) -> InboxItem:
        if isinstance(row.content, Unreadable):
            raise ConfigurationError(f"a notification cannot be read: {row.content.why}")
        told = build_notification(row.public_id, row.content, self._showing.redactor, self._showing.base_url)
        words = render_notification(told)
        return InboxItem(
            id=row.public_id,
            event=row.event,
            tenant=row.tenant,
            workflow=row.workflow,
            title=words.subject,
            text=words.text,
            count=row.count,
            at=to_datetime(row.created_at),
            read_at=to_datetime(row.read_at),
            notification=told,
        )

    # -- the rules -------------------------------------------------------------------------------------

    async def rules(self) -> Sequence[StoredRule]:
        """All stored rules."""
        return [_present_rule(row) for row in await self._store.notices.rules()]

    async def set_rule(
        self, rule: Mapping[str, Any], *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> StoredRule:
        """Store who is told of what, for a workflow or for all: it goes before what the code says.

        `rule` is written like `notify=` of a workflow; one with `"on": []` silences. Its URLs must be public,
        whatever hosts are let through: a channel that the code registers leads inside.
        """
        require_actor(by)
        read = self._parse_rule(rule)
        for what, value in (("workflow", workflow), ("tenant", tenant)):
            if value is not None:
                require_text(what, value)
        row = RuleRow(
            tenant=tenant or "",
            workflow=workflow or "",
            rule=json.dumps(read.to_json()),
            updated_at=self._store.now(),
            updated_by=by,
        )
        await self._store.notices.set_rule(row, self._make_audit(AuditEvent.NOTIFY_SET, row, _describe_rule(read)))
        await self._changed()
        return _present_rule(row)

    async def delete_rule(self, *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown") -> bool:
        """Remove the rule stored for exactly this; False if there was none."""
        require_actor(by)
        row = RuleRow(tenant=tenant or "", workflow=workflow or "", rule="", updated_at=0, updated_by=by)
        line = self._make_audit(AuditEvent.NOTIFY_DELETED, row, None)
        return await self._store.notices.delete_rule(row.tenant, row.workflow, line)

    def _parse_rule(self, rule: Mapping[str, Any]) -> NotifyRule:
        try:
            read = NotifyRule.read(rule, "the rule")
            for target in read.targets:
                if target.kind in ("slack", "teams", "webhook"):
                    _require_public_url(target.to)
                if target.secret is not None:
                    read_secrets(target.secret, "a webhook of the rule")
        except ConfigurationError as error:
            raise InputError(str(error)) from None
        return read

    def _make_audit(self, event: AuditEvent, row: RuleRow, after: dict[str, Any] | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=row.tenant,
            by=row.updated_by,
            subject=row.workflow or "*",
            after=None if after is None else json.dumps(after),
            token=self._clock.new_id(),
        )


def _require_public_url(url: str) -> None:
    try:
        check_url(url)
    except InputError as error:
        raise InputError(
            f"{error} That is for URLs in the code; a stored rule names a channel that the code registers."
        ) from None


def _make_filter(tenant: str | None, workflow: str | None, *, unread: bool = False) -> NotificationFilter:
    named = None if workflow is None else (workflow,)
    return NotificationFilter(tenant=tenant, workflows=named, unread=unread)


def _describe_rule(rule: NotifyRule) -> dict[str, Any]:
    """A rule without what lets others write there."""
    return {"on": list(rule.on), "to": [target.shown for target in rule.targets], "app": rule.app}


def _present_rule(row: RuleRow) -> StoredRule:
    if isinstance(row.rule, Unreadable):
        raise ConfigurationError(f"a rule cannot be read: {row.rule.why}")
    shown = _describe_rule(NotifyRule.from_json(json.loads(row.rule)))
    return StoredRule(
        on=tuple(shown["on"]),
        targets=tuple(shown["to"]),
        app=shown["app"],
        workflow=row.workflow or None,
        tenant=row.tenant or None,
        updated_at=to_datetime(row.updated_at),
        updated_by=row.updated_by,
    )
