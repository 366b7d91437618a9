"""The PostgreSQL store: every call of the port is one piece of work on one connection."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from copy import copy

from redrive.clock import MICROS, Clock
from redrive.core.delivery import Arrived, Carrier, DeliveryMark, Suspects
from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transition import Answer, AuditWrite, NewRun, Transition
from redrive.errors import StoreError
from redrive.store.accounts import Accounts
from redrive.store.circuits import Ask, CircuitCase, CircuitPlace, CircuitRow, CircuitTurn, Permit, Turned
from redrive.store.confined import Confined
from redrive.store.figures import Figures
from redrive.store.glances import Facets, RunGlance
from redrive.store.notices import Notices
from redrive.store.outbox import BlockedKey, Deliveries, DeliveryDecision, MessageRow, NewSink, SinkRow
from redrive.store.port import LeaseLine, People, Transaction
from redrive.store.postgres import (
    chores,
    circuits,
    claims,
    desk,
    figures,
    groups,
    lease,
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
from redrive.store.postgres.accounts import PostgresAccounts
from redrive.store.postgres.address import locate
from redrive.store.postgres.bell import Bell
from redrive.store.postgres.confined import TenantLines
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import session
from redrive.store.postgres.lines import Lines
from redrive.store.postgres.notices import PostgresNotices
from redrive.store.postgres.opening import prepare
from redrive.store.postgres.schedules import PostgresSchedules
from redrive.store.postgres.transactions import StepTransaction
from redrive.store.postgres.views import PostgresViews
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
from redrive.store.views import Views
from redrive.store.workers import Catalogue, Claim, Claims, KnownItem, NewWorker, WorkerRow

__all__ = ["PostgresStore"]

log = logging.getLogger("redrive.store")

PATIENCE = 5.0
"""Seconds an engine's transaction may be silent, or a third of a shorter lease."""

AFTER_OUTAGE = 2.0
"""Seconds after an outage, or after the store was opened, in which no worker is declared dead from here.

A live one beats at least every second, once the server is there again.
"""

TRANSACTIONS = 4
"""Connections for transactional steps, beside those of the engine."""


