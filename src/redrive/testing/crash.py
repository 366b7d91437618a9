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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from redrive.app import Redrive, Workflow
from redrive.core.states import EntryKind
from redrive.store import open_store
from redrive.store.faulty import LOSE, Call, Fault, crash_after, crash_before
from redrive.store.port import EntryRow, LetterFilter, RunFilter
from redrive.testing.clock import START, VirtualClock
from redrive.testing.driver import Engine
from redrive.testing.injection import Crash, Injected, injected
from redrive.testing.report import RunReport
from redrive.testing.world import World

__all__ = ["CrashPoint", "Manner", "crash_everywhere"]

Check = Callable[[Engine, RunReport], Awaitable[object]]
Setup = Callable[[Engine], Awaitable[object]]

# Calls that change nothing for a run: dying at one of them is dying at the next call that does.
_LOOKS = frozenset({"lease.beat", "bury", "hung", "overdue", "held", "purge", "policies", "workers"})
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

    For each point: the status and the result are the same; no step is missing and none was called once
    more than its worker died; attempts are counted as if nothing had happened; a step that runs at most
    once was called at most once (and if it was cut short, the run says so); there is one dead letter, or
    none, as without the crash; runs started by the workflow were started once. Raises an AssertionError
    that names the point and what broke; returns the points tried.

    Takes what `workflow.start` takes. Every run gets a new, empty store; `await setup(e)` prepares each
    one (resets your fakes, say), `await check(e, run)` adds what you want to be true after each: that
    `e.fetch("SELECT ...")` shows the effect of a transactional step once, or what your fakes were asked.
    What differs between two undisturbed runs at different times (`redrive.now`, `redrive.uuid`) is not
    compared.

    A crash takes time, as it does in production: the lease must pass, then the run waits for its
    backoff. A workflow with time limits shorter than that will meet them.
    """
    trials = _Trials(workflow, args, options, setup, check)
    clean = await trials.undisturbed()
    points = [CrashPoint(manner, *call) for call in clean.calls for manner in _AT_STORE_CALLS]
    points += [
        CrashPoint(Manner.DURING, step, n + 1) for step, most in clean.steps.items() for n in range(most)
    ]
    for point in points:
        problem = await trials.broken_by(point, clean)
        if problem is not None:
            raise AssertionError(f"workflow {workflow.name!r} does not survive {point}: {problem}")
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """What is compared between one run and another. Keys name a journal entry of a workflow's runs."""

    report: RunReport
    runs: Counter[tuple[str, str]]
    letters: Counter[str]
    entries: dict[str, tuple[str, int, str | None]]
    bodies: dict[str, int]
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)


