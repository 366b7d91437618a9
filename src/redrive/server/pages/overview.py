"""The first page: is anything on fire?"""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.desk.standing import MOST, standing
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show
from redrive.server.pages.forms import pages
from redrive.server.pages.workflows import working
from redrive.store.selection import CircuitFilter

__all__ = ["overview_routes"]

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
