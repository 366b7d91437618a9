"""The list of runs, and the page of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.questions import task_id
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, EntryKind, RunStatus
from redrive.desk.actor import Acting
from redrive.desk.models import Run
from redrive.desk.runs import ENDED_FOR_GOOD, RunContext, load_failed_children, load_family
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages import lists
from redrive.server.pages.charts import plot_waterfall
from redrive.server.pages.event_forms import MAX_EVENTS, load_event_forms, takes_events
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import add_list_columns, make_view, render_page
from redrive.server.pages.replay import list_retry_modes
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, requires
from redrive.server.routes.common import Id, parse_index
from redrive.store.filters import RunFilter, make_value_error
from redrive.store.list_query import parse_states

run_routes = make_page_router()
RUN_KINDS: dict[str, tuple[str, tuple[RunStatus, ...]]] = {
    "": (N("All"), ()),
    "going": (N("In progress"), (RunStatus.PENDING, RunStatus.RUNNING)),
    "waiting": (N("Waiting"), (RunStatus.SLEEPING,)),
    "person": (N("Needs attention"), (RunStatus.DLQ_PENDING, RunStatus.PARTIAL)),
    "back": (N("Rolled back"), (RunStatus.COMPENSATING, RunStatus.COMPENSATED)),
    "good": (N("Succeeded"), (RunStatus.SUCCESS,)),
    "bad": (N("Failed"), (RunStatus.FAILED, RunStatus.TIMED_OUT)),
    "off": (N("Cancelled"), (RunStatus.CANCELLED,)),
}
"""The chips above the list of runs: each label with the states that it stands for."""

add_list_columns(
    "runs",
    ("status", "current", "created_at", "duration"),
    {
        "status": N("State"),
        "current": N("Current state"),
        "created_at": N("Started"),
        "duration": N("Duration"),
        "finished_at": N("Finished"),
        "queue": N("Queue"),
        "version": N("Code version"),
        "id": N("ID"),
    },
)

_MAX_CHILDREN = 20  # runs that a run started, on its page
_MAX_TREE = 200
_FILE_COLUMNS = lists.make_columns(
    *("id", "workflow", "tenant", "status", "correlation_id", "created_at", "started_at"),
    *("finished_at", "duration_ms", "next_at", "code", "error", "error_code", "attempts_made", "max_retries"),
    "retry_policy_override",
)
_SORTS: dict[str, Callable[[Run], Any]] = {
    "name": attrgetter("workflow"),
    "duration": attrgetter("duration_ms"),
    **{name: attrgetter(name) for name in ("status", "finished_at", "queue", "correlation_id")},
}
_RETRYABLE_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.FAILED, RunStatus.PARTIAL})


def _parse_kind(text: str) -> Sequence[str]:
    """Return the states of a chip above the list."""
    if text not in RUN_KINDS:
        known = tuple(filter(None, RUN_KINDS))
        raise make_value_error("kind", Reason(ReasonCode.ONE_OF, options=known, more=None), text)
    return RUN_KINDS[text][1]


@run_routes.get("/runs", **requires(Permission.LOOK))
async def list_runs(request: Request, context: Context) -> Response:
    """Show a page of runs, newest first, or export all that match."""
    query, faults = lists.read_query(request, *FILTER_FIELDS[ListName.RUNS]), lists.begin_faults(request)
    now = make_view(request).now
    names = ("workflow", "correlation_id", "idempotency_key", "queue", "waits_for", "parent")
    same: dict[str, Any] = {name: query.get(name) for name in names}
    states = lists.parse_field(query, "status", lambda text: parse_states(text, RunStatus), faults)
    states = states or lists.parse_field(query, "kind", _parse_kind, faults)
    where = RunFilter(
        **same,
        status=states or None,
        index=lists.parse_field(query, "index", lambda text: parse_index(context, [text]), faults),
        since=lists.parse_time(query, "since", now, faults),
        until=lists.parse_time(query, "until", now, faults),
    )
    if file := await lists.export_list(
        request, "runs", _FILE_COLUMNS, lambda limit, cursor: context.desk.runs.list(where, limit=limit, cursor=cursor)
    ):
        return file
    found = await lists.load_page(
        request, context, where, lambda limit, cursor: context.desk.runs.list(where, limit=limit, cursor=cursor), _SORTS
    )
    faults = faults or {}
    asked: dict[str, Any] = {
        name: value for name, value in query.items() if name not in faults and name not in ("kind", "status")
    }
    if states:
        asked["status"] = tuple(states)
    return await render_page(
        request,
        "runs.html",
        status=422 if faults else 200,
        found=found,
        query=query,
        faults={**faults, **found.faults},
        sizes=lists.PAGE_SIZES,
        commands=lists.make_commands(request, where, ["redrive", "runs", "list"], "/runs", asked),
        views=await lists.list_saved_views(context, ListName.RUNS),
        first="cursor" not in request.query_params,
        kinds=RUN_KINDS,
        ranges=lists.TIME_RANGES,
        workflows=[item.name for item in await context.view.workflows()],
    )


class StepFailure(msgspec.Struct, frozen=True, gc=False):
    """The error message of an attempt of a step."""

    at: datetime
    name: str
    message: str
    attempts: int


@run_routes.get("/runs/{id}", **requires(Permission.LOOK))
async def show_run(request: Request, context: Context, id: Id) -> Response:
    run = await context.desk.runs.get(id)
    ledger = await context.desk.sagas.get(run.id)
    current = [step for step in run.steps if not step.superseded]
    over = run.status in FINAL_RUN_STATUSES
    # The failure of a compensation is shown beside that of the run, not instead of it.
    failures = [
        StepFailure(each.began_at, step.name, each.message, step.attempt)
        for step in current
        for each in step.attempts
        if step.kind is EntryKind.STEP and each.message
    ]
    stopped = ledger.stopped_entry
    open_waits = [] if over else [each for each in current if each.kind is EntryKind.WAIT and not each.ended_at]
    events = await context.desk.runs.events(run.id)
    family = await context.desk.runs.children(run.id, limit=_MAX_CHILDREN)
    first = family.above[0] if family.above else run
    around = None if over and not run.pinned else await context.desk.runs.context(run.id)
    return await render_page(
        request,
        "run.html",
        run=run,
        waits=open_waits,
        failed_children=await load_failed_children(context.desk.runs, open_waits),
        task_id=task_id,
        remote=() if over or around is None else around.remote,
        moves=_list_moves(run, around),
        stranded=run.pinned and not over and around is not None and not around.able,
        family=family,
        max_tree=_MAX_TREE,
        tree=await load_family(context.desk.runs, first, _MAX_TREE) if "tree" in request.query_params else None,
        events=events[-MAX_EVENTS:],
        more_events=max(0, len(events) - MAX_EVENTS),
        event_forms=await load_event_forms(context, run, open_waits) if takes_events(run) else (),
        ledger=ledger,
        fall=plot_waterfall(run.steps, begin=run.created_at, now=make_view(request).now),
        steps=[step for step in run.steps if step.kind in EXECUTED_KINDS],
        retrying=None if over else next((step for step in current if step.status.value == "RETRYING"), None),
        failed=max(failures, key=lambda failure: failure.at, default=None),
        can_cancel=not over and run.status is not RunStatus.COMPENSATING,
        can_retry=run.status in _RETRYABLE_STATUSES,
        ways=list_retry_modes(run),
        can_resume=stopped is not None,
        stopped=stopped,
    )


def _list_moves(run: Run, around: RunContext | None) -> list[str]:
    """Return the versions to which a run can be moved."""
    if around is None or not run.pinned or run.status in ENDED_FOR_GOOD:
        return []
    return [each for each in around.versions if each != run.version]


@run_routes.post("/runs/{id}/cancel", **requires(Permission.CANCEL))
async def cancel_run(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    run = await context.desk.runs.cancel(id, by=context.by, reason=form.get("reason"))
    return redirect_to(make_view(request).url(f"/runs/{run.id}"))


@run_routes.post("/runs/{id}/move", **requires(Permission.DECIDE))
async def move_run(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Move a pinned run to another version of the code."""
    run = await context.desk.runs.move(id, form.get("to"), by=context.by, reason=form.maybe("reason"))
    return redirect_to(make_view(request).url(f"/runs/{run.id}"))


@run_routes.post("/runs/{id}/saga/{way}", **requires(Permission.DECIDE))
async def decide_rollback(request: Request, context: Context, id: Id, way: str, form: SentForm) -> Response:
    """Resume a rollback, skip one of its steps, or mark one as done manually."""
    ledger = await context.desk.sagas.get(id)
    actor: Acting = {"by": context.by, "reason": form.maybe("reason")}
    if way == "resume":
        await ledger.resume(**actor)
    else:
        await (ledger.skip if way == "skip" else ledger.mark_done)(form.get("step"), **actor)
    if letter := form.get("letter"):
        return redirect_to(make_view(request).url(f"/admin/dlq/{letter}", done="decided"))
    return redirect_to(make_view(request).url(f"/runs/{id}") + "#ledger")
