"""Routes for runs and their rollbacks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import Body as JsonBody
from fastapi import Path, Query
from pydantic import BaseModel, Field

from redrive.core.journal import History
from redrive.core.roles import Permission
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.core.waits_and_events import MAX_EVENT_NUMBER
from redrive.desk.models import AttemptRecord, SentEvent, StepRecord
from redrive.desk.presenter import present_row
from redrive.desk.preview import DryRun
from redrive.desk.replays import Replay
from redrive.desk.run_starter import StartRequest
from redrive.desk.runs import MAX_HISTORIES, Runs
from redrive.desk.saga import Saga, SagaEntry, Sagas
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import (
    Body,
    DryRunBody,
    Id,
    Key,
    ReplayBody,
    Span,
    Text,
    add_operations,
    make_router,
    parse_policy,
    read_filter,
    serve,
)
from redrive.store.filters import RunFilter
from redrive.store.result_page import Page
from redrive.store.runs import RunRow
from redrive.time_values import parse_duration

run_routes = make_router("runs")
saga_routes = make_router("rollbacks")
StepName = Annotated[str, Path(pattern=r"^[^\x00-\x1f]{1,1000}$", description="A step's name or key.")]
_MAX_RESULT_WAIT = 20.0  # seconds
_START_TIMES = ("delay", "deadline", "timeout", "step_timeout", "heartbeat_timeout")
_START_OPTIONS = frozenset({*_START_TIMES, "priority", "queue", "correlation_id", "on_failure", "failure_queue"})


class Event(Body):
    """The event that starts a run: its stream and its id."""

    stream: Text
    id: Text


class NewRun(Body):
    """A run to be started. `input` is an object from parameter name to value.

    It may be encrypted, as `{"sealed": text}`. The sender then encrypts its hash and its searchable values as well.
    """

    workflow: Text
    input: dict[str, Any] = Field(default_factory=dict)
    delay: Span | None = None
    deadline: Span | None = None
    timeout: Span | None = None
    step_timeout: Span | None = None
    heartbeat_timeout: Span | None = None
    priority: int | None = Field(default=None, strict=True, ge=-1000, le=1000)
    queue: Text | None = None
    correlation_id: Text | None = None
    retry: dict[str, Any] | None = None
    on_failure: Text | None = None
    failure_queue: Text | None = None
    event: Event | None = None
    input_hash: str | None = Field(default=None, max_length=1000)
    input_index: dict[str, list[str]] = Field(default_factory=dict)

    def make_request(self, tenant: str, key: str | None) -> StartRequest:
        options: dict[str, Any] = {"tenant": tenant}
        for name in self.model_fields_set & _START_OPTIONS:
            options[name] = getattr(self, name)
        for name in options.keys() & set(_START_TIMES):
            try:
                options[name] = None if options[name] is None else parse_duration(options[name], name)
            except ConfigurationError as error:
                raise InputError(Reason.of_error(error)) from None
        if self.retry is not None:
            options["retry"] = parse_policy(self.retry)
        if key is not None:
            options["idempotency_key"] = key
        event = None if self.event is None else (self.event.stream, self.event.id)
        return StartRequest(
            workflow=self.workflow,
            input=self.input,
            options=options,
            event=event,
            input_hash=self.input_hash,
            input_index=tuple((field, value) for field, values in self.input_index.items() for value in values),
        )


class KeyedRun(NewRun):
    """A run to be started with others."""

    idempotency_key: Text | None = None


class Batch(Body):
    """Runs to be started together: all of them, or none."""

    runs: list[KeyedRun] = Field(min_length=1, max_length=1000)


class Accepted(Body):
    """A run that was started. `new` is False if its key started it before."""

    id: str
    workflow: str
    new: bool


class AcceptedBatch(Body):
    """The runs that were started, in order."""

    runs: list[Accepted]


class Retry(ReplayBody):
    """A retry of a run."""

    mode: Literal["from_failed", "full", "skip_failed"] = "from_failed"
    input: dict[str, Any] | None = None
    skip_steps: dict[str, Any] | None = None


@run_routes.post("/runs", status_code=201, **requires(Permission.START, **{"x-own-key": True}))
async def start_run(context: Context, body: NewRun, key: Key = None) -> Accepted:
    """Start a run. The header Idempotency-Key is the run's key: the same key is the same run."""
    (started,) = await _accept_runs(context, [body.make_request(context.home, key)])
    return started


