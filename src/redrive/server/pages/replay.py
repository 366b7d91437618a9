"""Running a run again, or undoing it: first what that would do, then the decision."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.failure_reason import FIXABLE_BY_EDIT
from redrive.core.json_edit import parse_typed_json
from redrive.core.redact import find_masked_paths
from redrive.core.replay import ReplayMode
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED_KINDS
from redrive.desk.decisions import Replay
from redrive.desk.models import DeadLetter
from redrive.desk.presenter import in_thread_if_large
from redrive.desk.preview import DryRun
from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import ACTION_FIELD, CHECK_ACTION, Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.letters import LETTERS_PATH
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.replay_form import (
    EDITABLE_MODES,
    FormField,
    ReplayForm,
    convert_to_fields,
    list_form_fields,
    read_replay_form,
    split_faults,
)
from redrive.server.pages.translations import N, format_json
from redrive.server.request import Context, RequestContext, requires
from redrive.server.routes.common import Id

# -- Replaying one letter: choose a way, edit the input, look at what would happen, and only then de -----


replay_routes = make_page_router()
_FORMAT_FIELD, _JSON_FORMAT = "as", "json"  # in which form the input is edited; fields otherwise
_REPLAY_PATH = LETTERS_PATH + "/{id}/replay"
_MODES = [
    ReplayMode.FROM_FAILED,
    ReplayMode.FROM_STEP,
    ReplayMode.STEP_ONLY,
    ReplayMode.FULL,
    ReplayMode.SKIP,
    ReplayMode.COMPLETE,
]


@replay_routes.get(_REPLAY_PATH, **requires(Permission.DECIDE))
async def show_replay(request: Request, asked: Context, id: Id) -> Response:
    """What a replay would do, before anything is typed."""
    found, shown = await _load_letter(asked, id)
    wish = await read_replay_form(Form(list(request.query_params.multi_items())), shown, begun=True)
    return await _render_replay(request, asked, found, shown, wish)


@replay_routes.post(_REPLAY_PATH, **requires(Permission.DECIDE))
async def submit_replay(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Replay, if what would happen was looked at for just this wish; otherwise show it."""
    found, shown = await _load_letter(asked, id)
    if form := sent.get(_FORMAT_FIELD):
        wish = await read_replay_form(sent, shown, begun=True)
        turned = wish if form == _JSON_FORMAT else convert_to_fields(wish, shown)
        return await _render_replay(request, asked, found, shown, turned, form=form)
    wish = await read_replay_form(sent, shown)
    if sent.get(ACTION_FIELD) == CHECK_ACTION or wish.unread or sent.get("seen") != wish.digest:
        return await _render_replay(request, asked, found, shown, wish, hurried=sent.get(ACTION_FIELD) != CHECK_ACTION)
    await asked.desk.dlq.replay(found.id, wish.mode.value, by=asked.by, reason=wish.reason, **wish.options())
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{found.id}", done="replayed"))


async def _load_letter(asked: RequestContext, id: str) -> tuple[DeadLetter, Any]:
    """The letter, and the input that its run would go on with, as it may be shown."""
    found = await asked.desk.dlq.get(id)
    try:
        return found, (await asked.desk.runs.get(found.run_id)).input
    except NotFound:
        return found, found.input


async def _render_replay(
    request: Request,
    asked: RequestContext,
    found: DeadLetter,
    shown: Any,
    wish: ReplayForm,
    *,
    hurried: bool = False,
    form: str = "",
) -> Response:
    """The page with what would happen, or with what is wrong."""
    plan, wrong = (None, None)
    if wish.is_whole:
        plan, wrong = await _preview_replay(asked, found, wish)
    placed, rest = split_faults(wrong) if wrong else ({}, [])
    found_fields = list_form_fields(shown)
    as_json = wish.typed is not None or (form or request.query_params.get(_FORMAT_FIELD)) == _JSON_FORMAT
    flat = None if as_json else found_fields
    return await render_page(
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
        steps=[step for step in found.steps if step.kind in EXECUTED_KINDS and not step.superseded],
        flat=None if flat is None else _pair_fields(flat, wish),
        formable=found_fields is not None,
        text="" if flat is not None else await _format_input(wish, shown),
        hidden=bool(find_masked_paths(shown)),
        editable=wish.mode in EDITABLE_MODES,
        fixable=found.code in FIXABLE_BY_EDIT,
        path=LETTERS_PATH,
    )


