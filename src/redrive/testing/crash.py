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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from redrive.app import Redrive, Workflow
from redrive.core.run_options import StepOptions
from redrive.core.states import EXECUTED_KINDS, RunStatus
from redrive.core.transitions import AttemptEnd
from redrive.store import open_store
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.runs import RunRow
from redrive.testing.clock import DEFAULT_START, VirtualClock
from redrive.testing.driver import Engine, RunReport
from redrive.testing.faulty_store import LOSE, Call, Fault, crash_after, crash_before
from redrive.testing.injection import Crash, InjectedFault, next_fault
from redrive.testing.simulation import Simulation

# -- What is left of a run when it is over, and how that differs from another time it was run ------------


@dataclass(frozen=True, slots=True)
class ObservedEntry:
    """A journal entry: what it is, how it ended, and how often its body was called."""

    name: str
    status: str
    attempt: int
    output: str | None
    called: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """A run and those it started. `entries` are keyed by run and journal key."""

    report: RunReport
    runs: Counter[tuple[str, str]]
    letters: int
    entries: dict[str, ObservedEntry]

    @property
    def outputs(self) -> dict[str, str | None]:
        """What each entry gave."""
        return {key: entry.output for key, entry in self.entries.items()}

    @property
    def end(self) -> str:
        """How the run ended, in words."""
        run = self.report.described
        why = "" if run.error is None else f" ({run.code}: {run.error})"
        return f"{run.status}{why} with {self.letters} dead letter{'' if self.letters == 1 else 's'}"


async def observe_run(e: Engine, report: RunReport) -> RunObservation:
    """Look at everything in the store."""
    runs = (await e.store.runs(RunFilter(), limit=500, cursor=None)).items
    letters = (await e.store.letters(LetterFilter(), limit=500, cursor=None)).items
    entries: dict[str, ObservedEntry] = {}
    for number, run in enumerate(sorted(runs, key=lambda run: run.id)):
        where = "" if run.public_id == report.id else f"run {number} ({run.workflow}): "
        entries |= await _observe_entries(e, run, where)
    return RunObservation(
        report=report,
        runs=Counter((run.workflow, run.status.value) for run in runs),
        letters=len(letters),
        entries=entries,
    )


async def _observe_entries(e: Engine, run: RunRow, where: str) -> dict[str, ObservedEntry]:
    return {
        f"{where}{row.key}": ObservedEntry(
            name=row.name,
            status=row.status.value,
            attempt=row.attempt,
            output=row.output,
            called=e.calls(row.name, run=run.public_id, key=row.key) if row.kind in EXECUTED_KINDS else 0,
        )
        for row in await e.store.journal(run.id)
    }


