"""`app.runs`: look at runs, cancel them, retry those that failed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.new_run import StartableWorkflow, build_new_run, describe_key_conflict, set_event_key
from redrive.core.outcomes import CancelRequested
from redrive.core.replay import ReplayMode
from redrive.core.run_options import RunOptions
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import NewRun
from redrive.desk.circuits import CircuitRecord, present_circuit
from redrive.desk.decisions import Replay, Replayer, ReplayOrder, make_replay_request
from redrive.desk.models import Caller, Run
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.validation import PayloadChecker, is_id, require_actor, require_bool, require_long_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow
from redrive.observability.counters import SettleListener
from redrive.observability.tracing import current_traceparent
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import replace
from redrive.settle.settler import LocalSettler, make_open_steps, make_run_view
from redrive.store.circuits import MOST_COUNTED
from redrive.store.filters import RunFilter
from redrive.store.list_query import Page
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow, StartResult
from redrive.store.workers import CatalogueRow, WorkerRow, live_workers

# -- What else decides how a run goes on: pauses, workers, the circuit it waits for ----------------------


LoadWorkers = Callable[[], Awaitable[list[WorkerRow]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside a run itself. Of `workers` that are alive, `able` have its workflow.

    `diverged`: its journal does not fit the code of those who tried it.
    """

    now: datetime
    paused_by: str | None
    workers: int
    able: int
    diverged: bool
    circuit: CircuitRecord | None


async def load_run_context(store: DeskStore, run: RunRow, workers: LoadWorkers) -> Surroundings:
    """The surroundings of a run, at this moment."""
    now = store.now()
    alive = live_workers(await workers(), now)
    return Surroundings(
        now=to_datetime(now),
        paused_by=(await store.paused()).get(run.workflow),
        workers=len(alive),
        able=sum(run.workflow in worker.workflows for worker in alive),
        diverged=run.diverged_at is not None,
        circuit=await _load_circuit(store, run),
    )


async def _load_circuit(store: DeskStore, run: RunRow) -> CircuitRecord | None:
    if run.parked_on is None:
        return None
    row = (await store.circuit(run.tenant, run.parked_on, counted=MOST_COUNTED)).row
    return present_circuit(row) if row.version else None


# -- From a failed run to the runs that handle its failure -----------------------------------------------


_MAX_HANDLERS = 100


async def find_failure_handler_runs(store: DeskStore, *run_ids: str) -> list[str]:
    """The ids of the handlers of these runs' failures, oldest first; what a handler started is left out."""
    found: list[tuple[int, str]] = []
    for run_id in dict.fromkeys(run_ids):
        page = await store.runs(RunFilter(handler_for=run_id), limit=_MAX_HANDLERS, cursor=None)
        found += [(run.id, run.public_id) for run in page.items if run.parent == run_id]
    return [public_id for _, public_id in sorted(found)]


# -- `app.runs`: look at runs, cancel them, retry those that failed --------------------------------------


_MODE_ALIASES = {"skip_failed": ReplayMode.SKIP}
_OPEN_STEP_STATUSES = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})


