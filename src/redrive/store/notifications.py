"""Notifications: facts that are collected in lanes, the inbox of users, and the rules.

    notices         facts that users are to be notified of, collected in lanes
    notifications   sent notifications; the inbox shows them
    rules           which users are notified of which events

While failures come in by the thousand, rows are only added: a lane is written when its notification is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from redrive.clock import MICROS
from redrive.core.transitions import AuditWrite, MessageWrite, Transition
from redrive.errors import RedriveError
from redrive.record_fields import as_dict
from redrive.store.result_page import Page, PageRequest, read_page
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("notifications.sql")

MOST_UNREAD = 1000
"""Unread notifications are counted up to this many."""

SENT_RETENTION = 86_400 * MICROS
"""Microseconds for which sent notices are kept, so that a relay that repeats one adds nothing."""


class NewNotice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts to notify users of; `core.engine_messages` wrote `notice`. A repeat has the same `public_id`."""

    public_id: str
    tenant: str
    lane: str
    notice: str


class NoticeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Stored facts."""

    id: int
    tenant: str
    created_at: int
    notice: str


class DueLane(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A due lane: `count` notices that were not sent, the newest of which is `last`.

    `notices` are the newest ones, the last one first. `version` changes when the lane's notification is sent.
    """

    tenant: str
    lane: str
    version: int
    count: int
    first_at: int
    last: int
    notices: tuple[NoticeRow, ...]
    now: int


