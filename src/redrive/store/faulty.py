"""A store that fails on purpose: the ground every crash test and simulation stands on.

    FaultyStore(inner, nth(3, LOSE))                      the third call is done, but its reply is lost
    FaultyStore(inner, nth(1, crash_before(Killed()), of="apply"))

A plan is asked before each call and may answer with a fault (`store/faults.py`). After a crash the store is
dead for its caller, as it would be for a process that was killed: no later call reaches the inner one,
whatever clean-up code still runs. `calls` names every call made, so that a test can first count the points
where something could go wrong and then try each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from copy import copy
from functools import wraps
from typing import Any, TypeVar, cast

from redrive.clock import Clock, SystemClock
from redrive.core.transition import Answer, Transition
from redrive.store.accounts import Accounts
from redrive.store.faults import Gate, Plan, no_faults
from redrive.store.notices import Notices
from redrive.store.passing import AnyCall, passed_on
from redrive.store.port import LeaseLine, People, Store, Transaction
from redrive.store.schedules import Schedules
from redrive.store.views import Views
from redrive.store.workers import Beat

__all__ = ["FaultyStore"]

Result = TypeVar("Result")


def _through(call: AnyCall, side: str = "") -> AnyCall:
    """The same call, made of what is inside if the gate lets it pass, which knows it with `side` in front."""
    name, known_as = call.__name__, side + call.__name__

    @wraps(call)
    def ask(self: Any, *given: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        gate: Gate = self._gate
        return gate.call(known_as, lambda: getattr(self._inner, name)(*given, **named))

    return cast(AnyCall, ask)


class _FaultyLease:
    """A heartbeat line whose beats are calls named `lease.beat`."""

    def __init__(self, inner: LeaseLine, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        return self._gate.call_now("lease.beat", lambda: self._inner.beat(worker, heartbeats))

    def close(self) -> None:
        self._inner.close()


class _FaultyTransaction:
    """A transaction whose calls are named `transaction.execute` and so on. A death undoes it."""

    def __init__(self, inner: Transaction, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

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
            return await self._gate.call(f"transaction.{name}", work)
        finally:
            if self._gate.dead is not None:
                await self._inner.rollback()


class _FaultyAccounts:
    """The calls of `redrive.store.accounts`, each named `accounts.` and its own name."""

    def __init__(self, inner: Accounts, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    tenants = _through(Accounts.tenants, "accounts.")
    put_tenant = _through(Accounts.put_tenant, "accounts.")
    erase = _through(Accounts.erase, "accounts.")
    user = _through(Accounts.user, "accounts.")
    users = _through(Accounts.users, "accounts.")
    add_user = _through(Accounts.add_user, "accounts.")
    change_user = _through(Accounts.change_user, "accounts.")
    put_member = _through(Accounts.put_member, "accounts.")
    token = _through(Accounts.token, "accounts.")
    tokens = _through(Accounts.tokens, "accounts.")
    put_token = _through(Accounts.put_token, "accounts.")
    revoke_token = _through(Accounts.revoke_token, "accounts.")
    session = _through(Accounts.session, "accounts.")
    put_session = _through(Accounts.put_session, "accounts.")
    end_sessions = _through(Accounts.end_sessions, "accounts.")
    claim_answer = _through(Accounts.claim_answer, "accounts.")
    keep_answer = _through(Accounts.keep_answer, "accounts.")
    drop_answer = _through(Accounts.drop_answer, "accounts.")


class _FaultyNotices:
    """The calls of `redrive.store.notices`, each named `notices.` and its own name."""

    def __init__(self, inner: Notices, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    add = _through(Notices.add, "notices.")
    due = _through(Notices.due, "notices.")
    tell = _through(Notices.tell, "notices.")
    inbox = _through(Notices.inbox, "notices.")
    unread = _through(Notices.unread, "notices.")
    mark_read = _through(Notices.mark_read, "notices.")
    rules = _through(Notices.rules, "notices.")
    set_rule = _through(Notices.set_rule, "notices.")
    delete_rule = _through(Notices.delete_rule, "notices.")


class _FaultySchedules:
    """The calls of `redrive.store.schedules`, each named `schedules.` and its own name."""

    def __init__(self, inner: Schedules, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    keep = _through(Schedules.keep, "schedules.")
    mark = _through(Schedules.mark, "schedules.")
    known = _through(Schedules.known, "schedules.")
    pause = _through(Schedules.pause, "schedules.")
    resume = _through(Schedules.resume, "schedules.")
    remove = _through(Schedules.remove, "schedules.")


class _FaultyViews:
    """The calls of `redrive.store.views`, each named `views.` and its own name."""

    def __init__(self, inner: Views, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    known = _through(Views.known, "views.")
    put = _through(Views.put, "views.")
    remove = _through(Views.remove, "views.")


class FaultyStore:
    """A store around another one, with faults at the calls the plan names. `plan` may be exchanged."""

    def __init__(self, inner: Store, plan: Plan = no_faults, *, clock: Clock | None = None) -> None:
        self._inner = inner
        self._gate = Gate(plan, clock or SystemClock())

    @property
    def calls(self) -> list[str]:
        """The names of all calls made so far, in order."""
        return self._gate.calls

    @property
    def dead(self) -> bool:
        """True once a crash was injected: nothing reaches the inner store any more."""
        return self._gate.dead is not None

    @property
    def plan(self) -> Plan:
        """What is to go wrong."""
        return self._gate.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._gate.plan = plan

    def now(self) -> int:
        return self._inner.now()

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> People:
        view = copy(self)
        view._inner = cast(Store, self._inner.confined(tenant, workflows))
        return view

    @property
    def accounts(self) -> Accounts:
        return _FaultyAccounts(self._inner.accounts, self._gate)

    @property
    def notices(self) -> Notices:
        return _FaultyNotices(self._inner.notices, self._gate)

    @property
    def schedules(self) -> Schedules:
        return _FaultySchedules(self._inner.schedules, self._gate)

    @property
    def views(self) -> Views:
        return _FaultyViews(self._inner.views, self._gate)

    def lease_line(self) -> LeaseLine:
        return _FaultyLease(self._inner.lease_line(), self._gate)

    def transaction(self, limit: float) -> Transaction:
        return _FaultyTransaction(self._inner.transaction(limit), self._gate)

    close = passed_on(Store.close)
    changed = passed_on(Store.changed)

    open = _through(Store.open)
    start = _through(Store.start)
    enlist = _through(Store.enlist)
    retire = _through(Store.retire)
    workers = _through(Store.workers)
    claim = _through(Store.claim)
    apply = _through(Store.apply)
    bury = _through(Store.bury)
    held = _through(Store.held)
    hung = _through(Store.hung)
    overdue = _through(Store.overdue)
    expiring = _through(Store.expiring)
    purge = _through(Store.purge)
    fold = _through(Store.fold)
    claim_set = _through(Store.claim_set)
    advance = _through(Store.advance)
    circuit = _through(Store.circuit)
    turn_circuit = _through(Store.turn_circuit)
    permit = _through(Store.permit)
    circuits_due = _through(Store.circuits_due)
    circuits_since = _through(Store.circuits_since)
    circuits = _through(Store.circuits)
    put_sinks = _through(Store.put_sinks)
    claim_deliveries = _through(Store.claim_deliveries)
    note_deliveries = _through(Store.note_deliveries)
    decide_deliveries = _through(Store.decide_deliveries)
    remove_sink = _through(Store.remove_sink)
    message = _through(Store.message)
    messages = _through(Store.messages)
    blocked_keys = _through(Store.blocked_keys)
    sinks = _through(Store.sinks)
    begin_set = _through(Store.begin_set)
    change_set = _through(Store.change_set)
    triage = _through(Store.triage)
    note = _through(Store.note)
    run = _through(Store.run)
    runs_by_id = _through(Store.runs_by_id)
    runs = _through(Store.runs)
    journal = _through(Store.journal)
    attempts = _through(Store.attempts)
    letter = _through(Store.letter)
    letter_of = _through(Store.letter_of)
    letters = _through(Store.letters)
    cases = _through(Store.cases)
    audit = _through(Store.audit)
    known = _through(Store.known)
    workflows = _through(Store.workflows)
    facets = _through(Store.facets)
    glances = _through(Store.glances)
    count_letters = _through(Store.count_letters)
    set_of = _through(Store.set_of)
    sets = _through(Store.sets)
    set_endings = _through(Store.set_endings)
    set_items = _through(Store.set_items)
    groups = _through(Store.groups)
    figures = _through(Store.figures)
    unclaimable = _through(Store.unclaimable)
    policies = _through(Store.policies)
    set_policy = _through(Store.set_policy)
    delete_policy = _through(Store.delete_policy)
    pause = _through(Store.pause)
    resume = _through(Store.resume)
    paused = _through(Store.paused)
