"""The pages that retry one failure or one run: a preview first, then the decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.failure_reason import FIXABLE_BY_EDIT
from redrive.core.json_edit import parse_typed_json
from redrive.core.redact import find_masked_paths
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.core.secret_and_sealed_text import read_sealed_value
from redrive.core.states import EXECUTED_KINDS
from redrive.desk.models import DeadLetter, Run, StepRecord
from redrive.desk.preview import DryRun
from redrive.desk.replays import Replay
from redrive.desk.validation import in_thread_if_large
from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode, quote
from redrive.server.pages import replay_form
from redrive.server.pages.forms import ACTION_FIELD, CHECK_ACTION, Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.letters import LETTERS_PATH
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.replay_form import EDITABLE_MODES, OUTPUT_MODES, ReplayForm, has_failed_step, read_replay_form
from redrive.server.pages.texts import MODES, RESUME_RUN, format_json
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id

replay_routes = make_page_router()
_FORMAT_FIELD, _JSON_FORMAT = "as", "json"  # the input is edited as JSON, or else field by field
_REPLAY_PATH = LETTERS_PATH + "/{id}/replay"
_MODES = (
    *(ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP, ReplayMode.STEP_ONLY),
    *(ReplayMode.FULL, ReplayMode.SKIP, ReplayMode.COMPLETE),
)
_STEP_MODES = frozenset({ReplayMode.STEP_ONLY, *OUTPUT_MODES})


@replay_routes.get(_REPLAY_PATH, **requires(Permission.DECIDE))
async def show_replay(request: Request, context: Context, id: Id) -> Response:
    """Show the form to retry a failure, with a preview."""
    letter, input = await _load_letter(context, id)
    if await _is_rollback_stopped(context, letter.run_id):
        return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{letter.id}") + "#ledger")
    replay = await read_replay_form(Form(list(request.query_params.multi_items())), input, begun=True)
    return await _render_replay(request, context, letter, input, replay)


@replay_routes.post(_REPLAY_PATH, **requires(Permission.DECIDE))
async def submit_replay(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Retry a failure if the user has seen the preview of exactly this form; otherwise show it."""
    letter, input = await _load_letter(context, id)
    if format := form.get(_FORMAT_FIELD):
        replay = await read_replay_form(form, input, begun=True)
        if format != _JSON_FORMAT:
            replay = replay_form.convert_to_fields(replay, input)
        return await _render_replay(request, context, letter, input, replay, format=format)
    replay = await read_replay_form(form, input)
    checks = form.get(ACTION_FIELD) == CHECK_ACTION
    if checks or replay.unread or form.get("seen") != replay.digest:
        return await _render_replay(request, context, letter, input, replay, hurried=not checks)
    await context.desk.dlq.replay(letter.id, replay.mode.value, by=context.by, reason=replay.reason, **replay.options())
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{letter.id}", done="replayed"))


async def _is_rollback_stopped(context: RequestContext, run_id: str) -> bool:
    """Return True for a rollback that stopped: its steps are decided on one by one, where they are listed."""
    try:
        ledger = await context.desk.sagas.get(run_id)
    except NotFound:
        return False
    return ledger.stopped_entry is not None


async def _load_letter(context: RequestContext, id: str) -> tuple[DeadLetter, Any]:
    """Return a letter, and the current input of its run as the user may see it; None if it cannot be edited here."""
    letter = await context.desk.dlq.get(id)
    try:
        input = (await context.desk.runs.get(letter.run_id)).input
    except NotFound:
        input = letter.input
    return letter, None if read_sealed_value(input) is not None else input


async def _render_replay(
    request: Request,
    context: RequestContext,
    letter: DeadLetter,
    input: Any,
    replay: ReplayForm,
    *,
    hurried: bool = False,
    format: str = "",
) -> Response:
    """Show the form with a preview, or with its faults. `hurried`: the user tried to skip the preview."""
    plan, refusal, conflicts = None, None, False
    if replay.is_whole:
        try:
            plan = await context.desk.dlq.replay(
                letter.id, replay.mode.value, dry_run=True, by=context.by, reason=replay.reason, **replay.options()
            )
        except UnknownWorkflow:
            raise
        except (InputError, Conflict) as error:
            refusal, conflicts = Reason.of_error(error), isinstance(error, Conflict)
    placed, rest = replay_form.split_faults(refusal) if refusal else ({}, [])
    fields = replay_form.list_form_fields(input)
    as_json = replay.typed is not None or (format or request.query_params.get(_FORMAT_FIELD)) == _JSON_FORMAT
    flat = None if as_json or fields is None else [(each, replay.given.get(each.name, each.text)) for each in fields]
    text = ""
    if flat is None:  # writing a large input takes a while
        text = replay.typed if replay.typed is not None else await asyncio.to_thread(format_json, replay.input or input)
    steps = [step for step in letter.steps if step.kind in EXECUTED_KINDS and not step.superseded]
    return await render_page(
        request,
        "replay.html",
        status=409 if conflicts else 422 if replay.unread or refusal else 200,
        letter=letter,
        input=input,
        sealed=read_sealed_value(letter.input) is not None,
        replay=replay,
        plan=plan if isinstance(plan, DryRun) else None,
        placed=placed,
        wrong=rest if make_view(request).refused is None else [],  # a form that is shown again says it itself
        hurried=hurried and plan is not None,
        modes=_list_modes(letter, steps),
        steps=steps,
        flat=flat,
        formable=fields is not None,
        text=text,
        hidden=bool(find_masked_paths(input)),
        editable=replay.mode in EDITABLE_MODES,
        fixable=letter.code in FIXABLE_BY_EDIT,
        path=LETTERS_PATH,
    )


