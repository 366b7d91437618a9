"""What follows from what became of one entry: a step, a note, a sleep."""

from __future__ import annotations

import json
from collections.abc import Iterable

from redrive.core.audit import failed_attempt
from redrive.core.circuit import COUNTED
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import Ending, code_for
from redrive.core.outcomes import Began, Interrupted, Noted, Parked, Raised, Returned, Slept, Woke
from redrive.core.quick import quick
from redrive.core.retry import Verdict, judge
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transition_build import (
    awake,
    cut_short,
    entry_of,
    progress,
    put_by,
    sleep,
    to_repeat,
    transition,
)
from redrive.core.transitions import AttemptEnd, AttemptWrite, CircuitMark, EntryWrite, RunWrite, Transition
from redrive.duration import MICROS, micros
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "CIRCUIT_OPEN",
    "began",
    "circuit_open",
    "interrupted",
    "marks_of",
    "noted",
    "parked",
    "raised",
    "returned",
    "slept",
    "time_parked",
    "woke",
]


# -- What circuits add to decisions: marks of how calls ended, and steps that wait until they may be -----


CIRCUIT_OPEN = "redrive.CircuitOpen"
"""The error type of a step that was not called because its circuit was open."""


def circuit_open(reason: Reason) -> Failure:
    """Return the failure of a step that was not called."""
    return Failure.of(Category.DEPENDENCY_UNAVAILABLE, str(reason), error_type=CIRCUIT_OPEN)


def marks_of(outcome: Returned | Raised | Interrupted) -> tuple[CircuitMark, ...]:
    """What a circuit is to hear: failures that speak about the dependency, and whatever ends a probe."""
    admitted = outcome.admitted
    if admitted is None:
        return ()
    good = _says(outcome)
    if good is not False and not admitted.probe:
        return ()
    return (
        CircuitMark(
            key=admitted.key,
            settings=admitted.settings,
            generation=admitted.generation,
            index=outcome.place.index,
            attempt=outcome.attempt,
            good=good,
            category=outcome.failure.category.value if isinstance(outcome, Raised) else None,
            probe=admitted.probe,
        ),
    )


def _says(outcome: Returned | Raised | Interrupted) -> bool | None:
    """Whether the dependency answered; None if there is no telling."""
    match outcome:
        case Returned():
            return True
        case Raised() if outcome.failure.category in COUNTED:
            return False
        case _:
            return None


def parked(outcome: Parked) -> Transition:
    """The step waits without a try, and so does the run if nothing else goes on in it."""
    run, place = outcome.run, outcome.place
    entry = EntryWrite(
        index=place.index,
        key=place.key,
        kind=place.kind,
        name=place.name,
        status=StepStatus.PENDING,
        attempt=outcome.made,
        input=outcome.input,
        options=outcome.options,
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=(entry,),
        attempts=() if outcome.noted else (_recorded(outcome),),
        change=_change(outcome),
        version=run.new_version,
    )


def time_parked(tries: Iterable[tuple[AttemptEnd, int, int]], until: int) -> int:
    """How long a step waited for its circuit: from each time it was parked to the next time it was called.

    `tries` are ends with when they began and ended, in order of time; `until` ends a wait that goes on.
    """
    total, since = 0, None
    for end, began_at, ended_at in (*tries, (AttemptEnd.LOST, until, until)):
        if end is AttemptEnd.PARKED:
            since = ended_at if since is None else since
        elif since is not None:
            total, since = total + max(0, began_at - since), None
    return total


def _recorded(outcome: Parked) -> AttemptWrite:
    """That it waits, said once."""
    return AttemptWrite(
        index=outcome.place.index,
        attempt=0,
        end=AttemptEnd.PARKED,
        category=Category.DEPENDENCY_UNAVAILABLE.value,
        failure=json.dumps(circuit_open(Reason(ReasonCode.CIRCUIT_OPEN, circuit=outcome.circuit)).to_json()),
    )


def _change(outcome: Parked) -> RunWrite | None:
    if outcome.idle:
        return RunWrite(status=RunStatus.SLEEPING, take=True, diverged=False, parked_on=outcome.circuit)
    if outcome.resumes:
        return RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
    return None


# -- What follows from what became of one entry: a step, a note, a sleep ---------------------------------


_EntryWrite, _AttemptWrite = quick(EntryWrite), quick(AttemptWrite)


def returned(outcome: Returned) -> Transition:
    """The step succeeded."""
    entry = _EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.SUCCESS,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        output=outcome.output,
    )
    return progress(
        outcome.run,
        entry,
        change=awake(outcome.run) if outcome.resumes else None,
        messages=outcome.messages,
        marks=() if outcome.admitted is None else marks_of(outcome),
    )