class Comparison:
    """Compares runs with one that was not disturbed, except for what differs among such runs anyhow."""

    def __init__(self, clean: RunObservation, options: Mapping[str, StepOptions]) -> None:
        self._clean = clean
        self._once = {name for name, option in options.items() if option.at_most_once}
        self._undone = {name for name, option in options.items() if option.transactional}
        self._varying: set[str] = set()

    def ignore_varying(self, other: RunObservation) -> None:
        """What differs in another undisturbed run depends on time, chance or the outside world."""
        for key, entry in self._clean.entries.items():
            same = other.entries.get(key)
            if same is not None and (same.output, same.attempt) != (entry.output, entry.attempt):
                self._varying.add(key)

    def difference(self, seen: RunObservation, *, deaths: int) -> str | None:
        """In words, how a run differs from the undisturbed one; None if it does not."""
        problem = self._find_excess_calls(seen, deaths)
        if problem is not None:
            return problem
        if self._was_cut_short(seen):  # then the run may end as it likes, if it says so
            said = (seen.report.status is RunStatus.DLQ_PENDING) == bool(seen.letters)
            return None if said else f"the run ended as {seen.end}"
        return self._compare_end(seen) or self._compare_journal(seen) or self._compare_result(seen)

    def _find_excess_calls(self, seen: RunObservation, deaths: int) -> str | None:
        for key, entry in seen.entries.items():
            was = self._clean.entries.get(key)
            usual = 0 if was is None else was.called
            most = max(1, usual + self._allowed_repeats(entry.name, deaths))
            if entry.called > most and key not in self._varying:
                return f"the body of {key} was called {entry.called} times; at most {most} is right"
        return None

    def _allowed_repeats(self, step: str, deaths: int) -> int:
        """How often a step may be called beyond what is usual."""
        if step in self._once:
            return 0
        return 1 if step in self._undone else deaths

    def _was_cut_short(self, seen: RunObservation) -> bool:
        """True if a step that runs at most once may have happened."""
        return any(
            step.name in self._once and any(attempt.status == AttemptEnd.LOST for attempt in step.attempts)
            for step in seen.report.steps
        )

    def _compare_end(self, seen: RunObservation) -> str | None:
        clean = self._clean
        if (seen.report.status, seen.letters) != (clean.report.status, clean.letters):
            return f"the run ended as {seen.end} instead of {clean.end}"
        if seen.runs != clean.runs:
            return f"there are runs {_format_counts(seen.runs)} instead of {_format_counts(clean.runs)}"
        return None

    def _compare_journal(self, seen: RunObservation) -> str | None:
        clean = self._clean.entries
        for key in clean.keys() - seen.entries.keys():
            return f"{key} is missing from the journal"
        for key, entry in seen.entries.items():
            was = clean.get(key)
            if was is None:
                return f"{key} is an extra entry in the journal"
            if was.status != entry.status:
                return f"{key} ended as {entry.status} instead of {was.status}"
            if key in self._varying:
                continue
            if entry.attempt > was.attempt:
                return f"{key} took {entry.attempt} attempts instead of {was.attempt}"
            if entry.output != was.output:
                return f"{key} gave {entry.output} instead of {was.output}"
        return None

    def _compare_result(self, seen: RunObservation) -> str | None:
        """The result follows from what the steps gave: where that is the same, so must the result be."""
        clean = self._clean
        if seen.outputs == clean.outputs and _read_result(seen) != _read_result(clean):
            return f"the run returned {_read_result(seen)!r} instead of {_read_result(clean)!r}"
        return None


def _read_result(seen: RunObservation) -> Any:
    return seen.report.value if seen.report.error is None else seen.report.error.details


