"""The search of the dashboard: runs, failures, causes and workflows that match a text."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from redrive.core.keys_and_ids import run_id_of_letter
from redrive.core.roles import Permission
from redrive.core.run_options import RunOptions
from redrive.core.states import LetterStatus
from redrive.errors import NotFound
from redrive.server.pages.forms import make_page_router
from redrive.server.pages.render import render_page
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import hides_index
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.result_page import Page

search_routes = make_page_router()
_MAX_HITS = 10  # of one kind on the page of results
_MAX_SUGGESTIONS = 8
_MAX_CAUSES_SEARCHED = 200
_MIN_SUGGESTED, _MAX_SUGGESTION_LENGTH, _MAX_SEARCH_LENGTH = 2, 80, 200  # characters


class SearchHits(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a search. `all_runs` are the query parameters of the list with all the runs."""

    runs: Page[Any]
    letters: Page[Any]
    groups: list[Any]
    references: list[str]
    workflows: list[str]
    all_runs: dict[str, str]

    @property
    def empty(self) -> bool:
        return not (self.runs.items or self.letters.items or self.groups or self.references or self.workflows)


@search_routes.get("/search", **requires(Permission.LOOK))
async def search(request: Request, context: Context) -> Response:
    """Show everything that a text leads to: runs, failures, causes, references and workflows."""
    text = _read_search(request)
    return await render_page(request, "search.html", q=text, hits=await find_hits(context, text) if text else None)


@search_routes.get("/search/suggestions", **requires(Permission.LOOK))
async def suggest(request: Request, context: Context) -> Response:
    """Return texts that complete what is typed into the search field."""
    text, found = _read_search(request), list[str]()
    if len(text) >= _MIN_SUGGESTED:
        causes = await _find_groups(context, text)
        found += await _find_workflows(context, text)
        found += await context.view.references(text, tenant=context.one_tenant, most=_MAX_SUGGESTIONS)
        found += [(group.error or group.message or "")[:_MAX_SUGGESTION_LENGTH] for group in causes]
    return JSONResponse(list(dict.fromkeys(found))[:_MAX_SUGGESTIONS])


def _read_search(request: Request) -> str:
    return request.query_params.get("q", "").replace("\0", "").strip()[:_MAX_SEARCH_LENGTH]


async def find_hits(context: RequestContext, text: str) -> SearchHits:
    """Search by id, reference, search field, error message, and the names of workflows, at a bounded cost."""
    runs, all_runs = await _find_runs(context, text)
    letters: Page[Any] = Page([], None, None)
    # The search covers redacted values: the number of matches would reveal them bit by bit.
    if context.principal.may(Permission.SEE_PAYLOADS):
        where = LetterFilter(text=text, status=LetterStatus.OPEN)
        letters = await context.desk.dlq.list(where, limit=_MAX_HITS)
    known = await context.view.references(text, tenant=context.one_tenant, most=_MAX_HITS)
    return SearchHits(
        runs=runs,
        letters=letters,
        groups=(await _find_groups(context, text))[:_MAX_HITS],
        references=[each for each in known if each != text],
        workflows=(await _find_workflows(context, text))[:_MAX_HITS],
        all_runs=all_runs,
    )


async def _find_runs(context: RequestContext, text: str) -> tuple[Page[Any], dict[str, str]]:
    """Return the run with an id, or else those with a reference or with a value in a search field."""
    desk = context.desk.runs
    with suppress(NotFound):
        return Page([await desk.get(run_id_of_letter(text))], None, None), {}
    found = await desk.list(RunFilter(correlation_id=text), limit=_MAX_HITS)
    if found.items:
        return found, {"correlation_id": text}
    fields = {field for item in await context.view.workflows() for field in RunOptions.from_json(item.options).index}
    for field in sorted(field for field in fields if not hides_index(context, field, text))[:_MAX_HITS]:
        found = await desk.list(RunFilter(index={field: text}), limit=_MAX_HITS)
        if found.items:
            return found, {"index": f"{field}:{text}"}
    return found, {}


async def _find_groups(context: RequestContext, text: str) -> list[Any]:
    """Return the causes whose message, as it is shown, contains the text."""
    wanted = text.casefold()
    groups = await context.desk.dlq.groups(context.one_tenant, limit=_MAX_CAUSES_SEARCHED)
    shown = ((group, (group.error or "", group.message or "", *group.steps)) for group in groups.items)
    return [group for group, texts in shown if any(wanted in each.casefold() for each in texts)]


async def _find_workflows(context: RequestContext, text: str) -> list[str]:
    return [item.name for item in await context.view.workflows() if text.casefold() in item.name.casefold()]
