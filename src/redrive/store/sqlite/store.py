"""The SQLite store: every call of the port is one closure on the right connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from redrive.clock import Clock
from redrive.core.delivery import Arrived, Carrier, DeliveryMark, Suspects
from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transition import Answer, AuditWrite, NewRun, Transition
from redrive.store.accounts import Accounts
from redrive.store.circuits import Ask, CircuitCase, CircuitPlace, CircuitRow, CircuitTurn, Permit, Turned
from redrive.store.confined import Confined
from redrive.store.figures import Figures
from redrive.store.glances import Facets, RunGlance
from redrive.store.notices import Notices
from redrive.store.outbox import BlockedKey, Deliveries, DeliveryDecision, MessageRow, NewSink, SinkRow
from redrive.store.port import LeaseLine, People, Transaction
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    Case,
    GroupPage,
    HeldRun,
    LetterRow,
    Page,
    PolicyRow,
    Purge,
    RunRow,
    Started,
    Triage,
)
from redrive.store.schedules import Schedules
from redrive.store.selection import (
    AuditFilter,
    CircuitFilter,
    GroupFilter,
    LetterFilter,
    OutboxFilter,
    RunFilter,
)
from redrive.store.sets import ItemMark, NewSet, SetChange, SetItemRow, SetItemStatus, SetRow
from redrive.store.sqlite import (
    chores,
    circuits,
    claims,
    desk,
    figures,
    groups,
    lists,
    messages,
    outbox,
    reads,
    sets,
    settings,
    starts,
    workers,
    writes,
)
from redrive.store.sqlite.accounts import SqliteAccounts
from redrive.store.sqlite.bell import Bell, data_version
from redrive.store.sqlite.connection import Address, locate, unhurried
from redrive.store.sqlite.lease import FileLease, MemoryLease
from redrive.store.sqlite.line import Result, Work
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.notices import SqliteNotices
from redrive.store.sqlite.schedules import SqliteSchedules
from redrive.store.sqlite.schema import prepare
from redrive.store.sqlite.transactions import StepTransaction
from redrive.store.sqlite.views import SqliteViews
from redrive.store.views import Views
from redrive.store.workers import Catalogue, Claim, Claims, KnownItem, NewWorker, WorkerRow

__all__ = ["SqliteStore"]


class SqliteStore:
    """A store in one SQLite file, or in memory. See `redrive.store.port` for what each call promises."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._address: Address = locate(url)
        self._clock = clock
        self._lines = self._new_lines()
        self._bell = Bell(
            self._address, clock, lambda: self._lines.visit(data_version), busy=lambda: self._lines.busy
        )

    def _new_lines(self) -> Threaded | Inline:
        return Inline(self._address) if self._address.in_memory else Threaded(self._address)

    async def open(self, *, migrate: bool = True) -> None:
        self._lines = self._new_lines()  # a store may be opened again after it was closed
        try:
            await self._lines.open()
            await self._lines.visit(
                lambda con: prepare(con, self._address, self._clock.now(), migrate=migrate)
            )
            await self._bell.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._bell.close()
        await self._lines.close()

    async def _unhurried(self, work: Work[Result]) -> Result:
        """Write, in one transaction, what may be done again after a power cut: no disk is waited for."""

        def write(con: sqlite3.Connection) -> Result:
            with unhurried(con):
                return self._lines.locked(con, work)

        return await self._lines.visit(write)

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._bell.changed()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        return Confined(self, tenant, workflows)

    @property
    def accounts(self) -> Accounts:
        return SqliteAccounts(self._lines, self.now)

    @property
    def notices(self) -> Notices:
        return SqliteNotices(self._lines, self.now)

    @property
    def schedules(self) -> Schedules:
        return SqliteSchedules(self._lines, self.now)

    @property
    def views(self) -> Views:
        return SqliteViews(self._lines, self.now)

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        return await self._lines.write(lambda con: starts.start(con, self.now(), runs, worker))

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        return await self._lines.write(lambda con: workers.enlist(con, self.now(), worker, catalogue))

    async def retire(self, worker: int) -> None:
        await self._lines.write(lambda con: workers.retire(con, worker))

    async def workers(self) -> list[WorkerRow]:
        return await self._lines.read(workers.workers)

    def lease_line(self) -> LeaseLine:
        if isinstance(self._lines, Inline):
            return MemoryLease(self._lines, self._clock)
        return FileLease(self._address, self._lines.turn, self._clock)

    async def claim(self, claim: Claim) -> Claims:
        def look_then_take(con: sqlite3.Connection) -> Claims:
            now = self.now()
            found = claims.look(con, now, claim)
            if not found.has_due(now):
                return claims.nothing(now, found.after, found.next_at)
            return self._lines.locked(con, lambda con: claims.take(con, self.now(), claim, found))

        return await self._lines.visit(look_then_take)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        return await self._lines.write(writes.Batch(self.now, transitions, worker, carriers).apply)

    def transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._lines, self._clock, limit)

    # -- chores --------------------------------------------------------------------------------------

    async def bury(self) -> list[WorkerRow]:
        if await self._lines.read(lambda con: chores.anybody_to_bury(con, self.now())):
            await self._lines.write(lambda con: chores.bury(con, self.now()))
        return await self._lines.read(chores.graves)

    async def held(self, worker: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.held(con, worker))

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.hung(con, self.now(), margin, limit))

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.overdue(con, self.now(), margin, limit))

    async def expiring(self, limit: int) -> list[RunRow]:
        return await self._lines.read(lambda con: chores.expiring(con, self.now(), limit))

    async def purge(self, purge: Purge) -> int:
        return await self._lines.write(lambda con: chores.purge(con, self.now(), purge))

    async def fold(self, limit: int) -> int:
        if not await self._lines.read(groups.anything_fed):
            return 0
        return await self._lines.write(lambda con: groups.fold(con, self.now(), limit))

    async def claim_set(self, lease: int) -> SetRow | None:
        if not await self._lines.read(lambda con: sets.any_set(con, self.now())):
            return None
        return await self._lines.write(lambda con: sets.claim_set(con, self.now(), lease))

    async def advance(
        self, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        turn = sets.Turn(now=self.now(), limit=limit, lease=lease)
        # Letters that a power cut leaves without their marks are found to be decided on.
        return await self._unhurried(lambda con: sets.advance(con, turn, set, marks))

    # -- circuits ------------------------------------------------------------------------------------

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        return await self._lines.read(lambda con: circuits.circuit(con, self.now(), tenant, key, counted))

    async def turn_circuit(self, turn: CircuitTurn) -> Turned:
        return await self._lines.write(lambda con: circuits.turn_circuit(con, self.now(), turn))

    async def permit(self, ask: Ask) -> Permit:
        return await self._lines.write(lambda con: circuits.permit(con, self.now(), ask))

    async def circuits_due(self, since: int) -> list[CircuitPlace]:
        return await self._lines.read(lambda con: circuits.circuits_due(con, self.now(), since))

    async def circuits_since(self, since: int) -> list[CircuitRow]:
        return await self._lines.read(lambda con: circuits.circuits_since(con, since))

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        return await self._lines.read(lambda con: circuits.circuits(con, where, limit, cursor))

    # -- outbox --------------------------------------------------------------------------------------

    async def put_sinks(self, sinks: Sequence[NewSink]) -> None:
        await self._lines.write(lambda con: outbox.put_sinks(con, self.now(), sinks))

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> Deliveries:
        def look_then_take(con: sqlite3.Connection) -> Deliveries:
            now = self.now()
            if not outbox.any_due(con, now, sink):
                return Deliveries(items=(), now=now, next_at=outbox.next_delivery(con, now, sink))
            with unhurried(con):  # a claim that a power cut undoes is made again
                return self._lines.locked(
                    con, lambda con: outbox.claim_deliveries(con, self.now(), sink, limit, lease, suspects)
                )

        return await self._lines.visit(look_then_take)

    async def note_deliveries(
        self,
        sink: str,
        marks: Sequence[DeliveryMark],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[Arrived] = (),
    ) -> None:
        # What a power cut makes us forget is delivered once more.
        await self._unhurried(
            lambda con: outbox.note_deliveries(con, self.now(), sink, marks, audit, arrived)
        )

    # -- people --------------------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        return await self._lines.write(lambda con: desk.triage(con, self.now(), triage))

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        await self._lines.write(lambda con: writes.note(con, self.now(), lines))

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        await self._lines.write(lambda con: sets.begin_set(con, self.now(), new, audit))

    async def change_set(self, public_id: str, change: SetChange, audit: AuditWrite) -> bool:
        return await self._lines.write(lambda con: sets.change_set(con, self.now(), public_id, change, audit))

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        return await self._lines.write(lambda con: outbox.decide_deliveries(con, self.now(), decision))

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        return await self._lines.write(lambda con: outbox.remove_sink(con, self.now(), name, audit))

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        return await self._lines.read(lambda con: reads.run(con, public_id, tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return await self._lines.read(lambda con: reads.runs_by_id(con, public_ids))

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        return await self._lines.read(lambda con: lists.runs(con, where, limit, cursor))

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._lines.read(lambda con: reads.journal(con, run))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._lines.read(lambda con: reads.attempts(con, run))

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        return await self._lines.read(lambda con: reads.letter(con, public_id, tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return await self._lines.read(lambda con: reads.letter_of(con, run))

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        return await self._lines.read(lambda con: desk.cases(con, ids))

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        return await self._lines.read(lambda con: lists.audit(con, where, limit, cursor))

    async def known(self, names: Sequence[str]) -> list[KnownItem]:
        return await self._lines.read(lambda con: desk.known(con, names))

    async def workflows(self) -> list[KnownItem]:
        return await self._lines.read(desk.workflows)

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        return await self._lines.read(lambda con: lists.letters(con, where, limit, cursor))

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        return await self._lines.read(lambda con: lists.facets(con, where, most))

    async def glances(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunGlance]:
        return await self._lines.read(lambda con: lists.glances(con, where, most, oldest=oldest))

    async def count_letters(self, where: LetterFilter) -> int:
        return await self._lines.read(lambda con: sets.count_letters(con, where))

    async def set_of(self, public_id: str) -> SetRow | None:
        return await self._lines.read(lambda con: sets.set_of(con, public_id))

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[SetRow]:
        return await self._lines.read(lambda con: sets.list_sets(con, tenant, limit, cursor))

    async def set_endings(self, set: SetRow) -> dict[RunStatus, int]:
        return await self._lines.read(lambda con: sets.set_endings(con, set))

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        return await self._lines.read(lambda con: sets.set_items(con, set, status, limit, cursor))

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        return await self._lines.read(lambda con: groups.groups(con, self.now(), where, limit, cursor))

    async def figures(self) -> Figures:
        return await self._lines.read(lambda con: figures.figures(con, self.now()))

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        return await self._lines.read(lambda con: reads.unclaimable(con, self.now(), workflows))

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        return await self._lines.read(lambda con: messages.message(con, public_id, tenant))

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        return await self._lines.read(lambda con: messages.messages(con, where, limit, cursor))

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        return await self._lines.read(lambda con: outbox.blocked_keys(con, tenant, limit))

    async def sinks(self) -> list[SinkRow]:
        return await self._lines.read(outbox.sinks)

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        return await self._lines.read(settings.policies)

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        await self._lines.write(lambda con: settings.set_policy(con, self.now(), policy, audit))

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        place = (tenant, workflow, step)
        return await self._lines.write(lambda con: settings.delete_policy(con, self.now(), place, audit))

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        await self._lines.write(lambda con: settings.pause(con, self.now(), workflow, audit))

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await self._lines.write(lambda con: settings.resume(con, self.now(), workflow, audit))

    async def paused(self) -> dict[str, str]:
        return await self._lines.read(settings.paused)
