"""The first page: is anything on fire?"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.clock import MICROS
from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.desk.overview import MOST, standing
from redrive.frozen import dataclass
from redrive.server.pages.forms import pages
from redrive.server.pages.operations import working
from redrive.server.pages.render import show
from redrive.server.pages.translations import N
from redrive.server.request import Asked, Asking, known, needs, oldest
from redrive.store.filters import CircuitFilter

__all__ = ["Sign", "health_routes", "overview_routes"]


# -- The first page: is anything on fire? ----------------------------------------------------------------


overview_routes = pages()
_GROUPS, _CIRCUITS = 8, 20


@overview_routes.get("/", **needs(Permission.LOOK))
async def overview(request: Request, asked: Asked) -> Response:
    """What is failing now and since when, what waits, and whether anybody works."""
    stands = await standing(asked.view, asked.one_tenant)
    groups = await asked.desk.dlq.groups(asked.one_tenant, limit=_GROUPS)
    live = sum(each.live for each in await working(asked))
    return await show(
        request,
        "overview.html",
        stands=stands,
        groups=groups,
        circuits=await _not_closed(asked),
        live=live,
        first=await _first(asked) if live else None,
        most=MOST,
        nothing=not any([*stands.minutes.started, stands.open_letters, stands.waiting, stands.sleeping]),
    )


async def _first(asked: Asking) -> str | None:
    """A workflow that could be tried out."""
    return next((item.name for item in await asked.view.workflows()), None)


async def _not_closed(asked: Asking) -> list[CircuitRecord]:
    """Circuits that let no call through, or few."""
    found: list[CircuitRecord] = []
    for status in (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN):
        where = CircuitFilter(tenant=asked.one_tenant, status=status)
        found += (await asked.desk.circuits.list(where, limit=_CIRCUITS)).items
    return found


# -- Health: version, store, clock, workers, and what does not move --------------------------------------


health_routes = pages()
_SKEW = 2.0
_SLOW = 0.25
_LATE = 60.0


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that was looked at: good, worth a look, or bad; in words, with values to put in."""

    name: str
    level: str
    text: str
    values: dict[str, Any]


@health_routes.get("/health", **needs(Permission.LOOK))
async def health(request: Request, asked: Asked) -> Response:
    """Whether everything is in order."""
    signs = [await _store(asked), _clock(asked), await _workers(asked)]
    signs += await _workflows(asked)
    signs.append(await _late(asked))
    return await show(
        request,
        "health.html",
        signs=signs,
        version=version("redrive"),
        store=type(asked.whole).__module__.split(".")[2],
        where=asked.service.redactor.text(asked.service.app.settings.url) if _may_know(asked) else None,
    )


def _may_know(asked: Asking) -> bool:
    """Where the store is, is for those only who answer for all tenants."""
    return asked.principal.may(Permission.MANAGE_TENANTS)


async def _store(asked: Asking) -> Sign:
    begun = asked.clock.monotonic()
    await asked.view.paused()
    took = asked.clock.monotonic() - begun
    level = "good" if took < _SLOW else "warn"
    text = N("It answers within {ms} ms, and its schema is the one that this version needs.")
    return Sign(N("Store"), level, text, {"ms": max(1, round(took * 1000))})


def _clock(asked: Asking) -> Sign:
    apart = abs(asked.whole.now() - asked.clock.now()) / MICROS
    if apart > _SKEW:
        text = N("The store's clock and this machine's are {s} s apart. The store's decides.")
        return Sign(N("Clock"), "warn", text, {"s": round(apart)})
    return Sign(N("Clock"), "good", N("This machine's clock agrees with the store's."), {})


async def _workers(asked: Asking) -> Sign:
    live = sum(each.live for each in await working(asked))
    if live:
        return Sign(N("Workers"), "good", N("{n} worker is alive.|{n} workers are alive."), {"n": live})
    return Sign(N("Workers"), "bad", N("No worker is alive: runs are accepted, and wait."), {})


async def _workflows(asked: Asking) -> list[Sign]:
    found = []
    for each in await known(asked):
        if each.unclaimable:
            text = N(
                "{n} due run of {name}: no live worker has it.|{n} due runs of {name}: no live worker has it."
            )
            found.append(Sign(N("Workflows"), "bad", text, {"n": each.unclaimable, "name": each.name}))
        if each.paused_by:
            text = N("{name} was paused by {who}.")
            found.append(Sign(N("Workflows"), "warn", text, {"name": each.name, "who": each.paused_by}))
    return found or [Sign(N("Workflows"), "good", N("None is paused, and each can be taken."), {})]


async def _late(asked: Asking) -> Sign:
    """The oldest hundred that wait say enough: where those are not late, the others are not."""
    now = asked.whole.now()
    waits = [now - since for _, since in await oldest(asked)]
    if waits and max(waits) > _LATE * MICROS:
        text = N("A due run has waited for {s} s. Add workers, or let each do more at a time.")
        return Sign(N("Late runs"), "bad", text, {"s": round(max(waits) / MICROS)})
    return Sign(N("Late runs"), "good", N("No due run has waited for more than a minute."), {})
