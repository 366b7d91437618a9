"""`app.notifications`: the inbox, and the stored rules about which events are sent where."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.notification_rules import NotifyRule
from redrive.core.notification_text import Notification, build_notification, render_notification
from redrive.core.redact import Redactor
from redrive.core.roles import Permission
from redrive.desk.actor import Actor, require_actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import present_page, present_row
from redrive.desk.validation import in_thread_if_large, measure_size, require_channel, require_text
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.http.ssrf import check_url
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import as_dict
from redrive.sinks.webhook import read_secrets
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import check_text, make_value_error
from redrive.store.notifications import NotificationFilter, NotificationRow, RuleRow
from redrive.store.port import DeskStore
from redrive.store.result_page import Page
from redrive.time_values import to_datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """A notification in the inbox. `read_at` is when the reader marked it as read, None if unread."""

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
    """A stored rule and its target; None means any. Of URLs only the host is shown.

    `escalate_after`: seconds after which open letters are escalated to `escalate_to`, 0 for never; None if the rule
    does not say it. `only_escalates`: another rule, or the code, decides about events.
    """

    on: tuple[str, ...]
    targets: tuple[str, ...]
    app: bool
    workflow: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str
    escalate_after: float | None = None
    escalate_to: str | None = None
    only_escalates: bool = False


class NotificationDisplay(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for displaying notifications: the redactor, and the base of links."""

    redactor: Redactor
    base_url: str = ""


