"""Rollbacks: beginning one, its ledger, and deciding about a compensation that stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path

from redrive.core.roles import Permission
from redrive.desk.preview import DryRun
from redrive.desk.replaying import Replay
from redrive.desk.saga import Saga, SagaEntry
from redrive.errors import InputError, NotFound
from redrive.server.asking import Asked, Asking, needs
from redrive.server.routes.shared import Id, Key, Reason, router

__all__ = ["saga_routes"]

saga_routes = router("rollbacks")

Step = Annotated[str, Path(pattern=r"^[^\x00-\x1f]{1,1000}$", description="A step's name or key.")]


class Choice(Reason):
    """Why, and whether it is to be done or only tried out."""

    dry_run: bool = False


@saga_routes.post("/runs/{id}/rollback", **needs(Permission.DECIDE))
async def roll_back(asked: Asked, id: Id, body: Choice | None = None, key: Key = None) -> Replay | DryRun:
    """Undo what a failed run did; `dry_run` says what would be undone."""
    body = body or Choice()
    return await asked.desk.runs.rollback(
        id, dry_run=body.dry_run, by=asked.by, reason=body.reason, idempotency_key=key
    )


@saga_routes.get("/runs/{id}/saga", **needs(Permission.LOOK))
async def show_saga(asked: Asked, id: Id) -> Saga:
    """What of a run is undone, and what is left; one that is not rolled back has no entries."""
    found = await asked.desk.sagas.get(id)
    open_ = asked.principal.may(Permission.SEE_PAYLOADS)
    return Saga(
        run_id=found.run_id,
        workflow=found.workflow,
        tenant=found.tenant,
        status=found.status,
        done=found.done,
        entries=found.entries if open_ else tuple(replace(each, payload_hash=None) for each in found.entries),
    )


@saga_routes.post("/runs/{id}/saga/{step:path}/resume", **needs(Permission.DECIDE))
async def resume_saga(
    asked: Asked, id: Id, step: Step, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Go on with a rollback that stopped, at the compensation of this step."""
    entries = (await asked.desk.sagas.get(id)).entries
    if not any(step in _names(entry) for entry in entries):
        raise NotFound("the rollback of this run has no such step")
    stopped = next((entry for entry in entries if not entry.is_over), None)
    if stopped is not None and step not in _names(stopped):
        raise InputError(f"the compensation that is next is that of step {stopped.step!r}")
    return await _decide(asked, id, "from_failed", body, key)


def _names(entry: SagaEntry) -> tuple[str, ...]:
    return entry.step, entry.step_key, entry.action


@saga_routes.post("/runs/{id}/saga/{step:path}/skip", **needs(Permission.DECIDE))
async def skip_in_saga(
    asked: Asked, id: Id, step: Step, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Leave out the compensation of this step, which is next, and go on with the others."""
    return await _decide(asked, id, "skip_failed", body, key, undo=step)


@saga_routes.post("/runs/{id}/saga/{step:path}/mark-done", **needs(Permission.DECIDE))
async def mark_done_in_saga(
    asked: Asked, id: Id, step: Step, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Say that this step, which is next, was undone by hand, and go on with the others."""
    return await _decide(asked, id, "complete", body, key, undo=step)


async def _decide(
    asked: Asking, id: str, mode: str, body: Choice | None, key: str | None, **options: Any
) -> Replay | DryRun:
    body = body or Choice()
    return await asked.desk.runs.retry(
        id,
        mode,
        dry_run=body.dry_run,
        by=asked.by,
        reason=body.reason,
        idempotency_key=key,
        **options,
    )
