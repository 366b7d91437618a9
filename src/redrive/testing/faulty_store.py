"""A store that fails on purpose, for crash tests and simulations.

    inject_faults(inner, nth(3, LOSE))                      the third call is executed, but its reply is lost
    inject_faults(inner, nth(1, crash_before(Killed()), of="apply"))

A plan is called before each store call and may return a fault. After a crash the store is dead for its caller, as for
a process that was killed: no later call reaches the inner store, not even from clean-up code. `calls` lists the names
of all calls, so that a test can first count the points of failure and then try each of them. The proxy is generic: a
new call of the port needs no change here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from redrive.clock import Clock, SystemClock
from redrive.core.transitions import Transition
from redrive.errors import StoreUnavailable
from redrive.store.accounts import AccountStore
from redrive.store.notifications import NotificationStore
from redrive.store.port import LeaseConnection, Store, Transaction
from redrive.store.settings import SavedViewStore, ScheduleStore
from redrive.store.workers import Beats, HeartbeatReply

Result = TypeVar("Result")


class _FaultKind(Enum):
    FAIL = auto()
    LOSE = auto()
    DELAY = auto()
    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at a store call."""

    kind: _FaultKind
    seconds: float = 0.0
    error: BaseException | None = None


FAIL = Fault(_FaultKind.FAIL)
"""Raises StoreUnavailable; the call is not executed."""

LOSE = Fault(_FaultKind.LOSE)
"""Raises StoreUnavailable although the call was executed: only the reply is lost."""


def delay(seconds: float) -> Fault:
    """Return a fault that delays the call."""
    return Fault(_FaultKind.DELAY, seconds=seconds)


def crash_before(error: BaseException) -> Fault:
    """Return the death of the process before the call: `error` is raised, now and by each later call."""
    return Fault(_FaultKind.CRASH_BEFORE, error=error)


def crash_after(error: BaseException) -> Fault:
    """Return the death of the process after the call, before it gets the reply."""
    return Fault(_FaultKind.CRASH_AFTER, error=error)


@dataclass(frozen=True, slots=True)
class Call:
    """A call about to be made: its name, and its number among all calls and among those of its name, from 1."""

    name: str
    number: int
    of_name: int


Plan: TypeAlias = Callable[[Call], Fault | None]


def no_faults(call: Call) -> Fault | None:
    """Return None for each call: the plan without faults."""
    return None


def nth(number: int, fault: Fault, *, of: str | None = None) -> Plan:
    """Return a plan with one fault, at the call with this number among all calls or those of one name."""

    def plan(call: Call) -> Fault | None:
        hit = call.number == number if of is None else (call.name, call.of_name) == (of, number)
        return fault if hit else None

    return plan


def either(*plans: Plan) -> Plan:
    """Return a plan that uses the first fault of any of these plans."""
    return lambda call: next((fault for plan in plans if (fault := plan(call)) is not None), None)


