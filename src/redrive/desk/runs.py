"""`app.runs`: runs, their children, events and queues; cancelling and retrying them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.journal import EntryRow, History, HistoryEntry, list_history_entries
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, RunStatus
from redrive.core.waits_and_events import MAX_EVENT_NUMBER, WaitMode
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.circuits import CircuitRecord, present_circuit
from redrive.desk.event_sender import EventRequest, EventSender
from redrive.desk.models import Children, DeadLetter, EventRecord, Run, SentEvent, StepRecord
from redrive.desk.presenter import Presenter, present_page
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.replays import Replay, Replayer, ReplayOptions, make_replay_order
from redrive.desk.validation import in_thread_if_large, is_id, measure_size, require_bool
from redrive.errors import Conflict, NotFound
from redrive.observability.counters import SettleListener
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.settle.cancellation import cancel_run
from redrive.settle.settler import LocalSettler
from redrive.store.circuits import MOST_COUNTED
from redrive.store.filters import RunFilter, require_filter
from redrive.store.port import DeskStore
from redrive.store.result_page import Page
from redrive.store.runs import RunRow
from redrive.store.stats import LaneCount
from redrive.store.step_tasks import TaskStatus
from redrive.store.workers import WorkerRow, live_workers
from redrive.time_values import to_datetime


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
    """Facts beside a run that decide how it continues. Of `workers` that are alive, `able` have its workflow, in the
    version to which it is pinned. Of those, `serving` take runs of its queue. `versions`: the versions of its workflow
    that live workers have. `remote`: its steps that workers of a queue execute. `diverged`: its journal does not fit
    the code of the workers that tried it.
    """

    now: datetime
    paused_by: str | None
    workers: int
    able: int
    diverged: bool
    circuit: CircuitRecord | None
    serving: int = 0
    remote: tuple[RemoteStep, ...] = ()
    versions: tuple[str, ...] = ()


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


def get_awaited_run(step: StepRecord) -> str | None:
    """Return the id of the run that a wait is for; None if it is for events or for people."""
    wait = step.input
    return str(wait["names"][0]) if isinstance(wait, dict) and wait.get("mode") == WaitMode.RUN else None


async def load_failed_children(runs: Runs, waits: Iterable[StepRecord]) -> dict[str, Run]:
    """Return by id the runs with an open dead letter that open waits are for, and that the caller may see.

    Only the first waits are looked at, because each of the runs is read whole.
    """
    found: dict[str, Run] = {}
    for run_id in list(dict.fromkeys(filter(None, map(get_awaited_run, waits))))[:_MAX_AWAITED]:
        with suppress(NotFound):
            run = await runs.get(run_id)
            if run.letter_id is not None and run.status in FINAL_RUN_STATUSES - ENDED_FOR_GOOD:
                found[run_id] = run
    return found


def find_start_of_lost_child(failed: Run | DeadLetter) -> StepRecord | None:
    """Return the call that started the child of a failed wait, if that child is over and cannot be replayed."""
    lost = failed.reason_params.get("status") in (RunStatus.CANCELLED, RunStatus.COMPENSATED)
    if failed.reason_code != ReasonCode.CHILD_FAILED or not lost:
        return None
    starts = (step for step in failed.steps if step.kind is EntryKind.START and not step.superseded)
    return next((step for step in starts if step.output == failed.reason_params["run"]), None)


MAX_HISTORIES = 100
"""Histories of one page: each may have 10,000 entries."""

_MAX_AWAITED = 20  # runs that others wait for, looked up for one page
_MAX_ABOVE = 50  # runs that led to a run
_MAX_COUNTED_CHILDREN = 10_000

CheckCode = Callable[[History, str], Awaitable[None]]
"""Raises Conflict if this process has a version of the code, and a history does not fit it."""

LoadWorkers = Callable[[], Awaitable[list[WorkerRow]]]
_MAX_HANDLERS = 100
_OPEN_STATUSES = tuple(sorted(frozenset(RunStatus) - FINAL_RUN_STATUSES))
ENDED_FOR_GOOD = frozenset({RunStatus.SUCCESS, RunStatus.CANCELLED, RunStatus.COMPENSATED})
_WALKED_STATUSES = (RunStatus.SUCCESS, RunStatus.DLQ_PENDING)  # ended runs whose function ended by itself
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
        check_code: CheckCode | None = None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._check_code = check_code
        self._replayer = replayer
        self._previewer = previewer
        self._settler = LocalSettler(store, clock, listeners=listeners)
        self._clock = clock
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
            entries=(entries := await self._load_journal(row)),
            attempts=(attempts := await self._store.attempts(row.id)),
            letter_id=None if letter is None else letter.public_id,
            handled_by=await find_failure_handler_runs(self._store, row.public_id),
            note=await self._store.status_note(row.id),
        )
        return await in_thread_if_large(present, measure_size(row, entries, attempts))

    async def _load_journal(self, row: RunRow) -> list[EntryRow]:
        """Return the journal of a run. Heartbeats of remote steps are with their tasks."""
        journal = await self._store.journal(row.id)
        tasks = [] if row.status in FINAL_RUN_STATUSES else await self._store.open_tasks(row.id)
        beats = {task.index: task.heartbeat for task in tasks if task.heartbeat is not None}
        return [replace(each, heartbeat=beats[each.index]) if each.index in beats else each for each in journal]

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
            able=sum(worker.has(row.workflow, row.pin) for worker in alive),
            diverged=row.diverged_at is not None,
            circuit=present_circuit(circuit) if circuit is not None and circuit.version else None,
            serving=sum(worker.takes(row.workflow, row.queue, row.pin) for worker in alive),
            versions=_list_versions(row.workflow, alive),
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
        page = await self._store.runs(require_filter(filter, RunFilter), limit=limit, cursor=cursor)
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

    @operation("POST /runs/{id}/move", Permission.DECIDE, id="move_run", run_id="id")
    async def move(self, run_id: str, to: str, *, tenant: str | None = None, **acting: Unpack[Acting]) -> Run:
        """Let workers of another version of its workflow continue a pinned run, which began with an older one.

        A live worker must have that version. If this process has its code, the record of the run is checked against
        it first; otherwise check it with `redrive code check`. A run that a worker holds moves when it next waits.
        """
        row = await find_run(self._store, run_id, tenant)
        if row.pin == to:
            return await self.get(run_id, tenant=tenant)
        if not row.pin or row.status in ENDED_FOR_GOOD:
            code = ReasonCode.RUN_CANNOT_MOVE if row.pin else ReasonCode.RUN_NOT_PINNED
            raise Conflict(Reason(code, run=row.public_id, status=row.status))
        alive = live_workers(await self._workers(), self._store.now())
        if to not in (known := _list_versions(row.workflow, alive)):
            code = ReasonCode.VERSION_WITHOUT_WORKER
            raise Conflict(Reason(code, version=to, workflow=row.workflow, known=known or None))
        if self._check_code is not None and row.input is not None:
            entries = list_history_entries(await self._store.journal(row.id))
            await self._check_code(_make_history(row, entries, self._store.now()), to)
        actor = Actor(acting.get("by", "unknown"), acting.get("reason") or None)
        line = actor.make_audit(
            self._clock,
            AuditEvent.RUN_MOVED,
            row.tenant,
            row.public_id,
            before=json.dumps({"version": row.version}),
            after=json.dumps({"version": to}),
        )
        pin = to if any(worker.pins.get(row.workflow) == to for worker in alive) else ""
        if not await self._store.move_run(row.id, to, pin, line):  # it ended, or was moved, since it was read
            return await self.move(run_id, to, tenant=tenant, **acting)
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

    @operation("POST /runs:histories", Permission.SEE_PAYLOADS, id="export_histories")
    async def histories(
        self,
        *,
        workflow: str | None = None,
        ended: bool = False,
        limit: int = 20,
        cursor: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> Page[History]:
        """Return what open runs recorded, with all payloads that their code saw, newest first; up to 100 on a page.

        With `ended`, the runs that succeeded or have an open dead letter. The audit log records who read them.
        """
        line = Actor(by).make_audit(self._clock, AuditEvent.HISTORIES_EXPORTED, tenant or "", workflow or "")
        await self._store.note([line])
        return await self.read_histories(workflow=workflow, ended=ended, limit=limit, cursor=cursor, tenant=tenant)

    async def read_histories(
        self,
        *,
        workflow: str | None = None,
        ended: bool = False,
        limit: int = 20,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> Page[History]:
        """Return the same without a line in the audit log, for a process that has the store."""
        statuses = _WALKED_STATUSES if ended else _OPEN_STATUSES
        where = RunFilter(workflow=workflow, status=statuses, tenant=tenant)
        page = await self._store.runs(where, limit=min(limit, MAX_HISTORIES), cursor=cursor)
        rows = {row.public_id: row for row in await self._store.runs_by_id([row.public_id for row in page.items])}
        now, found = self._store.now(), list[History]()
        for row in filter(None, (rows.get(each.public_id) for each in page.items)):
            if row.input is not None:  # its payloads may have been removed after its retention time
                journal = await self._store.journal(row.id)
                found.append(_make_history(row, list_history_entries(journal), now))
        return Page(found, page.next, page.prev)

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


def _list_versions(workflow: str, alive: Sequence[WorkerRow]) -> tuple[str, ...]:
    return tuple(sorted({worker.version_of(workflow) for worker in alive if workflow in worker.workflows}))


def _make_history(row: RunRow, entries: tuple[HistoryEntry, ...], now: int) -> History:
    assert row.input is not None
    return History(
        run_id=row.public_id,
        workflow=row.workflow,
        tenant=row.tenant,
        version=row.version,
        status=row.status,
        at=now,
        input=row.input,
        options=row.options or "",
        created_at=row.created_at,
        started_at=row.started_at,
        correlation_id=row.correlation_id,
        root=row.root,
        generation=row.generation,
        entries=entries,
    )


async def find_run(store: DeskStore, run_id: str, tenant: str | None) -> RunRow:
    """Return the run with this id; NotFound if it does not exist for the caller."""
    row = await store.run(run_id, tenant=tenant) if is_id(run_id) else None
    if row is None:
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id)))
    return row
