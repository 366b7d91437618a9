"""`app.saga`: the ledger of a rollback, and the decisions of a user about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from redrive.core.keys_and_ids import flow_key, keyed_payload_hash
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.core.run_options import StepOptions
from redrive.core.saga import LedgerRow, read_ledger
from redrive.core.states import RunStatus, StepStatus
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.models import AttemptRecord, StepRecord
from redrive.desk.presenter import Presenter, present_row
from redrive.desk.replays import Replay, Replayer, ReplayOrder, make_replay_request
from redrive.desk.runs import find_run
from redrive.desk.validation import in_thread_if_large, measure_size
from redrive.store.letters import ReplayRow
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow
from redrive.time_values import to_datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaEntry:
    """A compensation: the step that it undoes, its action, and its progress.

    `status` is that of a step, or UNCERTAIN: it is unknown whether the step happened, so it is not undone; or LEFT: the
    effects of a child stay. `type` is `function`, `api_call`, `sql`, `notify`, `manual` or `child`; `run` is the id of
    the child, which is undone by its own rollback. `attempt` is 0 until the first; `ts` is
    when it last changed; `instructions` say what a user has to do. `decided_by` and `decision_reason`: the user who
    skipped it or marked it as done, and why. `payload_hash` is a hash of the input with a key of the tenant.
    """

    run_id: str
    workflow: str
    step: str
    step_key: str
    step_index: int
    action: str
    type: str
    status: str
    attempt: int
    uncertain: bool
    created_at: datetime
    began_at: datetime | None
    ended_at: datetime | None
    next_at: datetime | None
    ts: datetime
    correlation_id: str
    payload_hash: str
    idempotency_key: str
    input: Any
    result: Any
    error: str | None
    instructions: str | None
    attempts: tuple[AttemptRecord, ...]
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)
    decided_by: str | None = None
    decision_reason: str | None = None
    run: str | None = None

    @property
    def is_over(self) -> bool:
        """True if the compensation needs nothing more."""
        return self.status in ("SUCCESS", "SKIPPED", "UNCERTAIN", "LEFT")

    @property
    def message(self) -> str | None:
        """The error message of the last attempt that has one."""
        return next((each.message for each in reversed(self.attempts) if each.message), None)

    @property
    def waits_for_person(self) -> bool:
        """True if a user has to do the compensation and mark it as done."""
        return self.type == "manual" and self.status == StepStatus.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    """The compensations of one run, in the order of their execution; `done` of them need nothing more."""

    run_id: str
    workflow: str
    tenant: str
    status: RunStatus
    done: int
    entries: tuple[SagaEntry, ...]

    @property
    def undone(self) -> int:
        """The number of compensations that were done: not skipped, left or uncertain."""
        return sum(entry.status == "SUCCESS" for entry in self.entries)

    @property
    def next_entry(self) -> SagaEntry | None:
        """The first compensation that is not over, None if all are."""
        return next((entry for entry in self.entries if not entry.is_over), None)

    @property
    def stopped_entry(self) -> SagaEntry | None:
        """The compensation at which the rollback stopped, None if it did not stop."""
        return self.next_entry if self.status is RunStatus.DLQ_PENDING else None


Decide = Callable[[ReplayMode, Actor, str | None], Awaitable[Replay]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Ledger(Saga):
    """The compensations of one run, with the decisions of a user. `decide` carries one out."""

    decide: Decide

    async def resume(self, **acting: Unpack[Acting]) -> Replay:
        """Continue a rollback that stopped, at the compensation that failed."""
        return await self.decide(ReplayMode.FROM_FAILED, Actor(**acting), None)

    async def skip(self, step: str, **acting: Unpack[Acting]) -> Replay:
        """Leave out the compensation of this step, and continue with the next."""
        return await self.decide(ReplayMode.SKIP, Actor(**acting), step)

    async def mark_done(self, step: str, **acting: Unpack[Acting]) -> Replay:
        """Record that a user undid the step by hand, and continue with the next."""
        return await self.decide(ReplayMode.COMPLETE, Actor(**acting), step)

    def __repr__(self) -> str:
        return f"<ledger of run {self.run_id}: {self.done} of {len(self.entries)}>"


class Sagas:
    """Finds ledgers."""

    def __init__(self, store: DeskStore, presenter: Presenter, replayer: Replayer) -> None:
        self._store = store
        self._presenter = presenter
        self._replayer = replayer

    @operation("GET /runs/{id}/saga", Permission.LOOK, run_id="id")
    async def get(self, run_id: str, *, tenant: str | None = None) -> Ledger:
        """Return the ledger of a run; a run that is not rolled back has no entries."""
        run = await find_run(self._store, run_id, tenant)
        rows = read_ledger(await self._store.journal(run.id))
        compensations, attempts = [row.entry for row in rows], await self._store.attempts(run.id)
        steps = await in_thread_if_large(
            partial(self._presenter.steps, compensations, attempts, run.options), measure_size(compensations, attempts)
        )
        decisions = await self._find_decisions(run, sum(step.by_hand for step in steps))
        key = self._store.fingerprint_key(run.tenant)
        entries = tuple(
            _present_entry(run, row, step, key, next(decisions, None) if step.by_hand else None)
            for row, step in zip(rows, steps, strict=True)
        )

        async def decide(mode: ReplayMode, actor: Actor, undo: str | None) -> Replay:
            request = await make_replay_request(mode, undo=undo)
            return await self._replayer.replay(
                run.public_id, ReplayOrder(request=request, actor=actor), tenant=run.tenant
            )

        done = sum(entry.is_over for entry in entries)
        return present_row(Ledger, run, run_id=run.public_id, done=done, entries=entries, decide=decide)

    async def _find_decisions(self, run: RunRow, count: int) -> Iterator[ReplayRow]:
        """Return the decisions on compensations: the latest `count` of those that ended a step, in order.

        A rollback follows the order of its ledger, so the n-th decision is on the n-th compensation that has one.
        """
        cases = await self._store.cases([run.public_id]) if count else ()
        made = [each for case in cases for each in case.replays if each.mode in (ReplayMode.SKIP, ReplayMode.COMPLETE)]
        return iter(made[-count:])


def _present_entry(run: RunRow, row: LedgerRow, step: StepRecord, key: bytes, decision: ReplayRow | None) -> SagaEntry:
    options = StepOptions.from_json(row.entry.options or StepOptions().to_json())
    manual, begun = options.action == "manual", row.entry.attempt > 0
    return present_row(
        SagaEntry,
        step,
        run_id=run.public_id,
        workflow=run.workflow,
        step=row.undone.name,
        step_key=row.undone.key,
        step_index=row.undone.index,
        action=step.name,
        type=options.action or "function",
        status=("LEFT" if row.is_child else "UNCERTAIN") if row.is_listed_only else step.status.value,
        run=row.child,
        uncertain=row.uncertain,
        created_at=step.began_at,
        began_at=step.began_at if begun else None,
        ended_at=step.ended_at if begun else None,
        ts=to_datetime(decision.at) if decision is not None else step.ended_at or step.began_at,
        correlation_id=run.correlation_id or run.public_id,
        payload_hash=keyed_payload_hash(row.entry.input or "null", key),
        idempotency_key=flow_key(run.tenant, run.root or run.public_id, row.entry.key, run.generation),
        input=step.input,
        result=None if manual else step.output,
        instructions=step.output if manual else None,
        decided_by=None if decision is None else decision.by,
        decision_reason=None if decision is None else decision.reason,
    )
