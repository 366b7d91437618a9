"""Store calls for what operators set: retry policies and paused workflows; and the secrets of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from redrive.core.transitions import AuditWrite
from redrive.frozen import dataclass
from redrive.store.records import PolicyRow, policy_row
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = ["NewView", "SavedViewCalls", "SettingsCalls", "ViewPlace", "ViewRow", "Views", "view_row"]


# -- Store calls for what operators set: retry policies and paused workflows; and the secrets of the -----


SQL = Statements("settings.sql")


class SettingsCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @writes(begin=False)
    async def store_secret(self, session: Session, name: str, make: Callable[[], str]) -> str:
        """Return a secret of the store; the first process that asks makes it."""
        found = await session.value(SQL["secret"], name=name)
        if found is None:
            async with session.transaction():
                await session.rows(SQL["make_secret"], name=name, secret=make())
            found = await session.value(SQL["secret"], name=name)  # another process may have been quicker
        return str(found)

    @reads()
    async def policies(self, session: Session) -> list[PolicyRow]:
        return [policy_row(row) for row in await session.rows(SQL["policies"])]

    @writes()
    async def set_policy(self, session: Session, policy: PolicyRow, audit: AuditWrite) -> None:
        async with session.transaction():
            await session.rows(
                SQL["put_policy"],
                tenant=policy.tenant,
                workflow=policy.workflow,
                step=policy.step,
                policy=policy.policy,
                updated_by=policy.updated_by,
            )
            await session.note([audit])

    @writes()
    async def delete_policy(
        self, session: Session, tenant: str, workflow: str, step: str, audit: AuditWrite
    ) -> bool:
        return await session.change(SQL["drop_policy"], audit, tenant=tenant, workflow=workflow, step=step)

    @writes()
    async def pause(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["pause"], audit, workflow=workflow, by=audit.by)

    @writes()
    async def resume(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["resume"], audit, workflow=workflow)

    @reads()
    async def paused(self, session: Session) -> dict[str, str]:
        return {row[0]: row[1] for row in await session.rows(SQL["paused"])}


# -- What is asked of a store about saved views: filters of lists that people gave a name ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPlace:
    """What a view is known by."""

    tenant: str
    list: str
    owner: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewView:
    """A view that somebody saves: the query of an address, and who did."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str

    @property
    def place(self) -> ViewPlace:
        return ViewPlace(tenant=self.tenant, list=self.list, owner=self.owner, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """A view as recorded."""

    tenant: str
    list: str
    owner: str
    name: str
    query: str
    by: str
    at: int


class Views(Protocol):
    """The calls about saved views: each one transaction, each safe to repeat."""

    async def known(self, tenant: str, owner: str | None) -> Sequence[ViewRow]:
        """Somebody's own views in a tenant and those that it shares, or everybody's, by list and name."""

    async def put(self, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        """Save a view, in place of one with its name; False if its owner has `most` others in that list."""

    async def remove(self, place: ViewPlace, audit: AuditWrite | None) -> bool:
        """Forget a view; False if there is none."""


def view_row(row: Sequence[Any]) -> ViewRow:
    """A row of the statement `views`."""
    tenant, list, owner, name, query, by, at = row
    return ViewRow(tenant=tenant, list=list, owner=owner, name=name, query=query, by=by, at=at)


SQL_VIEWS = Statements("views.sql")


class SavedViewCalls:
    """See `Views` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reads()
    async def known(self, session: Session, tenant: str, owner: str | None) -> list[ViewRow]:
        return [view_row(row) for row in await session.rows(SQL_VIEWS["views"], tenant=tenant, owner=owner)]

    @writes()
    async def put(self, session: Session, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await session.change(SQL_VIEWS["put_view"], audit, **asdict(view), most=most)

    @writes()
    async def remove(self, session: Session, place: ViewPlace, audit: AuditWrite | None) -> bool:
        return await session.change(SQL_VIEWS["drop_view"], audit, **asdict(place))