class _FaultGate:
    """Counts calls, applies the plan, and remembers the death of the caller."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self.plan = plan
        self.calls: list[str] = []
        self.dead: BaseException | None = None
        self._clock = clock
        self._counts: Counter[str] = Counter()

    async def call(self, name: str, work: Callable[[], Awaitable[Result]]) -> Result:
        fault = self._check_before(name)
        if fault is not None and fault.kind is _FaultKind.DELAY:
            await self._clock.sleep(fault.seconds)
        result = await work()
        self._check_after(name, fault)
        return result

    def call_sync(self, name: str, work: Callable[[], Result]) -> Result:
        fault = self._check_before(name)
        if fault is not None and fault.kind is _FaultKind.DELAY:
            time.sleep(fault.seconds)
        result = work()
        self._check_after(name, fault)
        return result

    def _check_before(self, name: str) -> Fault | None:
        if self.dead is not None:
            raise self.dead
        self.calls.append(name)
        self._counts[name] += 1
        fault = self.plan(Call(name, len(self.calls), self._counts[name]))
        if fault is not None and fault.kind is _FaultKind.FAIL:
            raise StoreUnavailable(f"{name} failed on purpose; it was not executed")
        self._crash_if(fault, _FaultKind.CRASH_BEFORE)
        return fault

    def _check_after(self, name: str, fault: Fault | None) -> None:
        if self.dead is not None:  # the caller died in another call while this one was under way
            raise self.dead
        if fault is not None and fault.kind is _FaultKind.LOSE:
            raise StoreUnavailable(f"the reply of {name} was lost on purpose; it was executed")
        self._crash_if(fault, _FaultKind.CRASH_AFTER)

    def _crash_if(self, fault: Fault | None, kind: _FaultKind) -> None:
        if fault is not None and fault.kind is kind:
            self.dead = fault.error or SystemExit("crashed on purpose")
            raise self.dead


class FaultyStore(Store, Protocol):
    """A proxy of a store with the faults of a plan. `plan` can be replaced."""

    plan: Plan

    @property
    def calls(self) -> list[str]:
        """The names of all calls so far, in order."""

    @property
    def dead(self) -> bool:
        """True after an injected crash: no call reaches the inner store any more."""


def inject_faults(inner: Store, plan: Plan = no_faults, *, clock: Clock | None = None) -> FaultyStore:
    """Return a proxy of a store whose calls fail as planned."""
    return cast(FaultyStore, _Proxy(inner, _FaultGate(plan, clock or SystemClock()), Store))


_PORT_GROUPS = {
    "accounts": AccountStore,
    "notifications": NotificationStore,
    "schedules": ScheduleStore,
    "views": SavedViewStore,
}
_UNCOUNTED_CALLS = frozenset({"close", "changed"})  # calls that a plan neither counts nor fails


class _Proxy:
    """The proxy of a store, or of one group of its calls; the names of those begin with the group."""

    def __init__(self, inner: Any, gate: _FaultGate, port: type[Any], group: str = "") -> None:
        self._inner = inner
        self._gate = gate
        self._port = port
        self._group = group

    @property
    def calls(self) -> list[str]:
        return self._gate.calls

    @property
    def dead(self) -> bool:
        return self._gate.dead is not None

    @property
    def plan(self) -> Plan:
        return self._gate.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._gate.plan = plan

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not self._group and name in _PORT_GROUPS:
            return _Proxy(found, self._gate, _PORT_GROUPS[name], f"{name}.")
        if name in _UNCOUNTED_CALLS or not iscoroutinefunction(getattr(self._port, name, None)):
            return found

        def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return self._gate.call(self._group + name, lambda: found(*args, **kwargs))

        return call

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> _Proxy:
        return _Proxy(self._inner.tenant_view(tenant, workflows), self._gate, Store)

    def lease_connection(self) -> LeaseConnection:
        return _FaultyLease(self._inner.lease_connection(), self._gate)

    def transaction(self, limit: float) -> Transaction:
        return _FaultyTransaction(self._inner.transaction(limit), self._gate)


class _FaultyLease:
    """A lease connection whose calls are named `lease.beat` and `lease.record`."""

    def __init__(self, inner: LeaseConnection, gate: _FaultGate) -> None:
        self._inner = inner
        self._gate = gate

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        return self._gate.call_sync("lease.beat", lambda: self._inner.beat(beats))

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        self._gate.call_sync("lease.record", lambda: self._inner.record(worker, marks))

    def close(self) -> None:
        self._inner.close()


class _FaultyTransaction:
    """A transaction whose calls are named `transaction.execute` and so on. A death rolls it back."""

    def __init__(self, inner: Transaction, gate: _FaultGate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await self._gate.call(f"transaction.{name}", lambda: found(*args, **kwargs))
            finally:
                # A real store rolls back the open transaction of a lost connection by itself.
                if name == "rollback" or self._gate.dead is not None:
                    await self._inner.rollback()

        return call
