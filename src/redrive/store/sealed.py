"""A store around another one that sees no payload: they are sealed on the way in and opened on the way out.

`store/sealing.py` says which parts of the port's records are payloads. The inner store moves sealed texts
about as it would any other: a letter's copy of its run's input is made by the database, for instance, and
needs no key.

What cannot be opened here is never dropped or overwritten. A claimed run with such a text is handed out
with a journal that raises when it is read, which makes its worker set it aside as a dead letter; elsewhere
the text stays sealed, and goes back to the store as it came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from typing import cast

from redrive.core.delivery import Arrived, Carrier, DeliveryMark, Suspects
from redrive.core.journal import EntryRow
from redrive.core.transition import Answer, AuditWrite, NewRun, Transition
from redrive.errors import ConfigurationError, InputError
from redrive.store.accounts import Accounts
from redrive.store.circuits import CircuitTurn, Turned
from redrive.store.glances import Facets, RunGlance
from redrive.store.notices import Notices
from redrive.store.outbox import BlockedKey, Deliveries, DeliveryDecision, MessageRow
from redrive.store.passing import passed_on
from redrive.store.port import LeaseLine, People, Store, Transaction
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    Case,
    GroupPage,
    HeldRun,
    LetterRow,
    Page,
    PolicyRow,
    RunRow,
    Started,
    Triage,
)
from redrive.store.schedules import Schedules
from redrive.store.seal import Keyring, is_sealed, why_sealed
from redrive.store.sealed_accounts import SealedAccounts
from redrive.store.sealed_lines import SealedLease, SealedTransaction
from redrive.store.sealed_notices import SealedNotices
from redrive.store.sealed_schedules import SealedSchedules
from redrive.store.sealed_views import SealedViews
from redrive.store.sealing import Sealer, remade
from redrive.store.selection import (
    AuditFilter,
    GroupFilter,
    LetterFilter,
    OutboxFilter,
    RunFilter,
)
from redrive.store.sets import ItemMark, NewSet, SetChange, SetItemRow, SetItemStatus, SetRow
from redrive.store.views import Views
from redrive.store.workers import Claim, Claimed, Claims

__all__ = ["SealedStore", "refuse_unreadable"]


async def refuse_unreadable(store: Store) -> None:
    """Refuse to go on if what was written last cannot be read with the keys of this process.

    A look at the newest run is enough to notice that keys are missing or wrong before anything is claimed,
    and costs a process that has no keys, and needs none, next to nothing.
    """
    newest = await store.runs(RunFilter(), limit=1, cursor=None)
    for row in newest.items:
        run = await store.run(row.public_id)
        if run is not None and run.input is not None and is_sealed(run.input):
            raise ConfigurationError(
                f"the input of run {run.public_id}, the newest in the store, cannot be read: "
                f"{why_sealed(run.input)}. Nothing was started, and nothing is lost"
            )


class _Unreadable(tuple[EntryRow, ...]):
    """The journal of a run that cannot be opened here: reading it raises."""

    why: ConfigurationError

    def __iter__(self) -> Iterator[EntryRow]:
        raise self.why


class SealedStore:
    """A store whose payloads only those can read who have the keys."""

    def __init__(self, inner: Store, keys: Keyring) -> None:
        self._inner = inner
        self._keys = keys
        self._sealer = Sealer(keys)

    def now(self) -> int:
        return self._inner.now()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        view = copy(self)
        view._inner = cast(Store, self._inner.confined(tenant, workflows))
        return view

    @property
    def accounts(self) -> Accounts:
        return SealedAccounts(self._inner.accounts, self._sealer)

    @property
    def notices(self) -> Notices:
        return SealedNotices(self._inner.notices, self._sealer)

    @property
    def schedules(self) -> Schedules:
        return SealedSchedules(self._inner.schedules, self._sealer)

    @property
    def views(self) -> Views:
        return SealedViews(self._inner.views, self._sealer)

    # -- nothing to seal -----------------------------------------------------------------------------

    open = passed_on(Store.open)
    close = passed_on(Store.close)
    changed = passed_on(Store.changed)
    enlist = passed_on(Store.enlist)
    retire = passed_on(Store.retire)
    workers = passed_on(Store.workers)
    bury = passed_on(Store.bury)
    purge = passed_on(Store.purge)
    fold = passed_on(Store.fold)
    circuit = passed_on(Store.circuit)
    permit = passed_on(Store.permit)
    circuits_due = passed_on(Store.circuits_due)
    circuits_since = passed_on(Store.circuits_since)
    circuits = passed_on(Store.circuits)
    put_sinks = passed_on(Store.put_sinks)
    sinks = passed_on(Store.sinks)
    known = passed_on(Store.known)
    workflows = passed_on(Store.workflows)
    set_endings = passed_on(Store.set_endings)
    figures = passed_on(Store.figures)
    unclaimable = passed_on(Store.unclaimable)
    policies = passed_on(Store.policies)
    paused = passed_on(Store.paused)

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        sealed = [self._sealer.seal(run, run.tenant) for run in runs]
        answers = await self._inner.start(sealed, worker=worker)
        for number, answer in enumerate(answers):
            if answer.clash:
                answers[number] = await self._compared(runs[number], sealed[number], answer)
            elif answer.claimed is not None:
                answers[number] = remade(answer, {"claimed": self._claimed(answer.claimed)})
        return answers

    async def _compared(self, run: NewRun, sealed: NewRun, answer: Started) -> Started:
        """A clash may only mean that the first run's hash was written under another key, or under none.

        So the run is offered again under each of them; one that clashes leaves nothing behind.
        """
        for form in self._keys.covers(run.key_hash or "", run.tenant):
            if form != sealed.key_hash:
                (again,) = await self._inner.start([remade(sealed, {"key_hash": form})])
                if not again.clash:
                    return again
        return answer

    # -- workers -------------------------------------------------------------------------------------

    def lease_line(self) -> LeaseLine:
        return SealedLease(self._inner.lease_line(), self._keys)

    async def claim(self, claim: Claim) -> Claims:
        claims = await self._inner.claim(claim)
        return remade(claims, {"runs": [self._claimed(run) for run in claims.runs]})

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        sealed = [self._sealer.transition(transition) for transition in transitions]
        return await self._inner.apply(sealed, worker=worker, carriers=carriers)

    def transaction(self, limit: float) -> Transaction:
        return SealedTransaction(self._inner.transaction(limit), self._sealer)

    # -- chores --------------------------------------------------------------------------------------

    async def held(self, worker: int) -> list[HeldRun]:
        return [self._held(held) for held in await self._inner.held(worker)]

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        return [self._held(held) for held in await self._inner.hung(margin, limit)]

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        return [self._held(held) for held in await self._inner.overdue(margin, limit)]

    async def expiring(self, limit: int) -> list[RunRow]:
        return [self._sealer.open(run, run.tenant) for run in await self._inner.expiring(limit)]

    async def claim_set(self, lease: int) -> SetRow | None:
        return self._set(await self._inner.claim_set(lease))

    async def advance(
        self, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        sealed = [self._sealer.seal(mark, set.tenant) for mark in marks]
        return await self._inner.advance(set, sealed, limit=limit, lease=lease)

    # -- circuits ------------------------------------------------------------------------------------

    async def turn_circuit(self, turn: CircuitTurn) -> Turned:
        lines = tuple(self._noted(line) for line in turn.audit)
        return await self._inner.turn_circuit(remade(turn, {"audit": lines}))

    # -- people --------------------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        return await self._inner.triage(remade(triage, {"audit": self._noted(triage.audit)}))

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        await self._inner.note([self._noted(line) for line in lines])

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        self._refuse_text(new.where)
        if new.where is not None:
            new = remade(new, {"where": self._sealer.where(new.where, stored=True)})
        await self._inner.begin_set(self._sealer.seal(new, new.tenant), self._noted(audit))

    async def change_set(self, public_id: str, change: SetChange, audit: AuditWrite) -> bool:
        return await self._inner.change_set(public_id, change, self._noted(audit))

    # -- outbox --------------------------------------------------------------------------------------

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> Deliveries:
        claimed = await self._inner.claim_deliveries(sink, limit=limit, lease=lease, suspects=suspects)
        items = [remade(each, {"message": self._message(each.message)}) for each in claimed.items]
        return remade(claimed, {"items": tuple(items)})

    async def note_deliveries(
        self,
        sink: str,
        marks: Sequence[DeliveryMark],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[Arrived] = (),
    ) -> None:
        sealed = [mark if mark.error is None else self._sealer.seal(mark, mark.tenant) for mark in marks]
        await self._inner.note_deliveries(sink, sealed, [self._noted(line) for line in audit], arrived)

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        return await self._inner.decide_deliveries(remade(decision, {"audit": self._noted(decision.audit)}))

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        return await self._inner.remove_sink(name, self._noted(audit))

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        row = await self._inner.message(public_id, tenant=tenant)
        return None if row is None else self._message(row)

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        page = await self._inner.messages(where, limit=limit, cursor=cursor)
        return remade(page, {"items": [self._message(row) for row in page.items]})

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        rows = await self._inner.blocked_keys(tenant=tenant, limit=limit)
        return [self._sealer.open(row, row.tenant) for row in rows]

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        found = await self._inner.run(public_id, tenant=tenant)
        return None if found is None else self._sealer.open(found, found.tenant)

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return [self._sealer.open(run, run.tenant) for run in await self._inner.runs_by_id(public_ids)]

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        page = await self._inner.runs(self._sealer.where(where), limit=limit, cursor=cursor)
        return Page([self._sealer.open(run, run.tenant) for run in page.items], page.next, page.prev)

    async def journal(self, run: int) -> list[EntryRow]:
        return [self._entry(entry, None) for entry in await self._inner.journal(run)]

    async def attempts(self, run: int) -> list[AttemptRow]:
        return [self._sealer.open(attempt, None) for attempt in await self._inner.attempts(run)]

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        return self._letter(await self._inner.letter(public_id, tenant=tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return self._letter(await self._inner.letter_of(run))

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        return [self._case(case) for case in await self._inner.cases(ids)]

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        page = await self._inner.audit(where, limit=limit, cursor=cursor)
        return Page([self._sealer.open(line, line.tenant) for line in page.items], page.next, page.prev)

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        self._refuse_text(where)
        page = await self._inner.letters(self._sealer.where(where), limit=limit, cursor=cursor)
        return Page([self._sealer.open(letter, letter.tenant) for letter in page.items], page.next, page.prev)

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        self._refuse_text(where)
        return await self._inner.facets(self._sealer.where(where), most=most)

    async def glances(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunGlance]:
        return await self._inner.glances(self._sealer.where(where), most=most, oldest=oldest)

    async def count_letters(self, where: LetterFilter) -> int:
        self._refuse_text(where)
        return await self._inner.count_letters(self._sealer.where(where))

    async def set_of(self, public_id: str) -> SetRow | None:
        return self._set(await self._inner.set_of(public_id))

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[SetRow]:
        page = await self._inner.sets(tenant, limit=limit, cursor=cursor)
        return Page([self._sealer.open(row, row.tenant) for row in page.items], page.next, page.prev)

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        page = await self._inner.set_items(set, status, limit=limit, cursor=cursor)
        return Page([self._sealer.open(item, set.tenant) for item in page.items], page.next, page.prev)

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        page = await self._inner.groups(where, limit=limit, cursor=cursor)
        return remade(page, {"items": [self._sealer.open(group, group.tenant) for group in page.items]})

    # -- settings ------------------------------------------------------------------------------------

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        await self._inner.set_policy(policy, self._noted(audit))

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        return await self._inner.delete_policy(tenant, workflow, step, self._noted(audit))

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        await self._inner.pause(workflow, self._noted(audit))

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await self._inner.resume(workflow, self._noted(audit))

    # -- records in records ----------------------------------------------------------------------------

    def _refuse_text(self, where: LetterFilter | None) -> None:
        if where is not None and where.text is not None and self._keys.writes is not None:
            raise InputError(
                "letters cannot be searched by text while REDRIVE_ENCRYPTION_KEYS seals it; filter by "
                "workflow, step, code, category, fingerprint, or by index: a field that the workflow declared"
            )

    def _noted(self, line: AuditWrite) -> AuditWrite:
        return self._sealer.seal(line, line.tenant)

    def _message(self, row: MessageRow) -> MessageRow:
        opened = self._sealer.open(row, row.tenant)
        deliveries = [self._sealer.open(each, row.tenant) for each in row.deliveries]
        return remade(opened, {"deliveries": tuple(deliveries)}) if deliveries else opened

    def _claimed(self, run: Claimed) -> Claimed:
        try:
            journal = tuple(self._entry(entry, run.tenant, strictly=True) for entry in run.journal)
            return remade(self._sealer.open(run, run.tenant, strictly=True), {"journal": journal})
        except ConfigurationError as error:
            unreadable = _Unreadable()
            unreadable.why = error
            return remade(self._sealer.open(run, run.tenant), {"journal": unreadable})

    def _entry(self, entry: EntryRow, tenant: str | None, *, strictly: bool = False) -> EntryRow:
        return self._sealer.heartbeat(self._sealer.open(entry, tenant, strictly=strictly))

    def _held(self, held: HeldRun) -> HeldRun:
        tenant = held.run.tenant
        entries = tuple(self._entry(entry, tenant) for entry in held.open)
        return remade(held, {"run": self._sealer.open(held.run, tenant), "open": entries})

    def _letter(self, letter: LetterRow | None) -> LetterRow | None:
        return None if letter is None else self._sealer.open(letter, letter.tenant)

    def _set(self, row: SetRow | None) -> SetRow | None:
        return None if row is None else self._sealer.open(row, row.tenant)

    def _case(self, case: Case) -> Case:
        tenant = case.run.tenant
        opened = {
            "run": self._sealer.open(case.run, tenant),
            "journal": tuple(self._entry(entry, tenant) for entry in case.journal),
            "replays": tuple(self._sealer.open(replay, tenant) for replay in case.replays),
        }
        return remade(case, opened)
