"""Health: version, store, clock, workers, and what does not move."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.clock import MICROS
from redrive.core.roles import Permission
from redrive.frozen import dataclass
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show
from redrive.server.pages.forms import pages
from redrive.server.pages.words import N
from redrive.server.pages.workflows import working
from redrive.server.workflows import known, oldest

__all__ = ["Sign", "health_routes"]

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
