"""Crashes at every point of a workflow, to show that it survives the death of its worker at any time.

    await crash_everywhere(fulfil, order)

The workflow is first run undisturbed, to learn each call to the store that may have an effect on a run. Then it is
run three times for each of these calls: the worker dies just before the call; it dies just after the call, when all
was written; only the reply is lost. It is also run once for each call of a step, with a worker that dies at the end
of that call. In virtual time, another worker takes over when the lease of the dead one has passed. Each run must end
like the undisturbed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from redrive.app import Workflow
from redrive.core.journal import EntryRow
from redrive.core.run_options import StepOptions
from redrive.core.saga import CHILD_UNDO
from redrive.core.states import EXECUTED_KINDS, RunStatus
from redrive.core.transitions import AttemptEnd
from redrive.store import open_store
from redrive.store.filters import LetterFilter, RunFilter
from redrive.testing.faulty_store import LOSE, Call, Fault, crash_after, crash_before
from redrive.testing.simulation import Simulation
from redrive.testing.step_faults import Crash, InjectedFault, next_fault
from redrive.testing.virtual_clock import DEFAULT_START, VirtualClock
from redrive.testing.virtual_engine import Engine, RunReport

Check = Callable[[Engine, RunReport], Awaitable[object]]
Setup = Callable[[Engine], Awaitable[object]]
# Calls without an effect on a run: dying at one of them is dying at the next call that has an effect.
_SKIPPED_CALLS = frozenset(
    {"lease.beat", "expire_workers", "hung", "overdue", "held", "purge", "policies", "workers", "fold", "claim_bulk"}
) | {
    *("circuits_due", "circuits_changed_since", "circuit", "workflows", "owned_runs", "run_waits", "due_questions"),
    *("notifications.rules", "notifications.due", "is_muted", "late_tasks", "lost_tasks", "runs_with_expired_letters"),
    "subscribed",
}
_PATIENCE = 10.0
_SECOND_START = DEFAULT_START + timedelta(days=400, hours=5)


class CrashTiming(StrEnum):
    """The fault at a call."""

    BEFORE = "a crash before"
    AFTER = "a crash after"
    DURING = "a crash during"
    LOST = "the lost reply of"


_AT_STORE_CALLS = (CrashTiming.BEFORE, CrashTiming.AFTER, CrashTiming.LOST)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A call at which a fault happens: "a crash after apply #7, as step 'charge' ...".

    `call` is the name of a call to the store or, for a crash during a step, the name of the step.
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
    events: Sequence[tuple[str, Any]] = (),
    **options: Any,
) -> list[CrashPoint]:
    """Run the workflow with a crash at every point, and check that each run ends like an undisturbed one.

    Takes the arguments of `workflow.start`. Raises an AssertionError that names the point and the difference, or a
    point that was not reached again. Returns the points tried.

    Each run must satisfy these conditions:

    - The status, the result and the number of dead letters are those of the undisturbed run.
    - Each step is in the journal. It was called at most once more for each death of its worker.
    - The death used up no attempt.
    - A step that runs at most once was called at most once. If it was cut short, the run says so.
    - Runs that the workflow starts were started once.

    Each run gets a new, empty store. `await setup(e)` prepares it, for instance resets your fakes.
    `await check(e, run)` adds your own conditions: for instance that `e.fetch("SELECT ...")` shows the effect of a
    transactional step once. `events` are sent to the run one after the other, each with its payload, as in
    `[("approved", {"by": "ann"})]`; the first one when the run has done all that it can without it. Values of steps
    and of `redrive.now` that differ between undisturbed runs are not compared. A run may make fewer calls than
    another, because store calls are batched: points beyond its last call are not among those returned.

    A crash takes time, as in production: the lease must pass, then the run waits for its backoff. A workflow whose
    path depends on time (shorter time limits, races) may end differently for a good reason; test it with `faults`.
    Schedules do not start runs meanwhile.
    """
    trials = _TrialRuns(workflow, args, options, setup, check, events)
    comparison, points = await trials.learn()
    tried = []
    for point in points:
        recorder = _RecordingPlan(point)
        problem = await trials.find_problem(recorder, comparison)
        if problem is not None:
            raise AssertionError(f"workflow {workflow.name!r} does not survive {point}: {problem}")
        if recorder.fired:
            tried.append(point)
    # A run may make fewer calls than another, but each kind of call must have been tried once.
    tried_kinds = {(point.manner, point.call) for point in tried}
    for point in points:
        if (point.manner, point.call) not in tried_kinds:
            raise AssertionError(
                f"workflow {workflow.name!r} did not come to {point} when it was run again, so that point is untested: "
                "the workflow depends on something outside of its steps. Make that a step, or reset it in setup="
            )
    return tried


class _RecordingPlan:
    """A plan that records each call, and makes one of them fail."""

    def __init__(self, point: CrashPoint | None = None) -> None:
        self.simulation: Simulation | None = None
        self.fired = False
        self.point = point
        self._counts: Counter[str] = Counter()
        self._calls: list[tuple[str, int, str]] = []
        self._steps: Counter[str] = Counter()

    def __call__(self, call: Call) -> Fault | None:
        self._counts[call.name] += 1
        number = self._counts[call.name]
        if call.name not in _SKIPPED_CALLS:
            about = "" if self.simulation is None else self.simulation.describe_call(call.name)
            self._calls.append((call.name, number, about))
        if not self._is_crash_point(call.name, number, _AT_STORE_CALLS):
            return None
        faults = {CrashTiming.BEFORE: crash_before(Crash()), CrashTiming.AFTER: crash_after(Crash())}
        return LOSE if self.point is None else faults.get(self.point.manner, LOSE)

    def next_fault(self, step: str, workflow: str) -> InjectedFault | None:
        """Return the fault for the call of a step that begins now."""
        self._steps[step] += 1
        if self._is_crash_point(step, self._steps[step], {CrashTiming.DURING}):
            return InjectedFault(Crash, after=True)
        return next_fault(step, workflow)

    def _is_crash_point(self, call: str, number: int, manners: Collection[CrashTiming]) -> bool:
        """Return True, once, at the point where the fault is to happen."""
        point = self.point
        if point is None or self.fired or point.manner not in manners:
            return False
        self.fired = (call, number) == (point.call, point.number)
        return self.fired

    @property
    def deaths(self) -> int:
        """The number of workers that this plan killed."""
        return int(self.fired and self.point is not None and self.point.manner is not CrashTiming.LOST)

    def drop_empty_claims(self) -> None:
        """Forget claims that returned nothing: they changed nothing, and their number depends on polling."""
        empty = set() if self.simulation is None else self.simulation.simulated_worker.observer.empty_claims
        self._calls = [call for call in self._calls if call[:2] not in empty]

    def points(self) -> list[CrashPoint]:
        """Return all points at which this undisturbed run could have failed."""
        at_calls = [CrashPoint(manner, *call) for call in self._calls for manner in _AT_STORE_CALLS]
        steps = [(step, number + 1) for step, most in self._steps.items() for number in range(most)]
        return at_calls + [CrashPoint(CrashTiming.DURING, step, number) for step, number in steps]


@dataclass(frozen=True, slots=True)
class _TrialRuns:
    """Runs of one workflow, each on a new store."""

    workflow: Workflow[..., Any, Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    setup: Setup | None
    check: Check | None
    events: Sequence[tuple[str, Any]]

    async def learn(self) -> tuple[Comparison, list[CrashPoint]]:
        """Run the workflow undisturbed: twice alike, then at another time with other random numbers."""
        recorder = _RecordingPlan()
        steps = {step.name: step.options for step in self.workflow._app.registered_steps.values()}
        comparison = Comparison(await self._run(recorder), steps)
        again = await self._run(_RecordingPlan())
        comparison.ignore_varying(again)
        problem = comparison.find_difference(again, deaths=0)
        if problem is not None:
            raise AssertionError(
                f"workflow {self.workflow.name!r} differs between two undisturbed runs, so it depends on "
                f"something outside of its steps: {problem}. Make that a step, or reset it in setup="
            )
        comparison.ignore_varying(await self._run(_RecordingPlan(), seed=1, start=_SECOND_START))
        return comparison, recorder.points()

    async def find_problem(self, recorder: _RecordingPlan, comparison: Comparison) -> str | None:
        """Run the workflow with one fault; return what broke, or None."""
        try:
            seen = await self._run(recorder)
        except (AssertionError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return comparison.find_difference(seen, deaths=recorder.deaths)

    async def _run(self, recorder: _RecordingPlan, *, seed: int = 0, start: datetime = DEFAULT_START) -> RunObservation:
        app, clock = self.workflow._app, VirtualClock(seed=seed, start=start)
        store = open_store("sqlite:///:memory:", clock)
        simulation = recorder.simulation = Simulation(
            app, store, clock, plan=recorder, patience=_PATIENCE, faults=recorder.next_fault, schedules=False
        )
        await simulation.open()
        try:
            e = Engine(app, simulation)
            if self.setup is not None:
                await self.setup(e)
            handle = await self.workflow.start(*self.args, **self.options)
            await e.settle()
            for number, (name, payload) in enumerate(self.events):
                await e.send(handle, name, payload, key=f"event {number}")
            report = await e.finish(handle)
            await e.finish_all()
            if self.check is not None:
                await self.check(e, report)
            seen = await observe_run(e, report)
            recorder.drop_empty_claims()
            return seen
        finally:
            await simulation.close(in_order=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """A run and the runs that it started. `entries` and `called` (calls of bodies) have keys of run and journal key."""

    report: RunReport
    runs: Counter[tuple[str, str]]
    letters: int
    entries: dict[str, EntryRow]
    called: dict[str, int]

    @property
    def result(self) -> Any:
        """The result of the run, or the details of its failure."""
        return self.report.value if self.report.error is None else self.report.error.details

    @property
    def end(self) -> str:
        """A description of how the run ended."""
        run = self.report.described
        why = "" if run.error is None else f" ({run.code}: {run.error})"
        return f"{run.status}{why} with {self.letters} dead letter{'' if self.letters == 1 else 's'}"


async def observe_run(e: Engine, report: RunReport) -> RunObservation:
    """Read all runs, journals and dead letters from the store."""
    runs = (await e.store.runs(RunFilter(), limit=500, cursor=None)).items
    letters = (await e.store.letters(LetterFilter(), limit=500, cursor=None)).items
    entries: dict[str, EntryRow] = {}
    called: dict[str, int] = {}
    for number, run in enumerate(sorted(runs, key=lambda run: run.id)):
        where = "" if run.public_id == report.id else f"run {number} ({run.workflow}): "
        for row in await e.store.journal(run.id):
            key = f"{where}{row.key}"
            entries[key] = row
            has_body = row.kind in EXECUTED_KINDS and row.name != CHILD_UNDO
            called[key] = e.calls(row.name, run=run.public_id, key=row.key) if has_body else 0
    counts = Counter((run.workflow, run.status.value) for run in runs)
    return RunObservation(report=report, runs=counts, letters=len(letters), entries=entries, called=called)


class Comparison:
    """Compares runs with an undisturbed one, except for values that differ between undisturbed runs."""

    def __init__(self, clean: RunObservation, options: Mapping[str, StepOptions]) -> None:
        self._clean = clean
        self._once = {name for name, option in options.items() if option.at_most_once}
        self._transactional = {name for name, option in options.items() if option.transactional}
        self._varying: set[str] = set()

    def ignore_varying(self, other: RunObservation) -> None:
        """Ignore entries that differ in another undisturbed run: they depend on time, chance or the outside."""
        for key, entry in self._clean.entries.items():
            same = other.entries.get(key)
            if same is not None and (same.output, same.attempt) != (entry.output, entry.attempt):
                self._varying.add(key)

    def find_difference(self, seen: RunObservation, *, deaths: int) -> str | None:
        """Describe how a run differs from the undisturbed one; return None if it does not."""
        for key, entry in seen.entries.items():
            # A transactional step that did not commit left nothing behind, so its body may be called once more.
            repeats = 0 if entry.name in self._once else 1 if entry.name in self._transactional else deaths
            most = max(1, self._clean.called.get(key, 0) + repeats)
            if seen.called[key] > most and key not in self._varying:
                return f"the body of {key} was called {seen.called[key]} times; at most {most} is right"
        cut_short = any(
            step.name in self._once and any(attempt.status == AttemptEnd.LOST for attempt in step.attempts)
            for step in seen.report.steps
        )
        if cut_short:
            # A step that runs at most once may have happened, so any end is right that has its dead letter.
            consistent = (seen.report.status is RunStatus.DLQ_PENDING) == bool(seen.letters)
            return None if consistent else f"the run ended as {seen.end}"
        return self._compare(seen)

    def _compare(self, seen: RunObservation) -> str | None:
        clean = self._clean
        if (seen.report.status, seen.letters) != (clean.report.status, clean.letters):
            return f"the run ended as {seen.end} instead of {clean.end}"
        if seen.runs != clean.runs:
            return f"there are runs {_format_counts(seen.runs)} instead of {_format_counts(clean.runs)}"
        for key in clean.entries.keys() - seen.entries.keys():
            return f"{key} is missing from the journal"
        for key, entry in seen.entries.items():
            was = clean.entries.get(key)
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
        # A result may differ where the outputs of steps differ, but not otherwise.
        same_outputs = all(entry.output == clean.entries[key].output for key, entry in seen.entries.items())
        if same_outputs and seen.result != clean.result:
            return f"the run returned {seen.result!r} instead of {clean.result!r}"
        return None


def _format_counts(runs: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{count} x {workflow} {status}" for (workflow, status), count in sorted(runs.items()))
