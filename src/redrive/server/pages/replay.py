"""Running a run again, or undoing it: first what that would do, then the decision."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.failure_reason import MENDED_BY_EDIT
from redrive.core.json_edit import read_typed
from redrive.core.redact import masked_paths
from redrive.core.replay import Mode
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED
from redrive.desk.decisions import Replay
from redrive.desk.models import DeadLetter
from redrive.desk.presenter import aside
from redrive.desk.preview import DryRun
from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import CHECK, DO, Form, Sent, pages, to
from redrive.server.pages.letters import PATH
from redrive.server.pages.render import show, view_of
from redrive.server.pages.replay_form import EDITABLE, Leaf, Wish, faults_of, in_fields, leaves, read_wish
from redrive.server.pages.translations import N, pretty
from redrive.server.request import Asked, Asking, needs
from redrive.server.routes.common import Id

__all__ = ["WAYS", "replaying_routes", "retrying_routes"]


# -- Replaying one letter: choose a way, edit the input, look at what would happen, and only then de -----


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


# -- Running a run again, or undoing it: first what that would do, then the decision ---------------------


retrying_routes = pages()


class Way(msgspec.Struct, frozen=True, gc=False):
    """One way to run a run again: its name, what it does in plain words, and the button for it."""

    title: str
    means: str
    button: str
    icon: str = "again"


WAYS = {
    "from_failed": Way(
        N("Retry from the failed step"),
        N("Same run. What succeeded is kept; the failed step is tried again, and then the rest follows."),
        N("Retry from the failed step"),
    ),
    "full": Way(
        N("Retry the whole run"),
        N("A new run with the same input. Every step is done again, with the keys of the first time."),
        N("Start it anew"),
    ),
    "skip_failed": Way(
        N("Skip the failed step"),
        N("Same run. The failed step is not called; what you give here is taken for its result."),
        N("Skip the step"),
        "skip",
    ),
    "rollback": Way(
        N("Roll back"),
        N("What the run did is undone, the last step first. Afterwards it can no longer be retried."),
        N("Roll it back"),
        "undo",
    ),
}


@retrying_routes.get("/runs/{id}/again", **needs(Permission.DECIDE))
async def plan(
    request: Request, asked: Asked, id: Id, way: str = "from_failed", output: str | None = None
) -> Response:
    """What it would do to run a run again; for a skip, once it is known what is given."""
    return await _plan_retrying(request, asked, id, way, output, None)


@retrying_routes.post("/runs/{id}/again", **needs(Permission.DECIDE))
async def again(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Run a run again; what was typed wrongly is shown again, with what is wrong with it."""
    way, output = _known(sent.get("way", "from_failed")), sent.maybe("output")
    options = {"reason": sent.maybe("reason"), "new_operation": bool(sent.get("new_operation"))}
    try:
        decided = await _ask(asked, id, way, output, **options)
    except (InputError, Conflict) as error:
        return await _plan_retrying(request, asked, id, way, output, Reason.of_error(error))
    assert isinstance(decided, Replay)
    return to(view_of(request).url(f"/runs/{decided.run_id}"))


async def _plan_retrying(
    request: Request, asked: Asking, id: str, way: str, output: str | None, wrong: Reason | None
) -> Response:
    run = await asked.desk.runs.get(id)
    refused, found = None, None
    try:
        if not wrong and _is_complete(way, output):
            found = await _ask(asked, id, way, output, dry_run=True)
    except Conflict as error:
        refused = Reason.of_error(error)
    except InputError as error:
        wrong = Reason.of_error(error)
    return await show(
        request,
        "again.html",
        status=422 if wrong else 200,
        run=run,
        way=way,
        ways=WAYS,
        found=found if isinstance(found, DryRun) else None,
        done=found if isinstance(found, Replay) else None,
        refused=refused,
        wrong=wrong,
        output=output or "",
    )


def _is_complete(way: str, output: str | None) -> bool:
    """True if it can be said what would happen: a skip needs the result to go on with."""
    return _known(way) != "skip_failed" or output is not None


def _known(way: str) -> str:
    if way not in WAYS:
        raise NotFound(f"there is no way {way!r:.40} to run a run again")
    return way


async def _ask(asked: Asking, id: str, way: str, output: str | None, **more: Any) -> Replay | DryRun:
    if way == "rollback":
        more.pop("new_operation", None)
        return await asked.desk.runs.rollback(id, by=asked.by, **more)
    given = {"output": await _json(output)} if way == "skip_failed" else {}
    return await asked.desk.runs.retry(id, way, by=asked.by, **given, **more)


async def _json(text: str | None) -> Any:
    try:
        return (await aside(partial(read_typed, text or "null"), len(text or ""))).value
    except InputError as error:
        why = Reason.of_error(error)
        raise InputError(Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example='"like this"')) from None
