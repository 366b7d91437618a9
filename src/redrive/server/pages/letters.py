"""Dead letters: by cause first, then one by one. All that narrows the list is in its address."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.audit import REPLAY_EVENTS, event_label
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED_KINDS, LetterStatus
from redrive.desk.models import AuditRecord, DeadLetter, LetterOutcome, ReplayRecord, find_letter_outcome
from redrive.desk.presenter import GroupList
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.duration import to_datetime
from redrive.errors import InputError, NotFound
from redrive.server.pages import lists
from redrive.server.pages import lists as views
from redrive.server.pages.display import plot_waterfall
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.translations import N
from redrive.server.request import Context, RequestContext, requires
from redrive.server.routes.common import Id, check_search_text, parse_index
from redrive.store.filters import LetterFilter
from redrive.store.letters import count_facets
from redrive.store.list_query import Page

# -- Dead letters: by cause first, then one by one. All that narrows the list is in its address ----------


letters_routes = make_page_router()
LETTERS_PATH = "/admin/dlq"
ALL_STATUSES = "ALL"
PAGE_SIZES = (25, 50, 100)
FILTER_NAMES = FILTER_FIELDS[ListName.LETTERS]
"""What a list of letters can be narrowed by, as an address says it."""

_COLUMNS = {
    name: (lambda letter, name=name: getattr(letter, name))
    for name in (
        *("id", "status", "workflow", "step", "code", "stage", "category", "reason", "failed_at", "attempts"),
        *("replay_count", "owner", "tags", "tenant", "correlation_id", "run_id", "fingerprint", "version"),
        *("closed_at", "closed_by", "resolution"),
    )
}


def read_filter_query(request: Request) -> dict[str, str]:
    """What the address asks for, without what it leaves open."""
    return lists.read_query(request, *FILTER_NAMES)


def make_letter_filter(asked: RequestContext, query: dict[str, str]) -> LetterFilter:
    """The filter that an address stands for. Without a word about the status, open letters are meant."""
    check_search_text(asked, query.get("text"))
    now = to_datetime(asked.view.now())
    plain = {name: query[name] for name in query if name not in ("status", "index", "since", "until")}
    return LetterFilter(
        status=_parse_status(query.get("status")),
        index=parse_index([query["index"]] if "index" in query else None),
        since=lists.parse_since(query.get("since"), now),
        until=lists.parse_since(query.get("until"), now),
        **plain,
    )


def _parse_status(named: str | None) -> LetterStatus | None:
    if named == ALL_STATUSES:
        return None
    return LetterStatus.OPEN if named not in set(LetterStatus) else LetterStatus(named)


@letters_routes.get(LETTERS_PATH, **requires(Permission.LOOK))
async def list_letters(request: Request, asked: Context) -> Response:
    """Groups, or letters where something was asked for; the same as a file."""
    query, cursor = read_filter_query(request), request.query_params.get("cursor")
    items = bool(query) or request.query_params.get("view") == "items"
    kind = request.query_params.get("format")
    if kind in lists.FILE_FORMATS:
        return await _export_file(asked, query, kind)
    kept = await views.list_saved_views(asked, ListName.LETTERS)
    if not items:
        groups = await asked.desk.dlq.groups(asked.one_tenant, limit=50, cursor=cursor)
        return await render_page(
            request, "groups.html", groups=groups, trends=_sum_trends(groups), path=LETTERS_PATH, views=kept, query={}
        )
    found = await asked.desk.dlq.list(make_letter_filter(asked, query), limit=_read_page_size(request), cursor=cursor)
    # A text is looked for row by row, which is done once: for the list.
    facets = count_facets([]) if "text" in query else await asked.desk.dlq.facets(make_letter_filter(asked, query))
    return await render_page(
        request,
        "letters.html",
        letters=found,
        facets=facets,
        views=kept,
        query=query,
        size=_read_page_size(request),
        sizes=PAGE_SIZES,
        path=LETTERS_PATH,
        first=cursor is None,
        ranges=lists.TIME_RANGES,
        statuses=[ALL_STATUSES, *LetterStatus],
        chosen=query.get("status", LetterStatus.OPEN.value),
    )


def _read_page_size(request: Request) -> int:
    asked = request.query_params.get("limit", "")
    return int(asked) if asked in {str(size) for size in PAGE_SIZES} else PAGE_SIZES[0]


def _sum_trends(groups: GroupList) -> dict[str, int]:
    """How many of a group's failures are of the last 24 hours."""
    return {group.fingerprint: sum(group.trend) for group in groups.items}


