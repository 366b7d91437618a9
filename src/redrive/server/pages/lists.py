"""What lists have in common: what their address says, ranges of time, and the same list as a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from fastapi import Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.desk.saved_views import ListName, SavedView
from redrive.duration import parse_past_time
from redrive.errors import InputError
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view
from redrive.server.pages.translations import N
from redrive.server.request import Context, RequestContext, requires
from redrive.store.list_query import Page, iterate_pages

# -- What lists have in common: what their address says, ranges of time, and the same list as a file -----


T = TypeVar("T")
TIME_RANGES = {"1h": N("last hour"), "24h": N("last 24 hours"), "7d": N("last 7 days"), "30d": N("last 30 days")}
FILE_FORMATS = ("csv", "json")
MAX_ROWS = 10_000
"""Rows of a file; who wants more narrows the list, or asks the API page by page."""

_BATCH = 100  # others get their turn between two of them
_MAX_VALUE_LENGTH = 1000


def read_query(request: Request, *names: str) -> dict[str, str]:
    """What an address says about these, without what is blank."""
    given = {name: request.query_params.get(name, "").strip()[:_MAX_VALUE_LENGTH] for name in names}
    return {name: value for name, value in given.items() if value}


def parse_since(text: str | None, now: datetime) -> datetime | None:
    """The begin of a range: a length of time before now, or a moment."""
    if not text:
        return None
    found = parse_past_time(text, now)
    if found is None:
        raise InputError("since takes a length of time such as 24h, or a moment such as 2026-01-31")
    return found


async def fetch_all(ask: Callable[[int, str | None], Awaitable[Page[T]]]) -> list[T]:
    """Every row of a list, up to ten thousand, asked for page by page."""
    found: list[T] = []
    async for row in iterate_pages(lambda cursor: ask(_BATCH, cursor)):
        found.append(row)
        if len(found) == MAX_ROWS:
            break
    return found


def export_rows(name: str, kind: str, columns: Mapping[str, Callable[[T], Any]], rows: Sequence[T]) -> Response:
    """Rows as a file to keep: CSV or JSON, with the same columns."""
    if kind == "json":
        shaped = [{title: read(row) for title, read in columns.items()} for row in rows]
        body, media = json.dumps(jsonable_encoder(shaped), ensure_ascii=False, indent=1), "application/json"
    else:
        body, media = _write_csv(columns, rows), "text/csv; charset=utf-8"
    named = {"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    return Response(body.encode("utf-8", "replace"), media_type=media, headers=named)


def _write_csv(columns: Mapping[str, Callable[[T], Any]], rows: Sequence[T]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow(_format_cell(read(row)) for read in columns.values())
    return out.getvalue()


def _format_cell(value: Any) -> str:
    """A value as text that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(jsonable_encoder(value), ensure_ascii=False)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# -- Saved views: keeping the filter of a list under a name, and forgetting it ---------------------------


views_routes = make_page_router()
LIST_ADDRESSES: dict[ListName, tuple[str, dict[str, str]]] = {
    ListName.LETTERS: ("/admin/dlq", {"view": "items"}),
    ListName.RUNS: ("/runs", {}),
    ListName.AUDIT: ("/audit", {}),
}
"""Where each list is, and what its address says beside the filter."""


async def list_saved_views(asked: RequestContext, of: ListName) -> list[SavedView]:
    """The views of a list that whoever looks can open."""
    return await asked.desk.views.list(of, reader=asked.by, tenant=asked.tenant)


@views_routes.post("/views", **requires(Permission.LOOK))
async def save_view(request: Request, asked: Context, sent: SentForm) -> Response:
    """Keep a filter for oneself."""
    return await _save_view(request, asked, sent, shared=False)


@views_routes.post("/views/share", **requires(Permission.NOTE))
async def share_view(request: Request, asked: Context, sent: SentForm) -> Response:
    """Keep a filter for everybody in the tenant."""
    return await _save_view(request, asked, sent, shared=True)


async def _save_view(request: Request, asked: RequestContext, sent: Form, *, shared: bool) -> Response:
    of, name, query = sent.get("list"), sent.get("name"), sent.get("query")
    new = await asked.desk.views.save(of, name, query, by=asked.by, tenant=asked.tenant, shared=shared)
    return _redirect_to_list(request, new.list, new.wanted)


@views_routes.post("/views/remove", **requires(Permission.LOOK))
async def remove_view(request: Request, asked: Context, sent: SentForm) -> Response:
    """Forget a view of one's own."""
    return await _remove_view(request, asked, sent, shared=False)


@views_routes.post("/views/unshare", **requires(Permission.NOTE))
async def unshare_view(request: Request, asked: Context, sent: SentForm) -> Response:
    """Forget a view of the tenant."""
    return await _remove_view(request, asked, sent, shared=True)


async def _remove_view(request: Request, asked: RequestContext, sent: Form, *, shared: bool) -> Response:
    of, name = sent.get("list"), sent.get("name")
    await asked.desk.views.remove(of, name, by=asked.by, tenant=asked.tenant, shared=shared)
    return _redirect_to_list(request, ListName(of), {})


def _redirect_to_list(request: Request, of: ListName, wanted: dict[str, str]) -> Response:
    path, more = LIST_ADDRESSES[of]
    return redirect_to(make_view(request).url(path, {**wanted, **more}))