def _list_modes(letter: DeadLetter, steps: Sequence[StepRecord]) -> dict[ReplayMode, tuple[str, str]]:
    """Return the ways to retry a failure that can work, with their labels and explanations."""
    modes = {mode: MODES[mode.value] for mode in _MODES if steps or mode is not ReplayMode.FROM_STEP}
    if has_failed_step(letter.steps, letter.code):
        return modes
    return {mode: text for mode, text in modes.items() if mode not in _STEP_MODES} | {
        ReplayMode.FROM_FAILED: RESUME_RUN
    }


RETRY_MODES = {
    "from_failed": (*MODES["FROM_FAILED"], "again"),
    "full": (*MODES["FULL"], "again"),
    "skip_failed": (*MODES["SKIP"], "skip"),
    "rollback": (*MODES["ROLLBACK"], "undo"),
}
"""The ways to retry a run: title, explanation and icon of each."""


def list_retry_modes(run: Run) -> dict[str, tuple[str, str, str]]:
    """Return the ways to retry a run that can work."""
    if has_failed_step(run.steps, run.code):
        return RETRY_MODES
    modes = {way: text for way, text in RETRY_MODES.items() if way != "skip_failed"}
    return modes | {"from_failed": (*RESUME_RUN, "again")}


@replay_routes.get("/runs/{id}/again", **requires(Permission.DECIDE))
async def show_retry(
    request: Request, context: Context, id: Id, way: str = "from_failed", output: str | None = None
) -> Response:
    """Show the form to retry a run, with a preview as soon as a skipped step has a result."""
    if await _is_rollback_stopped(context, id):
        return redirect_to(make_view(request).url(f"/runs/{id}") + "#ledger")
    return await _render_retry(request, context, id, _check_mode(way), output, None)


@replay_routes.post("/runs/{id}/again", **requires(Permission.DECIDE))
async def submit_retry(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Retry a run, or show the form again with its fault."""
    way, output = _check_mode(form.get("way", "from_failed")), form.maybe("output")
    options = {"reason": form.maybe("reason"), "new_operation": bool(form.get("new_operation"))}
    try:
        decided = await _retry_run(context, id, way, output, **options)
    except (InputError, Conflict) as error:
        return await _render_retry(request, context, id, way, output, Reason.of_error(error))
    assert isinstance(decided, Replay)
    return redirect_to(make_view(request).url(f"/runs/{decided.run_id}"))


async def _render_retry(
    request: Request, context: RequestContext, id: str, way: str, output: str | None, wrong: Reason | None
) -> Response:
    run = await context.desk.runs.get(id)
    refused, plan = None, None
    try:
        if not wrong and (way != "skip_failed" or output is not None):
            plan = await _retry_run(context, id, way, output, dry_run=True)
    except Conflict as error:
        refused = Reason.of_error(error)
    except InputError as error:
        wrong = Reason.of_error(error)
    return await render_page(
        request,
        "retry.html",
        status=422 if wrong else 200,
        run=run,
        way=way,
        ways={way: RETRY_MODES[way]} | list_retry_modes(run),
        plan=plan if isinstance(plan, DryRun) else None,
        done=plan if isinstance(plan, Replay) else None,
        refused=refused,
        wrong=wrong,
        output=output or "",
    )


def _check_mode(way: str) -> str:
    if way not in RETRY_MODES:
        raise NotFound(Reason(ReasonCode.REPLAY_MODE_UNKNOWN, given=quote(way), known=tuple(RETRY_MODES)))
    return way


async def _retry_run(context: RequestContext, id: str, way: str, output: str | None, **more: Any) -> Replay | DryRun:
    if way == "rollback":
        more.pop("new_operation", None)
        return await context.desk.runs.rollback(id, by=context.by, **more)
    if way == "skip_failed":
        text = output or "null"
        try:
            more["output"] = (await in_thread_if_large(partial(parse_typed_json, text), len(text))).value
        except InputError as error:
            why = Reason.of_error(error)
            raise InputError(Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example='"like this"')) from None
    return await context.desk.runs.retry(id, way, by=context.by, **more)
