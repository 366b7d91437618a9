"""Crash at every point: does a workflow survive the death of its worker, whenever that comes?

    await crash_everywhere(fulfil, order)

The workflow is run undisturbed to learn each call its worker makes to the store. Then it is run anew
for every one of these calls, three times: the worker dies just before it, the worker dies just after
it (all was written, nobody heard), and only the reply is lost; and once for every call of a step, at
whose end the worker dies. Another worker takes over when the dead one's lease has passed, in virtual
time. Each time the run must come to the same end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from redrive.app import Redrive, Workflow
from redrive.frozen import dataclass
from redrive.store import open_store
from redrive.testing.clock import START, VirtualClock
from redrive.testing.driver import Engine
from redrive.testing.faulty_store import LOSE, Call, Fault, crash_after, crash_before
from redrive.testing.injection import Crash, Injected, injected
from redrive.testing.observed import Comparison, Observed, observe
from redrive.testing.report import RunReport
from redrive.testing.world import World

__all__ = ["CrashPoint", "Manner", "crash_everywhere"]

Check = Callable[[Engine, RunReport], Awaitable[object]]
Setup = Callable[[Engine], Awaitable[object]]

# Calls that change nothing for a run: dying at one of them is dying at the next call that does.
_LOOKS = frozenset(
    {"lease.beat", "bury", "hung", "overdue", "held", "purge", "policies", "workers", "fold", "claim_set"}
) | {"circuits_due", "circuits_since", "circuit", "workflows"}
_PATIENCE = 10.0
_LATER = START + timedelta(days=400, hours=5)


class Manner(StrEnum):
    """What goes wrong at a call."""

    BEFORE = "a crash before"
    AFTER = "a crash after"
    DURING = "a crash during"
    LOST = "the lost reply of"


_AT_STORE_CALLS = (Manner.BEFORE, Manner.AFTER, Manner.LOST)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One call at which something goes wrong: "a crash after apply #7, as step 'charge' ...".

    `call` names a call to the store or, for crashes during one, a step.
    """

    manner: Manner
    call: str
    number: int
    about: str = ""

    def __str__(self) -> str:
        if self.manner is Manner.DURING:
            return f"{self.manner} call #{self.number} of step {self.call!r}"
        return f"{self.manner} {self.call} #{self.number}" + (f", as {self.about}" if self.about else "")


async def crash_everywhere(
    workflow: Workflow[..., Any, Any],
    *args: Any,
    setup: Setup | None = None,
    check: Check | None = None,
    **options: Any,
) -> list[CrashPoint]:
    """Run the workflow with a crash at every point, and check that each run ends as an undisturbed one.

    For each point: the status and the result are the same; no step is missing, and none was called more
    often than once for each death of its worker; the death used up no attempt; a step that runs at most
    once was called at most once (and if it was cut short, the run says so); there is one dead letter, or
    none, as without the crash; runs started by the workflow were started once. Raises an AssertionError
    that names the point and what broke, or a point that was not come to again; returns the points tried.
    One run may make fewer calls than another (the store's are batched, a fake remembers what it was asked):
    a point beyond the last call of its run is not among them.

    Takes what `workflow.start` takes. Every run gets a new, empty store; `await setup(e)` prepares each
    one (resets your fakes, say), `await check(e, run)` adds what you want to be true after each: that
    `e.fetch("SELECT ...")` shows the effect of a transactional step once, or what your fakes were asked.
    What a step or `redrive.now` gives differently in each undisturbed run is not compared.

    A crash takes time, as it does in production: the lease must pass, then the run waits for its
    backoff. A workflow whose way depends on how long things take (time limits shorter than that, races)
    may rightly come to another end; test those with `faults`. Schedules start nothing meanwhile.
    """
    trials = _Trials(workflow, args, options, setup, check)
    comparison, points = await trials.learn()
    tried = []
    for point in points:
        recorder = _Recorder(point)
        problem = await trials.broken_by(recorder, comparison)
        if problem is not None:
            raise AssertionError(f"workflow {workflow.name!r} does not survive {point}: {problem}")
        if recorder.fired:
            tried.append(point)
    _prove_tried(workflow.name, points, tried)
    return tried


def _prove_tried(workflow: str, points: list[CrashPoint], tried: list[CrashPoint]) -> None:
    """One run may make fewer calls than another, but no kind of call may be missing altogether."""
    known = {_kind(point) for point in tried}
    for point in points:
        if _kind(point) not in known:
            raise AssertionError(
                f"workflow {workflow!r} did not come to {point} when it was run again, so nothing is known "
                "about that: it depends on something outside of its steps. Make that a step, or reset it in "
                "setup="
            )


