"""The part of the store that both databases share, and repeated calls of a store that does not answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redrive.clock import Clock
from redrive.core.failure import derive_fingerprint_key
from redrive.core.outbox import SinkLease
from redrive.core.transitions import NewRun, Transition, TransitionResult
from redrive.errors import DataRefused, StoreError, StoreUnavailable
from redrive.record_fields import replace
from redrive.store.accounts import AccountStore
from redrive.store.audit import AuditCalls
from redrive.store.bulk import BulkCalls
from redrive.store.children import ChildCalls
from redrive.store.chores import ChoreCalls
from redrive.store.circuits import CircuitCalls
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.events import EventCalls
from redrive.store.groups import GroupCalls
from redrive.store.letters import LetterCalls
from redrive.store.notifications import NotificationCalls, NotificationStore
from redrive.store.outbox import OutboxCalls
from redrive.store.outbox_claims import OutboxClaimCalls
from redrive.store.port import LeaseConnection, Transaction
from redrive.store.questions import QuestionCalls
from redrive.store.runs import RunCalls, StartResult
from redrive.store.settings import SavedViewCalls, SavedViewStore, ScheduleCalls, ScheduleStore, SettingsCalls
from redrive.store.stats import StatsCalls
from redrive.store.step_tasks import TaskCalls
from redrive.store.workers import Receipt, ReceiptWrite, WorkerCalls

Result = TypeVar("Result")
log = logging.getLogger("redrive.store")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds


class SqlStore(
    RunCalls,
    EventCalls,
    QuestionCalls,
    ChildCalls,
    LetterCalls,
    AuditCalls,
    GroupCalls,
    BulkCalls,
    CircuitCalls,
    OutboxCalls,
    OutboxClaimCalls,
    WorkerCalls,
    ChoreCalls,
    SettingsCalls,
    StatsCalls,
    TaskCalls,
):
    """Calls that do not depend on the database.

    Subclasses add the fast path (`_start`, `_apply`, `_claim`), the lease and the step transaction. This class seals
    and opens the payloads of those.
    """

    _start: Callable[[Sequence[NewRun], int | None], Awaitable[list[StartResult]]]
    _apply: Callable[[Sequence[Transition], int | None, Sequence[SinkLease]], Awaitable[list[TransitionResult]]]
    _apply_once: Callable[
        [Sequence[Transition], int | None, Callable[[Sequence[TransitionResult]], ReceiptWrite]],
        Awaitable[list[TransitionResult]],
    ]
    _claim: Callable[[ClaimRequest], Awaitable[ClaimResult]]
    _lease_connection: Callable[[], LeaseConnection]
    _transaction: Callable[[float], Transaction]

    secret = ""  # `open` reads it

    def fingerprint_key(self, tenant: str) -> bytes:
        return derive_fingerprint_key(self.secret, tenant)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        codec = self.database.codec
        if codec.keys is None:
            return await self._start(runs, worker)
        sealed = [codec.seal(run) for run in runs]
        answers = await self._start(sealed, worker)
        for number, answer in enumerate(answers):
            if answer.clash:
                # The first run's hash may have been written under another key, or under none. So the run is started
                # again with its input's hash in each of these forms. A start that clashes writes nothing.
                run = runs[number]
                for form in codec.keys.covers(run.key_hash or "", run.tenant):
                    if answers[number].clash and form != sealed[number].key_hash:
                        (answers[number],) = await self._start([replace(sealed[number], key_hash=form)], None)
            elif answer.claimed is not None:
                answers[number] = replace(answer, claimed=codec.open_claimed(answer.claimed))
        return answers

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[SinkLease] = (),
        receipt: Receipt | None = None,
    ) -> list[TransitionResult]:
        codec = self.database.codec
        if codec.keys is not None:
            transitions = [codec.seal(each) for each in transitions]
        if receipt is None:
            return await self._apply(transitions, worker, carriers)
        return await self._apply_once(transitions, worker, lambda results: codec.seal(receipt.fill(results)))

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        return self.database.codec.open_claims(await self._claim(claim))

    def lease_connection(self) -> LeaseConnection:
        return self.database.codec.wrap_lease(self._lease_connection())

    def transaction(self, limit: float) -> Transaction:
        return self.database.codec.wrap_transaction(self._transaction(limit))

    @property
    def accounts(self) -> AccountStore:
        return AccountStore(self.database)

    @property
    def notifications(self) -> NotificationStore:
        return NotificationCalls(self.database)

    @property
    def schedules(self) -> ScheduleStore:
        return ScheduleCalls(self.database)

    @property
    def views(self) -> SavedViewStore:
        return SavedViewCalls(self.database)


async def repeat_until_answered(
    ask: Callable[[], Awaitable[Result]], clock: Clock, *, patience: float | None = None
) -> Result:
    """Repeat a store call until the store answers. An outage delays a run; it never fails one.

    With `patience`, only StoreUnavailable is repeated, for that many seconds; any other error is raised at once.
    Use it for calls that a user waits for.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return await ask()
        except DataRefused:
            raise
        except StoreError as error:
            if patience is not None:
                if not isinstance(error, StoreUnavailable) or patience <= 0:
                    raise
                patience -= pause
            log.warning("store call failed; repeating it in %.2g s: %s", pause, error)
            await clock.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
