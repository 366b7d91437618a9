"""Lists of the dashboard: filters in the address, export as a file, and saved views."""

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
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view
from redrive.server.pages.translations import N
from redrive.server.request import Context, RequestContext, requires
from redrive.store.list_query import Page, iterate_pages

T = TypeVar("T")
Columns = Mapping[str, Callable[[Any], Any]]
"""The columns of a file: their titles, and functions that read their values from a row."""

TIME_RANGES = {"1h": N("Last hour"), "24h": N("Last 24 hours"), "7d": N("Last 7 days"), "30d": N("Last 30 days")}
MAX_ROWS = 10_000
"""Rows of a file. The API returns longer lists page by page."""

_BATCH = 100  # rows of one query: other requests are handled between two
_MAX_VALUE_LENGTH = 1000
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


def make_columns(*names: str) -> Columns:
    """Return columns that read the attributes with these names."""
    return {name: lambda row, name=name: getattr(row, name) for name in names}  # type: ignore[misc]


def read_query(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters with these names that are not blank."""
    given = {name: request.query_params.get(name, "").strip()[:_MAX_VALUE_LENGTH] for name in names}
    return {name: value for name, value in given.items() if value}


def parse_since(text: str | None, now: datetime) -> datetime | None:
    """Return the start of a time range, given as a duration before now or as a date."""
    if not text:
        return None
    found = parse_past_time(text, now)
    if found is None:
        raise InputError(Reason(ReasonCode.SINCE_INVALID))
    return found


async def export_list(
    request: Request, name: str, columns: Columns, load: Callable[[int, str | None], Awaitable[Page[T]]]
) -> Response | None:
    """Return a list as a file of at most `MAX_ROWS` rows, None if no file was requested.

    `load` takes a limit and a cursor.
    """
    format = request.query_params.get("format")
    if format not in ("csv", "json"):
        return None
    rows: list[T] = []
    async for row in iterate_pages(lambda cursor: load(_BATCH, cursor)):
        rows.append(row)
        if len(rows) == MAX_ROWS:
            break
    return export_rows(name, format, columns, rows)


def export_rows(name: str, format: str, columns: Columns, rows: Sequence[Any]) -> Response:
    """Return rows as a CSV or JSON file."""
    if format == "json":
        records = [{title: read(row) for title, read in columns.items()} for row in rows]
        body, media = json.dumps(jsonable_encoder(records), ensure_ascii=False, indent=1), "application/json"
    else:
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([_format_cell(read(row)) for read in columns.values()] for row in rows)
        body, media = out.getvalue(), "text/csv; charset=utf-8"
    headers = {"Content-Disposition": f'attachment; filename="{name}.{format}"'}
    return Response(body.encode("utf-8", "replace"), media_type=media, headers=headers)


def _format_cell(value: Any) -> str:
    """Return a value as text that a spreadsheet does not execute as a formula."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    text = value if isinstance(value, str) else json.dumps(jsonable_encoder(value), ensure_ascii=False)
    if not text.startswith(_FORMULA_PREFIXES):
        return text
    try:
        float(text)  # a negative number is not a formula
    except ValueError:
        return f"'{text}"
    return text


views_routes = make_page_router()
_LIST_ADDRESSES: dict[ListName, tuple[str, dict[str, str]]] = {
    ListName.LETTERS: ("/admin/dlq", {"view": "items"}),
    ListName.RUNS: ("/runs", {}),
    ListName.AUDIT: ("/audit", {}),
}
"""The path of each list, and the query parameters that it needs beside a filter."""


async def list_saved_views(context: RequestContext, of: ListName) -> list[SavedView]:
    """Return the saved views of a list that the user can open."""
    return await context.desk.views.list(of, reader=context.by, tenant=context.tenant)


def _redirect_to_list(request: Request, of: ListName, query: dict[str, str]) -> Response:
    path, more = _LIST_ADDRESSES[of]
    return redirect_to(make_view(request).url(path, {**query, **more}))


def _add_view_routes(save: str, remove: str, permission: Permission, *, shared: bool) -> None:
    """Add the routes that save and remove views of the user, or those of the tenant."""

    @views_routes.post(save, **requires(permission))
    async def save_view(request: Request, context: Context, form: SentForm) -> Response:
        of, name, query = form.get("list"), form.get("name"), form.get("query")
        new = await context.desk.views.save(of, name, query, by=context.by, tenant=context.tenant, shared=shared)
        return _redirect_to_list(request, new.list, new.wanted)

    @views_routes.post(remove, **requires(permission))
    async def remove_view(request: Request, context: Context, form: SentForm) -> Response:
        of, name = form.get("list"), form.get("name")
        await context.desk.views.remove(of, name, by=context.by, tenant=context.tenant, shared=shared)
        return _redirect_to_list(request, ListName(of), {})


_add_view_routes("/views", "/views/remove", Permission.LOOK, shared=False)
_add_view_routes("/views/share", "/views/unshare", Permission.NOTE, shared=True)
