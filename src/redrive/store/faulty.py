"""A store that fails on purpose: the ground every crash test and simulation stands on.

    FaultyStore(inner, nth(3, LOSE))                      the third call is done, but its reply is lost
    FaultyStore(inner, nth(1, crash_before(Killed()), of="apply"))

A plan is asked before each call and may answer with a fault. After a crash the store is dead for its
caller, as it would be for a process that was killed: no later call reaches the inner one, whatever
clean-up code still runs. `calls` names every call made, so that a test can first count the points
where something could go wrong and then try each of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias, TypeVar, cast

from redrive.clock import Clock, SystemClock
from redrive.core.delivery import Arrived, Carrier, DeliveryMark, Suspects
from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.core.transition import Answer, AuditWrite, NewRun, Transition
from redrive.errors import StoreUnavailable
from redrive.store.accounts import Accounts
from redrive.store.circuits import Ask, CircuitCase, CircuitPlace, CircuitRow, CircuitTurn, Permit, Turned
from redrive.store.faulty_accounts import FaultyAccounts
from redrive.store.faulty_notices import FaultyNotices
from redrive.store.faulty_schedules import FaultySchedules
from redrive.store.figures import Figures
from redrive.store.glances import Facets, RunGlance
from redrive.store.notices import Notices
from redrive.store.outbox import BlockedKey, Deliveries, DeliveryDecision, MessageRow, NewSink, SinkRow
from redrive.store.port import LeaseLine, People, Store, Transaction
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    Beat,
    Case,
    Catalogue,
    Claim,
    Claims,
    GroupPage,
    HeldRun,
    ItemMark,
    KnownItem,
    LetterRow,
    NewSet,
    NewWorker,
    Page,
    PolicyRow,
    Purge,
    RunRow,
    SetItemRow,
    SetItemStatus,
    SetRow,
    Started,
    Triage,
    WorkerRow,
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

__all__ = [
    "FAIL",
    "LOSE",
    "Call",
    "Fault",
    "FaultyStore",
    "Plan",
    "crash_after",
    "crash_before",
    "delay",
    "either",
    "no_faults",
    "nth",
]

Result = TypeVar("Result")


class _Kind(Enum):
    FAIL = auto()
    LOSE = auto()
    DELAY = auto()
    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a call."""

    kind: _Kind
    seconds: float = 0.0
    error: BaseException | None = None


FAIL = Fault(_Kind.FAIL)
"""StoreUnavailable, and nothing was done."""

LOSE = Fault(_Kind.LOSE)
"""StoreUnavailable, but everything was done: only the reply is lost."""


def delay(seconds: float) -> Fault:
    """The call is made that much later."""
    return Fault(_Kind.DELAY, seconds=seconds)


def crash_before(error: BaseException) -> Fault:
    """The process dies before the call: `error` is raised, now and by every later call."""
    return Fault(_Kind.CRASH_BEFORE, error=error)


def crash_after(error: BaseException) -> Fault:
    """The process dies after the call, before it hears the reply."""
    return Fault(_Kind.CRASH_AFTER, error=error)


@dataclass(frozen=True, slots=True)
class Call:
    """A call about to be made: its name, and the how-manyth it is, of all and of its name (from 1)."""

    name: str
    number: int
    of_name: int


Plan: TypeAlias = Callable[[Call], Fault | None]


def no_faults(call: Call) -> Fault | None:
    """The plan under which nothing goes wrong."""
    return None


def nth(number: int, fault: Fault, *, of: str | None = None) -> Plan:
    """The fault happens at the call with that number, counting all calls or those of one name."""

    def plan(call: Call) -> Fault | None:
        hit = call.number == number if of is None else (call.name, call.of_name) == (of, number)
        return fault if hit else None

    return plan


def either(*plans: Plan) -> Plan:
    """The first fault that any of the plans has in mind."""
    return lambda call: next((fault for plan in plans if (fault := plan(call)) is not None), None)


