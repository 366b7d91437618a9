"""Dead letters: by cause first, then one by one. All that narrows the list is in its address."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.audit import OF_REPLAYS, label
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED, LetterStatus
from redrive.desk.models import Aftermath, AuditRecord, DeadLetter, ReplayRecord, aftermath
from redrive.desk.presenter import GroupList
from redrive.desk.saved_views import FIELDS, ListName
from redrive.duration import moment
from redrive.errors import InputError, NotFound
from redrive.server.pages import lists
from redrive.server.pages import lists as views
from redrive.server.pages.display import waterfall
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.pages.render import show, view_of
from redrive.server.pages.translations import N
from redrive.server.request import Asked, Asking, needs
from redrive.server.routes.common import Id, searched
from redrive.server.routes.runs import indexed
from redrive.store.filters import LetterFilter
from redrive.store.records import Page, spread

__all__ = [
    "DONE",
    "NAMES",
    "PATH",
    "Standing",
    "Told",
    "filter_of",
    "letter_routes",
    "letters_routes",
    "standing",
    "told",
    "wanted",
]


# -- Dead letters: by cause first, then one by one. All that narrows the list is in its address ----------


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


# -- How the work of a closed letter stands, in a sentence, and whether its run can be retried from  -----


_SENTENCES = {
    Aftermath.SUCCEEDED: N("It was run again, and succeeded. Nothing is left to do."),
    Aftermath.IN_PART: N(
        "That step alone was run again, and succeeded. More would follow: the run is not finished."
    ),
    Aftermath.UNDONE: N("What its run had done was undone. Nothing is left to do."),
    Aftermath.CANCELLED: N(
        "It was run again, and cancelled before it ended. Start a new run if it is still wanted."
    ),
    Aftermath.GOES_ON: N("It is running again now."),
    Aftermath.FAILED_AGAIN: N("It was run again since, and failed again."),
    Aftermath.EXPIRED: N("Nobody decided about it in time, so it expired. Its work was not done."),
}
_RETRIED = frozenset({Aftermath.IN_PART, Aftermath.FAILED_AGAIN, Aftermath.EXPIRED, Aftermath.CLOSED})


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`sentence` is None where a person closed the letter and said why; `retries`: its run can be retried."""

    sentence: str | None = None
    retries: bool = False


def standing(letter: DeadLetter) -> Standing | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    after = aftermath(letter)
    if after is None:
        return None
    return Standing(sentence=_SENTENCES.get(after), retries=after in _RETRIED and not letter.purged)


# -- One dead letter: what happened, why it is here, and all that can be done about it -------------------


letter_routes = pages()
ONE = PATH + "/{id}"
DONE = {
    "replayed": N("It runs again. This page shows how that goes."),
    "resolved": N("It is resolved."),
    "ignored": N("It is ignored."),
    "assigned": N("It is noted who looks after it."),
    "commented": N("Your comment is kept."),
    "tagged": N("Its tags are changed."),
}
"""What is said after something was done, by the word that the address has for it."""


class Told(msgspec.Struct, frozen=True):
    """One thing that was done about a letter: a line of the log, or a replay with how it ended."""

    at: datetime
    by: str
    reason: str | None
    line: AuditRecord | None = None
    replay: ReplayRecord | None = None
    label: str = ""


@letter_routes.get(ONE, **needs(Permission.LOOK))
async def letter(request: Request, asked: Asked, id: Id) -> Response:
    """The page of a letter; the same as a file."""
    try:
        found = await asked.desk.dlq.get(id)
    except NotFound:
        tenant = await _elsewhere(asked, id)
        if tenant is None:
            raise
        return to(view_of(request).url(f"{PATH}/{id}", tenant=tenant))
    if request.query_params.get("format") == "json":
        return lists.sheet(found.id, "json", {"letter": lambda each: each}, [found])
    return await _page(request, found, revealed=False)


