"""One dead letter: what happened, why it is here, and all that can be done about it."""

from __future__ import annotations

from datetime import datetime

from fastapi import Request
from fastapi.responses import Response

from redrive.core.events import OF_REPLAYS, label
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED, LetterStatus
from redrive.desk.shapes import AuditRecord, DeadLetter, ReplayRecord
from redrive.errors import InputError, NotFound
from redrive.frozen import dataclass
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages import lists
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.pages.letters import PATH
from redrive.server.pages.pictures import waterfall
from redrive.server.pages.standing import standing
from redrive.server.pages.words import N
from redrive.server.routes.shared import Id

__all__ = ["DONE", "Told", "letter_routes", "told"]

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


@dataclass(frozen=True, slots=True)
class Told:
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


# -- deciding and noting -------------------------------------------------------------------------------


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
