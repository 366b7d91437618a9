"""Workflows that code registered, and whether they are paused; the workers that execute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.duration import moment
from redrive.errors import NotFound
from redrive.frozen import dataclass
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.workflows import desk_of, known
from redrive.store.workers import WorkerRow

__all__ = ["Working", "workflows_routes", "working"]

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
async def turn(request: Request, asked: Asked, way: str, sent: Sent) -> Response:
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
