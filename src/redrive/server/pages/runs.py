"""The list of runs."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.core.states import RunStatus
from redrive.desk.shapes import Run
from redrive.desk.views import FIELDS, ListName
from redrive.server.asking import Asked, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import pages
from redrive.server.pages.lists import FORMATS, RANGES, all_of, chosen, sheet, since_of
from redrive.server.pages.views import saved
from redrive.server.pages.words import N
from redrive.server.routes.runs import indexed
from redrive.store.selection import RunFilter

__all__ = ["runs_routes"]

runs_routes = pages()

_S = RunStatus
KINDS: dict[str, tuple[str, tuple[RunStatus, ...]]] = {
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


@runs_routes.get("/runs", **needs(Permission.LOOK))
async def list_runs(request: Request, asked: Asked) -> Response:
    """A page of runs, newest first, or all that match as a file."""
    query = chosen(request, *FIELDS[ListName.RUNS])
    where = _filter(query, view_of(request).now)
    kind = request.query_params.get("format")
    if kind in FORMATS:
        rows = await all_of(lambda limit, cursor: asked.desk.runs.list(where, limit=limit, cursor=cursor))
        return sheet("runs", kind, _COLUMNS, rows)
    cursor = request.query_params.get("cursor")
    return await show(
        request,
        "runs.html",
        found=await asked.desk.runs.list(where, limit=50, cursor=cursor),
        query=query,
        views=await saved(asked, ListName.RUNS),
        first=cursor is None,
        kinds=KINDS,
        ranges=RANGES,
        workflows=[item.name for item in await asked.view.workflows()],
        took=_took,
    )


def _filter(query: dict[str, str], now: Any) -> RunFilter:
    index = query.get("index")
    return RunFilter(
        workflow=query.get("workflow"),
        status=_states(query) or None,
        correlation_id=query.get("correlation_id"),
        idempotency_key=query.get("idempotency_key"),
        queue=query.get("queue"),
        index=indexed([index]) if index else None,
        since=since_of(query.get("since"), now),
    )


def _states(query: dict[str, str]) -> tuple[str, ...]:
    """What an address says about states: one of them by its name, or a kind."""
    if "status" in query:
        return (query["status"],)
    return KINDS.get(query.get("kind", ""), KINDS[""])[1]


def _took(run: Run) -> float | None:
    """Seconds from the start of a run to its end."""
    if run.finished_at is None:
        return None
    return (run.finished_at - (run.started_at or run.created_at)).total_seconds()
