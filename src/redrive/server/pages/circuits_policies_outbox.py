"""Pages of circuits, retry policies, and messages of the outbox."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.core.states import DeliveryStatus
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import Circuit, RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import field_names
from redrive.server.pages import lists
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.filters import AuditFilter, CircuitFilter, OutboxFilter

operations_routes = make_page_router()
_CIRCUIT_SETTINGS = ("window", "open_for", "on_open", "failures", "probes")
_COLUMNS = lists.make_columns("key", "tenant", "status", "until", "parked", "why", "changed_by", "changed_at")
_MAX_BLOCKED_KEYS = 50
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
            settings = {
                name: _parse_circuit_setting(name, form.get(name)) for name in _CIRCUIT_SETTINGS if form.get(name)
            }
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
    typed = {name: form.get(name) for name in _CIRCUIT_SETTINGS}
    faulty = _list_faulty(typed, lambda name, text: Circuit.from_json({name: _parse_circuit_setting(name, text)}))
    values = {"circuit": circuit, "lines": lines.items, "wrong": wrong, "faulty": faulty, "typed": form}
    return await render_page(request, "circuit.html", status=422 if wrong else 200, **values)


def _parse_circuit_setting(name: str, text: str) -> Any:
    return _parse_number(name, text, int) if name in ("failures", "probes") else text


def _list_faulty(typed: Mapping[str, str], check: Callable[[str, str], object]) -> list[str]:
    """Return the names of the fields whose texts are wrong by themselves."""
    faulty = []
    for name, text in typed.items():
        try:
            if text:
                check(name, text)
        except (ConfigurationError, InputError):
            faulty.append(name)
    return faulty


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
        known = [item.name for item in await context.view.workflows()]
        if typed["workflow"] and typed["workflow"] not in known and form.get("anyway") != typed["workflow"]:
            near = difflib.get_close_matches(typed["workflow"], known, n=3)
            return await _render_policies(request, context, typed, None, near)
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
    request: Request,
    context: RequestContext,
    typed: dict[str, str],
    wrong: Reason | None,
    near: Sequence[str] | None = None,
) -> Response:
    """Show the policies. `near` are known names like that of an unknown workflow, which the user has to confirm."""
    confined = context.principal.workflows is not None  # circuits name no workflow
    policy = {name: typed.get(name, "") for name in _POLICY_FIELDS}
    circuits = [] if confined else (await context.desk.circuits.list(CircuitFilter(), limit=100)).items
    return await render_page(
        request,
        "policies.html",
        status=422 if wrong or near is not None else 200,
        policies=await context.desk.policies.list(),
        circuits=[circuit for circuit in circuits if circuit.override],
        workflows=[item.name for item in await context.view.workflows()],
        typed=typed,
        wrong=wrong,
        faulty=_list_faulty(policy, lambda name, text: RetryPolicy.from_json({name: _parse_policy_field(name, text)})),
        near=near,
        mine=lambda stored: stored.tenant == context.one_tenant,
    )


def _read_policy_scope(context: RequestContext, form: Form) -> dict[str, str | None]:
    return {"workflow": form.maybe("workflow"), "step": form.maybe("step"), "tenant": context.one_tenant}


_DELIVERY_COLUMNS = lists.make_columns("id", "topic", "key", "tenant", "run_id", "created_at", "deliveries")


@operations_routes.get("/outbox", **requires(Permission.LOOK, all_workflows=True))
async def list_messages(request: Request, context: Context, status: str = DeliveryStatus.DEAD) -> Response:
    """Show the keys that a message blocks, and a page of messages: at first those that could not be delivered."""
    query = lists.read_query(request, "topic", "sink", "key")
    wanted = None if status == "all" else status
    where = OutboxFilter(
        tenant=context.one_tenant, status=wanted, topic=query.get("topic"), sink=query.get("sink"), key=query.get("key")
    )
    desk = context.desk.outbox
    if file := await lists.export_list(
        request, "outbox", _DELIVERY_COLUMNS, lambda limit, cursor: desk.list(where, limit=limit, cursor=cursor)
    ):
        return file
    found = await desk.list(where, limit=50, cursor=request.query_params.get("cursor"))
    return await render_page(
        request,
        "outbox.html",
        found=found,
        query={**query, "status": status},
        states=list(DeliveryStatus),
        blocked=await desk.blocked(tenant=context.one_tenant, limit=_MAX_BLOCKED_KEYS),
        most=_MAX_BLOCKED_KEYS,
    )


@operations_routes.get("/outbox/{id}", **requires(Permission.LOOK, all_workflows=True))
async def show_message(request: Request, context: Context, id: Id) -> Response:
    """Show one message with its payload and the state of each delivery."""
    message = await context.desk.outbox.get(id)
    return await render_page(request, "message.html", message=message)


@operations_routes.post("/outbox/{id}/{way}", **requires(Permission.DECIDE, all_workflows=True))
async def decide_message(request: Request, context: Context, id: Id, way: str, form: SentForm) -> Response:
    """Deliver a message again, or skip it, at one sink or at all that have not received it."""
    desk = context.desk.outbox
    actions = {"retry": desk.retry, "skip": desk.skip}
    if way not in actions:
        raise NotFound(Reason(ReasonCode.ACTION_UNKNOWN, given=quote(way), known=tuple(actions)))
    await actions[way](id, sink=form.maybe("sink"), by=context.by, reason=form.maybe("reason"))
    return redirect_to(make_view(request).url("/outbox" if form.get("back") == "list" else f"/outbox/{id}"))
