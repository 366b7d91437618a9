"""Runs: starting, finding, looking, cancelling, retrying."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.core.states import RunStatus
from redrive.desk.decisions import Replay
from redrive.desk.models import AttemptRecord, Run, StepRecord
from redrive.desk.preview import DryRun
from redrive.desk.runs import RunContext, StartRequest
from redrive.desk.saga import Saga, SagaEntry
from redrive.errors import InputError, NotFound
from redrive.records import replace
from redrive.server.request import Context, RequestContext, requires
from redrive.server.routes.common import (
    Body,
    Cursor,
    Id,
    Index,
    Key,
    Limit,
    Reason,
    Since,
    Span,
    Text,
    Until,
    make_router,
    parse_policy,
    parse_span,
)
from redrive.store.filters import RunFilter
from redrive.store.records import Page

# -- Runs: starting, finding, looking, cancelling, retrying ----------------------------------------------


run_routes = make_router("runs")
_START_OPTIONS = frozenset({"delay", "deadline", "priority", "queue", "correlation_id"})


class Event(Body):
    """What starts a run: the id of an event, and of which stream."""

    stream: Text
    id: Text


class NewRun(Body):
    """A run to be started. `input` is an object from parameter name to value."""

    workflow: Text
    input: dict[str, Any] = Field(default_factory=dict)
    delay: Span | None = None
    deadline: Span | None = None
    priority: int | None = Field(default=None, ge=-1000, le=1000)
    queue: Text | None = None
    correlation_id: Text | None = None
    retry: dict[str, Any] | None = None
    event: Event | None = None

    def wanted(self, tenant: str, key: str | None) -> StartRequest:
        """The run as the desk starts it."""
        options: dict[str, Any] = {"tenant": tenant}
        for name in self.model_fields_set & _START_OPTIONS:
            options[name] = getattr(self, name)
        for name in options.keys() & {"delay", "deadline"}:
            options[name] = parse_span(name, options[name])
        if self.retry is not None:
            options["retry"] = parse_policy(self.retry)
        if key is not None:
            options["idempotency_key"] = key
        event = None if self.event is None else (self.event.stream, self.event.id)
        return StartRequest(workflow=self.workflow, input=self.input, options=options, event=event)


class KeyedRun(NewRun):
    """A run to be started with others."""

    idempotency_key: Text | None = None


class Batch(Body):
    """Runs to be started together: all of them, or none."""

    runs: list[KeyedRun] = Field(min_length=1, max_length=1000)


class Accepted(Body):
    """A run that was accepted. `new` is False if the key had started it before."""

    id: str
    workflow: str
    new: bool


class AcceptedBatch(Body):
    """The runs that were accepted, in order."""

    runs: list[Accepted]


class Retry(Reason):
    """How a run is to be retried."""

    mode: Literal["from_failed", "full", "skip_failed"] = "from_failed"
    input: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    output: Any = None
    skip_steps: dict[str, Any] | None = None
    override_retry_policy: dict[str, Any] | None = None
    new_operation: bool = False
    dry_run: bool = False


@run_routes.post("/runs", status_code=201, **requires(Permission.START, **{"x-own-key": True}))
async def start_run(asked: Context, body: NewRun, key: Key = None) -> Accepted:
    """Start a run. The header Idempotency-Key is the run's key: the same key is the same run."""
    (started,) = await _accept_runs(asked, [body.wanted(asked.home, key)])
    return started


@run_routes.post("/runs:batch", status_code=201, **requires(Permission.START))
async def start_runs(asked: Context, body: Batch) -> AcceptedBatch:
    """Start up to a thousand runs in one commit; one that does not fit lets none be started."""
    tenant = asked.home
    return AcceptedBatch(runs=await _accept_runs(asked, [run.wanted(tenant, run.idempotency_key) for run in body.runs]))


async def _accept_runs(asked: RequestContext, wanted: list[StartRequest]) -> list[Accepted]:
    started = await asked.desk.starter.start(wanted)
    pairs = zip(wanted, started, strict=True)
    made = Accepted.model_construct  # of what is known to fit
    return [made(id=one.public_id, workflow=each.workflow, new=one.new) for each, one in pairs]