class Runs:
    """Runs as people see and handle them."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        shaper: Presenter,
        replayer: Replayer,
        previewer: Previewer,
        on_change: Callable[[str], None],
        workers: LoadWorkers,
        *,
        ears: Sequence[SettleListener] = (),
    ) -> None:
        self._store = store
        self._replayer = replayer
        self._previewer = previewer
        self._settler = LocalSettler(store, clock, listeners=ears)
        self._shaper = shaper
        self._on_change = on_change
        self._workers = workers

    async def get(self, run_id: str, *, tenant: str | None = None) -> Run:
        """One run with its input, result, steps and every attempt."""
        row = await find_run(self._store, run_id, tenant)
        letter = await self._store.letter_of(row.id) if row.status in FINAL_RUN_STATUSES else None
        shape = partial(
            self._shaper.run,
            row,
            entries=(entries := await self._store.journal(row.id)),
            attempts=(attempts := await self._store.attempts(row.id)),
            letter_id=None if letter is None else letter.public_id,
            handled_by=await find_failure_handler_runs(self._store, row.public_id),
        )
        return await in_thread_if_large(shape, measure_size(row, entries, attempts))

    async def around(self, run_id: str, *, tenant: str | None = None) -> Surroundings:
        """What else decides how a run goes on: pauses, workers that are alive, the circuit it waits for."""
        return await load_run_context(self._store, await find_run(self._store, run_id, tenant), self._workers)

    async def list(self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page[Run]:
        """A page of runs, newest first; `page.next` and `page.prev` are cursors to its neighbours."""
        page = await self._store.runs(filter or RunFilter(), limit=limit, cursor=cursor)
        runs = await in_thread_if_large(lambda: [self._shaper.run(row) for row in page.items], measure_size(page.items))
        return Page(runs, page.next, page.prev)

    async def cancel(self, run_id: str, *, by: str = "unknown", reason: str = "", tenant: str | None = None) -> Run:
        """Cancel a run for good. Its worker hears of it with its next heartbeat and stops the step in flight.

        Cancelling a cancelled run changes nothing; one that ended otherwise is a conflict.
        """
        require_actor(by)
        if reason:
            require_long_text("reason", reason)
        while True:
            row = await find_run(self._store, run_id, tenant)
            if row.status is RunStatus.CANCELLED:
                return await self.get(run_id, tenant=tenant)
            if row.status in FINAL_RUN_STATUSES:
                raise Conflict(Reason(ReasonCode.RUN_ENDED, run=run_id, status=row.status))
            if row.status is RunStatus.COMPENSATING:
                raise Conflict(Reason(ReasonCode.RUN_BEING_UNDONE, run=run_id))
            entries = await self._store.journal(row.id)
            if any(entry.kind is EntryKind.CONFIRM and not entry.superseded for entry in entries):
                raise Conflict(Reason(ReasonCode.RUN_CONFIRMING, run=run_id))
            now = self._store.now()
            still_open = make_open_steps(
                (e for e in entries if e.status in _OPEN_STEP_STATUSES and not e.superseded), now
            )
            outcome = CancelRequested(run=make_run_view(row), by=by, reason=reason, open=still_open)
            (settled,) = await self._settler.settle([outcome])
            if settled.kept:
                self._on_change(row.public_id)
                return await self.get(run_id, tenant=tenant)

    async def retry(
        self,
        run_id: str,
        mode: str = "from_failed",
        *,
        skip_steps: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> Replay | DryRun:
        """Run a failed or partial run again: `from_failed`, `full`, or `skip_failed`.

        `skip_steps` maps steps, by key or name, to results that are taken instead of calling them;
        `skip_failed` takes `output` (None) for the failed step's. Other options are those of `dlq.replay`;
        a run with an open dead letter is replayed through it.
        """
        chosen = _MODE_ALIASES.get(mode.lower(), mode) if isinstance(mode, str) else mode
        request = await make_replay_request(chosen, skip_steps=skip_steps, **options)
        order = ReplayOrder(request=request, by=by, reason=reason, key=idempotency_key, of_run=True)
        return await self._decide(run_id, order, tenant, dry_run=dry_run)

    async def rollback(
        self,
        run_id: str,
        *,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
    ) -> Replay | DryRun:
        """Undo what a failed run did, by the compensations of its steps, whether or not its workflow says so.

        Refused if the run passed a pivot. `dry_run` says what would be undone, and undoes nothing.
        """
        request = await make_replay_request(ReplayMode.ROLLBACK)
        order = ReplayOrder(request=request, by=by, reason=reason, key=idempotency_key, of_run=True)
        return await self._decide(run_id, order, tenant, dry_run=dry_run)

    async def _decide(self, run_id: str, order: ReplayOrder, tenant: str | None, *, dry_run: bool) -> Replay | DryRun:
        if require_bool("dry_run", dry_run):
            return await self._previewer.preview(run_id, order, tenant=tenant)
        return await self._replayer.replay(run_id, order, tenant=tenant)


async def find_run(store: DeskStore, run_id: str, tenant: str | None) -> RunRow:
    """The run of this id, if there is one that the asker may know of."""
    row = await store.run(run_id, tenant=tenant) if is_id(run_id) else None
    if row is None:
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id)))
    return row


# -- Starting runs by the name of their workflow, with inputs as JSON: what servers do who may lack  -----


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run that somebody wants: the options are those of `start`.

    `event` is what starts it: a stream and an id. It is its own key, so it excludes another one.
    """

    workflow: str
    event: tuple[str, str] | None = None
    input: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class _StartableWorkflow(msgspec.Struct, frozen=True):
    """A workflow, and the schema of its input where this process has no code to check it by."""

    workflow: StartableWorkflow
    schema: Any


