"""The overview: what needs attention, and how much runs and fails."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.desk.overview import MAX_COUNTED_RUNS, load_overview
from redrive.desk.workflows import WorkerState
from redrive.duration import to_datetime
from redrive.server.pages.causes import chart_failures, find_highest_trend, read_range
from redrive.server.pages.charts import CHART_RANGES, plot_slots
from redrive.server.pages.forms import make_page_router
from redrive.server.pages.render import render_page
from redrive.server.request_context import Context, requires
from redrive.server.routes.common import list_known_workers
from redrive.store.filters import CircuitFilter

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
