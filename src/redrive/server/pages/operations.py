"""Policies: how retries are done, where people decided that the code does not know best."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.settings import StoredPolicy
from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.records import replace
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.lists import FILE_FORMATS, export_rows, fetch_all, read_query
from redrive.server.pages.render import make_view, render_page
from redrive.server.request import Context, RequestContext, list_known_workflows, make_workflows_desk, requires
from redrive.store.filters import AuditFilter, CircuitFilter
from redrive.store.workers import WorkerRow

# -- Circuits: which dependencies are not called at the moment, and a person's say in that ---------------


circuits_routes = make_page_router()
_NUMBER_SETTINGS = ("failures", "probes")
_DURATION_SETTINGS = ("window", "open_for")
_COLUMNS = {
    "key": lambda row: row.key,
    "tenant": lambda row: row.tenant,
    "status": lambda row: row.status.value,
    "until": lambda row: row.until,
    "parked": lambda row: row.parked,
    "why": lambda row: row.why,
    "changed_by": lambda row: row.changed_by,
    "changed_at": lambda row: row.changed_at,
}


@circuits_routes.get("/circuits", **requires(Permission.LOOK, all_workflows=True))
async def list_circuits(request: Request, asked: Context) -> Response:
    """A page of circuits that something ever happened to."""
    query = read_query(request, "status")
    where = CircuitFilter(status=query.get("status"))
    kind = request.query_params.get("format")
    if kind in FILE_FORMATS:
        rows = await fetch_all(lambda limit, cursor: asked.desk.circuits.list(where, limit=limit, cursor=cursor))
        return export_rows("circuits", kind, _COLUMNS, rows)
    found = await asked.desk.circuits.list(where, limit=50, cursor=request.query_params.get("cursor"))
    return await render_page(request, "circuits.html", found=found, query=query, states=list(CircuitStatus))


@circuits_routes.get("/circuits/one", **requires(Permission.LOOK, all_workflows=True))
async def show_circuit(request: Request, asked: Context, key: str = "") -> Response:
    """One circuit: how it stands, who waits, its settings and what happened to it."""
    return await _render_circuit(request, asked, key, None)


@circuits_routes.post("/circuits/one", **requires(Permission.DECIDE, all_workflows=True))
async def change_circuit(request: Request, asked: Context, sent: SentForm) -> Response:
    """Open, close or reset a circuit."""
    desk = asked.desk.circuits
    ways = {"open": desk.open, "close": desk.close, "reset": desk.reset}
    way = ways.get(sent.get("way"))
    if way is None:
        raise NotFound("a circuit is opened, closed or reset")
    await way(sent.get("key"), tenant=asked.home, by=asked.by, reason=sent.maybe("reason"))
    return redirect_to(make_view(request).url("/circuits/one", key=sent.get("key")))


@circuits_routes.post("/circuits/settings", **requires(Permission.SET_POLICIES, all_workflows=True))
async def set_circuit(request: Request, asked: Context, sent: SentForm) -> Response:
    """Set what is in force in place of what the code says, or go back to that."""
    key, desk = sent.get("key"), asked.desk.circuits
    try:
        if sent.get("unset"):
            await desk.unset(key, tenant=asked.home, by=asked.by)
        else:
            await desk.set(key, tenant=asked.home, by=asked.by, **_read_circuit_settings(sent))
    except InputError as error:
        return await _render_circuit(request, asked, key, str(error), sent)
    return redirect_to(make_view(request).url("/circuits/one", key=key))


async def _render_circuit(
    request: Request, asked: RequestContext, key: str, wrong: str | None, sent: Form | None = None
) -> Response:
    circuit = await asked.desk.circuits.get(key, tenant=asked.home)
    where = AuditFilter(event="circuit.", subject=circuit.key)
    lines = await asked.desk.audit.list(where, limit=20, language=make_view(request).lang)
    typed = {name: sent.get(name) for name in (*_NUMBER_SETTINGS, *_DURATION_SETTINGS, "on_open")} if sent else {}
    return await render_page(
        request,
        "circuit.html",
        status=422 if wrong else 200,
        circuit=circuit,
        lines=lines.items,
        wrong=wrong,
        typed=typed,
    )


def _read_circuit_settings(sent: Form) -> dict[str, Any]:
    """The settings that a form names; what is blank stays as it is."""
    given: dict[str, Any] = {name: _parse_integer(name, sent.get(name)) for name in _NUMBER_SETTINGS if sent.get(name)}
    given |= {name: sent.get(name) for name in (*_DURATION_SETTINGS, "on_open") if sent.get(name)}
    return given


def _parse_integer(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name} is a whole number, not {text!r:.40}")
    return int(text)


# -- Policies: how retries are done, where people decided that the code does not know best ---------------


policies_routes = make_page_router()
POLICY_FIELDS = (
    "max_retries",
    "base_delay",
    "factor",
    "max_delay",
    "jitter",
    "max_elapsed",
    "delays",
    "never_retry_on",
)
_POLICY_NUMBERS = {"max_retries": int, "factor": float, "jitter": float}


@policies_routes.get("/policies", **requires(Permission.LOOK))
async def list_policies(request: Request, asked: Context, workflow: str = "", step: str = "") -> Response:
    """What is stored, and a form to store more; an address may name the place to begin with."""
    place = {"workflow": workflow, "step": step}
    return await _render_policies(request, asked, {**place, **await _load_stored_policy(asked, place)}, None)


@policies_routes.post("/policies", **requires(Permission.SET_POLICIES))
async def set_policy(request: Request, asked: Context, sent: SentForm) -> Response:
    """Store a policy, in force from the next attempt on."""
    try:
        policy = RetryPolicy.from_json(_read_policy(sent))
        await asked.desk.policies.set(policy, **_read_policy_scope(asked, sent), by=asked.by)
    except (ConfigurationError, InputError) as error:
        typed = {name: sent.get(name) for name in ("workflow", "step", *POLICY_FIELDS)}
        return await _render_policies(request, asked, typed, str(error))
    return redirect_to(make_view(request).url("/policies"))


@policies_routes.post("/policies/remove", **requires(Permission.SET_POLICIES))
async def remove_policy(request: Request, asked: Context, sent: SentForm) -> Response:
    """Go back to what the code says."""
    if not await asked.desk.policies.delete(**_read_policy_scope(asked, sent), by=asked.by):
        raise NotFound("no policy is stored for this place")
    return redirect_to(make_view(request).url("/policies"))


async def _render_policies(
    request: Request, asked: RequestContext, typed: dict[str, str], wrong: str | None
) -> Response:
    circuits = await asked.desk.circuits.list(CircuitFilter(), limit=100)
    return await render_page(
        request,
        "policies.html",
        status=422 if wrong else 200,
        policies=await asked.desk.policies.list(),
        circuits=[one for one in circuits.items if one.override],
        workflows=[item.name for item in await asked.view.workflows()],
        typed=typed,
        wrong=wrong,
        mine=lambda stored: stored.tenant == asked.one_tenant,
    )


async def _load_stored_policy(asked: RequestContext, place: dict[str, str]) -> dict[str, str]:
    """What is stored for a place, as a form shows it."""
    wanted = (asked.one_tenant, place["workflow"] or None, place["step"] or None)
    found = [p for p in await asked.desk.policies.list() if (p.tenant, p.workflow, p.step) == wanted]
    return _format_policy(found[0]) if found else {}


def _format_policy(stored: StoredPolicy) -> dict[str, str]:
    policy = stored.policy.to_json()
    shown = {name: policy.get(name) for name in POLICY_FIELDS}
    return {name: _format_value(value) for name, value in shown.items()}


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}".removesuffix(".0")


def _read_policy(sent: Form) -> dict[str, Any]:
    """The policy that a form describes; what is blank has its default."""
    given: dict[str, Any] = {}
    for name in POLICY_FIELDS:
        text = sent.get(name)
        if not text:
            continue
        if name in ("delays", "never_retry_on"):
            given[name] = [part for part in text.replace(",", " ").split() if part]
        else:
            given[name] = _parse_policy_number(name, text)
    return given


def _parse_policy_number(name: str, text: str) -> Any:
    kind = _POLICY_NUMBERS.get(name)
    if kind is None:
        return float(text) if text.replace(".", "", 1).isdecimal() else text
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{name} takes a number, not {text!r:.40}") from None


def _read_policy_scope(asked: RequestContext, sent: Form) -> dict[str, str | None]:
    return {"workflow": sent.maybe("workflow"), "step": sent.maybe("step"), "tenant": asked.one_tenant}


# -- Workflows that code registered, and whether they are paused; the workers that execute them ----------


workflows_routes = make_page_router()


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it is shown; `live` while its lease holds."""

    name: str
    version: str
    live: bool
    stopped: bool
    workflows: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    lease_until: datetime


