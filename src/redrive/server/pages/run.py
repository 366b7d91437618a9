"""One run: what happened, and what can be done about it."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.core.states import EXECUTED, FINAL, RunStatus
from redrive.desk.saga import Ledger
from redrive.desk.shapes import Run
from redrive.server.asking import Asked, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.pages.pictures import waterfall
from redrive.server.routes.shared import Id

__all__ = ["can_cancel", "can_retry", "run_routes"]

run_routes = pages()

_S = RunStatus
_ENDED_BADLY = frozenset({_S.DLQ_PENDING, _S.TIMED_OUT, _S.FAILED, _S.PARTIAL})


def can_cancel(run: Run) -> bool:
    """True if a run still goes on and may be stopped for good."""
    return run.status not in FINAL and run.status is not _S.COMPENSATING


def can_retry(run: Run) -> bool:
    """True if a run ended in a way that may be tried again."""
    return run.status in _ENDED_BADLY


@run_routes.get("/runs/{id}", **needs(Permission.LOOK))
async def show_run(request: Request, asked: Asked, id: Id) -> Response:
    """A run with everything that is known about it."""
    run = await asked.desk.runs.get(id)
    ledger = await asked.desk.sagas.get(run.id)
    own = [step for step in run.steps if step.kind in EXECUTED]
    return await show(
        request,
        "run.html",
        run=run,
        ledger=ledger,
        fall=waterfall(run.steps, begin=run.created_at, now=view_of(request).now),
        steps=own,
        retrying=_retrying(run),
        said=_said(run),
        can_cancel=can_cancel(run),
        can_retry=can_retry(run),
        can_resume=_stopped(run, ledger),
        stopped_at=_stopped_at(ledger),
    )


def _retrying(run: Run) -> Any:
    """The step that waits for its next attempt, if one does."""
    waiting = [step for step in run.steps if step.status.value == "RETRYING" and not step.superseded]
    return waiting[0] if waiting and run.status not in FINAL else None


def _said(run: Run) -> str | None:
    """What the error said that stopped it, in the words of whoever wrote the code."""
    tries = [each for step in run.steps if not step.superseded for each in step.attempts if each.message]
    return max(tries, key=lambda each: each.began_at).message if tries else None


def _stopped(run: Run, ledger: Ledger) -> bool:
    return run.status is _S.DLQ_PENDING and any(not entry.is_over for entry in ledger.entries)


def _stopped_at(ledger: Ledger) -> str | None:
    """The step whose compensation is next to be decided about."""
    return next((entry.step_key for entry in ledger.entries if not entry.is_over), None)


@run_routes.post("/runs/{id}/cancel", **needs(Permission.CANCEL))
async def cancel(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Stop a run for good."""
    run = await asked.desk.runs.cancel(id, by=asked.by, reason=sent.get("reason"))
    return to(view_of(request).url(f"/runs/{run.id}"))


@run_routes.post("/runs/{id}/saga/{way}", **needs(Permission.DECIDE))
async def undo(request: Request, asked: Asked, id: Id, way: str, sent: Sent) -> Response:
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
    return to(view_of(request).url(f"/runs/{id}") + "#ledger")
