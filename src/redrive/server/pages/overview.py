"""The first page: is anything on fire?"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.clock import MICROS
from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.desk.overview import MAX_COUNTED_RUNS, load_overview
from redrive.server.pages.forms import make_page_router
from redrive.server.pages.operations import list_worker_statuses
from redrive.server.pages.render import render_page
from redrive.server.pages.translations import N
from redrive.server.request import Context, RequestContext, list_known_workflows, list_oldest_due_runs, requires
from redrive.store.filters import CircuitFilter

# -- The first page: is anything on fire? ----------------------------------------------------------------


overview_routes = make_page_router()
_MAX_GROUPS, _MAX_CIRCUITS = 8, 20


@overview_routes.get("/", **requires(Permission.LOOK))
async def show_overview(request: Request, asked: Context) -> Response:
    """What is failing now and since when, what waits, and whether anybody works."""
    stands = await load_overview(asked.view, asked.one_tenant)
    groups = await asked.desk.dlq.groups(asked.one_tenant, limit=_MAX_GROUPS)
    live = sum(each.live for each in await list_worker_statuses(asked))
    return await render_page(
        request,
        "overview.html",
        stands=stands,
        groups=groups,
        circuits=await _list_unclosed_circuits(asked),
        live=live,
        first=await _find_first_workflow(asked) if live else None,
        most=MAX_COUNTED_RUNS,
        nothing=not any([*stands.minutes.started, stands.open_letters, stands.waiting, stands.sleeping]),
    )


async def _find_first_workflow(asked: RequestContext) -> str | None:
    """A workflow that could be tried out."""
    return next((item.name for item in await asked.view.workflows()), None)


async def _list_unclosed_circuits(asked: RequestContext) -> list[CircuitRecord]:
    """Circuits that let no call through, or few."""
    found: list[CircuitRecord] = []
    for status in (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN):
        where = CircuitFilter(tenant=asked.one_tenant, status=status)
        found += (await asked.desk.circuits.list(where, limit=_MAX_CIRCUITS)).items
    return found


# -- Health: version, store, clock, workers, and what does not move --------------------------------------


health_routes = make_page_router()
_MAX_CLOCK_SKEW = 2.0
_SLOW_STORE = 0.25
_LATE_AFTER = 60.0


class HealthCheck(msgspec.Struct, frozen=True):
    """One thing that was looked at: good, worth a look, or bad; in words, with values to put in."""

    name: str
    level: str
    text: str
    values: dict[str, Any]


@health_routes.get("/health", **requires(Permission.LOOK))
async def show_health(request: Request, asked: Context) -> Response:
    """Whether everything is in order."""
    signs = [await _check_store(asked), _check_clock(asked), await _check_workers(asked)]
    signs += await _check_workflows(asked)
    signs.append(await _check_late_runs(asked))
    return await render_page(
        request,
        "health.html",
        signs=signs,
        version=version("redrive"),
        store=type(asked.whole).__module__.split(".")[2],
        where=asked.service.redactor.text(asked.service.app.settings.url) if _may_see_store(asked) else None,
    )


def _may_see_store(asked: RequestContext) -> bool:
    """Where the store is, is for those only who answer for all tenants."""
    return asked.principal.may(Permission.MANAGE_TENANTS)


async def _check_store(asked: RequestContext) -> HealthCheck:
    begun = asked.clock.monotonic()
    await asked.view.paused()
    took = asked.clock.monotonic() - begun
    level = "good" if took < _SLOW_STORE else "warn"
    text = N("Responds within {ms} ms. The schema is up to date.")
    return HealthCheck(N("Database"), level, text, {"ms": max(1, round(took * 1000))})


def _check_clock(asked: RequestContext) -> HealthCheck:
    apart = abs(asked.whole.now() - asked.clock.now()) / MICROS
    if apart > _MAX_CLOCK_SKEW:
        text = N("The clocks of the database and of this machine differ by {s} s. The database clock is used.")
        return HealthCheck(N("Clock"), "warn", text, {"s": round(apart)})
    return HealthCheck(N("Clock"), "good", N("The clock of this machine matches the database clock."), {})


async def _check_workers(asked: RequestContext) -> HealthCheck:
    live = sum(each.live for each in await list_worker_statuses(asked))
    if live:
        return HealthCheck(N("Workers"), "good", N("{n} worker is running.|{n} workers are running."), {"n": live})
    return HealthCheck(N("Workers"), "bad", N("No worker is running. New runs wait in the queue."), {})


async def _check_workflows(asked: RequestContext) -> list[HealthCheck]:
    found = []
    for each in await list_known_workflows(asked):
        if each.unclaimable:
            text = N("{n} due run of {name} has no worker.|{n} due runs of {name} have no worker.")
            found.append(HealthCheck(N("Workflows"), "bad", text, {"n": each.unclaimable, "name": each.name}))
        if each.paused_by:
            text = N("{name} was paused by {who}.")
            found.append(HealthCheck(N("Workflows"), "warn", text, {"name": each.name, "who": each.paused_by}))
    return found or [HealthCheck(N("Workflows"), "good", N("All workflows are active."), {})]


async def _check_late_runs(asked: RequestContext) -> HealthCheck:
    """The oldest hundred that wait say enough: where those are not late, the others are not."""
    now = asked.whole.now()
    waits = [now - since for _, since in await list_oldest_due_runs(asked)]
    if waits and max(waits) > _LATE_AFTER * MICROS:
        text = N("A due run has waited {s} s. Add workers, or raise their concurrency.")
        return HealthCheck(N("Overdue runs"), "bad", text, {"s": round(max(waits) / MICROS)})
    return HealthCheck(N("Overdue runs"), "good", N("No run has been overdue for more than a minute."), {})
