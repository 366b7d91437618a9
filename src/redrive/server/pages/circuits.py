"""Circuits: which dependencies are not called at the moment, and a person's say in that."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.errors import InputError, NotFound
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.server.pages.lists import FORMATS, all_of, chosen, sheet
from redrive.store.selection import AuditFilter, CircuitFilter

__all__ = ["circuits_routes"]

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