async def _format_input(wish: ReplayForm, shown: Any) -> str:
    """What stands in the editor: what was typed, or the input. To write a large one takes a while."""
    return wish.typed if wish.typed is not None else await asyncio.to_thread(format_json, wish.input or shown)


async def _preview_replay(
    asked: RequestContext, found: DeadLetter, wish: ReplayForm
) -> tuple[DryRun | None, Reason | None]:
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


def _pair_fields(found: list[FormField], wish: ReplayForm) -> list[tuple[FormField, str]]:
    """The values of an input, each with what is in its field now."""
    return [(leaf, wish.given.get(leaf.name, leaf.text)) for leaf in found]


# -- Running a run again, or undoing it: first what that would do, then the decision ---------------------


retry_routes = make_page_router()


class RetryMode(msgspec.Struct, frozen=True, gc=False):
    """One way to run a run again: its name, what it does in plain words, and the button for it."""

    title: str
    means: str
    button: str
    icon: str = "again"


RETRY_MODES = {
    "from_failed": RetryMode(
        N("Resume from the failed step"),
        N("Completed steps are kept. The failed step runs again, then the remaining steps."),
        N("Resume from the failed step"),
    ),
    "full": RetryMode(
        N("Start over as a new run"),
        N("A new run executes all steps. This run stays as it is."),
        N("Start it anew"),
    ),
    "skip_failed": RetryMode(
        N("Skip this step"),
        N("Enter the result this step should have returned. The run continues without running it."),
        N("Skip the step"),
        "skip",
    ),
    "rollback": RetryMode(
        N("Roll back"),
        N("Completed steps are rolled back in reverse order. The run can no longer be retried."),
        N("Roll it back"),
        "undo",
    ),
}


@retry_routes.get("/runs/{id}/again", **requires(Permission.DECIDE))
async def show_retry(
    request: Request, asked: Context, id: Id, way: str = "from_failed", output: str | None = None
) -> Response:
    """What it would do to run a run again; for a skip, once it is known what is given."""
    return await _render_retry(request, asked, id, way, output, None)


@retry_routes.post("/runs/{id}/again", **requires(Permission.DECIDE))
async def submit_retry(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Run a run again; what was typed wrongly is shown again, with what is wrong with it."""
    way, output = _check_mode(sent.get("way", "from_failed")), sent.maybe("output")
    options = {"reason": sent.maybe("reason"), "new_operation": bool(sent.get("new_operation"))}
    try:
        decided = await _retry_run(asked, id, way, output, **options)
    except (InputError, Conflict) as error:
        return await _render_retry(request, asked, id, way, output, Reason.of_error(error))
    assert isinstance(decided, Replay)
    return redirect_to(make_view(request).url(f"/runs/{decided.run_id}"))


async def _render_retry(
    request: Request, asked: RequestContext, id: str, way: str, output: str | None, wrong: Reason | None
) -> Response:
    run = await asked.desk.runs.get(id)
    refused, found = None, None
    try:
        if not wrong and _can_preview(way, output):
            found = await _retry_run(asked, id, way, output, dry_run=True)
    except Conflict as error:
        refused = Reason.of_error(error)
    except InputError as error:
        wrong = Reason.of_error(error)
    return await render_page(
        request,
        "again.html",
        status=422 if wrong else 200,
        run=run,
        way=way,
        ways=RETRY_MODES,
        found=found if isinstance(found, DryRun) else None,
        done=found if isinstance(found, Replay) else None,
        refused=refused,
        wrong=wrong,
        output=output or "",
    )


def _can_preview(way: str, output: str | None) -> bool:
    """True if it can be said what would happen: a skip needs the result to go on with."""
    return _check_mode(way) != "skip_failed" or output is not None


def _check_mode(way: str) -> str:
    if way not in RETRY_MODES:
        raise NotFound(f"there is no way {way!r:.40} to run a run again")
    return way


async def _retry_run(asked: RequestContext, id: str, way: str, output: str | None, **more: Any) -> Replay | DryRun:
    if way == "rollback":
        more.pop("new_operation", None)
        return await asked.desk.runs.rollback(id, by=asked.by, **more)
    given = {"output": await _parse_output(output)} if way == "skip_failed" else {}
    return await asked.desk.runs.retry(id, way, by=asked.by, **given, **more)


async def _parse_output(text: str | None) -> Any:
    try:
        return (await in_thread_if_large(partial(parse_typed_json, text or "null"), len(text or ""))).value
    except InputError as error:
        why = Reason.of_error(error)
        raise InputError(Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example='"like this"')) from None
