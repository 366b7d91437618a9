"""Lists of the dashboard: filters and pages in the address, export as a file, and saved views."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from fastapi import Request
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.desk.saved_views import ListName, SavedView
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.list_query import ListTotal
from redrive.store.result_page import MAX_PAGE_SIZE, OLDEST_CURSOR, Page, iterate_pages
from redrive.time_values import parse_past_time, to_datetime

T = TypeVar("T")
Faults = dict[str, Reason]
"""What is wrong with the fields of a filter, by their names."""

Columns = Mapping[str, Callable[[Any], Any]]
"""The columns of a file: their titles, and functions that read their values from a row."""

PAGE_SIZES = (25, 50, 100, 200, 500)
TIME_RANGES = {"1h": N("Last hour"), "24h": N("Last 24 hours"), "7d": N("Last 7 days"), "30d": N("Last 30 days")}
MAX_SORTED = 500
"""Rows of a list that can be sorted by another column than the time, which has an index."""

MAX_ROWS = 10_000
"""Rows of a file. The API returns longer lists page by page."""

_CLI_OPTIONS = {"subject": "run"}  # where the option of a command is not named like the field of the filter
_TIMES = ("since", "until")
_BATCH = 100  # rows of one query: other requests are handled between two
_MAX_VALUE_LENGTH = 1000
_MAX_INPUT_COLUMNS = 100  # of a file
_FILE_FORMATS = ("csv", "json")
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


def make_columns(*names: str) -> Columns:
    """Return columns that read the attributes with these names."""
    return {name: lambda row, name=name: getattr(row, name) for name in names}  # type: ignore[misc]


def read_query(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters with these names that are not blank."""
    given = {name: request.query_params.get(name, "").strip()[:_MAX_VALUE_LENGTH] for name in names}
    return {name: value for name, value in given.items() if value}


def parse_field(query: Mapping[str, str], name: str, parse: Callable[[str], T], faults: Faults | None) -> T | None:
    """Return the parsed value of a filter. With `faults`, a wrong value is noted there and does not filter."""
    if name not in query:
        return None
    try:
        return parse(query[name])
    except InputError as error:
        if faults is None:
            raise
        faults[name] = Reason.of_error(error)
        return None


def parse_time(query: Mapping[str, str], name: str, now: datetime, faults: Faults | None) -> datetime | None:
    """Return an end of a time range, given as a duration before now or as a date."""

    def parse(text: str) -> datetime:
        found = parse_past_time(text, now)
        if found is None:
            raise InputError(Reason(ReasonCode.SINCE_INVALID))
        return found

    return parse_field(query, name, parse, faults)


def begin_faults(request: Request) -> Faults | None:
    """Return where faults of a filter are noted; None for a file, which must not contain more than was asked for."""
    return None if request.query_params.get("format") in _FILE_FORMATS else {}


class ShownPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list, with its place in the list.

    `start` is the number of its first row, None if it is not known; `total` None if it was not counted.
    `faults` are about the address: a page size that is not allowed, a cursor that is not one. `sort` is the column that
    it is sorted by, with `.down` if the highest value comes first; "" means by time.
    """

    items: list[T]
    next: str | None
    prev: str | None
    size: int
    oldest: bool
    start: int | None
    total: ListTotal
    faults: Faults
    sort: str = ""

    @property
    def most_sorted(self) -> int:
        return MAX_SORTED

    @property
    def sortable(self) -> bool:
        """True if there are few enough rows to sort them by any column."""
        return self.total.exact and self.total.count <= MAX_SORTED

    def find_direction(self, column: str) -> str | None:
        """Return the direction in which the list is sorted by a column; None if it is not."""
        return {column: "ascending", f"{column}.down": "descending"}.get(self.sort)

    @property
    def end(self) -> int:
        """The number of the last row."""
        return (self.start or 1) + len(self.items) - 1

    @property
    def address(self) -> dict[str, Any]:
        """The query parameters of this page size and order."""
        limit = None if self.size == PAGE_SIZES[0] else self.size
        return {"limit": limit, "order": "oldest" if self.oldest else None, "sort": self.sort or None}

    def link(self, cursor: str, *, onward: bool) -> dict[str, Any]:
        """Return the query parameters of the next or of the previous page."""
        start = None if self.start is None else self.end + 1 if onward else max(1, self.start - self.size)
        return {**self.address, "cursor": cursor, "from": start}


async def load_page(
    request: Request,
    context: RequestContext,
    where: RunFilter | LetterFilter | AuditFilter,
    load: Callable[[int, str | None], Awaitable[Page[T]]],
    sorts: Mapping[str, Callable[[T], Any]] | None = None,
) -> ShownPage[T]:
    """Load the page that an address asks for. `load` takes a limit and a cursor.

    `sorts` are columns that a short list can be sorted by, with functions that read their values.
    """
    given, faults = request.query_params, Faults()
    size, cursor, oldest = _read_size(given.get("limit"), faults), given.get("cursor"), given.get("order") == "oldest"
    column, _, down = given.get("sort", "").partition(".")
    if sorts is not None and column in sorts:
        total = await context.view.total(where)
        if total.exact and total.count <= MAX_SORTED:
            rows = (await load(MAX_SORTED, None)).items
            rows = _sort_rows(rows, sorts[column], down=down == "down")
            return _cut_sorted(rows, size, given.get("from", ""), faults, f"{column}{'.down' if down else ''}")
        faults["sort"] = Reason(ReasonCode.SORT_TOO_LONG, largest=MAX_SORTED)
    first = OLDEST_CURSOR if oldest else None
    try:
        page = await load(size, cursor or first)
    except InputError as error:
        if not cursor:
            raise
        faults["cursor"], cursor = Reason.of_error(error), None
        page = await load(size, first)
    if oldest:
        page = Page(page.items[::-1], next=page.prev, prev=page.next if cursor else None)
    number = given.get("from", "")
    known = int(number) if cursor and number.isdecimal() and len(number) < 10 else None
    start = known if cursor and page.prev is not None else 1
    if start is not None and page.next is None:
        total = ListTotal(start + len(page.items) - 1)  # this is the last page
    else:
        total = await context.view.total(where)
    return ShownPage(
        items=page.items,
        next=page.next,
        prev=page.prev,
        size=size,
        oldest=oldest,
        start=start,
        total=total,
        faults=faults,
    )


def _sort_rows(rows: Sequence[T], read: Callable[[T], Any], *, down: bool) -> list[T]:
    """Return rows by one value, and the newest first among equal ones; rows without a value are last."""
    known = [row for row in rows if read(row) is not None]
    return sorted(known, key=read, reverse=down) + [row for row in rows if read(row) is None]


def _cut_sorted(rows: list[T], size: int, number: str, faults: Faults, sort: str) -> ShownPage[T]:
    """Return the page of a sorted list that begins with the row of this number."""
    start = min(int(number) if number.isdecimal() and len(number) < 10 else 1, len(rows)) or 1
    return ShownPage(
        items=rows[start - 1 : start - 1 + size],
        next="sorted" if start - 1 + size < len(rows) else None,
        prev="sorted" if start > 1 else None,
        size=size,
        oldest=False,
        start=start,
        total=ListTotal(len(rows)),
        faults=faults,
        sort=sort,
    )


def _read_size(text: str | None, faults: Faults) -> int:
    """Return the number of rows on a page: what was asked for, or the nearest that is allowed."""
    if text is None:
        return PAGE_SIZES[0]
    wanted = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= wanted <= MAX_PAGE_SIZE:
        faults["limit"] = Reason(ReasonCode.PAGE_LIMIT_INVALID, largest=MAX_PAGE_SIZE, given=f"{text:.60}")
    return min(wanted, MAX_PAGE_SIZE) or PAGE_SIZES[0]


class ListCommands(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The list of a page as a command, as a request to the API, and as a link."""

    command: str
    curl: str
    link: str