async def _elsewhere(asked: Asking, id: str) -> str | None:
    """The tenant whose letter it is, for an owner who followed a link from a notification."""
    if asked.everywhere or not asked.principal.may(Permission.MANAGE_TENANTS):
        return None
    row = await asked.whole.letter(id)
    return None if row is None or row.tenant == asked.tenant else row.tenant


@letter_routes.get(ONE + "/reveal", **needs(Permission.LOOK))
async def hide(request: Request, id: Id) -> Response:
    """Whoever comes back to a page on which nothing was hidden sees the letter as it is shown to all."""
    return to(view_of(request).url(f"{PATH}/{id}"))


@letter_routes.post(ONE + "/reveal", **needs(Permission.SEE_PAYLOADS))
async def reveal(request: Request, asked: Asked, id: Id) -> Response:
    """The same with nothing hidden; the audit log says who looked."""
    return await _page(request, await asked.desk.dlq.get(id, reveal=True, by=asked.by), revealed=True)


async def _page(request: Request, found: DeadLetter, *, revealed: bool) -> Response:
    view = view_of(request)
    over = found.status is not LetterStatus.REPLAYING
    return await show(
        request,
        "letter.html",
        letter=found,
        fall=waterfall(found.steps, now=found.failed_at if over else view.now),
        steps=[step for step in found.steps if step.kind in EXECUTED],
        history=told(found, view.lang),
        open=found.status is LetterStatus.OPEN,
        stands=standing(found),
        done=_done(request, found),
        revealed=revealed,
        path=PATH,
    )


def _done(request: Request, found: DeadLetter) -> str | None:
    """What is said after something was done; that it runs again holds as long as it does."""
    word = request.query_params.get("done", "")
    over = word == "replayed" and found.status is not LetterStatus.REPLAYING
    return None if over else DONE.get(word)


def told(found: DeadLetter, language: str) -> list[Told]:
    """All that was done about a letter, the newest first; a replay is told once, with how it ended."""
    lines = [
        Told(line.at, line.by, line.reason, line=line, label=label(line.event, language))
        for line in found.history
        if line.event not in OF_REPLAYS
    ]
    replays = [Told(replay.at, replay.by, replay.reason, replay=replay) for replay in found.replays]
    return sorted([*lines, *replays], key=lambda each: each.at, reverse=True)


def _after(request: Request, found: DeadLetter, done: str) -> Response:
    return to(view_of(request).url(f"{PATH}/{found.id}", done=done))


@letter_routes.post(ONE + "/resolve", **needs(Permission.DECIDE))
async def resolve(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Close a letter whose cause was dealt with outside."""
    found = await asked.desk.dlq.resolve(id, by=asked.by, reason=sent.maybe("reason"))
    return _after(request, found, "resolved")


@letter_routes.post(ONE + "/ignore", **needs(Permission.DECIDE))
async def ignore(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Close a letter that needs nothing done."""
    found = await asked.desk.dlq.ignore(id, by=asked.by, reason=sent.maybe("reason"))
    return _after(request, found, "ignored")


@letter_routes.post(ONE + "/assign", **needs(Permission.NOTE))
async def assign(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Say who looks after a letter; blank says nobody."""
    chosen = asked.by if sent.get("do") == "me" else sent.maybe("to")
    return _after(request, await asked.desk.dlq.assign(id, to=chosen, by=asked.by), "assigned")


@letter_routes.post(ONE + "/comment", **needs(Permission.NOTE))
async def comment(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Say something about a letter."""
    if not sent.get("text"):
        raise InputError("a comment needs some words")
    found = await asked.desk.dlq.comment(id, sent.get("text"), by=asked.by)
    return _after(request, found, "commented")


@letter_routes.post(ONE + "/tag", **needs(Permission.NOTE))
async def tag(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Mark a letter with words, in place of those it has."""
    words = [word.strip() for word in sent.get("tags").replace("\n", ",").split(",")]
    found = await asked.desk.dlq.tag(id, [word for word in words if word], by=asked.by)
    return _after(request, found, "tagged")
