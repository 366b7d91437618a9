"""Saved views: filters of lists under a name, one's own and those that a tenant shares."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.desk.views import ListName, SavedView
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Body, router

__all__ = ["view_routes"]

view_routes = router("saved views")

Name = Annotated[str, Path(pattern=r"^[^/\x00-\x1f]{1,255}$", description="Its name.")]
Of = Annotated[ListName, Path(alias="list", description="Which list it narrows.")]


class Filter(Body):
    """What a list is to be narrowed by."""

    query: str = Field(
        max_length=2000,
        description="The query of an address of that list.",
        examples=["code=timeout&since=24h"],
    )


@view_routes.get("/views", **needs(Permission.LOOK))
async def list_views(
    asked: Asked, of: Annotated[ListName | None, Query(alias="list")] = None
) -> list[SavedView]:
    """One's own views and those that are shared, by list and name."""
    return await asked.desk.views.list(of, reader=asked.by, tenant=asked.tenant)


@view_routes.put("/views/{list}/{name}", **needs(Permission.LOOK))
async def save_view(asked: Asked, of: Of, name: Name, body: Filter) -> SavedView:
    """Keep a filter for oneself, in place of the one with that name."""
    return await asked.desk.views.save(of, name, body.query, by=asked.by, tenant=asked.tenant)


@view_routes.delete("/views/{list}/{name}", status_code=204, **needs(Permission.LOOK))
async def remove_view(asked: Asked, of: Of, name: Name) -> None:
    """Forget a view of one's own."""
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant)


@view_routes.put("/shared-views/{list}/{name}", **needs(Permission.NOTE))
async def share_view(asked: Asked, of: Of, name: Name, body: Filter) -> SavedView:
    """Keep a filter for everybody in the tenant, in place of the one with that name."""
    return await asked.desk.views.save(of, name, body.query, by=asked.by, tenant=asked.tenant, shared=True)


@view_routes.delete("/shared-views/{list}/{name}", status_code=204, **needs(Permission.NOTE))
async def remove_shared_view(asked: Asked, of: Of, name: Name) -> None:
    """Forget a view of the tenant."""
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant, shared=True)