def _format_counts(runs: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{count} x {workflow} {status}" for (workflow, status), count in sorted(runs.items()))


# -- Crash at every point: does a workflow survive the death of its worker, whenever that comes? ---------


Check = Callable[[Engine, RunReport], Awaitable[object]]
Setup = Callable[[Engine], Awaitable[object]]
# Calls that change nothing for a run: dying at one of them is dying at the next call that does.
_READ_ONLY_CALLS = frozenset(
    {"lease.beat", "expire_workers", "hung", "overdue", "held", "purge", "policies", "workers", "fold", "claim_bulk"}
) | {"circuits_due", "circuits_changed_since", "circuit", "workflows"}
_PATIENCE = 10.0
_SECOND_START = DEFAULT_START + timedelta(days=400, hours=5)


class CrashTiming(StrEnum):
    """What goes wrong at a call."""

    BEFORE = "a crash before"
    AFTER = "a crash after"
    DURING = "a crash during"
    LOST = "the lost reply of"


_AT_STORE_CALLS = (CrashTiming.BEFORE, CrashTiming.AFTER, CrashTiming.LOST)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """One call at which something goes wrong: "a crash after apply #7, as step 'charge' ...".

    `call` names a call to the store or, for crashes during one, a step.
    """

    manner: CrashTiming
    call: str
    number: int
    about: str = ""

    def __str__(self) -> str:
        if self.manner is CrashTiming.DURING:
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
    trials = _TrialRuns(workflow, args, options, setup, check)
    comparison, points = await trials.learn()
    tried = []
    for point in points:
        recorder = _RecordingPlan(point)
        problem = await trials.find_problem(recorder, comparison)
        if problem is not None:
            raise AssertionError(f"workflow {workflow.name!r} does not survive {point}: {problem}")
        if recorder.fired:
            tried.append(point)
    _check_all_tried(workflow.name, points, tried)
    return tried


def _check_all_tried(workflow: str, points: list[CrashPoint], tried: list[CrashPoint]) -> None:
    """One run may make fewer calls than another, but no kind of call may be missing altogether."""
    known = {_call_kind(point) for point in tried}
    for point in points:
        if _call_kind(point) not in known:
            raise AssertionError(
                f"workflow {workflow!r} did not come to {point} when it was run again, so nothing is known "
                "about that: it depends on something outside of its steps. Make that a step, or reset it in "
                "setup="
            )


def _call_kind(point: CrashPoint) -> tuple[CrashTiming, str]:
    return point.manner, point.call


class _RecordingPlan:
    """A plan that writes down every call, and makes one of them fail."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.world: Simulation | None = None
        self.fired = False
        self.point = point
        self._counts: Counter[str] = Counter()
        self._calls: list[tuple[str, int, str]] = []
        self._steps: Counter[str] = Counter()

    def __call__(self, call: Call) -> Fault | None:
        self._counts[call.name] += 1
        number = self._counts[call.name]
        if call.name not in _READ_ONLY_CALLS:
            about = "" if self.world is None else self.world.about(call.name)
            self._calls.append((call.name, number, about))
        return self._make_fault() if self._is_crash_point(call.name, number, _AT_STORE_CALLS) else None

    def strike(self, step: str, workflow: str) -> InjectedFault | None:
        """What the call of a step meets that begins now."""
        self._steps[step] += 1
        if self._is_crash_point(step, self._steps[step], {CrashTiming.DURING}):
            return InjectedFault(Crash, after=True)
        return next_fault(step, workflow)

    def _is_crash_point(self, call: str, number: int, manners: Collection[CrashTiming]) -> bool:
        """True, once, at the point where something is to go wrong."""
        point = self.point
        if point is None or self.fired or point.manner not in manners:
            return False
        self.fired = (call, number) == (point.call, point.number)
        return self.fired

    @property
    def deaths(self) -> int:
        """How many workers died of this plan."""
        return int(self.fired and self.point is not None and self.point.manner is not CrashTiming.LOST)

    def _make_fault(self) -> Fault:
        match self.point:
            case CrashPoint(manner=CrashTiming.BEFORE):
                return crash_before(Crash())
            case CrashPoint(manner=CrashTiming.AFTER):
                return crash_after(Crash())
            case _:
                return LOSE

    def close(self) -> None:
        """The run is over: forget claims that brought nothing, they changed nothing."""
        barren = set() if self.world is None else self.world.simulated_worker.witness.empty_claims
        self._calls = [call for call in self._calls if call[0] != "claim" or call[1] not in barren]

    def points(self) -> list[CrashPoint]:
        """Where something could go wrong, had this run not been spared."""
        at_calls = [CrashPoint(manner, *call) for call in self._calls for manner in _AT_STORE_CALLS]
        steps = [(step, number + 1) for step, most in self._steps.items() for number in range(most)]
        return at_calls + [CrashPoint(CrashTiming.DURING, step, number) for step, number in steps]


class _TrialRuns:
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
        recorder = _RecordingPlan()
        steps = {step.name: step.options for step in self._app.registered_steps.values()}
        comparison = Comparison(await self._run_trial(recorder), steps)
        again = await self._run_trial(_RecordingPlan())
        comparison.ignore_varying(again)
        problem = comparison.difference(again, deaths=0)
        if problem is not None:
            raise AssertionError(
                f"workflow {self._workflow.name!r} differs between two undisturbed runs, so it depends on "
                f"something outside of its steps: {problem}. Make that a step, or reset it in setup="
            )
        comparison.ignore_varying(await self._run_trial(_RecordingPlan(), seed=1, start=_SECOND_START))
        return comparison, recorder.points()

    async def find_problem(self, recorder: _RecordingPlan, comparison: Comparison) -> str | None:
        """Run it with one fault; say what broke, if anything did."""
        try:
            seen = await self._run_trial(recorder)
        except (AssertionError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return comparison.difference(seen, deaths=recorder.deaths)

    async def _run_trial(
        self, recorder: _RecordingPlan, *, seed: int = 0, start: datetime = DEFAULT_START
    ) -> RunObservation:
        async with _open_engine(self._app, recorder, seed, start) as e:
            if self._setup is not None:
                await self._setup(e)
            report = await e.run(self._workflow, *self._args, **self._options)
            await e.finish_all()
            if self._check is not None:
                await self._check(e, report)
            return await observe_run(e, report)


@asynccontextmanager
async def _open_engine(app: Redrive, recorder: _RecordingPlan, seed: int, start: datetime) -> AsyncIterator[Engine]:
    clock = VirtualClock(seed=seed, start=start)
    store = open_store("sqlite:///:memory:", clock)
    world = Simulation(app, store, clock, plan=recorder, patience=_PATIENCE, faults=recorder.strike, schedules=False)
    recorder.world = world
    await world.open()
    try:
        yield Engine(app, world)
        recorder.close()
    finally:
        await world.close(in_order=False)