class RunStarter:
    """Starts runs. `here` finds a workflow whose code this process has; the catalogue knows the others.

    `caller` is the credential that it works for, if it does not work for this process.
    """

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        here: Callable[[str], StartableWorkflow | None],
        on_start: Callable[[], None],
        key_keeps: int,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._checker = checker
        self._here = here
        self._on_start = on_start
        self._key_keeps = key_keeps
        self._caller = caller or Caller()

    async def start(self, wanted: Sequence[StartRequest]) -> list[StartResult]:
        """Accept runs, all or none of them; a key that was used for another input is a Conflict.

        A caller who may not see payloads is told so of the keys that this caller bound. Of any other key
        the answer is a Conflict for every input: with one that depends on it, inputs could be guessed.
        """
        known = await self._find_workflows({each.workflow for each in wanted})
        runs = [await self._make_run(known[each.workflow], each) for each in wanted]
        started = await self._store.start(runs)
        self._on_start()
        for run, answer, each in zip(runs, started, wanted, strict=True):
            if not (answer.new or self._caller.sees_payloads or answer.maker == self._caller.name):
                raise Conflict(
                    f"the idempotency key of this start is bound to run {answer.public_id} by another "
                    "credential: use that one, a credential that may see payloads, or a new key "
                    f"(workflow {run.workflow!r}, tenant {run.tenant!r})"
                )
            if answer.clash:
                raise Conflict(describe_key_conflict(run, answer.public_id, each.event))
        return started

    async def _make_run(self, known: _StartableWorkflow, wanted: StartRequest) -> NewRun:
        if known.schema is None:
            text = await self._checker.input(wanted.workflow, dict(wanted.input))
        else:
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=wanted.workflow)
            text = await self._checker.fitting(dict(wanted.input), known.schema, what)
        if wanted.event is not None and "idempotency_key" in wanted.options:
            raise InputError("an event is its own idempotency key; leave idempotency_key out")
        run = build_new_run(
            known.workflow,
            text,
            wanted.options,
            public_id=self._clock.new_id(),
            now=self._store.now(),
            key_keeps=self._key_keeps,
            trace=current_traceparent(),
        )
        if wanted.event is not None:
            run = set_event_key(run, wanted.event)
        return run if run.key is None else replace(run, key_maker=self._caller.name)

    async def _find_workflows(self, names: set[str]) -> dict[str, _StartableWorkflow]:
        found = {name: _StartableWorkflow(here, None) for name in names if (here := self._here(name)) is not None}
        missing = sorted(names - found.keys())
        items = await self._store.known(missing) if missing else []
        found.update({item.name: _read_catalogue_item(item) for item in items if item.kind == "workflow"})
        if unknown := sorted(names - found.keys()):
            raise UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind="workflow", name=unknown[0][:60]))
        return found


def _read_catalogue_item(item: CatalogueRow) -> _StartableWorkflow:
    """A workflow of the catalogue; beside the options of a run that says its time limit."""
    options = RunOptions.from_json(item.options)
    workflow = StartableWorkflow(
        name=item.name,
        version=item.version,
        options=options,
        text=options.to_json(),
        timeout=json.loads(item.options).get("timeout"),
    )
    return _StartableWorkflow(workflow, json.loads(item.schema_in or "{}"))
