"""`app.saga`: the ledger of a rollback, and what a person decides about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from redrive.core.idempotency import flow_key, payload_hash
from redrive.core.replay import ReplayMode
from redrive.core.run_options import StepOptions
from redrive.core.saga import LedgerRow, read_ledger
from redrive.core.states import RunStatus, StepStatus
from redrive.desk.decisions import Replay, Replayer, ReplayOrder, make_replay_request
from redrive.desk.models import AttemptRecord, StepRecord
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size
from redrive.desk.runs import find_run
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaEntry:
    """One compensation: of which step, by what, and how far it is.

    `status` is a step's, or UNCERTAIN: nobody knows whether the step happened, and it is left so.
    `type` is `function`, `api_call`, `sql`, `notify` or `manual`; `attempt` is 0 until the first; `ts` is
    when it last changed; `instructions` are what a person has to do. `payload_hash` is None for those who may
    not see payloads: who has it can try out what a short one is.
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
    payload_hash: str | None
    idempotency_key: str
    input: Any
    result: Any
    error: str | None
    instructions: str | None
    attempts: tuple[AttemptRecord, ...]
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if nothing more happens to it."""
        return self.status in ("SUCCESS", "SKIPPED", "UNCERTAIN")

    @property
    def waits_for_person(self) -> bool:
        """True if somebody has to do it and say so."""
        return self.type == "manual" and self.status == StepStatus.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    """The compensations of one run, in the order in which they are done; `done` need nothing more."""

    run_id: str
    workflow: str
    tenant: str
    status: RunStatus
    done: int
    entries: tuple[SagaEntry, ...]


class Ledger:
    """The compensations of one run, in the order in which they are done."""

    def __init__(self, run: RunRow, entries: tuple[SagaEntry, ...], replayer: Replayer) -> None:
        self.run_id = run.public_id
        self.workflow = run.workflow
        self.tenant = run.tenant
        self.status: RunStatus = run.status
        self.entries = entries
        self._replayer = replayer

    @property
    def done(self) -> int:
        """How many of them need nothing more."""
        return sum(entry.is_over for entry in self.entries)

    async def resume(self, *, by: str = "unknown", reason: str | None = None) -> Replay:
        """Go on with a rollback that stopped, at the compensation that failed."""
        return await self._decide(ReplayMode.FROM_FAILED, by, reason)

    async def skip(self, step: str, *, by: str = "unknown", reason: str | None = None) -> Replay:
        """Leave out the compensation of this step, and go on with the next."""
        return await self._decide(ReplayMode.SKIP, by, reason, undo=step)

    async def mark_done(self, step: str, *, by: str = "unknown", reason: str | None = None) -> Replay:
        """Say that the step was undone by hand, and go on with the next."""
        return await self._decide(ReplayMode.COMPLETE, by, reason, undo=step)

    async def _decide(self, mode: ReplayMode, by: str, reason: str | None, **options: str) -> Replay:
        request = await make_replay_request(mode, **options)
        return await self._replayer.replay(
            self.run_id, ReplayOrder(request=request, by=by, reason=reason), tenant=self.tenant
        )

    def __repr__(self) -> str:
        return f"<ledger of run {self.run_id}: {self.done} of {len(self.entries)}>"


class Sagas:
    """Finds ledgers."""

    def __init__(self, store: DeskStore, shaper: Presenter, replayer: Replayer) -> None:
        self._store = store
        self._shaper = shaper
        self._replayer = replayer

    async def get(self, run_id: str, *, tenant: str | None = None) -> Ledger:
        """The ledger of a run as it stands; one that is not rolled back has no entries."""
        run = await find_run(self._store, run_id, tenant)
        journal = await self._store.journal(run.id)
        rows = read_ledger(journal)
        entries, attempts = [row.entry for row in rows], await self._store.attempts(run.id)
        shaped = await in_thread_if_large(
            partial(self._shaper.steps, entries, attempts), measure_size(entries, attempts)
        )
        return Ledger(run, _present_entries(run, rows, shaped), self._replayer)


def _present_entries(run: RunRow, rows: Sequence[LedgerRow], shaped: Sequence[StepRecord]) -> tuple[SagaEntry, ...]:
    return tuple(_present_entry(run, row, step) for row, step in zip(rows, shaped, strict=True))


def _present_entry(run: RunRow, row: LedgerRow, step: StepRecord) -> SagaEntry:
    options = StepOptions.from_json(row.entry.options or StepOptions().to_json())
    manual, begun = options.action == "manual", row.entry.attempt > 0
    return SagaEntry(
        run_id=run.public_id,
        workflow=run.workflow,
        step=row.undone.name,
        step_key=row.undone.key,
        step_index=row.undone.index,
        action=step.name,
        type=options.action or "function",
        status="UNCERTAIN" if row.is_listed_only else step.status.value,
        attempt=step.attempt,
        uncertain=row.uncertain,
        created_at=step.began_at,
        began_at=step.began_at if begun else None,
        ended_at=step.ended_at if begun else None,
        next_at=step.next_at,
        ts=step.ended_at or step.began_at,
        correlation_id=run.correlation_id or run.public_id,
        payload_hash=payload_hash(row.entry.input or "null"),
        idempotency_key=flow_key(run.tenant, run.root or run.public_id, row.entry.key, run.generation),
        input=step.input,
        result=None if manual else step.output,
        error=step.error,
        reason_code=step.reason_code,
        reason_params=step.reason_params,
        instructions=step.output if manual else None,
        attempts=step.attempts,
    )
