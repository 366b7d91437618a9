"""Policies: how retries are done, where people decided that the code does not know best."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.desk.policies import StoredPolicy
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.store.selection import CircuitFilter

__all__ = ["policies_routes"]

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
    return await _page(request, asked, {**place, **await _stored(asked, place)}, None)


@policies_routes.post("/policies", **needs(Permission.SET_POLICIES))
async def set_policy(request: Request, asked: Asked, sent: Sent) -> Response:
    """Store a policy, in force from the next attempt on."""
    try:
        policy = RetryPolicy.from_json(_given(sent))
        await asked.desk.policies.set(policy, **_place(asked, sent), by=asked.by)
    except (ConfigurationError, InputError) as error:
        typed = {name: sent.get(name) for name in ("workflow", "step", *FIELDS)}
        return await _page(request, asked, typed, str(error))
    return to(view_of(request).url("/policies"))


@policies_routes.post("/policies/remove", **needs(Permission.SET_POLICIES))
async def remove(request: Request, asked: Asked, sent: Sent) -> Response:
    """Go back to what the code says."""
    if not await asked.desk.policies.delete(**_place(asked, sent), by=asked.by):
        raise NotFound("no policy is stored for this place")
    return to(view_of(request).url("/policies"))


async def _page(request: Request, asked: Asking, typed: dict[str, str], wrong: str | None) -> Response:
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


def _given(sent: Form) -> dict[str, Any]:
    """The policy that a form describes; what is blank has its default."""
    given: dict[str, Any] = {}
    for name in FIELDS:
        text = sent.get(name)
        if not text:
            continue
        if name in ("delays", "never_retry_on"):
            given[name] = [part for part in text.replace(",", " ").split() if part]
        else:
            given[name] = _number(name, text)
    return given


def _number(name: str, text: str) -> Any:
    kind = _NUMBERS.get(name)
    if kind is None:
        return float(text) if text.replace(".", "", 1).isdecimal() else text
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"{name} takes a number, not {text!r:.40}") from None


def _place(asked: Asking, sent: Form) -> dict[str, str | None]:
    return {"workflow": sent.maybe("workflow"), "step": sent.maybe("step"), "tenant": asked.one_tenant}
