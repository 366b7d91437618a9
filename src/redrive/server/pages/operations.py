"""Policies: how retries are done, where people decided that the code does not know best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.settings import StoredPolicy
from redrive.duration import moment
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.server.pages.lists import FORMATS, all_of, chosen, sheet
from redrive.server.pages.render import show, view_of
from redrive.server.request import Asked, Asking, desk_of, known, needs
from redrive.store.filters import AuditFilter, CircuitFilter
from redrive.store.workers import WorkerRow

__all__ = ["Working", "circuits_routes", "policies_routes", "workflows_routes", "working"]


# -- Circuits: which dependencies are not called at the moment, and a person's say in that ---------------


circuits_routes = pages()
_WHOLE = ("failures", "probes")
_SPANS = ("window", "open_for")
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


@circuits_routes.get("/circuits", **needs(Permission.LOOK, all_workflows=True))
async def list_circuits(request: Request, asked: Asked) -> Response:
    """A page of circuits that something ever happened to."""
    query = chosen(request, "status")
    where = CircuitFilter(status=query.get("status"))
    kind = request.query_params.get("format")
    if kind in FORMATS:
        rows = await all_of(lambda limit, cursor: asked.desk.circuits.list(where, limit=limit, cursor=cursor))
        return sheet("circuits", kind, _COLUMNS, rows)
    found = await asked.desk.circuits.list(where, limit=50, cursor=request.query_params.get("cursor"))
    return await show(request, "circuits.html", found=found, query=query, states=list(CircuitStatus))


@circuits_routes.get("/circuits/one", **needs(Permission.LOOK, all_workflows=True))
async def show_circuit(request: Request, asked: Asked, key: str = "") -> Response:
    """One circuit: how it stands, who waits, its settings and what happened to it."""
    return await _page(request, asked, key, None)


@circuits_routes.post("/circuits/one", **needs(Permission.DECIDE, all_workflows=True))
async def turn(request: Request, asked: Asked, sent: Sent) -> Response:
    """Open, close or reset a circuit."""
    desk = asked.desk.circuits
    ways = {"open": desk.open, "close": desk.close, "reset": desk.reset}
    way = ways.get(sent.get("way"))
    if way is None:
        raise NotFound("a circuit is opened, closed or reset")
    await way(sent.get("key"), tenant=asked.home, by=asked.by, reason=sent.maybe("reason"))
    return to(view_of(request).url("/circuits/one", key=sent.get("key")))


@circuits_routes.post("/circuits/settings", **needs(Permission.SET_POLICIES, all_workflows=True))
async def settings(request: Request, asked: Asked, sent: Sent) -> Response:
    """Set what is in force in place of what the code says, or go back to that."""
    key, desk = sent.get("key"), asked.desk.circuits
    try:
        if sent.get("unset"):
            await desk.unset(key, tenant=asked.home, by=asked.by)
        else:
            await desk.set(key, tenant=asked.home, by=asked.by, **_given(sent))
    except InputError as error:
        return await _page(request, asked, key, str(error), sent)
    return to(view_of(request).url("/circuits/one", key=key))


async def _page(
    request: Request, asked: Asking, key: str, wrong: str | None, sent: Form | None = None
) -> Response:
    circuit = await asked.desk.circuits.get(key, tenant=asked.home)
    where = AuditFilter(event="circuit.", subject=circuit.key)
    lines = await asked.desk.audit.list(where, limit=20, language=view_of(request).lang)
    typed = {name: sent.get(name) for name in (*_WHOLE, *_SPANS, "on_open")} if sent else {}
    return await show(
        request,
        "circuit.html",
        status=422 if wrong else 200,
        circuit=circuit,
        lines=lines.items,
        wrong=wrong,
        typed=typed,
    )


def _given(sent: Form) -> dict[str, Any]:
    """The settings that a form names; what is blank stays as it is."""
    given: dict[str, Any] = {name: _number(name, sent.get(name)) for name in _WHOLE if sent.get(name)}
    given |= {name: sent.get(name) for name in (*_SPANS, "on_open") if sent.get(name)}
    return given


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{name} is a whole number, not {text!r:.40}")
    return int(text)


# -- Policies: how retries are done, where people decided that the code does not know best ---------------


policies_routes = pages()
FIELDS = (
    "max_retries",
    "base_delay",
    "factor",
    "max_delay",
    "jitter",
    "max_elapsed",
    "delays",
    "never_retry_on",
)
_NUMBERS = {"max_retries": int, "factor": float, "jitter": float}


@policies_routes.get("/policies", **needs(Permission.LOOK))
async def list_policies(request: Request, asked: Asked, workflow: str = "", step: str = "") -> Response:
    """What is stored, and a form to store more; an address may name the place to begin with."""
    place = {"workflow": workflow, "step": step}
    return await _page_policies(request, asked, {**place, **await _stored(asked, place)}, None)


@policies_routes.post("/policies", **needs(Permission.SET_POLICIES))
async def set_policy(request: Request, asked: Asked, sent: Sent) -> Response:
    """Store a policy, in force from the next attempt on."""
    try:
        policy = RetryPolicy.from_json(_given_policies(sent))
        await asked.desk.policies.set(policy, **_place(asked, sent), by=asked.by)
    except (ConfigurationError, InputError) as error:
        typed = {name: sent.get(name) for name in ("workflow", "step", *FIELDS)}
        return await _page_policies(request, asked, typed, str(error))
    return to(view_of(request).url("/policies"))


@policies_routes.post("/policies/remove", **needs(Permission.SET_POLICIES))
async def remove(request: Request, asked: Asked, sent: Sent) -> Response:
    """Go back to what the code says."""
    if not await asked.desk.policies.delete(**_place(asked, sent), by=asked.by):
        raise NotFound("no policy is stored for this place")
    return to(view_of(request).url("/policies"))


async def _page_policies(
    request: Request, asked: Asking, typed: dict[str, str], wrong: str | None
) -> Response:
    circuits = await asked.desk.circuits.list(CircuitFilter(), limit=100)
    return await show(
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


async def _stored(asked: Asking, place: dict[str, str]) -> dict[str, str]:
    """What is stored for a place, as a form shows it."""
    wanted = (asked.one_tenant, place["workflow"] or None, place["step"] or None)
    found = [p for p in await asked.desk.policies.list() if (p.tenant, p.workflow, p.step) == wanted]
    return _typed(found[0]) if found else {}


def _typed(stored: StoredPolicy) -> dict[str, str]:
    policy = stored.policy.to_json()
    shown = {name: policy.get(name) for name in FIELDS}
    return {name: _text(value) for name, value in shown.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}".removesuffix(".0")


def _given_policies(sent: Form) -> dict[str, Any]:
    """The policy that a form describes; what is blank has its default."""
    given: dict[str, Any] = {}
    for name in FIELDS:
        text = sent.get(name)
        if not text:
            continue
        if name in ("delays", "never_retry_on"):
            given[name] = [part for part in text.replace(",", " ").split() if part]
        else:
            given[name] = _number_policies(name, text)
    return given


def _number_policies(name: str, text: str) -> Any:
    kind = _NUMBERS.get(name)
    if kind is None:
        return float(text) if text.replace(".", "", 1).isdecimal() else text
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{name} takes a number, not {text!r:.40}") from None


def _place(asked: Asking, sent: Form) -> dict[str, str | None]:
    return {"workflow": sent.maybe("workflow"), "step": sent.maybe("step"), "tenant": asked.one_tenant}


# -- Workflows that code registered, and whether they are paused; the workers that execute them ----------


workflows_routes = pages()


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """A worker as it is shown; `live` while its lease holds."""

    name: str
    version: str
    live: bool
    stopped: bool
    workflows: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    lease_until: datetime


async def _next_times(asked: Asking) -> Mapping[str, datetime]:
    """When schedules start workflows of this tenant next."""
    kept = await asked.desk.schedules.list()
    times = [(each.workflow, each.next[0].astimezone(UTC)) for each in kept if each.next]
    return dict(sorted(times, key=lambda one: one[1], reverse=True))  # the first one stays


async def working(asked: Asking) -> list[Working]:
    """All workers still known, newest first; for a token for some workflows, those that have them."""
    now, some = asked.whole.now(), asked.principal.workflows
    rows = [_working(row, now) for row in await asked.whole.workers()]
    if some is None:
        return rows
    narrowed = [replace(each, workflows=tuple(filter(some.__contains__, each.workflows))) for each in rows]
    return [each for each in narrowed if each.workflows]


def _working(row: WorkerRow, now: int) -> Working:
    return Working(
        name=row.name,
        version=row.version,
        live=row.lives_at(now),
        stopped=row.state != "LIVE",
        workflows=row.workflows,
        started_at=moment(row.started_at),
        beat_at=moment(row.beat_at),
        lease_until=moment(row.lease_until),
    )


@workflows_routes.get("/workflows", **needs(Permission.LOOK))
async def list_workflows(request: Request, asked: Asked) -> Response:
    """Every workflow, with who has it registered."""
    return await show(request, "workflows.html", workflows=await known(asked), fires=await _next_times(asked))


@workflows_routes.post("/workflows/{way}", **needs(Permission.PAUSE))
async def turn_workflows(request: Request, asked: Asked, way: str, sent: Sent) -> Response:
    """Let no run of a workflow be taken, of any tenant, or let them be taken again."""
    name = sent.get("name")
    if way not in ("pause", "resume") or name not in {item.name for item in await asked.view.workflows()}:
        raise NotFound("no code registered a workflow of this name")
    desk = desk_of(asked)
    await (desk.pause if way == "pause" else desk.resume)(name, by=asked.by)
    return to(view_of(request).url("/workflows"))


@workflows_routes.get("/workers", **needs(Permission.LOOK))
async def list_workers(request: Request, asked: Asked) -> Response:
    """Every worker, alive or not."""
    return await show(request, "workers.html", workers=await working(asked))