class ResultsBody(Body):
    """Runs whose ends are asked for."""

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(max_length=500)


class RunEnd(BaseModel):
    """The status of a run; `output` or `failure`, as stored, if it has ended."""

    id: str
    status: str
    output: str | None = None
    failure: str | None = None


class RunEnds(BaseModel):
    """The runs that exist."""

    runs: list[RunEnd]


@run_routes.post("/runs:results", **requires(Permission.AWAIT))
async def list_results(context: Context, body: ResultsBody) -> RunEnds:
    """Return the status of runs, with the results of those that have ended."""
    return RunEnds(runs=[_describe_end(row) for row in await context.view.runs_by_id(body.ids)])


@run_routes.get("/runs/{id}/result", **requires(Permission.AWAIT))
async def get_result(context: Context, id: Id, wait: Annotated[str, Query(max_length=20)] = "0s") -> RunEnd:
    """Return the status of a run, with its result if it has ended. With `wait`, up to 20 s, wait for its end."""
    try:
        seconds = min(parse_duration(wait, "wait"), _MAX_RESULT_WAIT)
    except ConfigurationError as error:  # the text is the caller's
        raise InputError(Reason.of_error(error)) from None
    row = await context.view.run(id)
    if row is not None and seconds and row.status not in FINAL_RUN_STATUSES:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await context.runtime.results.wait(id)
        row = await context.view.run(id)
    if row is None:
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(id)))
    return _describe_end(row)


def _describe_end(row: RunRow) -> RunEnd:
    if row.status not in FINAL_RUN_STATUSES:
        return RunEnd(id=row.public_id, status=row.status.value)
    return RunEnd(id=row.public_id, status=row.status.value, output=row.output, failure=row.failure)


@run_routes.post("/runs:batch", status_code=201, **requires(Permission.START))
async def start_runs(context: Context, body: Batch) -> AcceptedBatch:
    """Start up to a thousand runs in one commit; if one is invalid, none is started."""
    tenant = context.home
    requests = [run.make_request(tenant, run.idempotency_key) for run in body.runs]
    return AcceptedBatch(runs=await _accept_runs(context, requests))


async def _accept_runs(context: RequestContext, requests: list[StartRequest]) -> list[Accepted]:
    started = await context.desk.starter.start(requests)
    pairs = zip(requests, started, strict=True)
    # The values are valid, so their check is skipped.
    return [Accepted.model_construct(id=run.public_id, workflow=each.workflow, new=run.new) for each, run in pairs]


EventName = Annotated[str, Path(pattern=r"^[^/#\x00-\x1f]{1,200}$", description="The name of an event.")]


@run_routes.post("/runs/{id}/events/{name}", status_code=202, **requires(Permission.START, **{"x-own-key": True}))
async def send_event(
    context: Context, id: Id, name: EventName, payload: Annotated[Any, JsonBody()] = None, key: Key = None
) -> SentEvent:
    """Send an event to a run: the body is its payload. The header Idempotency-Key is its key."""
    return await context.desk.runs.send(id, name, payload, key=key, tenant=context.one_tenant, by=context.by)


class HistoriesBody(Body):
    """A page of the histories of open runs, or of ended ones."""

    workflow: Text | None = None
    ended: bool = False
    limit: int = Field(default=20, strict=True, ge=1, le=MAX_HISTORIES)
    cursor: Text | None = None


@run_routes.post("/runs:histories", **requires(Permission.SEE_PAYLOADS, **{"x-own-key": True}))
async def export_histories(context: Context, body: HistoriesBody | None = None) -> Page[History]:
    """Return what open runs recorded, with all payloads that their code saw, newest first.

    With `ended`, the runs that succeeded or have an open dead letter. The audit log records who read them.
    """
    asked = (body or HistoriesBody()).model_dump()
    return await context.desk.runs.histories(**asked, tenant=context.one_tenant, by=context.by)