class Notifications:
    """The inbox of a reader, and the stored rules.

    `on_change` is called after a rule was stored. `knows_channel` is True for the channels of this process.
    """

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        display: NotificationDisplay,
        on_change: Callable[[], Awaitable[None]],
        knows_channel: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._display = display
        self._on_change = on_change
        self._knows_channel = knows_channel

    @operation("GET /notifications", Permission.LOOK)
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
        """Return a page of the inbox of a reader, newest first."""
        where = _make_filter(tenant, workflow, unread=unread)
        page = await self._store.notifications.inbox(where, require_actor(reader), limit=limit, cursor=cursor)
        return await present_page(page, self._present_item)

    @operation("GET /notifications/{id}", Permission.LOOK, id="get_notification")
    async def get(self, id: str, *, reader: str = "unknown", tenant: str | None = None) -> InboxItem:
        """Return one notification of the inbox."""
        where = NotificationFilter(tenant=tenant, ids=(check_text("id", id),))
        page = await self._store.notifications.inbox(where, require_actor(reader), limit=1, cursor=None)
        if not page.items:
            raise NotFound(Reason(ReasonCode.NOTIFICATION_NOT_FOUND, id=quote(id)))
        return await in_thread_if_large(lambda: self._present_item(page.items[0]), measure_size(page.items))

    async def unread(self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None) -> int:
        """Return the number of notifications that this reader has not read, counted up to 1,000."""
        return await self._store.notifications.unread(_make_filter(tenant, workflow), require_actor(reader))

    @operation("POST /notifications/read", Permission.LOOK, field="marked")
    async def mark_read(
        self, ids: Sequence[str] | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> int:
        """Mark these notifications, or all, as read by a reader; return how many were unread before."""
        if isinstance(ids, str):
            raise make_value_error("ids", Reason(ReasonCode.KIND_LIST), ids)
        named = None if ids is None else tuple([check_text("ids", id) for id in ids])
        where = NotificationFilter(tenant=tenant, ids=named)
        return await self._store.notifications.mark_read(where, require_actor(reader))

    def _present_item(self, row: NotificationRow) -> InboxItem:
        if isinstance(row.content, Unreadable):
            raise ConfigurationError(f"a notification cannot be read: {row.content.why}")
        notification = build_notification(row.public_id, row.content, self._display.redactor, self._display.base_url)
        text = render_notification(notification)
        shown = {"title": text.subject, "text": text.text, "notification": notification}
        return present_row(InboxItem, row, id=row.public_id, at=to_datetime(row.created_at), **shown)

    @operation("GET /notification-rules", Permission.LOOK, id="list_notification_rules")
    async def rules(self) -> Sequence[StoredRule]:
        """Return all stored rules."""
        return [_present_rule(row) for row in await self._store.notifications.rules()]

    @operation("PUT /notification-rules", Permission.SET_POLICIES, id="set_notification_rule")
    async def set_rule(
        self, rule: Mapping[str, Any], *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> StoredRule:
        """Store which events are sent where, for a workflow or for all, in place of the rule in the code.

        `rule` is written like `notify=` of a workflow; one with `"on": []` silences. Its URLs must be public,
        whatever hosts the settings allow: an internal URL needs a channel that the code registers. With
        `"escalate": {"after": "4h", "to": "ADMIN"}`, open letters are escalated, in place of the settings; a rule with
        nothing else leaves notifications to the other rules.
        """
        actor = Actor(by)
        try:
            parsed = NotifyRule.read(rule, "the rule")
            for target in parsed.targets:
                if target.kind in ("slack", "teams", "webhook"):
                    try:
                        check_url(target.to)
                    except InputError as error:
                        raise InputError(Reason(ReasonCode.RULE_URL_REFUSED, why=Reason.of_error(error))) from None
                if target.secret is not None:
                    read_secrets(target.secret, "a webhook of the rule")
        except ConfigurationError as error:
            raise InputError(Reason.of_error(error)) from None
        for what, value in (("workflow", workflow), ("tenant", tenant)):
            if value is not None:
                require_text(what, value)
        for name in sorted(parsed.channels):
            await require_channel(self._store, name, self._knows_channel)
        text, now = json.dumps(parsed.to_json()), self._store.now()
        row = RuleRow(tenant=tenant or "", workflow=workflow or "", rule=text, updated_at=now, updated_by=by)
        after = json.dumps(_describe_rule(parsed))
        line = actor.make_audit(self._clock, AuditEvent.NOTIFY_SET, row.tenant, row.workflow or "*", after=after)
        await self._store.notifications.set_rule(row, line)
        await self._on_change()
        return _present_rule(row)

    @operation("DELETE /notification-rules", Permission.SET_POLICIES, status=204)
    async def delete_rule(self, *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown") -> bool:
        """Remove the rule stored for exactly this target; False if there was none."""
        line = Actor(by).make_audit(self._clock, AuditEvent.NOTIFY_DELETED, tenant or "", workflow or "*")
        return await self._store.notifications.delete_rule(tenant or "", workflow or "", line)


def _make_filter(tenant: str | None, workflow: str | None, *, unread: bool = False) -> NotificationFilter:
    named = None if workflow is None else (check_text("workflow", workflow),)
    return NotificationFilter(tenant=tenant, workflows=named, unread=unread)


def _describe_rule(rule: NotifyRule) -> dict[str, Any]:
    """Return a rule without its secrets: the URL of a webhook lets others write there."""
    shown = {"on": list(rule.on), "to": [target.shown for target in rule.targets], "app": rule.app}
    return shown if rule.escalate is None else {**shown, "escalate": as_dict(rule.escalate)}


def _present_rule(row: RuleRow) -> StoredRule:
    if isinstance(row.rule, Unreadable):
        what = f"the notification rule of workflow {row.workflow or 'any'!r}, tenant {row.tenant or 'any'!r}"
        raise ConfigurationError(f"{what} cannot be read: {row.rule.why}")
    rule = NotifyRule.from_json(json.loads(row.rule))
    shown = _describe_rule(rule)
    given = {"on": tuple(shown["on"]), "targets": tuple(shown["to"]), "app": shown["app"]}
    if rule.escalate is not None:
        given |= {"escalate_after": rule.escalate.after, "escalate_to": rule.escalate.to}
        given["only_escalates"] = rule.only_escalates
    return present_row(StoredRule, row, **given, workflow=row.workflow or None, tenant=row.tenant or None)
