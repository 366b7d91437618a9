"""What is asked of a store about saved views: filters of lists that people gave a name.

A view is somebody's own, or its tenant's, and then it has no owner (""). Views of all tenants at once are
kept under `*`, as which no tenant can be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from redrive.core.transition import AuditWrite
from redrive.frozen import dataclass
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = ["NewView", "SavedViewCalls", "ViewPlace", "ViewRow", "Views", "view_row"]


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


SQL = Statements("views.sql")


class SavedViewCalls:
    """See `Views` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @reads()
    async def known(self, session: Session, tenant: str, owner: str | None) -> list[ViewRow]:
        return [view_row(row) for row in await session.rows(SQL["views"], tenant=tenant, owner=owner)]

    @writes()
    async def put(self, session: Session, view: NewView, *, most: int, audit: AuditWrite | None) -> bool:
        return await session.change(SQL["put_view"], audit, **asdict(view), most=most)

    @writes()
    async def remove(self, session: Session, place: ViewPlace, audit: AuditWrite | None) -> bool:
        return await session.change(SQL["drop_view"], audit, **asdict(place))
