"""The list of runs."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, RunStatus
from redrive.desk.models import Run
from redrive.desk.saga import Ledger
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.server.pages.display import plot_waterfall
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.lists import (
    FILE_FORMATS,
    TIME_RANGES,
    export_rows,
    fetch_all,
    list_saved_views,
    parse_since,
    read_query,
)
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.translations import N
from redrive.server.request import Context, requires
from redrive.server.routes.common import Id, parse_index
from redrive.store.filters import RunFilter

# -- The list of runs ------------------------------------------------------------------------------------


runs_routes = make_page_router()
_S = RunStatus
RUN_KINDS: dict[str, tuple[str, tuple[RunStatus, ...]]] = {
    "": (N("All"), ()),
    "going": (N("Under way"), (_S.PENDING, _S.RUNNING)),
    "waiting": (N("Waiting for something"), (_S.SLEEPING,)),
    "person": (N("Waiting for a person"), (_S.DLQ_PENDING, _S.PARTIAL)),
    "back": (N("Rolled back"), (_S.COMPENSATING, _S.COMPENSATED)),
    "good": (N("Succeeded"), (_S.SUCCESS,)),
    "bad": (N("Failed"), (_S.FAILED, _S.TIMED_OUT)),
    "off": (N("Cancelled"), (_S.CANCELLED,)),
}
"""What people look for, by the states that are it."""

_COLUMNS = {
    "id": lambda run: run.id,
    "workflow": lambda run: run.workflow,
    "tenant": lambda run: run.tenant,
    "status": lambda run: run.status.value,
    "correlation_id": lambda run: run.correlation_id,
    "created_at": lambda run: run.created_at,
    "started_at": lambda run: run.started_at,
    "finished_at": lambda run: run.finished_at,
    "next_at": lambda run: run.next_at,
    "code": lambda run: run.code,
    "error": lambda run: run.error,
}


@runs_routes.get("/runs", **requires(Permission.LOOK))
async def list_runs(request: Request, asked: Context) -> Response:
    """A page of runs, newest first, or all that match as a file."""
    query = read_query(request, *FILTER_FIELDS[ListName.RUNS])
    where = _make_filter(query, make_view(request).now)
    kind = request.query_params.get("format")
    if kind in FILE_FORMATS:
        rows = await fetch_all(lambda limit, cursor: asked.desk.runs.list(where, limit=limit, cursor=cursor))
        return export_rows("runs", kind, _COLUMNS, rows)
    cursor = request.query_params.get("cursor")
    return await render_page(
        request,
        "runs.html",
        found=await asked.desk.runs.list(where, limit=50, cursor=cursor),
        query=query,
        views=await list_saved_views(asked, ListName.RUNS),
        first=cursor is None,
        kinds=RUN_KINDS,
        ranges=TIME_RANGES,
        workflows=[item.name for item in await asked.view.workflows()],
        took=_compute_duration,
    )


def _make_filter(query: dict[str, str], now: Any) -> RunFilter:
    index = query.get("index")
    return RunFilter(
        workflow=query.get("workflow"),
        status=_read_statuses(query) or None,
        correlation_id=query.get("correlation_id"),
        idempotency_key=query.get("idempotency_key"),
        queue=query.get("queue"),
        index=parse_index([index]) if index else None,
        since=parse_since(query.get("since"), now),
    )


def _read_statuses(query: dict[str, str]) -> tuple[str, ...]:
    """What an address says about states: one of them by its name, or a kind."""
    if "status" in query:
        return (query["status"],)
    return RUN_KINDS.get(query.get("kind", ""), RUN_KINDS[""])[1]


def _compute_duration(run: Run) -> float | None:
    """Seconds from the start of a run to its end."""
    if run.finished_at is None:
        return None
    return (run.finished_at - (run.started_at or run.created_at)).total_seconds()


# -- One run: what happened, and what can be done about it -----------------------------------------------


run_routes = make_page_router()
_RETRYABLE_STATUSES = frozenset({_S.DLQ_PENDING, _S.TIMED_OUT, _S.FAILED, _S.PARTIAL})


def can_cancel(run: Run) -> bool:
    """True if a run still goes on and may be stopped for good."""
    return run.status not in FINAL_RUN_STATUSES and run.status is not _S.COMPENSATING


def can_retry(run: Run) -> bool:
    """True if a run ended in a way that may be tried again."""
    return run.status in _RETRYABLE_STATUSES


@run_routes.get("/runs/{id}", **requires(Permission.LOOK))
async def show_run(request: Request, asked: Context, id: Id) -> Response:
    """A run with everything that is known about it."""
    run = await asked.desk.runs.get(id)
    ledger = await asked.desk.sagas.get(run.id)
    own = [step for step in run.steps if step.kind in EXECUTED_KINDS]
    return await render_page(
        request,
        "run.html",
        run=run,
        ledger=ledger,
        fall=plot_waterfall(run.steps, begin=run.created_at, now=make_view(request).now),
        steps=own,
        retrying=_find_retrying_step(run),
        said=_find_error_message(run),
        can_cancel=can_cancel(run),
        can_retry=can_retry(run),
        can_resume=_is_rollback_stopped(run, ledger),
        stopped_at=_find_stopped_step(ledger),
    )


def _find_retrying_step(run: Run) -> Any:
    """The step that waits for its next attempt, if one does."""
    waiting = [step for step in run.steps if step.status.value == "RETRYING" and not step.superseded]
    return waiting[0] if waiting and run.status not in FINAL_RUN_STATUSES else None


def _find_error_message(run: Run) -> str | None:
    """What the error said that stopped it, in the words of whoever wrote the code."""
    tries = [each for step in run.steps if not step.superseded for each in step.attempts if each.message]
    return max(tries, key=lambda each: each.began_at).message if tries else None


def _is_rollback_stopped(run: Run, ledger: Ledger) -> bool:
    return run.status is _S.DLQ_PENDING and any(not entry.is_over for entry in ledger.entries)


def _find_stopped_step(ledger: Ledger) -> str | None:
    """The step whose compensation is next to be decided about."""
    return next((entry.step_key for entry in ledger.entries if not entry.is_over), None)


@run_routes.post("/runs/{id}/cancel", **requires(Permission.CANCEL))
async def cancel_run(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Stop a run for good."""
    run = await asked.desk.runs.cancel(id, by=asked.by, reason=sent.get("reason"))
    return redirect_to(make_view(request).url(f"/runs/{run.id}"))


@run_routes.post("/runs/{id}/saga/{way}", **requires(Permission.DECIDE))
async def decide_rollback(request: Request, asked: Context, id: Id, way: str, sent: SentForm) -> Response:
    """Decide about a rollback: go on with it, leave a compensation out, or say that it was done by hand."""
    ledger = await asked.desk.sagas.get(id)
    reason = sent.maybe("reason")
    match way:
        case "resume":
            await ledger.resume(by=asked.by, reason=reason)
        case "skip":
            await ledger.skip(sent.get("step"), by=asked.by, reason=reason)
        case _:
            await ledger.mark_done(sent.get("step"), by=asked.by, reason=reason)
    return redirect_to(make_view(request).url(f"/runs/{id}") + "#ledger")
