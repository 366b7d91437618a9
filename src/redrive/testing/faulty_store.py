"""A store that fails on purpose, for crash tests and simulations.

    inject_faults(inner, nth(3, LOSE))                      the third call is done, but its reply is lost
    inject_faults(inner, nth(1, crash_before(Killed()), of="apply"))

A plan is asked before each call and may answer with a fault. After a crash the store is dead for its caller,
as for a process that was killed: no later call reaches the inner store, whatever clean-up code still
runs. `calls` names every call made, so that a test can first count the points where something could go wrong
and then try each of them. The proxy is generic: a new call of the port needs nothing here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from redrive.clock import Clock, SystemClock
from redrive.errors import StoreUnavailable
from redrive.store.accounts import AccountStore
from redrive.store.notifications import NotificationStore
from redrive.store.port import LeaseConnection, Store, Transaction
from redrive.store.settings import SavedViewStore, ScheduleStore
from redrive.store.workers import HeartbeatReply

Result = TypeVar("Result")


class _FaultKind(Enum):
    FAIL = auto()
    LOSE = auto()
    DELAY = auto()
    CRASH_BEFORE = auto()
    CRASH_AFTER = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a call."""

    kind: _FaultKind
    seconds: float = 0.0
    error: BaseException | None = None


FAIL = Fault(_FaultKind.FAIL)
"""StoreUnavailable, and nothing was done."""

LOSE = Fault(_FaultKind.LOSE)
"""StoreUnavailable, but everything was done: only the reply is lost."""


def delay(seconds: float) -> Fault:
    """The call is made that much later."""
    return Fault(_FaultKind.DELAY, seconds=seconds)


def crash_before(error: BaseException) -> Fault:
    """The process dies before the call: `error` is raised, now and by every later call."""
    return Fault(_FaultKind.CRASH_BEFORE, error=error)


def crash_after(error: BaseException) -> Fault:
    """The process dies after the call, before it hears the reply."""
    return Fault(_FaultKind.CRASH_AFTER, error=error)


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


class _FaultGate:
    """Counts calls, asks the plan, and remembers whether the caller is dead."""

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
            raise StoreUnavailable(f"{name} failed on purpose; nothing was done")
        if fault is not None and fault.kind is _FaultKind.CRASH_BEFORE:
            self._crash(fault)
        return fault

    def _check_after(self, name: str, fault: Fault | None) -> None:
        if self.dead is not None:  # it died elsewhere while this call was under way
            raise self.dead
        if fault is not None and fault.kind is _FaultKind.LOSE:
            raise StoreUnavailable(f"the reply of {name} was lost on purpose; everything was done")
        if fault is not None and fault.kind is _FaultKind.CRASH_AFTER:
            self._crash(fault)

    def _crash(self, fault: Fault) -> None:
        self.dead = fault.error or SystemExit("crashed on purpose")
        raise self.dead


class FaultyStore(Store, Protocol):
    """A store around another one, with faults at the calls that the plan names. `plan` may be exchanged."""

    plan: Plan

    @property
    def calls(self) -> list[str]:
        """The names of all calls made so far, in order."""

    @property
    def dead(self) -> bool:
        """True once a crash was injected: nothing reaches the inner store any more."""


def inject_faults(inner: Store, plan: Plan = no_faults, *, clock: Clock | None = None) -> FaultyStore:
    """Wrap a store so that its calls fail as planned."""
    return cast(FaultyStore, _Proxy(inner, _FaultGate(plan, clock or SystemClock()), Store))


_PORT_GROUPS = {
    "accounts": AccountStore,
    "notices": NotificationStore,
    "schedules": ScheduleStore,
    "views": SavedViewStore,
}
_UNCOUNTED_CALLS = frozenset({"close", "changed"})  # calls that a plan neither counts nor fails


class _Proxy:
    """The store, or one of its groups of calls, whose calls are named with the group in front."""

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
    """A lease whose beats are calls named `lease.beat`."""

    def __init__(self, inner: LeaseConnection, gate: _FaultGate) -> None:
        self._inner = inner
        self._gate = gate

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        return self._gate.call_sync("lease.beat", lambda: self._inner.beat(worker, heartbeats))

    def close(self) -> None:
        self._inner.close()


class _FaultyTransaction:
    """A transaction whose calls are named `transaction.execute` and so on. A death undoes it."""

    def __init__(self, inner: Transaction, gate: _FaultGate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await self._gate.call(f"transaction.{name}", lambda: found(*args, **kwargs))
            finally:
                # A store undoes by itself what a lost connection left open.
                if name == "rollback" or self._gate.dead is not None:
                    await self._inner.rollback()

        return call
