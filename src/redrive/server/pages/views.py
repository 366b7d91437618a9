"""Saved views: keeping the filter of a list under a name, and forgetting it."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.desk.views import ListName, SavedView
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import view_of
from redrive.server.pages.forms import Form, Sent, pages, to

__all__ = ["ADDRESSES", "views_routes", "saved"]

views_routes = pages()

ADDRESSES: dict[ListName, tuple[str, dict[str, str]]] = {
    ListName.LETTERS: ("/admin/dlq", {"view": "items"}),
    ListName.RUNS: ("/runs", {}),
    ListName.AUDIT: ("/audit", {}),
}
"""Where each list is, and what its address says beside the filter."""


async def saved(asked: Asking, of: ListName) -> list[SavedView]:
    """The views of a list that whoever looks can open."""
    return await asked.desk.views.list(of, reader=asked.by, tenant=asked.tenant)


@views_routes.post("/views", **needs(Permission.LOOK))
async def save(request: Request, asked: Asked, sent: Sent) -> Response:
    """Keep a filter for oneself."""
    return await _save(request, asked, sent, shared=False)


@views_routes.post("/views/share", **needs(Permission.NOTE))
async def share(request: Request, asked: Asked, sent: Sent) -> Response:
    """Keep a filter for everybody in the tenant."""
    return await _save(request, asked, sent, shared=True)


async def _save(request: Request, asked: Asking, sent: Form, *, shared: bool) -> Response:
    of, name, query = sent.get("list"), sent.get("name"), sent.get("query")
    new = await asked.desk.views.save(of, name, query, by=asked.by, tenant=asked.tenant, shared=shared)
    return _back(request, new.list, new.wanted)


@views_routes.post("/views/remove", **needs(Permission.LOOK))
async def remove(request: Request, asked: Asked, sent: Sent) -> Response:
    """Forget a view of one's own."""
    return await _remove(request, asked, sent, shared=False)


@views_routes.post("/views/unshare", **needs(Permission.NOTE))
async def unshare(request: Request, asked: Asked, sent: Sent) -> Response:
    """Forget a view of the tenant."""
    return await _remove(request, asked, sent, shared=True)


async def _remove(request: Request, asked: Asking, sent: Form, *, shared: bool) -> Response:
    of, name = sent.get("list"), sent.get("name")
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant, shared=shared)
    return _back(request, ListName(of), {})


def _back(request: Request, of: ListName, wanted: dict[str, str]) -> Response:
    path, more = ADDRESSES[of]
    return to(view_of(request).url(path, {**wanted, **more}))
