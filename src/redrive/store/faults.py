"""What goes wrong with calls of a store on purpose, the plans that say when, and the gate all calls pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TypeAlias, TypeVar

from redrive.clock import Clock
from redrive.errors import StoreUnavailable
from redrive.frozen import dataclass

__all__ = [
    "FAIL",
    "LOSE",
    "Call",
    "Fault",
    "Gate",
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


class Gate:
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