class _Recorder:
    """A plan that writes down every call, and makes one of them fail."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.world: World | None = None
        self.fired = False
        self._point = point
        self._counts: Counter[str] = Counter()
        self.calls: list[tuple[str, int, str]] = []
        self.steps: Counter[str] = Counter()

    def __call__(self, call: Call) -> Fault | None:
        self._counts[call.name] += 1
        number = self._counts[call.name]
        if call.name not in _LOOKS:
            about = "" if self.world is None else self.world.about(call.name)
            self.calls.append((call.name, number, about))
        return self._fault() if self._is_here(call.name, number, _AT_STORE_CALLS) else None

    def strike(self, step: str, workflow: str) -> Injected | None:
        """What the call of a step meets that begins now."""
        self.steps[step] += 1
        if self._is_here(step, self.steps[step], {Manner.DURING}):
            return Injected(Crash, after=True)
        return injected(step, workflow)

    def _is_here(self, call: str, number: int, manners: Collection[Manner]) -> bool:
        """True, once, at the point where something is to go wrong."""
        point = self._point
        if point is None or self.fired or point.manner not in manners:
            return False
        self.fired = (call, number) == (point.call, point.number)
        return self.fired

    def _fault(self) -> Fault:
        match self._point:
            case CrashPoint(manner=Manner.BEFORE):
                return crash_before(Crash())
            case CrashPoint(manner=Manner.AFTER):
                return crash_after(Crash())
            case _:
                return LOSE

    def calls_that_matter(self) -> list[tuple[str, int, str]]:
        """The calls that changed something; a claim that brought nothing did not."""
        barren = set() if self.world is None else self.world.life.witness.barren_claims
        return [call for call in self.calls if call[0] != "claim" or call[1] not in barren]


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
        self._varies: set[str] = set()
        self._result_varies = False

    async def undisturbed(self) -> _Observed:
        """Run it without a fault: twice alike, and once at another time with other random numbers."""
        first = await self._try(_Recorder())
        again = await self._try(_Recorder())
        if any("redrive.uuid#" in key for key in first.entries):  # by chance, whatever the seed
            self._may_vary(first, again)
        problem = self._difference(first, again, deaths=0)
        if problem is not None:
            raise AssertionError(
                f"workflow {self._workflow.name!r} differs between two undisturbed runs, so it depends on "
                f"something outside the run: {problem}. Make that a step, or reset it in setup="
            )
        self._may_vary(first, await self._try(_Recorder(), seed=1, start=_LATER))
        return first

    async def broken_by(self, point: CrashPoint, clean: _Observed) -> str | None:
        """Run it with one fault; say what broke, if anything did."""
        try:
            seen = await self._try(_Recorder(point))
        except (AssertionError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return self._difference(clean, seen, deaths=0 if point.manner is Manner.LOST else 1)

    async def _try(self, recorder: _Recorder, *, seed: int = 0, start: datetime = START) -> _Observed:
        async with _opened(self._app, recorder, seed, start) as e:
            if self._setup is not None:
                await self._setup(e)
            report = await e.run(self._workflow, *self._args, **self._options)
            await e.finish_all()
            if self._check is not None:
                await self._check(e, report)
            return await _observe(e, report, recorder)

    def _may_vary(self, one: _Observed, other: _Observed) -> None:
        """What differs between these two depends on the time or on chance, and is not compared."""
        shared = one.entries.keys() & other.entries.keys()
        self._varies |= {key for key in shared if one.entries[key][2] != other.entries[key][2]}
        self._result_varies |= _result(one) != _result(other)

    def _difference(self, clean: _Observed, seen: _Observed, *, deaths: int) -> str | None:
        """In words, how a run differs from the undisturbed one; None if it does not."""
        options = {step.name: step.options for step in self._app.registered_steps.values()}
        once = {name for name, option in options.items() if option.at_most_once}
        undone = {name for name, option in options.items() if option.transactional}
        problem = _called_too_often(
            clean, seen, {**dict.fromkeys(once, 0), **dict.fromkeys(undone, 1)}, deaths
        )
        if problem is not None or _may_have_happened(seen, once):
            return problem or _letters_missing(seen)
        if (seen.report.status, seen.letters) != (clean.report.status, clean.letters):
            return f"the run ended as {_end_of(seen)} instead of {_end_of(clean)}"
        if not self._result_varies and _result(seen) != _result(clean):
            return f"the run returned {_result(seen)} instead of {_result(clean)}"
        if seen.runs != clean.runs:
            return f"there are runs {_counted(seen.runs)} instead of {_counted(clean.runs)}"
        return self._journal_difference(clean, seen)

    def _journal_difference(self, clean: _Observed, seen: _Observed) -> str | None:
        for key in clean.entries.keys() | seen.entries.keys():
            was, is_now = clean.entries.get(key), seen.entries.get(key)
            if was is None or is_now is None:
                return f"{key} is {'missing from' if is_now is None else 'an extra entry in'} the journal"
            if was[:2] != is_now[:2]:
                return f"{key} ended as {is_now[0]} at attempt {is_now[1]}, not as {was[0]} at {was[1]}"
            if was[2] != is_now[2] and key not in self._varies:
                return f"{key} gave {is_now[2]} instead of {was[2]}"
        return None


# -- looking ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(app: Redrive, plan: _Recorder, seed: int, start: datetime) -> AsyncIterator[Engine]:
    clock = VirtualClock(seed=seed, start=start)
    store = open_store("sqlite:///:memory:", clock)
    world = plan.world = World(app, store, clock, plan=plan, patience=_PATIENCE, faults=plan.strike)
    await world.open()
    try:
        yield Engine(app, world)
    finally:
        await world.close(in_order=False)


async def _observe(e: Engine, report: RunReport, recorder: _Recorder) -> _Observed:
    runs = (await e.store.runs(RunFilter(), limit=500, cursor=None)).items
    letters = (await e.store.letters(LetterFilter(), limit=500, cursor=None)).items
    entries: dict[str, tuple[str, int, str | None]] = {}
    bodies: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: run.id):
        rows = await e.store.journal(run.id)
        where = "" if run.public_id == report.id else f"{run.workflow}: "
        entries.update((f"{where}{row.key}", _entry(row)) for row in rows)
        for row in rows:
            if row.kind is EntryKind.STEP:
                called = e.calls(row.name, run=run.public_id, key=row.key)
                bodies[f"{where}{row.key}"] = max(called, bodies.get(f"{where}{row.key}", 0))
    return _Observed(
        report=report,
        runs=Counter((run.workflow, run.status.value) for run in runs),
        letters=Counter(letter.workflow for letter in letters),
        entries=entries,
        bodies=bodies,
        calls=recorder.calls_that_matter(),
        steps=recorder.steps,
    )


def _entry(row: EntryRow) -> tuple[str, int, str | None]:
    return row.status.value, row.attempt, row.output


def _result(seen: _Observed) -> str:
    return repr(seen.report.value) if seen.report.error is None else str(seen.report.error.details)


def _end_of(seen: _Observed) -> str:
    error = seen.report.described.error
    why = "" if error is None else f" ({seen.report.described.code}: {error})"
    letters = sum(seen.letters.values())
    return f"{seen.report.status}{why} with {letters} dead letter{'' if letters == 1 else 's'}"


def _counted(runs: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{count} x {workflow} {status}" for (workflow, status), count in sorted(runs.items()))


def _called_too_often(clean: _Observed, seen: _Observed, more: dict[str, int], deaths: int) -> str | None:
    """`more`: how often some steps may be called beyond what is usual, if that is not once for each death."""
    for key, count in seen.bodies.items():
        allowed = max(1, clean.bodies.get(key, 0) + more.get(_step_of(key), deaths))
        if count > allowed:
            return f"the body of {key} was called {count} times; at most {allowed} is right"
    return None


def _may_have_happened(seen: _Observed, once: set[str]) -> bool:
    """True if a step that runs at most once was cut short: then the run may end as it likes."""
    return any(
        _step_of(step.key) in once and any(attempt.status == "LOST" for attempt in step.attempts)
        for step in seen.report.steps
    )


def _letters_missing(seen: _Observed) -> str | None:
    failed = seen.report.status == "DLQ_PENDING"
    if failed != bool(sum(seen.letters.values())):
        return f"the run ended as {_end_of(seen)}"
    return None


def _step_of(key: str) -> str:
    return key.rpartition("/")[2].rpartition("#")[0]
