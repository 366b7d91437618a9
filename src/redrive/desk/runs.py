"""`app.runs`: runs, their cancelling and retrying, and starting runs by the name of a workflow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.failure_handlers import make_sample_event
from redrive.core.json_schema import find_faults
from redrive.core.new_run import StartableWorkflow, build_new_run, describe_key_conflict, set_event_key
from redrive.core.replay import ReplayMode
from redrive.core.roles import Permission
from redrive.core.run_options import FailureHandler, OnFailure, RunOptions, add_origin
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.core.transitions import NewRun
from redrive.core.waits import MAX_EVENT_NUMBER
from redrive.desk.api_operations import Acting, Actor, operation
from redrive.desk.circuits import CircuitRecord, present_circuit
from redrive.desk.decisions import Replay, Replayer, ReplayOptions, make_replay_order
from redrive.desk.events import EventRequest, EventSender
from redrive.desk.models import Caller, Children, EventRecord, Run, SentEvent
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size, present_page
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.validation import PayloadChecker, is_id, require_bool
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound, RedriveError, UnknownWorkflow
from redrive.observability.counters import SettleListener
from redrive.observability.tracing import current_traceparent
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.settle.cancellation import cancel_run
from redrive.settle.settler import LocalSettler
from redrive.store.circuits import MOST_COUNTED
from redrive.store.filters import RunFilter
from redrive.store.port import DeskStore
from redrive.store.result_page import Page
from redrive.store.runs import RunRow, StartResult
from redrive.store.stats import LaneCount
from redrive.store.step_tasks import TaskStatus
from redrive.store.workers import CatalogueRow, WorkerRow, live_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStep:
    """A step that workers of a queue execute. `taken`: one of them has begun. `workers`: the live ones of the queue.

    `since` is when it began, or when it was or will be due.
    """

    step: str
    queue: str
    attempt: int
    taken: bool
    since: datetime
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Facts beside a run that decide how it continues. Of `workers` that are alive, `able` have its workflow.

    Of those, `serving` take runs of its queue. `remote`: its steps that workers of a queue execute. `diverged`: its
    journal does not fit the code of the workers that tried it.
    """

    now: datetime
    paused_by: str | None
    workers: int
    able: int
    diverged: bool
    circuit: CircuitRecord | None
    serving: int = 0
    remote: tuple[RemoteStep, ...] = ()


async def find_failure_handler_runs(store: DeskStore, *run_ids: str) -> list[str]:
    """Return the ids of the runs that handle failures of these runs, oldest first; not what a handler started."""
    found: list[tuple[int, str]] = []
    for run_id in dict.fromkeys(run_ids):
        page = await store.runs(RunFilter(handler_for=run_id), limit=_MAX_HANDLERS, cursor=None)
        found += [(run.id, run.public_id) for run in page.items if run.parent == run_id]
    return [public_id for _, public_id in sorted(found)]


async def load_family(runs: Runs, first: Run, most: int) -> list[tuple[int, Run]]:
    """Return a run and all that it started in turn, up to `most`, with their levels, each followed by its children."""
    found: list[tuple[int, Run]] = []
    left = [(0, first)]
    while left and len(found) < most:
        level, run = left.pop()
        found.append((level, run))
        page = await runs.list(RunFilter(parent=run.id), limit=most)
        left += [(level + 1, child) for child in page.items]  # newest first, so the oldest is taken next
    return found


_MAX_ABOVE = 50  # runs that led to a run
_MAX_COUNTED_CHILDREN = 10_000

LoadWorkers = Callable[[], Awaitable[list[WorkerRow]]]
_MAX_HANDLERS = 100
_MODE_ALIASES = {"skip_failed": ReplayMode.SKIP}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """Due runs of one workflow in one queue. `due` is counted up to 1,000 for each priority.

    Without a `workflow` it counts remote steps, which workers of the queue execute.

    `since` is when the first became due; `late` counts those that have waited for more than a minute. `workers`
    are the live workers that take them.
    """

    tenant: str
    queue: str
    workflow: str
    due: int
    late: int
    since: datetime
    workers: int
    paused_by: str | None


