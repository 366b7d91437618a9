"""The pages of workflows, their queues, schedules and workers, and the form that starts a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.clock import MICROS
from redrive.core.roles import Permission
from redrive.core.states import LetterStatus, RunStatus
from redrive.desk.overview import FAILED_STATUSES
from redrive.desk.run_starter import StartRequest
from redrive.desk.workflows import KnownWorkflow, WorkerState
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.replay_form import (
    FormField,
    ReplayForm,
    convert_to_fields,
    list_form_fields,
    read_replay_form,
    split_faults,
)
from redrive.server.pages.texts import format_json
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import (
    list_deployed_versions,
    list_known_workers,
    list_known_workflows,
    make_workflows_desk,
)
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.stats import COUNT_LIMITS
from redrive.store.workers import CRASH_LOOP

workflow_routes = make_page_router()
_MAX_SHOWN_WORKERS = 200
_MAX_COUNTED_RUNS = 1_000
_MAX_COUNTED_LETTERS = 100
_RECENT_RUNS = 10
_DAY = 86_400 * MICROS
_MAX_DEPTH = 5
_WAITING = frozenset({RunStatus.PENDING, RunStatus.SLEEPING})


class FieldNote(msgspec.Struct, frozen=True):
    """Facts of the schema about a field: whether it is needed, its allowed values, its description and kind."""

    needed: bool = False
    choices: tuple[str, ...] = ()
    description: str = ""
    kind: str = ""


def make_blank_input(schema: Any) -> tuple[Any, dict[tuple[str, ...], FieldNote]]:
    """Return an input with the defaults of a JSON Schema and blanks for the rest, and a note about each field."""
    notes: dict[tuple[str, ...], FieldNote] = {}
    root = schema if isinstance(schema, dict) else {}
    definitions = root.get("$defs") if isinstance(root.get("$defs"), dict) else {}
    return _make_blank(root, definitions, (), True, notes), notes


def _make_blank(
    schema: Any, definitions: Any, path: tuple[str, ...], needed: bool, notes: dict[tuple[str, ...], FieldNote]
) -> Any:
    about = _resolve(schema, definitions)
    parts = about.get("properties")
    if isinstance(parts, dict) and parts and "default" not in about and len(path) < _MAX_DEPTH:
        wanted = about.get("required") or ()
        return {
            name: _make_blank(part, definitions, (*path, name), needed and name in wanted, notes)
            for name, part in parts.items()
        }
    kind = about.get("type")
    choices = tuple(each if isinstance(each, str) else json.dumps(each) for each in about.get("enum") or ())
    notes[path] = FieldNote(
        needed=needed and "default" not in about and kind != "boolean",
        choices=choices,
        description=str(about.get("description") or ""),
        kind=kind if isinstance(kind, str) else "",
    )
    if "default" in about:
        return about["default"]
    if choices:
        return None  # a user chooses; the first value would be a guess
    return {"string": "", "boolean": False, "array": [], "object": {}}.get(str(kind))


def _resolve(schema: Any, definitions: Any) -> dict[str, Any]:
    """Follow references and alternatives. Text is preferred: a decimal number may be text or a number."""
    found: dict[str, Any] = {}
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            return found
        found = {**schema, **{name: found[name] for name in ("default", "description") if name in found}}
        branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or ()
        real = [each for each in branches if isinstance(each, dict) and each.get("type") != "null"]
        if "$ref" in schema:
            schema = definitions.get(str(schema["$ref"]).rpartition("/")[2])
        elif real:
            schema = next((each for each in real if each.get("type") == "string"), real[0])
        else:
            return found
    return found


@workflow_routes.get("/workflows", **requires(Permission.LOOK))
async def list_workflows(request: Request, context: Context) -> Response:
    """Show the registered workflows, with their workers and next scheduled runs."""
    schedules = await context.desk.schedules.list()
    times = [(each.workflow, each.next[0].astimezone(UTC)) for each in schedules if each.next]
    fires = dict(sorted(times, key=lambda time: time[1], reverse=True))  # the earliest one of a workflow is kept
    return await render_page(request, "workflows.html", workflows=await list_known_workflows(context), fires=fires)


@workflow_routes.get("/workflows/one", **requires(Permission.LOOK))
async def show_workflow(request: Request, context: Context, name: str = "") -> Response:
    """Show one workflow: its figures, policies, versions and recent runs, and a form that starts a run."""
    return await _render_workflow(request, context, await _find_workflow(context, name), Form(()), None)


@workflow_routes.post("/workflows/start", **requires(Permission.START))
async def start_run(request: Request, context: Context, form: SentForm) -> Response:
    """Start a run from the form, or show the form again with its faults."""
    workflow = await _find_workflow(context, form.get("name"))
    blank, _ = make_blank_input(workflow.input_schema)
    replay = await read_replay_form(form, blank, begun=True)
    if form.get("as") or replay.unread:
        return await _render_workflow(request, context, workflow, form, None, replay)
    options = {"tenant": context.home, "correlation_id": form.maybe("correlation_id")}
    wanted = StartRequest(
        workflow=workflow.name,
        input=blank if replay.input is None else replay.input,
        options={name: value for name, value in options.items() if value is not None},
    )
    try:
        (started,) = await context.desk.starter.start([wanted])
    except (InputError, Conflict) as error:
        return await _render_workflow(request, context, workflow, form, Reason.of_error(error), replay)
    return redirect_to(make_view(request).url(f"/runs/{started.public_id}"))


async def _find_workflow(context: RequestContext, name: str) -> KnownWorkflow:
    for each in await list_known_workflows(context):
        if each.name == name:
            return each
    raise NotFound(Reason(ReasonCode.WORKFLOW_NOT_FOUND, workflow=name))


async def _render_workflow(
    request: Request,
    context: RequestContext,
    workflow: KnownWorkflow,
    form: Form,
    refusal: Reason | None,
    replay: ReplayForm | None = None,
) -> Response:
    name, tenant, now = workflow.name, context.one_tenant, context.whole.now()
    day = await context.view.run_summaries(
        RunFilter(tenant=tenant, workflow=name, since=now - _DAY), most=_MAX_COUNTED_RUNS
    )
    # An exact count would read every failure of the workflow.
    open_letters = LetterFilter(tenant=tenant, workflow=name, status=LetterStatus.OPEN)
    letters = await context.view.letters(open_letters, limit=_MAX_COUNTED_LETTERS, cursor=None)
    policies = await context.desk.policies.list()
    workers = [each for each in await list_known_workers(context) if name in each.workflows]
    alive = [each for each in workers if each.state is WorkerState.RUNNING]
    return await render_page(
        request,
        "workflow.html",
        status=422 if refusal or (replay is not None and replay.unread) else 200,
        workflow=workflow,
        started=len(day),
        failed=sum(run.status in FAILED_STATUSES for run in day),
        waiting=sum(run.status in _WAITING for run in day),
        most=_MAX_COUNTED_RUNS,
        letters=len(letters.items),
        more_letters=letters.next is not None,
        versions=Counter(each.versions.get(name, each.version) for each in alive),
        policies=[each for each in policies if each.workflow in (None, name)],
        schedules=[each for each in await context.desk.schedules.list(tenant=tenant) if each.workflow == name],
        runs=(await context.desk.runs.list(RunFilter(tenant=tenant, workflow=name), limit=_RECENT_RUNS)).items,
        **_make_start_form(workflow, form, refusal, replay),
    )


def _make_start_form(
    workflow: KnownWorkflow, form: Form, refusal: Reason | None, replay: ReplayForm | None
) -> dict[str, Any]:
    """Return the values of the form that starts a run: field by field if the input allows it, otherwise as JSON."""
    blank, notes = make_blank_input(workflow.input_schema)
    fields = list_form_fields(blank)
    if replay is not None and form.get("as") == "fields":
        replay = convert_to_fields(replay, blank)
    as_json = fields is None or (replay is not None and (replay.typed is not None or form.get("as") == "json"))
    given: Mapping[str, str] = {} if replay is None else replay.given
    flat: list[tuple[FormField, str, FieldNote]] = []
    if fields is not None and not as_json:
        flat = [(each, given.get(each.name, each.text), notes.get(each.path, FieldNote())) for each in fields]
    text = None if replay is None else replay.typed
    if text is None:
        text = format_json(blank if replay is None or replay.input is None else replay.input)
    placed, wrong = split_faults(refusal) if refusal else ({}, [])
    unread = {} if replay is None else replay.unread
    return {
        "flat": flat,
        "formable": fields is not None,
        "empty": blank == {},
        "text": text,
        "placed": placed,
        "wrong": wrong,
        "unread": unread,
        "reference": form.get("correlation_id"),
        "begun": replay is not None,
    }


@workflow_routes.post("/workflows/{way}", **requires(Permission.PAUSE))
async def change_workflow(request: Request, context: Context, way: str, form: SentForm) -> Response:
    """Pause a workflow in all tenants, or resume it."""
    name = form.get("name")
    if way not in ("pause", "resume") or name not in {item.name for item in await context.view.workflows()}:
        raise NotFound(Reason(ReasonCode.WORKFLOW_NOT_FOUND, workflow=name))
    desk = make_workflows_desk(context)
    await (desk.pause if way == "pause" else desk.resume)(name, by=context.by)
    return redirect_to(make_view(request).url("/workflows"))


@workflow_routes.get("/queues", **requires(Permission.LOOK))
async def list_queues(request: Request, context: Context) -> Response:
    """Show the queues that have due runs, those that have waited longest first."""
    queues = await context.desk.runs.queues(tenant=context.one_tenant)
    return await render_page(request, "queues.html", queues=queues)


@workflow_routes.get("/schedules", **requires(Permission.LOOK))
async def list_schedules(request: Request, context: Context) -> Response:
    """Show the schedules with their next times and last runs."""
    schedules = await context.desk.schedules.list(tenant=context.one_tenant)
    return await render_page(request, "schedules.html", schedules=schedules)


@workflow_routes.post("/schedules/run", **requires(Permission.START))
async def run_schedule(request: Request, context: Context, form: SentForm) -> Response:
    """Have a worker start a run of a schedule now."""
    desk, workflow, name = context.desk.schedules, form.get("workflow"), form.get("name")
    await desk.run(workflow, name, tenant=context.home, **_read_actor(context, form))
    return redirect_to(make_view(request).url("/schedules"))


@workflow_routes.post("/schedules/{way}", **requires(Permission.DECIDE))
async def change_schedule(request: Request, context: Context, way: str, form: SentForm) -> Response:
    """Pause or resume a schedule, or remove one that no live worker has."""
    desk = context.desk.schedules
    actions = {"pause": desk.pause, "resume": desk.resume, "remove": desk.remove}
    if way not in actions:
        raise NotFound(Reason(ReasonCode.ACTION_UNKNOWN, given=way, known=tuple(actions)))
    await actions[way](form.get("workflow"), form.get("name"), tenant=context.home, **_read_actor(context, form))
    return redirect_to(make_view(request).url("/schedules"))


def _read_actor(context: RequestContext, form: Form) -> dict[str, Any]:
    return {"by": context.by, "reason": form.maybe("reason")}


@workflow_routes.get("/deployments", **requires(Permission.LOOK, all_workflows=True))
async def list_deployments(request: Request, context: Context) -> Response:
    """Show the versions of code, the runs that need them, and the workers that may be stopped."""
    found = await list_deployed_versions(context)
    return await render_page(request, "deployments.html", versions=found, most=COUNT_LIMITS["counted"])


@workflow_routes.get("/workers", **requires(Permission.LOOK))
async def list_workers(request: Request, context: Context) -> Response:
    """Show the workers, those that crashed apart from those that stopped."""
    workers = await list_known_workers(context)
    return await render_page(
        request,
        "workers.html",
        workers=workers[:_MAX_SHOWN_WORKERS],
        hidden=max(0, len(workers) - _MAX_SHOWN_WORKERS),
        crashes=sum(worker.recent for worker in workers),
        stalled=sum(worker.stalled for worker in workers),
        loop=CRASH_LOOP,
    )


@workflow_routes.post("/workers/{way}", **requires(Permission.MANAGE_WORKERS))
async def end_worker(request: Request, context: Context, way: str, form: SentForm) -> Response:
    """Drain a worker, or take all runs back from it."""
    desk, id = make_workflows_desk(context), form.get("id")
    actions = {"drain": desk.drain_worker, "retire": desk.retire_worker}
    if way not in actions:
        raise NotFound(Reason(ReasonCode.ACTION_UNKNOWN, given=way, known=tuple(actions)))
    await actions[way](int(id) if id.isascii() and id.isdigit() and len(id) < 17 else 0, **_read_actor(context, form))
    return redirect_to(make_view(request).url("/workers"))
