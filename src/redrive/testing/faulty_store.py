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
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from redrive.clock import Clock, SystemClock
from redrive.errors import StoreUnavailable
from redrive.frozen import dataclass
from redrive.store.account_records import Accounts
from redrive.store.notifications import Notices
from redrive.store.port import LeaseLine, Store, Transaction
from redrive.store.schedules import Schedules
from redrive.store.settings import Views
from redrive.store.workers import Beat

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
    "inject_faults",
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


class _Gate:
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
    return cast(FaultyStore, _Proxy(inner, _Gate(plan, clock or SystemClock()), Store))


_GROUPS = {"accounts": Accounts, "notices": Notices, "schedules": Schedules, "views": Views}
_FREE = frozenset({"close", "changed"})  # calls that a plan neither counts nor fails


class _Proxy:
    """The store, or one of its groups of calls, whose calls are named with the group in front."""

    def __init__(self, inner: Any, gate: _Gate, port: type[Any], group: str = "") -> None:
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
        if not self._group and name in _GROUPS:
            return _Proxy(found, self._gate, _GROUPS[name], f"{name}.")
        if name in _FREE or not iscoroutinefunction(getattr(self._port, name, None)):
            return found

        def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return self._gate.call(self._group + name, lambda: found(*args, **kwargs))

        return call

    def confined(self, tenant: str, workflows: Collection[str] | None = None) -> _Proxy:
        return _Proxy(self._inner.confined(tenant, workflows), self._gate, Store)

    def lease_line(self) -> LeaseLine:
        return _FaultyLease(self._inner.lease_line(), self._gate)

    def transaction(self, limit: float) -> Transaction:
        return _FaultyTransaction(self._inner.transaction(limit), self._gate)


class _FaultyLease:
    """A lease whose beats are calls named `lease.beat`."""

    def __init__(self, inner: LeaseLine, gate: _Gate) -> None:
        self._inner = inner
        self._gate = gate

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        return self._gate.call_now("lease.beat", lambda: self._inner.beat(worker, heartbeats))

    def close(self) -> None:
        self._inner.close()


class _FaultyTransaction:
    """A transaction whose calls are named `transaction.execute` and so on. A death undoes it."""

    def __init__(self, inner: Transaction, gate: _Gate) -> None:
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