def make_commands(
    request: Request,
    where: RunFilter | LetterFilter | AuditFilter,
    command: Sequence[str],
    path: str,
    query: Mapping[str, Any],
    **api: str,
) -> ListCommands:
    """Return the commands for a filter. `api` are parameters for options that `command` already has."""
    view = make_view(request)
    site = view.service.app.settings.base_url.rstrip("/") or f"{request.url.scheme}://{request.headers.get('host', '')}"
    given = [(name, each) for name, value in query.items() for each in (value if isinstance(value, tuple) else [value])]
    words = [*command]
    for name, value in [*given, *([("tenant", view.tenant)] if not view.me.everywhere else [])]:
        text = value.replace(":", "=", 1) if name == "index" else value
        words += [f"--{_CLI_OPTIONS.get(name, name.replace('_', '-'))}", text]
    # The API takes exact times only.
    exact = {name: to_datetime(time).isoformat() for name in _TIMES if isinstance(time := getattr(where, name), int)}
    asked = [*(pair for pair in given if pair[0] not in exact), *exact.items(), *api.items()]
    asked += [("tenant", view.tenant)] if view.foreign else []
    url = f"{site}{view.api(path).partition('?')[0]}" + (f"?{urlencode(asked)}" if asked else "")
    return ListCommands(
        command=shlex.join(words),
        curl=f'curl -H "Authorization: Bearer $REDRIVE_TOKEN" {shlex.quote(url)}',
        link=f"{site}{view.address}",
    )


async def export_list(
    request: Request, name: str, columns: Columns, load: Callable[[int, str | None], Awaitable[Page[T]]]
) -> Response | None:
    """Return a list as a file of at most `MAX_ROWS` rows, None if no file was requested.

    `load` takes a limit and a cursor.
    """
    format = request.query_params.get("format")
    if format not in _FILE_FORMATS:
        return None
    rows: list[T] = []
    async for row in iterate_pages(lambda cursor: load(_BATCH, cursor)):
        rows.append(row)
        if len(rows) == MAX_ROWS:
            break
    if format == "csv":
        columns = {**columns, **_make_input_columns(rows)}
    return export_rows(name, format, columns, rows)


def _make_input_columns(rows: Sequence[Any]) -> Columns:
    """Return a column for each plain field of the rows' inputs, which are redacted as on the pages."""
    flat = {id(row): _flatten(getattr(row, "input", None)) for row in rows}
    names = list(dict.fromkeys(name for fields in flat.values() for name in fields))[:_MAX_INPUT_COLUMNS]
    return {f"input.{name}": lambda row, name=name: flat[id(row)].get(name) for name in names}  # type: ignore[misc]


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the plain values of an object by their paths; a list is one value."""
    if not isinstance(value, dict):
        return {path: value} if path else {}
    return {
        name: inner
        for key, each in value.items()
        for name, inner in _flatten(each, f"{path}.{key}" if path else key).items()
    }


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


list_routes = make_page_router()
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

    @list_routes.post(save, **requires(permission))
    async def save_view(request: Request, context: Context, form: SentForm) -> Response:
        of, name, query = form.get("list"), form.get("name"), form.get("query")
        new = await context.desk.views.save(of, name, query, by=context.by, tenant=context.tenant, shared=shared)
        return _redirect_to_list(request, new.list, new.wanted)

    @list_routes.post(remove, **requires(permission))
    async def remove_view(request: Request, context: Context, form: SentForm) -> Response:
        of, name = form.get("list"), form.get("name")
        await context.desk.views.remove(of, name, by=context.by, tenant=context.tenant, shared=shared)
        return _redirect_to_list(request, ListName(of), {})


_add_view_routes("/views", "/views/remove", Permission.LOOK, shared=False)
_add_view_routes("/views/share", "/views/unshare", Permission.NOTE, shared=True)