@run_routes.get("/runs/{id}/steps", **requires(Permission.LOOK))
async def list_steps(context: Context, id: Id) -> list[StepRecord]:
    """Return the steps of a run, with every attempt, in the order in which they first began."""
    return list((await context.desk.runs.get(id)).steps)


@run_routes.get("/runs/{id}/attempts", **requires(Permission.LOOK))
async def list_attempts(context: Context, id: Id) -> list[AttemptRecord]:
    """Return all attempts of a run's steps, in order of time."""
    steps = (await context.desk.runs.get(id)).steps
    return sorted((each for step in steps for each in step.attempts), key=lambda each: each.began_at)


@serve(run_routes, Runs.retry)
async def retry_run(context: Context, id: Id, body: Retry | None = None, key: Key = None) -> Replay | DryRun:
    """Run a failed or partial run again; `dry_run` returns what that would do."""
    body = body or Retry()
    options = {"idempotency_key": key, **body.read_options(context)}
    return await context.desk.runs.retry(id, body.mode, dry_run=body.dry_run, **options)


add_operations(
    run_routes,
    lambda context: context.desk.runs,
    *(Runs.list, Runs.get, Runs.context, Runs.queues, Runs.cancel, Runs.move, Runs.events, Runs.children),
    types={
        "after": Annotated[
            int, Query(ge=0, le=MAX_EVENT_NUMBER, description="The number of an event: later ones are returned.")
        ],
        "filter": read_filter(RunFilter, status=Annotated[list[RunStatus] | None, Query(max_length=20)]),
    },
)
add_operations(saga_routes, lambda context: context.desk.runs, Runs.rollback)


@serve(saga_routes, Sagas.get)
async def show_saga(context: Context, id: Id) -> Saga:
    """Return the compensations of a run; a run that is not rolled back has none."""
    return present_row(Saga, await context.desk.sagas.get(id))


@saga_routes.post("/runs/{id}/saga/{step:path}/resume", **requires(Permission.DECIDE))
async def resume_saga(
    context: Context, id: Id, step: StepName, body: DryRunBody | None = None, key: Key = None
) -> Replay | DryRun:
    """Continue a rollback that stopped, at the compensation of this step."""

    def has_name(entry: SagaEntry) -> bool:
        return step in (entry.step, entry.step_key, entry.action)

    saga = await context.desk.sagas.get(id)
    if not any(map(has_name, saga.entries)):
        raise NotFound(Reason(ReasonCode.COMPENSATION_NOT_FOUND))
    stopped = saga.next_entry
    if stopped is not None and not has_name(stopped):
        undo, code = stopped.action, ReasonCode.OTHER_COMPENSATION_NEXT
        raise InputError(Reason(code, compensation=undo, step=stopped.step, given=quote(step)))
    return await _decide_compensation(context, id, "from_failed", body, key)


@saga_routes.post("/runs/{id}/saga/{step:path}/skip", **requires(Permission.DECIDE))
async def skip_in_saga(
    context: Context, id: Id, step: StepName, body: DryRunBody | None = None, key: Key = None
) -> Replay | DryRun:
    """Leave out the next compensation, which is that of this step, and continue with the others."""
    return await _decide_compensation(context, id, "skip_failed", body, key, undo=step)


@saga_routes.post("/runs/{id}/saga/{step:path}/mark-done", **requires(Permission.DECIDE))
async def mark_done_in_saga(
    context: Context, id: Id, step: StepName, body: DryRunBody | None = None, key: Key = None
) -> Replay | DryRun:
    """Record that a user undid this step, which is next, by hand, and continue with the others."""
    return await _decide_compensation(context, id, "complete", body, key, undo=step)


async def _decide_compensation(
    context: RequestContext, id: str, mode: str, body: DryRunBody | None, key: str | None, undo: str | None = None
) -> Replay | DryRun:
    body = body or DryRunBody()
    options = {"idempotency_key": key, "undo": undo, **body.read_options(context)}
    return await context.desk.runs.retry(id, mode, dry_run=body.dry_run, **options)