async def _export_file(asked: RequestContext, query: dict[str, str], kind: str) -> Response:
    where = make_letter_filter(asked, query)

    async def page(limit: int, cursor: str | None) -> Page[DeadLetter]:
        return await asked.desk.dlq.list(where, limit=limit, cursor=cursor)

    columns: Any = _COLUMNS
    return lists.export_rows("dead-letters", kind, columns, await lists.fetch_all(page))


# -- How the work of a closed letter stands, in a sentence, and whether its run can be retried from  -----


_OUTCOME_SENTENCES = {
    LetterOutcome.SUCCEEDED: N("It was run again, and succeeded. Nothing is left to do."),
    LetterOutcome.PARTLY_SUCCEEDED: N(
        "That step alone was run again, and succeeded. More would follow: the run is not finished."
    ),
    LetterOutcome.UNDONE: N("What its run had done was undone. Nothing is left to do."),
    LetterOutcome.CANCELLED: N(
        "It was run again, and cancelled before it ended. Start a new run if it is still wanted."
    ),
    LetterOutcome.REPLAY_RUNNING: N("It is running again now."),
    LetterOutcome.FAILED_AGAIN: N("It was run again since, and failed again."),
    LetterOutcome.EXPIRED: N("Nobody decided about it in time, so it expired. Its work was not done."),
}
_RETRYABLE_OUTCOMES = frozenset(
    {LetterOutcome.PARTLY_SUCCEEDED, LetterOutcome.FAILED_AGAIN, LetterOutcome.EXPIRED, LetterOutcome.CLOSED}
)


