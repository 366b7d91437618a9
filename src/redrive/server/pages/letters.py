"""Dead letters: by cause first, then one by one. All that narrows the list is in its address."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.core.states import LetterStatus
from redrive.desk.groups import GroupList
from redrive.desk.shapes import DeadLetter
from redrive.desk.views import FIELDS, ListName
from redrive.duration import moment
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages import lists, views
from redrive.server.pages.drawing import show
from redrive.server.pages.forms import pages
from redrive.server.routes.runs import indexed
from redrive.server.routes.shared import searched
from redrive.store.glances import spread
from redrive.store.records import Page
from redrive.store.selection import LetterFilter

__all__ = ["NAMES", "PATH", "filter_of", "letters_routes", "wanted"]

letters_routes = pages()

PATH = "/admin/dlq"
ALL = "ALL"
SIZES = (25, 50, 100)
NAMES = FIELDS[ListName.LETTERS]
"""What a list of letters can be narrowed by, as an address says it."""

_COLUMNS = {
    name: (lambda letter, name=name: getattr(letter, name))
    for name in (
        *("id", "status", "workflow", "step", "code", "stage", "category", "reason", "failed_at", "attempts"),
        *("replay_count", "owner", "tags", "tenant", "correlation_id", "run_id", "fingerprint", "version"),
        *("closed_at", "closed_by", "resolution"),
    )
}


def wanted(request: Request) -> dict[str, str]:
    """What the address asks for, without what it leaves open."""
    return lists.chosen(request, *NAMES)


def filter_of(asked: Asking, query: dict[str, str]) -> LetterFilter:
    """The filter that an address stands for. Without a word about the status, open letters are meant."""
    searched(asked, query.get("text"))
    now = moment(asked.view.now())
    plain = {name: query[name] for name in query if name not in ("status", "index", "since", "until")}
    return LetterFilter(
        status=_status(query.get("status")),
        index=indexed([query["index"]] if "index" in query else None),
        since=lists.since_of(query.get("since"), now),
        until=lists.since_of(query.get("until"), now),
        **plain,
    )


def _status(named: str | None) -> LetterStatus | None:
    if named == ALL:
        return None
    return LetterStatus.OPEN if named not in set(LetterStatus) else LetterStatus(named)


@letters_routes.get(PATH, **needs(Permission.LOOK))
async def letters(request: Request, asked: Asked) -> Response:
    """Groups, or letters where something was asked for; the same as a file."""
    query, cursor = wanted(request), request.query_params.get("cursor")
    items = bool(query) or request.query_params.get("view") == "items"
    kind = request.query_params.get("format")
    if kind in lists.FORMATS:
        return await _file(asked, query, kind)
    kept = await views.saved(asked, ListName.LETTERS)
    if not items:
        groups = await asked.desk.dlq.groups(asked.one_tenant, limit=50, cursor=cursor)
        return await show(
            request, "groups.html", groups=groups, trends=_trends(groups), path=PATH, views=kept, query={}
        )
    found = await asked.desk.dlq.list(filter_of(asked, query), limit=_size(request), cursor=cursor)
    # A text is looked for row by row, which is done once: for the list.
    facets = spread([]) if "text" in query else await asked.desk.dlq.facets(filter_of(asked, query))
    return await show(
        request,
        "letters.html",
        letters=found,
        facets=facets,
        views=kept,
        query=query,
        size=_size(request),
        sizes=SIZES,
        path=PATH,
        first=cursor is None,
        ranges=lists.RANGES,
        statuses=[ALL, *LetterStatus],
        chosen=query.get("status", LetterStatus.OPEN.value),
    )


def _size(request: Request) -> int:
    asked = request.query_params.get("limit", "")
    return int(asked) if asked in {str(size) for size in SIZES} else SIZES[0]


def _trends(groups: GroupList) -> dict[str, int]:
    """How many of a group's failures are of the last 24 hours."""
    return {group.fingerprint: sum(group.trend) for group in groups.items}


async def _file(asked: Asking, query: dict[str, str], kind: str) -> Response:
    where = filter_of(asked, query)

    async def page(limit: int, cursor: str | None) -> Page[DeadLetter]:
        return await asked.desk.dlq.list(where, limit=limit, cursor=cursor)

    columns: Any = _COLUMNS
    return lists.sheet("dead-letters", kind, columns, await lists.all_of(page))
