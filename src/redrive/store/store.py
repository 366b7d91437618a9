"""The store: every call that both databases answer with the same code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from redrive.core.failure import derive_key
from redrive.core.outbox import Carrier
from redrive.core.transitions import Answer, NewRun, Transition
from redrive.store.account_records import Accounts
from redrive.store.accounts import AccountCalls
from redrive.store.bulk import BulkCalls
from redrive.store.circuits import CircuitCalls
from redrive.store.encryption.keyring import Keyring
from redrive.store.groups import GroupCalls
from redrive.store.letters import LetterCalls
from redrive.store.notifications import Notices, NotificationCalls
from redrive.store.outbox import OutboxCalls
from redrive.store.port import LeaseLine, Transaction
from redrive.store.records import Started
from redrive.store.recovery import RecoveryCalls
from redrive.store.runs import RunCalls
from redrive.store.schedules import ScheduleCalls, Schedules
from redrive.store.settings import SavedViewCalls, SettingsCalls, Views
from redrive.store.stats import StatsCalls
from redrive.store.workers import CatalogueCalls, Claim, Claims, WorkerCalls

__all__ = ["SqlStore"]


class SqlStore(
    RunCalls,
    LetterCalls,
    GroupCalls,
    BulkCalls,
    CircuitCalls,
    OutboxCalls,
    CatalogueCalls,
    WorkerCalls,
    RecoveryCalls,
    SettingsCalls,
    StatsCalls,
):
    """The calls that do not depend on the database.

    Subclasses add the fast path, which seals and opens payloads here: `_start`, `_apply` and `_claim`, and
    the lease and the step transaction, which are open for longer than one call.
    """

    _start: Callable[[Sequence[NewRun], int | None], Awaitable[list[Started]]]
    _apply: Callable[[Sequence[Transition], int | None, Sequence[Carrier]], Awaitable[list[Answer]]]
    _claim: Callable[[Claim], Awaitable[Claims]]
    _lease_line: Callable[[], LeaseLine]
    _transaction: Callable[[float], Transaction]

    secret = ""  # read when the store is opened

    def fingerprint_key(self, tenant: str) -> bytes:
        return derive_key(self.secret, tenant)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        codec = self.database.codec
        if codec.keys is None:
            return await self._start(runs, worker)
        sealed = [codec.seal(run) for run in runs]
        answers = await self._start(sealed, worker)
        for number, answer in enumerate(answers):
            if answer.clash:
                answers[number] = await self._compare(codec.keys, runs[number], sealed[number], answer)
            elif answer.claimed is not None:
                answers[number] = replace(answer, claimed=codec.open_claimed(answer.claimed))
        return answers

    async def _compare(self, keys: Keyring, run: NewRun, sealed: NewRun, answer: Started) -> Started:
        """Start a run again that clashed, with its input's hash in every form that other keys give it.

        A clash may only mean that the first run's hash was written under another key, or under none. A
        start that clashes leaves nothing behind.
        """
        for form in keys.covers(run.key_hash or "", run.tenant):
            if form != sealed.key_hash:
                (again,) = await self._start([replace(sealed, key_hash=form)], None)
                if not again.clash:
                    return again
        return answer

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        codec = self.database.codec
        if codec.keys is not None:
            transitions = [codec.seal(each) for each in transitions]
        return await self._apply(transitions, worker, carriers)

    async def claim(self, claim: Claim) -> Claims:
        return self.database.codec.open_claims(await self._claim(claim))

    def lease_line(self) -> LeaseLine:
        return self.database.codec.wrap_lease(self._lease_line())

    def transaction(self, limit: float) -> Transaction:
        return self.database.codec.wrap_transaction(self._transaction(limit))

    @property
    def accounts(self) -> Accounts:
        return AccountCalls(self.database)

    @property
    def notices(self) -> Notices:
        return NotificationCalls(self.database)

    @property
    def schedules(self) -> Schedules:
        return ScheduleCalls(self.database)

    @property
    def views(self) -> Views:
        return SavedViewCalls(self.database)