async def _load_next_times(asked: RequestContext) -> Mapping[str, datetime]:
    """When schedules start workflows of this tenant next."""
    kept = await asked.desk.schedules.list()
    times = [(each.workflow, each.next[0].astimezone(UTC)) for each in kept if each.next]
    return dict(sorted(times, key=lambda one: one[1], reverse=True))  # the first one stays


async def list_worker_statuses(asked: RequestContext) -> list[WorkerStatus]:
    """All workers still known, newest first; for a token for some workflows, those that have them."""
    now, some = asked.whole.now(), asked.principal.workflows
    rows = [_make_worker_status(row, now) for row in await asked.whole.workers()]
    if some is None:
        return rows
    narrowed = [replace(each, workflows=tuple(filter(some.__contains__, each.workflows))) for each in rows]
    return [each for each in narrowed if each.workflows]


def _make_worker_status(row: WorkerRow, now: int) -> WorkerStatus:
    return WorkerStatus(
        name=row.name,
        version=row.version,
        live=row.is_alive_at(now),
        stopped=row.state != "LIVE",
        workflows=row.workflows,
        started_at=to_datetime(row.started_at),
        beat_at=to_datetime(row.beat_at),
        lease_until=to_datetime(row.lease_until),
    )


@workflows_routes.get("/workflows", **requires(Permission.LOOK))
async def list_workflows(request: Request, asked: Context) -> Response:
    """Every workflow, with who has it registered."""
    return await render_page(
        request, "workflows.html", workflows=await list_known_workflows(asked), fires=await _load_next_times(asked)
    )


@workflows_routes.post("/workflows/{way}", **requires(Permission.PAUSE))
async def change_workflow(request: Request, asked: Context, way: str, sent: SentForm) -> Response:
    """Let no run of a workflow be taken, of any tenant, or let them be taken again."""
    name = sent.get("name")
    if way not in ("pause", "resume") or name not in {item.name for item in await asked.view.workflows()}:
        raise NotFound("no code registered a workflow of this name")
    desk = make_workflows_desk(asked)
    await (desk.pause if way == "pause" else desk.resume)(name, by=asked.by)
    return redirect_to(make_view(request).url("/workflows"))


@workflows_routes.get("/workers", **requires(Permission.LOOK))
async def list_workers(request: Request, asked: Context) -> Response:
    """Every worker, alive or not."""
    return await render_page(request, "workers.html", workers=await list_worker_statuses(asked))
