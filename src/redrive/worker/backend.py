"""The backend of a worker: everything that a worker asks for while it executes runs.

A worker knows no store. It reports outcomes, and the backend answers with decisions that are durable. `LocalBackend`
decides in this process and writes to the store; a remote backend sends the same calls to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from redrive.clock import Clock
from redrive.core.journal import EntryRow
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import Outcome, RunView
from redrive.observability.counters import SettleListener
from redrive.settle.cancellation import end_child
from redrive.settle.circuits import apply_samples, update_circuit
from redrive.settle.settler import LocalSettler, Settled, make_lenient_run_view
from redrive.store.children import AwaitedRun, Child
from redrive.store.circuits import CircuitKey, CircuitRow, Permit, PermitRequest, SuccessCount
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.events import Mailbox
from redrive.store.port import LeaseConnection, Store, Transaction
from redrive.store.questions import AskedQuestion
from redrive.store.runs import AttemptRow
from redrive.store.workers import Catalogue, NewWorker

if TYPE_CHECKING:
    from redrive.store.claims import ClaimedRun


class RollbackCause(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The recorded reason of a rollback: the failure of the run, and the code and failure of its letter, if any.

    `succeeded`: the run has a result, and is rolled back with its parent.
    """

    failure: str | None
    has_letter: bool
    succeeded: bool = False
    letter_code: str | None = None
    letter_failure: str | None = None


class Backend(Protocol):
    """The calls of a worker. Each may be repeated after `StoreUnavailable`, and the repeat changes nothing more."""

    commits_at_once: int
    """Batches that may be settled at the same time, 1 or 2. Both have outcomes of different runs."""

    @property
    def listeners(self) -> Sequence[SettleListener]:
        """Receivers of what a transactional step wrote."""

    def now(self) -> int:
        """Return the store's time in microseconds since 1970, as exactly as this process knows it."""

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        """Register the worker and its code; return its id, under which all later calls are made."""

    async def retire(self, worker: int) -> None:
        """Mark the worker as stopped. Runs that it still holds are orphans at once."""

    def lease_connection(self) -> LeaseConnection:
        """Open the connection for the worker's heartbeats."""

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Give the worker due runs, each under a fence one higher than before."""

    async def changed(self) -> None:
        """Return when another process may have made runs due since the last return. This is a hint only."""

    async def settle(self, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()) -> list[Settled]:
        """Decide on each outcome, record the decisions in one commit, and return them in order."""

    async def held(self, worker: int) -> list[RunView]:
        """Return the runs that the worker holds."""

    async def journal(self, run: int) -> list[EntryRow]:
        """Return all entries of a run that the worker holds."""

    async def attempts(self, run: int) -> list[AttemptRow]:
        """Return all attempts of such a run that did not succeed."""

    async def mailbox(self, run: int, *, tasks: bool = False) -> Mailbox | None:
        """Return the unread events of such a run, with its wake-ups and its fence.

        With `tasks`, the answers of its steps that others execute are in it, too.
        """

    async def wakeups(self, runs: Sequence[int]) -> dict[int, int]:
        """Return the number of wake-ups of each of these runs."""

    async def awaited_run(self, run: int, run_id: str) -> AwaitedRun | None:
        """Return the run that such a run waits for, with the wake-ups and the fence of the one that waits."""

    async def children(self, run: RunView) -> list[Child]:
        """Return the runs that end with such a run."""

    async def end_child(self, run: RunView, run_id: str, *, undo: bool) -> AwaitedRun | None:
        """Cancel one of them, or with `undo` begin its rollback if it has succeeded; return its state after that."""

    async def asked_question(self, run: int, index: int) -> AskedQuestion | None:
        """Return the answer that such a run waits for at an entry, with its wake-ups and its fence."""

    async def rollback_cause(self, run: ClaimedRun) -> RollbackCause:
        """Return why such a run is rolled back."""

    async def has_live_worker(self, workflow: str, version: str) -> bool:
        """Return True if a live worker has this version of the code of a workflow."""

    async def permit(self, ask: PermitRequest) -> Permit:
        """Ask whether to call a dependency whose circuit may not be closed."""

    async def evaluate_circuit(self, key: CircuitKey, settings: str) -> CircuitRow:
        """Decide on a circuit about which calls were recorded; return its new state."""

    async def circuits_changed_since(self, since: int) -> list[CircuitRow]:
        """Return the circuits that changed at this time or later."""

    async def count_successes(self, number: int, counts: Sequence[SuccessCount]) -> None:
        """Add successful calls to their circuits. Reports are numbered; a repeat has the same number and content."""

    def transaction(self, limit: float) -> Transaction:
        """Return a transaction for one transactional step."""


class LocalBackend:
    """The backend of a worker beside its store."""

    commits_at_once = 2

    def __init__(self, store: Store, clock: Clock, *, listeners: Sequence[SettleListener] = ()) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock, listeners=listeners)
        self._children_settler = LocalSettler(store, clock, listeners=listeners)  # other workers hold the children
        # Passed through as they are: a further call for each would cost every step of an embedded worker.
        self.now = store.now
        self.settle = self._settler.settle
        self.retire = store.retire
        self.lease_connection = store.lease_connection
        self.claim = store.claim
        self.changed = store.changed
        self.journal = store.journal
        self.attempts = store.attempts
        self.mailbox = store.mailbox
        self.wakeups = store.wakeups
        self.awaited_run = store.awaited_run
        self.asked_question = store.asked_question
        self.permit = store.permit
        self.circuits_changed_since = store.circuits_changed_since
        self.transaction = store.transaction

    @property
    def listeners(self) -> Sequence[SettleListener]:
        return self._settler.listeners

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        # The settler vouches for this id until the worker enlists again.
        self._settler.worker = await self._store.enlist(worker, catalogue)
        return self._settler.worker

    async def held(self, worker: int) -> list[RunView]:
        return [make_lenient_run_view(each.run) for each in await self._store.held(worker)]

    async def children(self, run: RunView) -> list[Child]:
        return await self._store.children_of(run.public_id, run.tenant)

    async def end_child(self, run: RunView, run_id: str, *, undo: bool) -> AwaitedRun | None:
        return await end_child(self._store, self._children_settler, run, run_id, undo=undo)

    async def rollback_cause(self, run: ClaimedRun) -> RollbackCause:
        return await read_rollback_cause(self._store, run.id, run.public_id)

    async def has_live_worker(self, workflow: str, version: str) -> bool:
        return await self._store.has_live_worker(workflow, version)

    async def count_successes(self, number: int, counts: Sequence[SuccessCount]) -> None:
        await self._store.count_successes(self._settler.worker or 0, number, counts)

    async def evaluate_circuit(self, key: CircuitKey, settings: str) -> CircuitRow:
        row, _ = await update_circuit(self._store, key, lambda case: apply_samples(case, settings))
        return row


async def read_rollback_cause(store: Store, run: int, public_id: str) -> RollbackCause:
    """Return why a run is rolled back."""
    (case,) = await store.cases([public_id])
    letter = None if case.letter is None else await store.letter_of(run)
    return RollbackCause(
        failure=case.run.failure,
        has_letter=case.letter is not None,
        succeeded=case.run.output is not None,
        letter_code=None if letter is None else letter.code,
        letter_failure=None if letter is None else letter.failure,
    )