class RetryOptions(ReplayOptions, total=False):
    """Keywords of `retry` beside the run and the mode."""

    skip_steps: Mapping[str, Any] | None
    undo: str | None


class Runs:
    """Runs: listed, cancelled, and retried after a failure."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        presenter: Presenter,
        replayer: Replayer,
        previewer: Previewer,
        on_change: Callable[[str], None],
        workers: LoadWorkers,
        sender: EventSender,
        *,
        listeners: Sequence[SettleListener] = (),
    ) -> None:
        self._store = store
        self._sender = sender
        self._replayer = replayer
        self._previewer = previewer
        self._settler = LocalSettler(store, clock, listeners=listeners)
        self._presenter = presenter
        self._on_change = on_change
        self._workers = workers

    @operation("GET /runs/{id}", Permission.LOOK, id="show_run", run_id="id")
    async def get(self, run_id: str, *, tenant: str | None = None) -> Run:
        """Return one run with its input, result, steps and every attempt."""
        row = await find_run(self._store, run_id, tenant)
        letter = await self._store.letter_of(row.id) if row.status in FINAL_RUN_STATUSES else None
        present = partial(
            self._presenter.run,
            row,
            entries=(entries := await self._store.journal(row.id)),
            attempts=(attempts := await self._store.attempts(row.id)),
            letter_id=None if letter is None else letter.public_id,
            handled_by=await find_failure_handler_runs(self._store, row.public_id),
            note=await self._store.status_note(row.id),
        )
        return await in_thread_if_large(present, measure_size(row, entries, attempts))

    @operation("GET /runs/{id}/around", Permission.LOOK, id="show_around", run_id="id")
    async def context(self, run_id: str, *, tenant: str | None = None) -> RunContext:
        """Return what decides how a run continues: pauses, live workers, the circuit that it waits for."""
        row = await find_run(self._store, run_id, tenant)
        now, circuit = self._store.now(), None
        if row.parked_on is not None:
            circuit = (await self._store.circuit(row.tenant, row.parked_on, counted=MOST_COUNTED)).row
        alive = live_workers(await self._workers(), now)
        return RunContext(
            now=to_datetime(now),
            paused_by=(await self._store.paused()).get(row.workflow),
            workers=len(alive),
            able=sum(row.workflow in worker.workflows for worker in alive),
            diverged=row.diverged_at is not None,
            circuit=present_circuit(circuit) if circuit is not None and circuit.version else None,
            serving=sum(worker.takes(row.workflow, row.queue) for worker in alive),
            remote=tuple(
                [
                    RemoteStep(
                        step=task.name,
                        queue=task.queue,
                        attempt=task.attempt,
                        taken=task.status is TaskStatus.TAKEN,
                        since=to_datetime(task.began_at if task.status is TaskStatus.TAKEN else task.due_at),
                        workers=sum(worker.takes_steps(task.queue) for worker in alive),
                    )
                    for task in await self._store.open_tasks(row.id)
                ]
            ),
        )

    @operation("GET /runs", Permission.LOOK, id="list_runs")
    async def list(self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page[Run]:
        """Return a page of runs, newest first; `page.next` and `page.prev` are cursors to its neighbours."""
        page = await self._store.runs(filter or RunFilter(), limit=limit, cursor=cursor)
        return await present_page(page, self._presenter.run)

    @operation("GET /runs/{id}/children", Permission.LOOK, id="list_children", run_id="id")
    async def children(
        self, run_id: str, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None
    ) -> Children:
        """Return a page of the runs that a run started, newest first, with counts by status and the runs above it."""
        row = await find_run(self._store, run_id, tenant)
        where = RunFilter(parent=row.public_id)
        page = await present_page(await self._store.runs(where, limit=limit, cursor=cursor), self._presenter.run)
        summaries = await self._store.run_summaries(where, most=_MAX_COUNTED_CHILDREN)
        above: list[Run] = []
        parent = row.parent
        while parent is not None and len(above) < _MAX_ABOVE:
            found = await self._store.run(parent)  # a purged run ends the way up
            if found is None:
                break
            above.insert(0, self._presenter.run(replace(found, input=None, output=None)))
            parent = found.parent
        return Children(
            run_id=row.public_id,
            items=tuple(page.items),
            counts=dict(Counter(each.status.value for each in summaries)),
            total=len(summaries),
            capped=len(summaries) == _MAX_COUNTED_CHILDREN,
            above=tuple(above),
            next=page.next,
        )

    @operation("GET /queues", Permission.LOOK, id="list_queues")
    async def queues(self, *, tenant: str | None = None) -> tuple[QueueDepth, ...]:
        """Return the queues that have due runs, by workflow, those that have waited longest first."""
        lanes: dict[tuple[str, str, str], list[LaneCount]] = {}
        for lane in await self._store.due_lanes(tenant=tenant):
            lanes.setdefault((lane.tenant, lane.queue, lane.workflow), []).append(lane)
        alive, paused = live_workers(await self._workers(), self._store.now()), await self._store.paused()
        found = [
            QueueDepth(
                tenant=lane[0],
                queue=lane[1],
                workflow=lane[2],
                due=sum(lane.due for lane in same),
                late=sum(lane.overdue for lane in same),
                since=to_datetime(min(lane.since for lane in same)),
                workers=sum(worker.takes(lane[2], lane[1]) for worker in alive),
                paused_by=paused.get(lane[2]),
            )
            for lane, same in lanes.items()
        ]
        found += [
            QueueDepth(
                tenant=each.tenant,
                queue=each.queue,
                workflow="",
                due=each.due,
                late=each.late,
                since=to_datetime(each.since or self._store.now()),
                workers=sum(worker.takes_steps(each.queue) for worker in alive),
                paused_by=None,
            )
            for each in await self._store.task_queues(tenant=tenant)
            if each.due
        ]
        return tuple(sorted(found, key=lambda each: each.since))

    @operation("POST /runs/{id}/cancel", Permission.CANCEL, id="cancel_run", run_id="id")
    async def cancel(self, run_id: str, *, tenant: str | None = None, **acting: Unpack[Acting]) -> Run:
        """Cancel a run for good. Its worker learns of it with its next heartbeat and cancels the running step.

        Cancelling a cancelled run changes nothing; a run that ended otherwise is a conflict.
        """
        actor = Actor(acting.get("by", "unknown"), acting.get("reason") or None)
        while True:
            row = await find_run(self._store, run_id, tenant)
            if row.status is RunStatus.CANCELLED:
                return await self.get(run_id, tenant=tenant)
            # A worker may have changed the run since it was read: then the loop reads it again.
            if await cancel_run(self._store, self._settler, row, actor.by, actor.reason or ""):
                self._on_change(row.public_id)
                return await self.get(run_id, tenant=tenant)

    @operation("POST /runs/{id}/events/{name}", Permission.START, id="send_event", status=202, run_id="id")
    async def send(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> SentEvent:
        """Send an event to a run, which takes it with `redrive.wait_for`, now or later.

        The same key is the same event: sent again with an equal payload it gets the first answer, with another one it
        is a conflict. A run that has ended for good takes no events; one that failed keeps them for a replay.
        """
        return await self._send(EventRequest(run_id=run_id, name=name, payload=payload, key=key, tenant=tenant, by=by))

    async def _send(self, request: EventRequest) -> SentEvent:
        return await self._sender.send(await find_run(self._store, request.run_id, request.tenant), request)

    @operation("GET /runs/{id}/events", Permission.LOOK, id="list_events", run_id="id")
    async def events(
        self, run_id: str, *, after: int = 0, limit: int = 500, tenant: str | None = None
    ) -> tuple[EventRecord, ...]:
        """Return the events that were sent to a run, in order: up to `limit`, after the number `after`."""
        row = await find_run(self._store, run_id, tenant)
        found = await self._store.events(row.id, after=min(after, MAX_EVENT_NUMBER), most=limit)
        return tuple([self._presenter.event(each) for each in found])

    @operation("POST /runs/{id}/retry", Permission.DECIDE, run_id="id", retry="override_retry_policy")
    async def retry(
        self, run_id: str, mode: str = "from_failed", *, dry_run: bool = False, **options: Unpack[RetryOptions]
    ) -> Replay | DryRun:
        """Run a failed or partial run again: `from_failed`, `full`, or `skip_failed`.

        `skip_steps` maps steps, by key or name, to results that are taken instead of calling them;
        `skip_failed` takes `output` (None) as the result of the failed step. Other options are those of
        `dlq.replay`; a run with an open dead letter is replayed through it.
        """
        tenant = options.pop("tenant", None)
        chosen = _MODE_ALIASES.get(mode.lower(), mode) if isinstance(mode, str) else mode
        order = await make_replay_order(chosen, of_run=True, **options)
        if require_bool("dry_run", dry_run):
            return await self._previewer.preview(run_id, order, tenant=tenant)
        return await self._replayer.replay(run_id, order, tenant=tenant)

    @operation("POST /runs/{id}/rollback", Permission.DECIDE, id="roll_back", run_id="id")
    async def rollback(
        self,
        run_id: str,
        *,
        dry_run: bool = False,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **acting: Unpack[Acting],
    ) -> Replay | DryRun:
        """Undo what a failed run did, by the compensations of its steps, even if its workflow has no `rollback`.

        Refused if the run passed a pivot. `dry_run` returns what would be undone, and undoes nothing.
        """
        return await self.retry(
            run_id, ReplayMode.ROLLBACK, dry_run=dry_run, idempotency_key=idempotency_key, tenant=tenant, **acting
        )


async def find_run(store: DeskStore, run_id: str, tenant: str | None) -> RunRow:
    """Return the run with this id; NotFound if it does not exist for the caller."""
    row = await store.run(run_id, tenant=tenant) if is_id(run_id) else None
    if row is None:
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id)))
    return row


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be started, with the options of `start`.

    `event` is the event that starts it: a stream and an id. The event is the idempotency key of the run. An event of a
    source is also recorded as the `origin` of the run.
    """

    workflow: str
    event: tuple[str, str] | None = None
    from_source: bool = False
    input: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class RunStarter:
    """Starts runs by the name of their workflow, with inputs as JSON.

    `here` finds a workflow whose code this process has; the catalogue has the others. `rules` are those for failure
    events, without a handler. `caller` is the credential of a request over HTTP, None for this process itself.
    """

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        here: Callable[[str], StartableWorkflow | None],
        on_start: Callable[[], None],
        key_keeps: int,
        rules: OnFailure,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._checker = checker
        self._here = here
        self._on_start = on_start
        self._key_keeps = key_keeps
        self._caller = caller or Caller()

    async def start(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        """Start runs, all or none of them; a key that was used with another input is a Conflict.

        For a caller who may not see payloads, a key of another credential is a Conflict with every input: an
        answer that depended on the input would let the caller guess it.
        """
        known = await self._find_workflows({each.workflow for each in requests})
        runs = [await self._make_run(each, *known[each.workflow]) for each in requests]
        started = await self._store.start(runs)
        self._on_start()
        for run, answer, each in zip(runs, started, requests, strict=True):
            if not (answer.new or self._caller.sees_payloads or answer.maker == self._caller.name):
                code, first = ReasonCode.KEY_OF_OTHER_CREDENTIAL, answer.public_id
                raise Conflict(Reason(code, run=first, workflow=run.workflow, tenant=run.tenant))
            if answer.clash:
                raise Conflict(describe_key_conflict(run, answer.public_id, each.event))
        return started

    async def start_each(self, requests: Sequence[StartRequest]) -> list[StartResult | RedriveError]:
        """Start those of the runs that can be started, in one commit. The others have the error that refuses them."""
        known = await self._load_workflows({each.workflow for each in requests})
        found: list[StartResult | RedriveError | None] = [None] * len(requests)
        runs: list[tuple[int, NewRun]] = []
        for number, each in enumerate(requests):
            try:
                if each.workflow not in known:
                    raise _make_unknown(each.workflow)
                runs.append((number, await self._make_run(each, *known[each.workflow])))
            except InputError as error:
                found[number] = error
        started = await self._store.start([run for _, run in runs]) if runs else []
        self._on_start()
        for (number, run), answer in zip(runs, started, strict=True):
            reason = describe_key_conflict(run, answer.public_id, requests[number].event) if answer.clash else None
            found[number] = answer if reason is None else Conflict(reason)
        return [each for each in found if each is not None]

    async def _make_run(self, request: StartRequest, workflow: StartableWorkflow, schema: Any) -> NewRun:
        if schema is None:
            text = await self._checker.input(request.workflow, dict(request.input))
        else:
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=request.workflow)
            text = await self._checker.fitting(dict(request.input), schema, what)
        if request.event is not None and "idempotency_key" in request.options:
            raise InputError(Reason(ReasonCode.EVENT_HAS_KEY))
        options = request.options
        if options.get("on_failure") is not None:
            options = {**options, "on_failure": await self._find_handler(options["on_failure"])}
        if self._caller.who is not None:
            options = {**options, "started_by": self._caller.who}
        run = build_new_run(
            workflow,
            text,
            options,
            public_id=self._clock.new_id(),
            now=self._store.now(),
            key_keeps=self._key_keeps,
            trace=current_traceparent(),
        )
        if request.event is not None:
            run = set_event_key(run, request.event)
            if request.from_source:
                run = replace(run, options=add_origin(run.options, request.event))
        return run if run.key is None else replace(run, key_maker=self._caller.name)

    async def _find_handler(self, name: str) -> OnFailure:
        """Return the handler that a start names. The catalogue hides workflows that the caller may not start."""
        rows = [row for row in await self._store.known([name]) if row.kind == "workflow"]
        if not rows:
            raise _make_unknown(name)
        (item,) = rows
        workflow, schema = _read_catalogue(item)
        parameter = next(iter(schema.get("properties", {})), None)
        if parameter is None or find_faults({parameter: json.loads(make_sample_event())}, schema):
            raise InputError(Reason(ReasonCode.HANDLER_UNFIT, workflow=name))
        handler = FailureHandler(
            workflow=name,
            parameter=parameter,
            options=replace(workflow.options, on_failure=None).to_json(),
            timeout=None if workflow.timeout is None else int(workflow.timeout * MICROS),
        )
        return replace(self._rules, handlers=(handler,))

    async def _find_workflows(self, names: set[str]) -> dict[str, tuple[StartableWorkflow, Any]]:
        """Return workflows by name, as `_load_workflows` does; raise UnknownWorkflow if one is missing."""
        found = await self._load_workflows(names)
        if unknown := sorted(names - found.keys()):
            raise _make_unknown(unknown[0])
        return found

    async def _load_workflows(self, names: set[str]) -> dict[str, tuple[StartableWorkflow, Any]]:
        """Return workflows by name, each with the schema of its input where this process has no code to check it by."""
        found: dict[str, tuple[StartableWorkflow, Any]] = {}
        found |= {name: (here, None) for name in names if (here := self._here(name)) is not None}
        missing = sorted(names - found.keys())
        for item in await self._store.known(missing) if missing else ():
            if item.kind == "workflow":
                found[item.name] = _read_catalogue(item)
        return found


def _make_unknown(workflow: str) -> UnknownWorkflow:
    return UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind="workflow", name=workflow[:60]))


def _read_catalogue(item: CatalogueRow) -> tuple[StartableWorkflow, Any]:
    """Return a workflow that other processes registered, and the schema of its input."""
    options = RunOptions.from_json(item.options)
    workflow = StartableWorkflow(
        name=item.name,
        version=item.version,
        options=options,
        text=options.to_json(),
        timeout=json.loads(item.options).get("timeout"),  # stored beside the options of a run
    )
    return workflow, json.loads(item.schema_in or "{}")