def began(outcome: Began) -> Transition:
    """An attempt is under way, and may be cut short from now on."""
    entry = EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.RUNNING,
        attempt=outcome.attempt,
        limit_in=outcome.limit,
        input=outcome.input,
        options=outcome.options,
    )
    return transition(outcome.run, entry, change=awake(outcome.run) if outcome.resumes else None)


def raised(outcome: Raised, policy: RetryPolicy, draw: float) -> Transition:
    """An attempt failed: it is tried again, or the step has failed for good."""
    verdict = _judge(outcome, policy, draw)
    if verdict.retry:
        return _retried(outcome, verdict)
    return _failed(outcome, verdict, policy)


def _judge(outcome: Raised, policy: RetryPolicy, draw: float) -> Verdict:
    if outcome.cause is not None:
        return Verdict(retry=False, why=outcome.why or Reason(ReasonCode.TEXT, text=outcome.failure.message))
    if outcome.last:
        return Verdict(retry=False, why=Reason(ReasonCode.RUN_ENDING))
    return judge(
        outcome.failure,
        policy,
        outcome.step,
        attempt=outcome.attempt,
        first_ago=outcome.first_ago / MICROS,
        draw=draw,
    )


def _retried(outcome: Raised, verdict: Verdict) -> Transition:
    delay = micros(verdict.delay)
    entry = entry_of(
        outcome.place,
        StepStatus.RETRYING,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        wake_in=delay,
        input=outcome.input,
    )
    change = awake(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=put_by(outcome.run, delay), wake_in=delay, take=True)
    elif outcome.idle and delay:
        change = sleep(outcome.run, delay, outcome.hold)
    return _settled(outcome, entry, change, _attempt(outcome, verdict, delay), verdict)


def _failed(outcome: Raised, verdict: Verdict, policy: RetryPolicy) -> Transition:
    ending = Ending(
        failure=outcome.failure,
        code=outcome.cause or code_for(outcome.failure, exhausted=verdict.exhausted),
        reason=Reason(
            ReasonCode.STEP_FAILED,
            step=outcome.place.name,
            n=outcome.attempt,
            category=outcome.failure.category.value,
            why=verdict.why,
        ),
        stage=outcome.stage,
        step=outcome.place.name,
        step_index=outcome.place.index,
        attempts=outcome.attempt,
        policy=policy,
    )
    entry = EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.FAILED,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        failure=ending.to_json(),
    )
    change = awake(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=put_by(outcome.run), wake_in=0, take=True)
    return _settled(outcome, entry, change, _attempt(outcome, verdict, None), verdict)


def _settled(
    outcome: Raised, entry: EntryWrite, change: RunWrite | None, attempt: AttemptWrite, verdict: Verdict
) -> Transition:
    return progress(
        outcome.run,
        entry,
        *to_repeat(outcome.others),
        change=change,
        attempts=(attempt, *cut_short(outcome.others, AttemptEnd.LOST)),
        only_if=(entry.index, entry.attempt) if outcome.taken else None,
        audit=failed_attempt(outcome, verdict),
        marks=marks_of(outcome),
    )


def _attempt(outcome: Raised, verdict: Verdict, next_in: int | None) -> AttemptWrite:
    return _AttemptWrite(
        index=outcome.place.index,
        attempt=outcome.attempt,
        end=outcome.end,
        began_ago=outcome.began_ago,
        category=outcome.failure.category.value,
        failure=_failure_json(outcome.failure),
        decision=verdict.to_json(),
        next_in=next_in,
    )


def _failure_json(failure: Failure) -> str:
    return json.dumps(failure.to_json())


def interrupted(outcome: Interrupted) -> Transition:
    """Workflow code cancelled what was under way."""
    entry = entry_of(
        outcome.place, StepStatus.CANCELLED, attempt=outcome.attempt, began_ago=outcome.began_ago
    )
    return progress(
        outcome.run,
        entry,
        change=awake(outcome.run) if outcome.resumes else None,
        marks=() if outcome.admitted is None else marks_of(outcome),
    )


def noted(outcome: Noted) -> Transition:
    """A value stays what it is now."""
    entry = entry_of(outcome.place, StepStatus.SUCCESS, done=outcome.done, output=outcome.output)
    return transition(outcome.run, entry, messages=outcome.messages)


def slept(outcome: Slept) -> Transition:
    """A wait begins."""
    entry = entry_of(outcome.place, StepStatus.RUNNING, wake_in=outcome.delay)
    change = sleep(outcome.run, outcome.delay, outcome.hold) if outcome.idle else None
    return progress(outcome.run, entry, change=change)


def woke(outcome: Woke) -> Transition:
    """A wait is over."""
    entry = entry_of(outcome.place, StepStatus.SUCCESS, done=outcome.done)
    return progress(outcome.run, entry, change=awake(outcome.run) if outcome.resumes else None)
