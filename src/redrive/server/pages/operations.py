"""The pages of circuits, policies, workflows and workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.models import present_row
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import field_names
from redrive.server.pages import lists
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.request import Context, RequestContext, list_known_workflows, make_workflows_desk, requires
from redrive.store.filters import AuditFilter, CircuitFilter

operations_routes = make_page_router()
_CIRCUIT_SETTINGS = ("window", "open_for", "on_open", "failures", "probes")
_COLUMNS = lists.make_columns("key", "tenant", "status", "until", "parked", "why", "changed_by", "changed_at")
_POLICY_NUMBERS: dict[str, Callable[[str], int | float]] = {"max_retries": int, "factor": float, "jitter": float}
_POLICY_LISTS = ("delays", "retry_on", "never_retry_on")
_POLICY_FIELDS = field_names(RetryPolicy)
_EMPTY_LIST = "[]"  # a list without entries; an empty field stands for the default


@operations_routes.get("/circuits", **requires(Permission.LOOK, all_workflows=True))
async def list_circuits(request: Request, context: Context) -> Response:
    """Show a page of the circuits that have ever changed, or export all that match."""
    query = lists.read_query(request, "status")
    desk, where = context.desk.circuits, CircuitFilter(status=query.get("status"))
    if file := await lists.export_list(
        request, "circuits", _COLUMNS, lambda limit, cursor: desk.list(where, limit=limit, cursor=cursor)
    ):
        return file
    found = await desk.list(where, limit=50, cursor=request.query_params.get("cursor"))
    return await render_page(request, "circuits.html", found=found, query=query, states=list(CircuitStatus))


@operations_routes.get("/circuits/one", **requires(Permission.LOOK, all_workflows=True))
async def show_circuit(request: Request, context: Context, key: str = "") -> Response:
    """Show one circuit: its state, waiting runs, settings and activity."""
    return await _render_circuit(request, context, key, None, Form(()))


@operations_routes.post("/circuits/one", **requires(Permission.DECIDE, all_workflows=True))
async def change_circuit(request: Request, context: Context, form: SentForm) -> Response:
    desk = context.desk.circuits
    actions = {"open": desk.open, "close": desk.close, "reset": desk.reset}
    change = actions.get(form.get("way"))
    if change is None:
        raise NotFound(Reason(ReasonCode.ACTION_UNKNOWN, given=quote(form.get("way")), known=tuple(actions)))
    await change(form.get("key"), tenant=context.home, by=context.by, reason=form.maybe("reason"))
    return redirect_to(make_view(request).url("/circuits/one", key=form.get("key")))


@operations_routes.post("/circuits/settings", **requires(Permission.SET_POLICIES, all_workflows=True))
async def set_circuit(request: Request, context: Context, form: SentForm) -> Response:
    """Override the settings of a circuit, or restore those of the code."""
    key, desk = form.get("key"), context.desk.circuits
    try:
        if form.get("unset"):
            await desk.unset(key, tenant=context.home, by=context.by)
        else:
            settings: dict[str, Any] = {name: form.maybe(name) for name in _CIRCUIT_SETTINGS if form.get(name)}
            for name in settings.keys() & {"failures", "probes"}:
                settings[name] = _parse_number(name, settings[name], int)
            await desk.set(key, tenant=context.home, by=context.by, **settings)
    except InputError as error:
        return await _render_circuit(request, context, key, Reason.of_error(error), form)
    return redirect_to(make_view(request).url("/circuits/one", key=key))


async def _render_circuit(
    request: Request, context: RequestContext, key: str, wrong: Reason | None, form: Form
) -> Response:
    circuit = await context.desk.circuits.get(key, tenant=context.home)
    where = AuditFilter(event="circuit.", subject=circuit.key)
    lines = await context.desk.audit.list(where, limit=20, language=make_view(request).lang)
    values = {"circuit": circuit, "lines": lines.items, "wrong": wrong, "typed": form}
    return await render_page(request, "circuit.html", status=422 if wrong else 200, **values)


def _parse_number(name: str, text: str, kind: Callable[[str], int | float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        needed = ReasonCode.INTEGER_NEEDED if kind is int else ReasonCode.NUMBER_NEEDED
        raise InputError(Reason(needed, field=name, given=quote(text))) from None


@operations_routes.get("/policies", **requires(Permission.LOOK))
async def list_policies(
    request: Request, context: Context, workflow: str = "", step: str = "", default: str = ""
) -> Response:
    """Show the stored policies, and a form that holds the one that the address names."""
    typed = {"workflow": workflow, "step": step, "default": default}
    scope = (context.one_tenant, workflow or None, step or None)
    for stored in await context.desk.policies.list():
        if any(typed.values()) and (stored.tenant, stored.workflow, stored.step) == scope:
            policy = stored.policy.to_json()
            typed |= {name: _format_value(name, policy[name]) for name in _POLICY_FIELDS}
    return await _render_policies(request, context, typed, None)


def _format_value(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        # An empty `retry_on` retries nothing. All other lists are empty by default.
        empty = _EMPTY_LIST if name == "retry_on" else ""
        return ", ".join(_format_value(name, each) for each in value) or empty
    return f"{value}".removesuffix(".0")


@operations_routes.post("/policies", **requires(Permission.SET_POLICIES))
async def set_policy(request: Request, context: Context, form: SentForm) -> Response:
    """Store a policy, which applies from the next attempt."""
    typed = {name: form.get(name) for name in ("workflow", "step", "default", *_POLICY_FIELDS)}
    try:
        if bool(typed["default"]) == bool(typed["workflow"] or typed["step"]):
            raise InputError(Reason(ReasonCode.POLICY_TARGET_NEEDED))
        policy = RetryPolicy.from_json(
            {name: _parse_policy_field(name, typed[name]) for name in _POLICY_FIELDS if typed[name]}
        )
        await context.desk.policies.set(policy, **_read_policy_scope(context, form), by=context.by)
    except (ConfigurationError, InputError) as error:
        return await _render_policies(request, context, typed, Reason.of_error(error))
    return redirect_to(make_view(request).url("/policies"))


def _parse_policy_field(name: str, text: str) -> Any:
    if name in _POLICY_LISTS:
        entries = [] if text == _EMPTY_LIST else text.replace(",", " ").split()
        return [_parse_seconds(each) for each in entries] if name == "delays" else entries
    if name in _POLICY_NUMBERS:
        return _parse_number(name, text, _POLICY_NUMBERS[name])
    return text if name == "cap" else _parse_seconds(text)


def _parse_seconds(text: str) -> float | str:
    """Return a number of seconds, or the text of a duration such as 30s."""
    try:
        return float(text)
    except ValueError:
        return text


@operations_routes.post("/policies/remove", **requires(Permission.SET_POLICIES))
async def remove_policy(request: Request, context: Context, form: SentForm) -> Response:
    """Remove a stored policy, so that the code decides again."""
    if not await context.desk.policies.delete(**_read_policy_scope(context, form), by=context.by):
        raise NotFound(Reason(ReasonCode.POLICY_NOT_FOUND))
    return redirect_to(make_view(request).url("/policies"))


async def _render_policies(
    request: Request, context: RequestContext, typed: dict[str, str], wrong: Reason | None
) -> Response:
    circuits = await context.desk.circuits.list(CircuitFilter(), limit=100)
    return await render_page(
        request,
        "policies.html",
        status=422 if wrong else 200,
        policies=await context.desk.policies.list(),
        circuits=[circuit for circuit in circuits.items if circuit.override],
        workflows=[item.name for item in await context.view.workflows()],
        typed=typed,
        wrong=wrong,
        mine=lambda stored: stored.tenant == context.one_tenant,
    )


def _read_policy_scope(context: RequestContext, form: Form) -> dict[str, str | None]:
    return {"workflow": form.maybe("workflow"), "step": form.maybe("step"), "tenant": context.one_tenant}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as a page shows it; `live` while its lease is valid."""

    name: str
    version: str
    live: bool
    stopped: bool
    workflows: tuple[str, ...]
    started_at: datetime
    beat_at: datetime