class OutcomeDisplay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`sentence` is None where a person closed the letter and said why; `retries`: its run can be retried."""

    sentence: str | None = None
    retries: bool = False


def describe_outcome(letter: DeadLetter) -> OutcomeDisplay | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    after = find_letter_outcome(letter)
    if after is None:
        return None
    return OutcomeDisplay(
        sentence=_OUTCOME_SENTENCES.get(after), retries=after in _RETRYABLE_OUTCOMES and not letter.purged
    )


# -- One dead letter: what happened, why it is here, and all that can be done about it -------------------


letter_routes = make_page_router()
LETTER_PATH = LETTERS_PATH + "/{id}"
DONE_MESSAGES = {
    "replayed": N("It runs again. This page shows how that goes."),
    "resolved": N("It is resolved."),
    "ignored": N("It is ignored."),
    "assigned": N("It is noted who looks after it."),
    "commented": N("Your comment is kept."),
    "tagged": N("Its tags are changed."),
}
"""What is said after something was done, by the word that the address has for it."""


class HistoryEntry(msgspec.Struct, frozen=True):
    """One thing that was done about a letter: a line of the log, or a replay with how it ended."""

    at: datetime
    by: str
    reason: str | None
    line: AuditRecord | None = None
    replay: ReplayRecord | None = None
    label: str = ""


@letter_routes.get(LETTER_PATH, **requires(Permission.LOOK))
async def show_letter(request: Request, asked: Context, id: Id) -> Response:
    """The page of a letter; the same as a file."""
    try:
        found = await asked.desk.dlq.get(id)
    except NotFound:
        tenant = await _find_other_tenant(asked, id)
        if tenant is None:
            raise
        return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{id}", tenant=tenant))
    if request.query_params.get("format") == "json":
        return lists.export_rows(found.id, "json", {"letter": lambda each: each}, [found])
    return await _render_letter(request, found, revealed=False)


async def _find_other_tenant(asked: RequestContext, id: str) -> str | None:
    """The tenant whose letter it is, for an owner who followed a link from a notification."""
    if asked.everywhere or not asked.principal.may(Permission.MANAGE_TENANTS):
        return None
    row = await asked.whole.letter(id)
    return None if row is None or row.tenant == asked.tenant else row.tenant


@letter_routes.get(LETTER_PATH + "/reveal", **requires(Permission.LOOK))
async def hide_letter(request: Request, id: Id) -> Response:
    """Whoever comes back to a page on which nothing was hidden sees the letter as it is shown to all."""
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{id}"))


@letter_routes.post(LETTER_PATH + "/reveal", **requires(Permission.SEE_PAYLOADS))
async def reveal_letter(request: Request, asked: Context, id: Id) -> Response:
    """The same with nothing hidden; the audit log says who looked."""
    return await _render_letter(request, await asked.desk.dlq.get(id, reveal=True, by=asked.by), revealed=True)


async def _render_letter(request: Request, found: DeadLetter, *, revealed: bool) -> Response:
    view = make_view(request)
    over = found.status is not LetterStatus.REPLAYING
    return await render_page(
        request,
        "letter.html",
        letter=found,
        fall=plot_waterfall(found.steps, now=found.failed_at if over else view.now),
        steps=[step for step in found.steps if step.kind in EXECUTED_KINDS],
        history=make_history(found, view.lang),
        open=found.status is LetterStatus.OPEN,
        stands=describe_outcome(found),
        done=_choose_done_message(request, found),
        revealed=revealed,
        path=LETTERS_PATH,
    )


def _choose_done_message(request: Request, found: DeadLetter) -> str | None:
    """What is said after something was done; that it runs again holds as long as it does."""
    word = request.query_params.get("done", "")
    over = word == "replayed" and found.status is not LetterStatus.REPLAYING
    return None if over else DONE_MESSAGES.get(word)


def make_history(found: DeadLetter, language: str) -> list[HistoryEntry]:
    """All that was done about a letter, the newest first; a replay is told once, with how it ended."""
    lines = [
        HistoryEntry(line.at, line.by, line.reason, line=line, label=event_label(line.event, language))
        for line in found.history
        if line.event not in REPLAY_EVENTS
    ]
    replays = [HistoryEntry(replay.at, replay.by, replay.reason, replay=replay) for replay in found.replays]
    return sorted([*lines, *replays], key=lambda each: each.at, reverse=True)


def _redirect_to_letter(request: Request, found: DeadLetter, done: str) -> Response:
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{found.id}", done=done))


@letter_routes.post(LETTER_PATH + "/resolve", **requires(Permission.DECIDE))
async def resolve_letter(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Close a letter whose cause was dealt with outside."""
    found = await asked.desk.dlq.resolve(id, by=asked.by, reason=sent.maybe("reason"))
    return _redirect_to_letter(request, found, "resolved")


@letter_routes.post(LETTER_PATH + "/ignore", **requires(Permission.DECIDE))
async def ignore_letter(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Close a letter that needs nothing done."""
    found = await asked.desk.dlq.ignore(id, by=asked.by, reason=sent.maybe("reason"))
    return _redirect_to_letter(request, found, "ignored")


@letter_routes.post(LETTER_PATH + "/assign", **requires(Permission.NOTE))
async def assign_letter(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Say who looks after a letter; blank says nobody."""
    chosen = asked.by if sent.get("do") == "me" else sent.maybe("to")
    return _redirect_to_letter(request, await asked.desk.dlq.assign(id, to=chosen, by=asked.by), "assigned")


@letter_routes.post(LETTER_PATH + "/comment", **requires(Permission.NOTE))
async def comment_letter(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Say something about a letter."""
    if not sent.get("text"):
        raise InputError("a comment needs some words")
    found = await asked.desk.dlq.comment(id, sent.get("text"), by=asked.by)
    return _redirect_to_letter(request, found, "commented")


@letter_routes.post(LETTER_PATH + "/tag", **requires(Permission.NOTE))
async def tag_letter(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Mark a letter with words, in place of those it has."""
    words = [word.strip() for word in sent.get("tags").replace("\n", ",").split(",")]
    found = await asked.desk.dlq.tag(id, [word for word in words if word], by=asked.by)
    return _redirect_to_letter(request, found, "tagged")