@run_routes.get("/runs", **requires(Permission.LOOK))
async def list_runs(
    asked: Context,
    workflow: Text | None = None,
    status: Annotated[list[RunStatus] | None, Query(max_length=20)] = None,
    correlation_id: Text | None = None,
    idempotency_key: Text | None = None,
    queue: Text | None = None,
    handler_for: Text | None = None,
    index: Index = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[Run]:
    """A page of runs, newest first."""
    where = RunFilter(
        workflow=workflow,
        status=tuple(status) if status else None,
        correlation_id=correlation_id,
        idempotency_key=idempotency_key,
        queue=queue,
        handler_for=handler_for,
        index=parse_index(index),
        since=since,
        until=until,
    )
    return await asked.desk.runs.list(where, limit=limit, cursor=cursor)


def parse_index(given: list[str] | None) -> dict[str, str] | None:
    """Values to search by, from texts like `customer.email:ann@example.org`."""
    found: dict[str, str] = {}
    for text in given or ():
        field, colon, value = text.partition(":")
        if not colon or not field:
            raise InputError("index takes `field:value`")
        found[field] = value
    return found or None


@run_routes.get("/runs/{id}", **requires(Permission.LOOK))
async def show_run(asked: Context, id: Id) -> Run:
    """One run with its input, result, steps and every attempt."""
    return await asked.desk.runs.get(id)


@run_routes.get("/runs/{id}/steps", **requires(Permission.LOOK))
async def list_steps(asked: Context, id: Id) -> list[StepRecord]:
    """The steps of a run, with every attempt, in order of their first begin."""
    return list((await asked.desk.runs.get(id)).steps)


@run_routes.get("/runs/{id}/attempts", **requires(Permission.LOOK))
async def list_attempts(asked: Context, id: Id) -> list[AttemptRecord]:
    """All attempts of a run's steps, in order of time."""
    steps = (await asked.desk.runs.get(id)).steps
    return sorted((each for step in steps for each in step.attempts), key=lambda each: each.began_at)


@run_routes.get("/runs/{id}/around", **requires(Permission.LOOK))
async def show_around(asked: Context, id: Id) -> RunContext:
    """What else decides how a run goes on: pauses, workers that are alive, the circuit it waits for."""
    return await asked.desk.runs.context(id)


@run_routes.post("/runs/{id}/cancel", **requires(Permission.CANCEL))
async def cancel_run(asked: Context, id: Id, body: Reason | None = None) -> Run:
    """Cancel a run for good; cancelling it again changes nothing."""
    return await asked.desk.runs.cancel(id, by=asked.by, reason=(body and body.reason) or "")


@run_routes.post("/runs/{id}/retry", **requires(Permission.DECIDE))
async def retry_run(asked: Context, id: Id, body: Retry | None = None, key: Key = None) -> Replay | DryRun:
    """Run a failed or partial run again; `dry_run` says what that would do."""
    body = body or Retry()
    return await asked.desk.runs.retry(
        id,
        body.mode,
        skip_steps=body.skip_steps,
        dry_run=body.dry_run,
        by=asked.by,
        reason=body.reason,
        idempotency_key=key,
        input=body.input,
        patch=body.patch,
        output=body.output,
        retry=parse_policy(body.override_retry_policy),
        new_operation=body.new_operation,
    )


# -- Rollbacks: beginning one, its ledger, and deciding about a compensation that stopped ----------------


saga_routes = make_router("rollbacks")
StepName = Annotated[str, Path(pattern=r"^[^\x00-\x1f]{1,1000}$", description="A step's name or key.")]


class Choice(Reason):
    """Why, and whether it is to be done or only tried out."""

    dry_run: bool = False


@saga_routes.post("/runs/{id}/rollback", **requires(Permission.DECIDE))
async def roll_back(asked: Context, id: Id, body: Choice | None = None, key: Key = None) -> Replay | DryRun:
    """Undo what a failed run did; `dry_run` says what would be undone."""
    body = body or Choice()
    return await asked.desk.runs.rollback(
        id, dry_run=body.dry_run, by=asked.by, reason=body.reason, idempotency_key=key
    )


@saga_routes.get("/runs/{id}/saga", **requires(Permission.LOOK))
async def show_saga(asked: Context, id: Id) -> Saga:
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


@saga_routes.post("/runs/{id}/saga/{step:path}/resume", **requires(Permission.DECIDE))
async def resume_saga(
    asked: Context, id: Id, step: StepName, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Go on with a rollback that stopped, at the compensation of this step."""
    entries = (await asked.desk.sagas.get(id)).entries
    if not any(step in _list_entry_names(entry) for entry in entries):
        raise NotFound("the rollback of this run has no such step")
    stopped = next((entry for entry in entries if not entry.is_over), None)
    if stopped is not None and step not in _list_entry_names(stopped):
        raise InputError(f"the compensation that is next is that of step {stopped.step!r}")
    return await _decide_compensation(asked, id, "from_failed", body, key)


def _list_entry_names(entry: SagaEntry) -> tuple[str, ...]:
    return entry.step, entry.step_key, entry.action


@saga_routes.post("/runs/{id}/saga/{step:path}/skip", **requires(Permission.DECIDE))
async def skip_in_saga(
    asked: Context, id: Id, step: StepName, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Leave out the compensation of this step, which is next, and go on with the others."""
    return await _decide_compensation(asked, id, "skip_failed", body, key, undo=step)


@saga_routes.post("/runs/{id}/saga/{step:path}/mark-done", **requires(Permission.DECIDE))
async def mark_done_in_saga(
    asked: Context, id: Id, step: StepName, body: Choice | None = None, key: Key = None
) -> Replay | DryRun:
    """Say that this step, which is next, was undone by hand, and go on with the others."""
    return await _decide_compensation(asked, id, "complete", body, key, undo=step)


async def _decide_compensation(
    asked: RequestContext, id: str, mode: str, body: Choice | None, key: str | None, **options: Any
) -> Replay | DryRun:
    body = body or Choice()
    return await asked.desk.runs.retry(
        id, mode, dry_run=body.dry_run, by=asked.by, reason=body.reason, idempotency_key=key, **options
    )
