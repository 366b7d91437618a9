"""Replaying one letter: choose a way, edit the input, look at what would happen, and only then decide."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.ending import MENDED_BY_EDIT
from redrive.core.redact import masked_paths
from redrive.core.replay import Mode
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED
from redrive.desk.preview import DryRun
from redrive.desk.shapes import DeadLetter
from redrive.errors import InputError, NotFound, UnknownWorkflow
from redrive.reasons import Reason
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import CHECK, DO, Form, Sent, pages, to
from redrive.server.pages.leaves import Leaf, leaves
from redrive.server.pages.letters import PATH
from redrive.server.pages.values import pretty
from redrive.server.pages.wishes import EDITABLE, Wish, faults_of, in_fields, read_wish
from redrive.server.routes.shared import Id

__all__ = ["replaying_routes"]

replaying_routes = pages()

_AS, _JSON = "as", "json"  # in which form the input is edited; fields otherwise
_PAGE = PATH + "/{id}/replay"
_MODES = [Mode.FROM_FAILED, Mode.FROM_STEP, Mode.STEP_ONLY, Mode.FULL, Mode.SKIP, Mode.COMPLETE]


@replaying_routes.get(_PAGE, **needs(Permission.DECIDE))
async def ask(request: Request, asked: Asked, id: Id) -> Response:
    """What a replay would do, before anything is typed."""
    found, shown = await _case(asked, id)
    wish = await read_wish(Form(list(request.query_params.multi_items())), shown, begun=True)
    return await _checked(request, asked, found, shown, wish)


@replaying_routes.post(_PAGE, **needs(Permission.DECIDE))
async def decide(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Replay, if what would happen was looked at for just this wish; otherwise show it."""
    found, shown = await _case(asked, id)
    if form := sent.get(_AS):
        wish = await read_wish(sent, shown, begun=True)
        turned = wish if form == _JSON else in_fields(wish, shown)
        return await _checked(request, asked, found, shown, turned, form=form)
    wish = await read_wish(sent, shown)
    if sent.get(DO) == CHECK or wish.unread or sent.get("seen") != wish.digest:
        return await _checked(request, asked, found, shown, wish, hurried=sent.get(DO) != CHECK)
    await asked.desk.dlq.replay(found.id, wish.mode.value, by=asked.by, reason=wish.reason, **wish.options())
    return to(view_of(request).url(f"{PATH}/{found.id}", done="replayed"))


async def _case(asked: Asking, id: str) -> tuple[DeadLetter, Any]:
    """The letter, and the input that its run would go on with, as it may be shown."""
    found = await asked.desk.dlq.get(id)
    try:
        return found, (await asked.desk.runs.get(found.run_id)).input
    except NotFound:
        return found, found.input


async def _checked(
    request: Request,
    asked: Asking,
    found: DeadLetter,
    shown: Any,
    wish: Wish,
    *,
    hurried: bool = False,
    form: str = "",
) -> Response:
    """The page with what would happen, or with what is wrong."""
    plan, wrong = (None, None)
    if wish.is_whole:
        plan, wrong = await _plan(asked, found, wish)
    placed, rest = faults_of(wrong) if wrong else ({}, [])
    found_fields = leaves(shown)
    as_json = wish.typed is not None or (form or request.query_params.get(_AS)) == _JSON
    flat = None if as_json else found_fields
    return await show(
        request,
        "replay.html",
        status=422 if wish.unread or wrong else 200,
        letter=found,
        shown=shown,
        wish=wish,
        plan=plan,
        placed=placed,
        wrong=rest,
        hurried=hurried and plan is not None,
        modes=_MODES,
        steps=[step for step in found.steps if step.kind in EXECUTED and not step.superseded],
        flat=None if flat is None else _fields(flat, wish),
        formable=found_fields is not None,
        text="" if flat is not None else await _text(wish, shown),
        hidden=bool(masked_paths(shown)),
        editable=wish.mode in EDITABLE,
        mends=found.code in MENDED_BY_EDIT,
        path=PATH,
    )


async def _text(wish: Wish, shown: Any) -> str:
    """What stands in the editor: what was typed, or the input. To write a large one takes a while."""
    return wish.typed if wish.typed is not None else await asyncio.to_thread(pretty, wish.input or shown)


async def _plan(asked: Asking, found: DeadLetter, wish: Wish) -> tuple[DryRun | None, Reason | None]:
    """What would happen; or what is wrong with the wish."""
    try:
        plan = await asked.desk.dlq.replay(
            found.id, wish.mode.value, dry_run=True, by=asked.by, reason=wish.reason, **wish.options()
        )
    except UnknownWorkflow:
        raise
    except InputError as error:
        return None, Reason.of_error(error)
    return (plan, None) if isinstance(plan, DryRun) else (None, None)


def _fields(found: list[Leaf], wish: Wish) -> list[tuple[Leaf, str]]:
    """The values of an input, each with what is in its field now."""
    return [(leaf, wish.given.get(leaf.name, leaf.text)) for leaf in found]