def _kind(point: CrashPoint) -> tuple[Manner, str]:
    return point.manner, point.call


class _Recorder:
    """A plan that writes down every call, and makes one of them fail."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.world: World | None = None
        self.fired = False
        self.point = point
        self._counts: Counter[str] = Counter()
        self._calls: list[tuple[str, int, str]] = []
        self._steps: Counter[str] = Counter()

    def __call__(self, call: Call) -> Fault | None:
        self._counts[call.name] += 1
        number = self._counts[call.name]
        if call.name not in _LOOKS:
            about = "" if self.world is None else self.world.about(call.name)
            self._calls.append((call.name, number, about))
        return self._fault() if self._is_here(call.name, number, _AT_STORE_CALLS) else None

    def strike(self, step: str, workflow: str) -> Injected | None:
        """What the call of a step meets that begins now."""
        self._steps[step] += 1
        if self._is_here(step, self._steps[step], {Manner.DURING}):
            return Injected(Crash, after=True)
        return injected(step, workflow)

    def _is_here(self, call: str, number: int, manners: Collection[Manner]) -> bool:
        """True, once, at the point where something is to go wrong."""
        point = self.point
        if point is None or self.fired or point.manner not in manners:
            return False
        self.fired = (call, number) == (point.call, point.number)
        return self.fired

    @property
    def deaths(self) -> int:
        """How many workers died of this plan."""
        return int(self.fired and self.point is not None and self.point.manner is not Manner.LOST)

    def _fault(self) -> Fault:
        match self.point:
            case CrashPoint(manner=Manner.BEFORE):
                return crash_before(Crash())
            case CrashPoint(manner=Manner.AFTER):
                return crash_after(Crash())
            case _:
                return LOSE

    def close(self) -> None:
        """The run is over: forget claims that brought nothing, they changed nothing."""
        barren = set() if self.world is None else self.world.life.witness.barren_claims
        self._calls = [call for call in self._calls if call[0] != "claim" or call[1] not in barren]

    def points(self) -> list[CrashPoint]:
        """Where something could go wrong, had this run not been spared."""
        at_calls = [CrashPoint(manner, *call) for call in self._calls for manner in _AT_STORE_CALLS]
        steps = [(step, number + 1) for step, most in self._steps.items() for number in range(most)]
        return at_calls + [CrashPoint(Manner.DURING, step, number) for step, number in steps]


class _Trials:
    """Runs one workflow again and again."""

    def __init__(
        self,
        workflow: Workflow[..., Any, Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        setup: Setup | None,
        check: Check | None,
    ) -> None:
        self._workflow = workflow
        self._app = workflow._app
        self._args = args
        self._options = options
        self._setup = setup
        self._check = check

    async def learn(self) -> tuple[Comparison, list[CrashPoint]]:
        """Run it without a fault: twice alike, and once at another time with other random numbers."""
        recorder = _Recorder()
        steps = {step.name: step.options for step in self._app.registered_steps.values()}
        comparison = Comparison(await self._try(recorder), steps)
        again = await self._try(_Recorder())
        comparison.allow_what_varies(again)
        problem = comparison.difference(again, deaths=0)
        if problem is not None:
            raise AssertionError(
                f"workflow {self._workflow.name!r} differs between two undisturbed runs, so it depends on "
                f"something outside of its steps: {problem}. Make that a step, or reset it in setup="
            )
        comparison.allow_what_varies(await self._try(_Recorder(), seed=1, start=_LATER))
        return comparison, recorder.points()

    async def broken_by(self, recorder: _Recorder, comparison: Comparison) -> str | None:
        """Run it with one fault; say what broke, if anything did."""
        try:
            seen = await self._try(recorder)
        except (AssertionError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return comparison.difference(seen, deaths=recorder.deaths)

    async def _try(self, recorder: _Recorder, *, seed: int = 0, start: datetime = START) -> Observed:
        async with _opened(self._app, recorder, seed, start) as e:
            if self._setup is not None:
                await self._setup(e)
            report = await e.run(self._workflow, *self._args, **self._options)
            await e.finish_all()
            if self._check is not None:
                await self._check(e, report)
            return await observe(e, report)


@asynccontextmanager
async def _opened(app: Redrive, recorder: _Recorder, seed: int, start: datetime) -> AsyncIterator[Engine]:
    clock = VirtualClock(seed=seed, start=start)
    store = open_store("sqlite:///:memory:", clock)
    world = World(
        app, store, clock, plan=recorder, patience=_PATIENCE, faults=recorder.strike, schedules=False
    )
    recorder.world = world
    await world.open()
    try:
        yield Engine(app, world)
        recorder.close()
    finally:
        await world.close(in_order=False)