async def list_worker_statuses(context: RequestContext) -> list[WorkerStatus]:
    """Return the workers, newest first; a token for some workflows sees only workers and workflows of those."""
    now, some = context.whole.now(), context.principal.workflows
    found = [
        present_row(
            WorkerStatus,
            row,
            live=row.is_alive_at(now),
            stopped=row.state != "LIVE",
            workflows=row.workflows if some is None else tuple(filter(some.__contains__, row.workflows)),
        )
        for row in await context.whole.workers()
    ]
    return [worker for worker in found if some is None or worker.workflows]


@operations_routes.get("/workflows", **requires(Permission.LOOK))
async def list_workflows(request: Request, context: Context) -> Response:
    """Show the registered workflows, with their workers and next scheduled runs."""
    schedules = await context.desk.schedules.list()
    times = [(each.workflow, each.next[0].astimezone(UTC)) for each in schedules if each.next]
    fires = dict(sorted(times, key=lambda time: time[1], reverse=True))  # the earliest one of a workflow is kept
    return await render_page(request, "workflows.html", workflows=await list_known_workflows(context), fires=fires)


@operations_routes.post("/workflows/{way}", **requires(Permission.PAUSE))
async def change_workflow(request: Request, context: Context, way: str, form: SentForm) -> Response:
    """Pause a workflow in all tenants, or resume it."""
    name = form.get("name")
    if way not in ("pause", "resume") or name not in {item.name for item in await context.view.workflows()}:
        raise NotFound(Reason(ReasonCode.WORKFLOW_NOT_FOUND, workflow=name))
    desk = make_workflows_desk(context)
    await (desk.pause if way == "pause" else desk.resume)(name, by=context.by)
    return redirect_to(make_view(request).url("/workflows"))


@operations_routes.get("/workers", **requires(Permission.LOOK))
async def list_workers(request: Request, context: Context) -> Response:
    return await render_page(request, "workers.html", workers=await list_worker_statuses(context))