class _Desk:
    """Counts calls, asks the plan, and remembers whether the caller is dead."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self.calls: list[str] = []
        self.dead: BaseException | None = None
        self._clock = clock
        self._counts: Counter[str] = Counter()

    async def call(self, name: str, work: Callable[[], Awaitable[Result]]) -> Result:
        fault = self._before(name)
        if fault is not None and fault.kind is _Kind.DELAY:
            await self._clock.sleep(fault.seconds)
        result = await work()
        self._after(name, fault)
        return result

    def call_now(self, name: str, work: Callable[[], Result]) -> Result:
        fault = self._before(name)
        if fault is not None and fault.kind is _Kind.DELAY:
            time.sleep(fault.seconds)
        result = work()
        self._after(name, fault)
        return result

    def _before(self, name: str) -> Fault | None:
        if self.dead is not None:
            raise self.dead
        self.calls.append(name)
        self._counts[name] += 1
        fault = self.plan(Call(name, len(self.calls), self._counts[name]))
        if fault is not None and fault.kind is _Kind.FAIL:
            raise StoreUnavailable(f"{name} failed on purpose; nothing was done")
        if fault is not None and fault.kind is _Kind.CRASH_BEFORE:
            self._die(fault)
        return fault

    def _after(self, name: str, fault: Fault | None) -> None:
        if self.dead is not None:  # it died elsewhere while this call was under way
            raise self.dead
        if fault is not None and fault.kind is _Kind.LOSE:
            raise StoreUnavailable(f"the reply of {name} was lost on purpose; everything was done")
        if fault is not None and fault.kind is _Kind.CRASH_AFTER:
            self._die(fault)

    def _die(self, fault: Fault) -> None:
        self.dead = fault.error or SystemExit("crashed on purpose")
        raise self.dead


class _FaultyLease:
    """A heartbeat line whose beats are calls named `lease.beat`."""

    def __init__(self, inner: LeaseLine, desk: _Desk) -> None:
        self._inner = inner
        self._desk = desk

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        return self._desk.call_now("lease.beat", lambda: self._inner.beat(worker, heartbeats))

    def close(self) -> None:
        self._inner.close()


class _FaultyTransaction:
    """A transaction whose calls are named `transaction.execute` and so on. A death undoes it."""

    def __init__(self, inner: Transaction, desk: _Desk) -> None:
        self._inner = inner
        self._desk = desk

    async def execute(self, statement: str, *params: Any) -> int:
        return await self._call("execute", lambda: self._inner.execute(statement, *params))

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        return await self._call("fetch", lambda: self._inner.fetch(statement, *params))

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        return await self._call("fetchrow", lambda: self._inner.fetchrow(statement, *params))

    async def commit(self, worker: int, transition: Transition) -> Answer:
        return await self._call("commit", lambda: self._inner.commit(worker, transition))

    async def rollback(self) -> None:
        try:
            await self._call("rollback", self._inner.rollback)
        finally:
            await self._inner.rollback()  # a store undoes by itself what was left open by a lost connection

    async def _call(self, name: str, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await self._desk.call(f"transaction.{name}", work)
        finally:
            if self._desk.dead is not None:
                await self._inner.rollback()


class FaultyStore:
    """A store around another one, with faults at the calls the plan names. `plan` may be exchanged."""

    def __init__(self, inner: Store, plan: Plan = no_faults, *, clock: Clock | None = None) -> None:
        self._inner = inner
        self._desk = _Desk(plan, clock or SystemClock())

    @property
    def calls(self) -> list[str]:
        """The names of all calls made so far, in order."""
        return self._desk.calls

    @property
    def dead(self) -> bool:
        """True once a crash was injected: nothing reaches the inner store any more."""
        return self._desk.dead is not None

    @property
    def plan(self) -> Plan:
        """What is to go wrong."""
        return self._desk.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._desk.plan = plan

    async def open(self, *, migrate: bool = True) -> None:
        await self._desk.call("open", lambda: self._inner.open(migrate=migrate))

    async def close(self) -> None:
        await self._inner.close()

    def now(self) -> int:
        return self._inner.now()

    async def changed(self) -> None:
        await self._inner.changed()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        view = copy(self)
        view._inner = cast(Store, self._inner.confined(tenant, workflows))
        return view

    @property
    def accounts(self) -> Accounts:
        return FaultyAccounts(self._inner.accounts, self._desk.call)

    @property
    def notices(self) -> Notices:
        return FaultyNotices(self._inner.notices, self._desk.call)

    @property
    def schedules(self) -> Schedules:
        return FaultySchedules(self._inner.schedules, self._desk.call)

    def lease_line(self) -> LeaseLine:
        return _FaultyLease(self._inner.lease_line(), self._desk)

    def transaction(self, limit: float) -> Transaction:
        return _FaultyTransaction(self._inner.transaction(limit), self._desk)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[Started]:
        return await self._desk.call("start", lambda: self._inner.start(runs, worker=worker))

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        return await self._desk.call("enlist", lambda: self._inner.enlist(worker, catalogue))

    async def retire(self, worker: int) -> None:
        await self._desk.call("retire", lambda: self._inner.retire(worker))

    async def workers(self) -> list[WorkerRow]:
        return await self._desk.call("workers", self._inner.workers)

    async def claim(self, claim: Claim) -> Claims:
        return await self._desk.call("claim", lambda: self._inner.claim(claim))

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        return await self._desk.call(
            "apply", lambda: self._inner.apply(transitions, worker=worker, carriers=carriers)
        )

    async def bury(self) -> list[WorkerRow]:
        return await self._desk.call("bury", self._inner.bury)

    async def held(self, worker: int) -> list[HeldRun]:
        return await self._desk.call("held", lambda: self._inner.held(worker))

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._desk.call("hung", lambda: self._inner.hung(margin, limit))

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._desk.call("overdue", lambda: self._inner.overdue(margin, limit))

    async def expiring(self, limit: int) -> list[RunRow]:
        return await self._desk.call("expiring", lambda: self._inner.expiring(limit))

    async def purge(self, purge: Purge) -> int:
        return await self._desk.call("purge", lambda: self._inner.purge(purge))

    async def fold(self, limit: int) -> int:
        return await self._desk.call("fold", lambda: self._inner.fold(limit))

    async def claim_set(self, lease: int) -> SetRow | None:
        return await self._desk.call("claim_set", lambda: self._inner.claim_set(lease))

    async def advance(
        self, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        return await self._desk.call(
            "advance", lambda: self._inner.advance(set, marks, limit=limit, lease=lease)
        )

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        return await self._desk.call("circuit", lambda: self._inner.circuit(tenant, key, counted=counted))

    async def turn_circuit(self, turn: CircuitTurn) -> Turned:
        return await self._desk.call("turn_circuit", lambda: self._inner.turn_circuit(turn))

    async def permit(self, ask: Ask) -> Permit:
        return await self._desk.call("permit", lambda: self._inner.permit(ask))

    async def circuits_due(self, since: int) -> list[CircuitPlace]:
        return await self._desk.call("circuits_due", lambda: self._inner.circuits_due(since))

    async def circuits_since(self, since: int) -> list[CircuitRow]:
        return await self._desk.call("circuits_since", lambda: self._inner.circuits_since(since))

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        return await self._desk.call(
            "circuits", lambda: self._inner.circuits(where, limit=limit, cursor=cursor)
        )

    async def put_sinks(self, sinks: Sequence[NewSink]) -> None:
        await self._desk.call("put_sinks", lambda: self._inner.put_sinks(sinks))

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> Deliveries:
        return await self._desk.call(
            "claim_deliveries",
            lambda: self._inner.claim_deliveries(sink, limit=limit, lease=lease, suspects=suspects),
        )

    async def note_deliveries(
        self,
        sink: str,
        marks: Sequence[DeliveryMark],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[Arrived] = (),
    ) -> None:
        await self._desk.call(
            "note_deliveries", lambda: self._inner.note_deliveries(sink, marks, audit, arrived)
        )

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        return await self._desk.call("decide_deliveries", lambda: self._inner.decide_deliveries(decision))

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        return await self._desk.call("remove_sink", lambda: self._inner.remove_sink(name, audit))

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        return await self._desk.call("message", lambda: self._inner.message(public_id, tenant=tenant))

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        return await self._desk.call(
            "messages", lambda: self._inner.messages(where, limit=limit, cursor=cursor)
        )

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        return await self._desk.call(
            "blocked_keys", lambda: self._inner.blocked_keys(tenant=tenant, limit=limit)
        )

    async def sinks(self) -> list[SinkRow]:
        return await self._desk.call("sinks", self._inner.sinks)

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        await self._desk.call("begin_set", lambda: self._inner.begin_set(new, audit))

    async def stop_set(self, public_id: str, audit: AuditWrite) -> bool:
        return await self._desk.call("stop_set", lambda: self._inner.stop_set(public_id, audit))

    async def triage(self, triage: Triage) -> bool:
        return await self._desk.call("triage", lambda: self._inner.triage(triage))

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        await self._desk.call("note", lambda: self._inner.note(lines))

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        return await self._desk.call("run", lambda: self._inner.run(public_id, tenant=tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return await self._desk.call("runs_by_id", lambda: self._inner.runs_by_id(public_ids))

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        return await self._desk.call("runs", lambda: self._inner.runs(where, limit=limit, cursor=cursor))

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._desk.call("journal", lambda: self._inner.journal(run))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._desk.call("attempts", lambda: self._inner.attempts(run))

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        return await self._desk.call("letter", lambda: self._inner.letter(public_id, tenant=tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return await self._desk.call("letter_of", lambda: self._inner.letter_of(run))

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        return await self._desk.call(
            "letters", lambda: self._inner.letters(where, limit=limit, cursor=cursor)
        )

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        return await self._desk.call("cases", lambda: self._inner.cases(ids))

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        return await self._desk.call("audit", lambda: self._inner.audit(where, limit=limit, cursor=cursor))

    async def known(self, names: Sequence[str]) -> list[KnownItem]:
        return await self._desk.call("known", lambda: self._inner.known(names))

    async def workflows(self) -> list[KnownItem]:
        return await self._desk.call("workflows", self._inner.workflows)

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        return await self._desk.call("facets", lambda: self._inner.facets(where, most=most))

    async def glances(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunGlance]:
        return await self._desk.call("glances", lambda: self._inner.glances(where, most=most, oldest=oldest))

    async def count_letters(self, where: LetterFilter) -> int:
        return await self._desk.call("count_letters", lambda: self._inner.count_letters(where))

    async def set_of(self, public_id: str) -> SetRow | None:
        return await self._desk.call("set_of", lambda: self._inner.set_of(public_id))

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[SetRow]:
        return await self._desk.call("sets", lambda: self._inner.sets(tenant, limit=limit, cursor=cursor))

    async def set_endings(self, set: SetRow) -> dict[RunStatus, int]:
        return await self._desk.call("set_endings", lambda: self._inner.set_endings(set))

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        return await self._desk.call(
            "set_items", lambda: self._inner.set_items(set, status, limit=limit, cursor=cursor)
        )

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        return await self._desk.call("groups", lambda: self._inner.groups(where, limit=limit, cursor=cursor))

    async def figures(self) -> Figures:
        return await self._desk.call("figures", self._inner.figures)

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        return await self._desk.call("unclaimable", lambda: self._inner.unclaimable(workflows))

    async def policies(self) -> list[PolicyRow]:
        return await self._desk.call("policies", self._inner.policies)

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        await self._desk.call("set_policy", lambda: self._inner.set_policy(policy, audit))

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        return await self._desk.call(
            "delete_policy", lambda: self._inner.delete_policy(tenant, workflow, step, audit)
        )

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        await self._desk.call("pause", lambda: self._inner.pause(workflow, audit))

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        await self._desk.call("resume", lambda: self._inner.resume(workflow, audit))

    async def paused(self) -> dict[str, str]:
        return await self._desk.call("paused", self._inner.paused)
