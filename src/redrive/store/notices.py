"""What the engine asks of a store about notifications: the calls of the port, and what goes in and comes out.

    notices         facts that somebody is to be told of, in lanes
    notifications   what was told, which is what the inbox shows
    rules           who is told of what, as people stored it

While failures come in by the thousand, rows are only added: a lane is written when it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from redrive.core.transition import AuditWrite, MessageWrite
from redrive.frozen import dataclass
from redrive.store.records import Page

__all__ = [
    "LaneCase",
    "NewNotice",
    "NewNotification",
    "NoticeRow",
    "Notices",
    "NotificationFilter",
    "NotificationRow",
    "RuleRow",
    "Telling",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotice:
    """Facts to be told; `notice` is what `core.notice` wrote. A repeat is known by its `public_id`."""

    public_id: str
    tenant: str
    lane: str
    notice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRow:
    """Facts as recorded."""

    id: int
    tenant: str
    created_at: int
    notice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCase:
    """A lane whose turn it is: `count` facts that nobody was told of, the newest of which is `last`.

    `notices` are the newest ones, the last one first. `version` tells whether somebody was quicker.
    """

    tenant: str
    lane: str
    version: int
    count: int
    first_at: int
    last: int
    notices: tuple[NoticeRow, ...]
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNotification:
    """What is told: `content` is plain JSON. `in_app`: the inbox shows it."""

    public_id: str
    tenant: str
    event: str
    workflow: str
    count: int
    in_app: bool
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """A lane that is told now, if it still has this version. It rests for `every` microseconds then."""

    case: LaneCase
    every: int
    notification: NewNotification
    messages: tuple[MessageWrite, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRow:
    """What was told. `read_at` is when the one who asks read it."""

    id: int
    public_id: str
    tenant: str
    event: str
    workflow: str
    count: int
    created_at: int
    content: str
    read_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationFilter:
    """Which notifications of the inbox: of a tenant, about some workflows, by their ids, not read yet."""

    tenant: str | None = None
    workflows: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """Who is told of what, for a workflow of a tenant; an empty text stands for any."""

    tenant: str
    workflow: str
    rule: str
    updated_at: int
    updated_by: str


class Notices(Protocol):
    """The calls about notifications: each one transaction, each safe to repeat."""

    # -- chores ------------------------------------------------------------------------------------

    async def add(self, notices: Sequence[NewNotice]) -> None:
        """Keep facts until they are told; those that are known change nothing."""

    async def due(self, *, limit: int, newest: int) -> list[LaneCase]:
        """Lanes with something to tell whose turn it is, each with its `newest` facts."""

    async def tell(self, telling: Telling) -> bool:
        """Tell a lane: the notification, and the messages that bring it to people.

        False if somebody was quicker, or something came in between: then nothing is written.
        """

    # -- people ------------------------------------------------------------------------------------

    async def inbox(
        self, where: NotificationFilter, reader: str, *, limit: int, cursor: str | None
    ) -> Page[NotificationRow]:
        """A page of the inbox, newest first, as one reader sees it."""

    async def unread(self, where: NotificationFilter, reader: str) -> int:
        """How many of them the reader has not read, counted up to 1,000."""

    async def mark_read(self, where: NotificationFilter, reader: str) -> int:
        """Note that the reader read these; return of how many that was new."""

    async def rules(self) -> Sequence[RuleRow]:
        """All stored rules."""

    async def set_rule(self, row: RuleRow, audit: AuditWrite) -> None:
        """Store a rule, replacing the one for the same tenant and workflow."""

    async def delete_rule(self, tenant: str, workflow: str, audit: AuditWrite) -> bool:
        """Remove a rule; False if there was none, and then nothing is noted."""