class PostgresStore:
    """A store in one schema of a PostgreSQL database. `redrive.store.port` says what each call promises."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._address = locate(url)
        self._real_clock = clock
        self._clock = DatabaseClock(clock)
        self._patience = PATIENCE
        self._floors = outbox.Floors()
        self._new_lines()

    def _new_lines(self) -> None:
        engine = session(self._patience)
        self._lines = Lines(self._address, self._address.pool_size, engine, self._real_clock)
        self._private = Lines(self._address, TRANSACTIONS, {}, self._real_clock)
        self._bell = Bell(self._address, self._lines)

    async def open(self, *, migrate: bool = True) -> None:
        """Connect. With `migrate`, wait for a server that is down, and set an empty database up."""
        self._new_lines()  # a store may be opened again after it was closed
        con = await prepare(self._address, self._clock, self._lines.settings, migrate=migrate)
        self._lines.adopt(con)
        self._lines.broke()  # as far as is known here: others may have waited for this server, too
        self._bell.open()

    async def close(self) -> None:
        await self._bell.close()
        await self._private.close()
        await self._lines.close()

    def now(self) -> int:
        return self._clock.now()

    async def changed(self) -> None:
        await self._bell.changed()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        """This store for one tenant's user; the database itself stands guard beside the view."""
        return Confined(self.as_tenant(tenant), tenant, workflows)

    def as_tenant(self, tenant: str) -> People:
        """This store acting for one tenant's user, with nothing but the database on guard."""
        view = copy(self)
        view._lines = TenantLines(self._lines, tenant)  # type: ignore[assignment]  # no more of it is used
        return view

    @property
    def accounts(self) -> Accounts:
        return PostgresAccounts(self._lines, self._clock, self._address)

    @property
    def notices(self) -> Notices:
        return PostgresNotices(self._lines, self._clock)

    @property
    def schedules(self) -> Schedules:
        return PostgresSchedules(self._lines, self._clock)

    @property
    def views(self) -> Views:
        return PostgresViews(self._lines, self._clock)

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        started = await self._lines.run(lambda line: starts.start(line, self._clock, runs, worker))
        if any(each.new and each.claimed is None for each in started):
            self._bell.ring()
        return started

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        if worker.lease / MICROS / 3 < self._patience:
            self._patience = worker.lease / MICROS / 3
            await self._lines.change(session(self._patience))
        return await self._lines.run(lambda line: workers.enlist(line, self._clock, worker, catalogue))

    async def retire(self, worker: int) -> None:
        await self._lines.run(lambda line: workers.retire(line, worker))

    async def workers(self) -> list[WorkerRow]:
        return await self._lines.run(workers.workers)

    def lease_line(self) -> LeaseLine:
        return lease.LeaseLine(self._address, self._clock, self._lines.broke)

    async def claim(self, claim: Claim) -> Claims:
        return await self._lines.run(lambda line: claims.claim(line, self._clock, claim))

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        answers = await self._lines.run(
            lambda line: writes.apply(line, self._clock, transitions, worker, carriers)
        )
        if any(_makes_due(*pair) for pair in zip(transitions, answers, strict=True)):
            self._bell.ring()
        return answers

    def transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._private, self._clock, self._address.where, limit)

    # -- chores --------------------------------------------------------------------------------------

    async def bury(self) -> list[WorkerRow]:
        # After an outage nobody has beaten for a while: whoever lives gets the time for a beat or two first.
        # Asked when a connection is at hand: that the last one was cut is known by then.
        found = await self._lines.run(
            lambda line: chores.bury(line, self._clock, certain=self._lines.answered_for(AFTER_OUTAGE))
        )
        if found.shut:
            await self._cut_off(found.shut)
        return found.graves

    async def _cut_off(self, gates: Sequence[int]) -> None:
        """Workers without a lease write no more; the next round declares them dead."""
        try:
            ended = await self._lines.run(lambda line: chores.cut_off(line, gates))
        except StoreError as error:
            log.warning("a worker whose lease has run out holds its lock, and nobody may end that: %s", error)
            return
        if ended:
            log.warning(
                "ended %d connections left in the middle of a write by workers without a lease", ended
            )

    async def held(self, worker: int) -> list[HeldRun]:
        return await self._lines.run(lambda line: chores.held(line, worker))

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.run(lambda line: chores.hung(line, self._clock, margin, limit))

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.run(lambda line: chores.overdue(line, self._clock, margin, limit))

    async def expiring(self, limit: int) -> list[RunRow]:
        return await self._lines.run(lambda line: chores.expiring(line, self._clock, limit))

    async def purge(self, purge: Purge) -> int:
        return await self._lines.run(lambda line: chores.purge(line, self._clock, purge))

    async def fold(self, limit: int) -> int:
        return await self._lines.run(lambda line: groups.fold(line, self._clock, limit))

    async def claim_set(self, lease: int) -> SetRow | None:
        return await self._lines.run(lambda line: sets.claim_set(line, self._clock, lease))

    async def advance(
        self, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        return await self._lines.run(lambda line: sets.advance(line, self._clock, set, marks, limit, lease))

    # -- circuits ------------------------------------------------------------------------------------

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        return await self._lines.run(lambda line: circuits.circuit(line, self._clock, tenant, key, counted))

    async def turn_circuit(self, turn: CircuitTurn) -> Turned:
        turned = await self._lines.run(lambda line: circuits.turn_circuit(line, self._clock, turn))
        if turned.kept and (turned.released or turn.changed):
            self._bell.ring()
        return turned

    async def permit(self, ask: Ask) -> Permit:
        return await self._lines.run(lambda line: circuits.permit(line, self._clock, ask))

    async def circuits_due(self, since: int) -> list[CircuitPlace]:
        return await self._lines.run(lambda line: circuits.circuits_due(line, self._clock, since))

    async def circuits_since(self, since: int) -> list[CircuitRow]:
        return await self._lines.run(lambda line: circuits.circuits_since(line, since))

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        return await self._lines.run(lambda line: circuits.circuits(line, where, limit, cursor))

    # -- outbox --------------------------------------------------------------------------------------

    async def put_sinks(self, sinks: Sequence[NewSink]) -> None:
        await self._lines.run(lambda line: outbox.put_sinks(line, self._clock, sinks))

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> Deliveries:
        return await self._lines.run(
            lambda line: outbox.claim_deliveries(
                line, self._clock, self._floors, sink, limit, lease, suspects
            )
        )

    async def note_deliveries(
        self,
        sink: str,
        marks: Sequence[DeliveryMark],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[Arrived] = (),
    ) -> None:
        await self._lines.run(
            lambda line: outbox.note_deliveries(line, self._clock, sink, marks, audit, arrived)
        )

    # -- people --------------------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        return await self._lines.run(lambda line: desk.triage(line, self._clock, triage))

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        await self._lines.run(lambda line: desk.note(line, self._clock, lines))

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        await self._lines.run(lambda line: sets.begin_set(line, self._clock, new, audit))

    async def change_set(self, public_id: str, change: SetChange, audit: AuditWrite) -> bool:
        return await self._lines.run(
            lambda line: sets.change_set(line, self._clock, public_id, change, audit)
        )

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        changed = await self._lines.run(lambda line: outbox.decide_deliveries(line, self._clock, decision))
        if changed:
            self._bell.ring()
        return changed

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        return await self._lines.run(lambda line: outbox.remove_sink(line, self._clock, name, audit))

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        return await self._lines.run(lambda line: reads.run(line, public_id, tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return await self._lines.run(lambda line: reads.runs_by_id(line, public_ids))

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        return await self._lines.run(lambda line: lists.runs(line, where, limit, cursor))

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._lines.run(lambda line: reads.journal(line, run))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._lines.run(lambda line: reads.attempts(line, run))

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        return await self._lines.run(lambda line: reads.letter(line, public_id, tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return await self._lines.run(lambda line: reads.letter_of(line, run))

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        return await self._lines.picture(lambda line: desk.cases(line, ids))

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        return await self._lines.run(lambda line: lists.audit(line, where, limit, cursor))

    async def known(self, names: Sequence[str]) -> list[KnownItem]:
        return await self._lines.run(lambda line: desk.known(line, names))

    async def workflows(self) -> list[KnownItem]:
        return await self._lines.run(desk.workflows)

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        return await self._lines.run(lambda line: lists.letters(line, where, limit, cursor))

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        return await self._lines.run(lambda line: lists.facets(line, where, most))

    async def glances(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunGlance]:
        return await self._lines.run(lambda line: lists.glances(line, where, most, oldest=oldest))

    async def count_letters(self, where: LetterFilter) -> int:
        return await self._lines.run(lambda line: sets.count_letters(line, where))

    async def set_of(self, public_id: str) -> SetRow | None:
        return await self._lines.run(lambda line: sets.set_of(line, public_id))

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[SetRow]:
        return await self._lines.run(lambda line: sets.list_sets(line, tenant, limit, cursor))

    async def set_endings(self, set: SetRow) -> dict[RunStatus, int]:
        return await self._lines.run(lambda line: sets.set_endings(line, set))

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        return await self._lines.run(lambda line: sets.set_items(line, set, status, limit, cursor))

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        return await self._lines.run(lambda line: groups.groups(line, self._clock, where, limit, cursor))

    async def figures(self) -> Figures:
        return await self._lines.run(lambda line: figures.figures(line, self._clock))

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        return await self._lines.run(lambda line: reads.unclaimable(line, self._clock, workflows))

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        return await self._lines.run(lambda line: messages.message(line, public_id, tenant))

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        return await self._lines.run(lambda line: messages.messages(line, where, limit, cursor))

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        return await self._lines.run(lambda line: outbox.blocked_keys(line, tenant, limit))

    async def sinks(self) -> list[SinkRow]:
        return await self._lines.run(outbox.sinks)

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        return await self._lines.run(settings.policies)

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        await self._lines.run(lambda line: settings.set_policy(line, self._clock, policy, audit))

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        place = (tenant, workflow, step)
        return await self._lines.run(lambda line: settings.delete_policy(line, self._clock, place, audit))

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        await self._lines.run(lambda line: settings.pause(line, self._clock, workflow, audit))

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await self._lines.run(lambda line: settings.resume(line, self._clock, workflow, audit))
        self._bell.ring()

    async def paused(self) -> dict[str, str]:
        return await self._lines.run(settings.paused)


def _makes_due(transition: Transition, answer: Answer) -> bool:
    """True if the transition leaves a run, or a message, to whoever comes first, now."""
    change = transition.change
    released = change is not None and change.release and change.wake_in == 0
    said = transition.messages and not (
        answer.bundled and all(each and each[1].whole for each in answer.bundled)
    )
    return released or bool(transition.starts or said)