class NewNotification(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A notification to send: `content` is plain JSON. `in_app`: the inbox shows it."""

    public_id: str
    tenant: str
    event: str
    workflow: str
    count: int
    in_app: bool
    content: str


class LaneNotification(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The notification of a lane, sent if the lane still has this version.

    The lane is due again after `every` microseconds.
    """

    case: DueLane
    every: int
    notification: NewNotification
    messages: tuple[MessageWrite, ...] = ()


class NotificationRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A notification as one reader sees it. `read_at` is when this reader read it."""

    id: int
    public_id: str
    tenant: str
    event: str
    workflow: str
    count: int
    created_at: int
    content: str
    read_at: int | None


class NotificationFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A filter of the inbox: a tenant, some workflows, some ids, only unread ones."""

    tenant: str | None = None
    workflows: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    unread: bool = False


class RuleRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A notification rule for a workflow of a tenant; an empty text means any."""

    tenant: str
    workflow: str
    rule: str
    updated_at: int
    updated_by: str


class NotificationStore(Protocol):
    """Calls about notifications. Each is one transaction and safe to repeat."""

    async def add(self, notices: Sequence[NewNotice]) -> None:
        """Keep facts until they are sent; those that are stored already change nothing."""

    async def due(self, *, limit: int, newest: int) -> list[DueLane]:
        """Return the due lanes that have unsent notices, each with its `newest` ones."""

    async def send(self, digest: LaneNotification) -> bool:
        """Store the notification of a lane, and the messages that bring it to users.

        Return False if another process sent it first, or a notice was added meanwhile: then nothing is written.
        """

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        """Return a page of the inbox, newest first, as one reader sees it."""

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        """Count the notifications that the reader has not read, up to 1,000."""

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        """Note that the reader has read these; return how many were unread."""

    async def rules(self) -> Sequence[RuleRow]:
        """Return all stored rules."""

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        """Store a rule, replacing the one for the same tenant and workflow."""

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        """Remove a rule; return False, and note nothing, if there was none."""


class _LaneChanged(RedriveError):
    """Another process sent this lane, or added to it. Rolls back what the call has written."""


class NotificationCalls:
    """Implements `NotificationStore`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @write_call()
    async def add(self, session: Session, notices: Sequence[NewNotice]) -> None:
        async with session.transaction():
            now = await session.now()
            # Sorted, so that two processes lock the rows in the same order.
            for each in sorted(notices, key=lambda one: (one.tenant, one.lane, one.public_id)):
                await session.rows(SQL["put_notice"], **as_dict(each), now=now)
                await session.rows(SQL["put_lane"], tenant=each.tenant, lane=each.lane)

    @read_call()
    async def due(self, session: Session, *, limit: int, newest: int) -> list[DueLane]:
        now = await session.now()
        found = []
        for row in await session.rows(SQL["due_lanes"], now=now, most=limit):
            tenant, lane, *_, last = row
            notices = await session.rows(SQL["newest_notices"], tenant=tenant, lane=lane, last=last, newest=newest)
            newest_notices = tuple(build_record(NoticeRow, each) for each in notices)
            found.append(build_record(DueLane, (*row, newest_notices, now)))
        return found

    async def send(self, digest: LaneNotification) -> bool:
        try:
            await self._write_lane(digest)
        except _LaneChanged:
            return False
        return True

    @write_call()
    async def _write_lane(self, session: Session, digest: LaneNotification) -> None:
        async with session.transaction():
            now = await session.now()
            case = digest.case
            lane = {"tenant": case.tenant, "lane": case.lane}
            next_at = now + digest.every
            if not await session.rows(SQL["reschedule_lane"], **lane, version=case.version, next_at=next_at):
                raise _LaneChanged
            if len(await session.rows(SQL["mark_sent"], **lane, last=case.last, now=now)) != case.count:
                raise _LaneChanged
            await session.rows(SQL["put_notification"], **as_dict(digest.notification), now=now)
            if digest.messages:
                # Stores write messages with a transition; this one has nothing else to write.
                carrier = Transition(run=0, tenant=case.tenant, fence=0, messages=digest.messages)
                await session.publish([carrier], now)

    @read_call()
    async def inbox(
        self, session: Session, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        request, record = PageRequest.of(limit, cursor), partial(build_record, NotificationRow)
        return await read_page(session, SQL, "notifications", request, _condition_values(where), record, reader=reader)

    @read_call()
    async def unread(self, session: Session, where: NotificationFilter, reader: str) -> int:
        values = {**_condition_values(where), "unread": True}
        statement = _build_statement(session, "unread", values)
        return int(await session.value(statement, **values, reader=reader, most=MOST_UNREAD))

    @write_call()
    async def mark_read(self, session: Session, where: NotificationFilter, reader: str) -> int:
        values = {**_condition_values(where), "unread": True}
        return len(await session.rows(_build_statement(session, "mark_read", values), **values, reader=reader))

    @read_call()
    async def rules(self, session: Session) -> Sequence[RuleRow]:
        return [build_record(RuleRow, row) for row in await session.rows(SQL["rules"])]

    @write_call()
    async def set_rule(self, session: Session, row: RuleRow, audit: AuditWrite) -> None:
        await session.change(SQL["put_rule"], audit, **as_dict(row))

    @write_call()
    async def delete_rule(self, session: Session, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        return await session.change(SQL["drop_rule"], audit, tenant=tenant, workflow=workflow)


def _condition_values(where: NotificationFilter) -> dict[str, Any]:
    """Return the values of a filter by the names of the conditions."""
    values: dict[str, Any] = {
        "tenant": where.tenant,
        "workflows": None if where.workflows is None else list(where.workflows),
        "ids": None if where.ids is None else list(where.ids),
        "unread": where.unread or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _build_statement(session: Session, name: str, values: dict[str, Any]) -> str:
    """Return the text of a statement with the conditions for these values."""
    texts = SQL.texts(session.dialect)
    return texts[name].format(conditions=" AND ".join(texts[f"notifications.{each}"] for each in values) or "true")


async def purge_notifications(session: Session, now: int, before: int, limit: int) -> int:
    """Remove notices and lanes a day after they were sent, and notifications from before a time.

    Return how many rows that were.
    """
    await session.rows(SQL["missing_lanes"])
    removed = 0
    for name in ("delete_old_notices", "delete_old_lanes"):
        removed += len(await session.rows(SQL[name], before=now - SENT_RETENTION, most=limit))
    gone = await session.rows(SQL["delete_old_notifications"], before=before, most=limit)
    await session.rows(SQL["delete_old_reads"], notifications=[row[0] for row in gone])
    return removed + len(gone)
