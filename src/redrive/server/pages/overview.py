"""The overview: what needs attention, and how much runs and fails; and the health of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.clock import MICROS
from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.desk.overview import MAX_COUNTED_RUNS, load_overview
from redrive.desk.workflows import WorkerState
from redrive.server.pages.causes import chart_failures, find_highest_trend, read_range
from redrive.server.pages.charts import CHART_RANGES, plot_slots
from redrive.server.pages.forms import make_page_router
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import list_known_workers, list_known_workflows, list_oldest_due_runs
from redrive.store.filters import CircuitFilter
from redrive.store.workers import CRASH_LOOP
from redrive.time_values import to_datetime

overview_routes = make_page_router()
_MAX_GROUPS, _MAX_CIRCUITS = 8, 20


@overview_routes.get("/", **requires(Permission.LOOK))
async def show_overview(request: Request, context: Context) -> Response:
    """Show the failures, open circuits, overdue runs and workers of the tenant."""
    chosen = read_range(request)
    wanted = CHART_RANGES[chosen]
    summary = await load_overview(context.view, context.one_tenant, seconds=wanted.seconds, slots=wanted.slots)
    circuits: list[CircuitRecord] = []
    # Circuits name no workflow, so a token for some workflows does not see them.
    for status in () if context.principal.workflows is not None else (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN):
        where = CircuitFilter(tenant=context.one_tenant, status=status)
        circuits += (await context.desk.circuits.list(where, limit=_MAX_CIRCUITS)).items
    live = sum(worker.state is WorkerState.RUNNING for worker in await list_known_workers(context))
    workflows = await context.view.workflows() if live else []
    groups = await context.desk.dlq.groups(context.one_tenant, muted=False, limit=_MAX_GROUPS)
    return await render_page(
        request,
        "overview.html",
        summary=summary,
        groups=groups,
        highest=find_highest_trend(groups.items),
        failures=await chart_failures(context, chosen),
        range=chosen,
        chart=plot_slots(summary.runs.good, summary.runs.failed, wanted, to_datetime(summary.runs.begin)),
        circuits=circuits,
        tasks=(tasks := await context.desk.tasks.waiting(tenant=context.one_tenant)),
        oldest_task=None if tasks.oldest is None else to_datetime(tasks.oldest),
        live=live,
        first=next((item.name for item in workflows), None),
        most=MAX_COUNTED_RUNS,
        nothing=not any([*summary.runs.started, summary.open_letters, summary.waiting, summary.sleeping]),
    )


health_page_routes = make_page_router()
_MAX_CLOCK_SKEW = 2.0
_SLOW_STORE = 0.25
_LATE_AFTER = 60.0

Check = tuple[str, str, str, dict[str, Any]]
"""A health check: its name, its result (good, warn or bad), the text for it and the values of the text."""


@health_page_routes.get("/health", **requires(Permission.LOOK))
async def show_health(request: Request, context: Context) -> Response:
    """Show the health of the store, the clock, the workers and the workflows."""
    owner = context.principal.may(Permission.MANAGE_TENANTS)  # only owners may know the address of the store
    return await render_page(
        request,
        "health.html",
        checks=[check async for check in _run_checks(context, make_view(request).format_span)],
        version=version("redrive"),
        store=type(context.whole).__module__.split(".")[2],
        where=context.service.redactor.text(context.service.app.settings.url) if owner else None,
    )


async def _run_checks(context: RequestContext, span: Callable[[float], str]) -> AsyncIterator[Check]:
    begun = context.clock.monotonic()
    await context.view.paused()
    took = context.clock.monotonic() - begun
    text = N("Responds within {ms} ms. The schema is up to date.")
    yield N("Database"), "good" if took < _SLOW_STORE else "warn", text, {"ms": max(1, round(took * 1000))}

    skew = abs(context.whole.now() - context.clock.now()) / MICROS
    if skew > _MAX_CLOCK_SKEW:
        text = N("The clocks of the database and of this machine differ by {s} s. The database clock is used.")
        yield N("Clock"), "warn", text, {"s": round(skew)}
    else:
        yield N("Clock"), "good", N("The clock of this machine matches the database clock."), {}

    workers = await list_known_workers(context)
    if live := sum(worker.state is WorkerState.RUNNING for worker in workers):
        yield N("Workers"), "good", N("{n} worker is running.|{n} workers are running."), {"n": live}
    else:
        yield N("Workers"), "bad", N("No worker is running. New runs wait in the queue."), {}
    if crashes := sum(worker.recent for worker in workers):
        text = N("{n} worker crashed in the last hour.|{n} workers crashed in the last hour.")
        yield N("Workers"), "bad" if crashes >= CRASH_LOOP else "warn", text, {"n": crashes}

    if stalled := sum(worker.stalled for worker in workers):
        text = N(
            "{n} run is held by a remote worker that has reported nothing for ten leases."
            "|{n} runs are held by remote workers that have reported nothing for ten leases."
        )
        yield N("Workers"), "bad", text, {"n": stalled}

    workflows = await list_known_workflows(context)
    for workflow in workflows:
        if workflow.unclaimable:
            text = N("{n} due run of {name} has no worker.|{n} due runs of {name} have no worker.")
            yield N("Workflows"), "bad", text, {"n": workflow.unclaimable, "name": workflow.name}
        if workflow.idle_queues:
            text = N("No worker that has {name} takes runs from these queues: {queues}. Start one for them.")
            yield N("Queues"), "bad", text, {"name": workflow.name, "queues": ", ".join(workflow.idle_queues)}
        for pinned in workflow.idle_versions:
            text = N("Due runs of {name} are pinned to version {version}, which no worker has.")
            yield N("Versions"), "bad", text, {"name": workflow.name, "version": pinned}
        if workflow.paused_by:
            values = {"name": workflow.name, "who": workflow.paused_by}
            yield N("Workflows"), "warn", N("{name} was paused by {who}."), values
    if not any(workflow.unclaimable or workflow.paused_by for workflow in workflows):
        yield N("Workflows"), "good", N("All workflows are active."), {}

    # The oldest hundred runs are enough: if they are not overdue, no other run is.
    now = context.whole.now()
    longest = max((now - (run.available_at or now) for run in await list_oldest_due_runs(context)), default=0)
    if longest > _LATE_AFTER * MICROS:
        text = N("A due run has waited {span}. Add workers, or raise their concurrency.")
        yield N("Overdue runs"), "bad", text, {"span": span(longest / MICROS)}
    else:
        yield N("Overdue runs"), "good", N("No run has been overdue for more than a minute."), {}
