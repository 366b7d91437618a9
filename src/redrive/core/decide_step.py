"""What follows from what became of one entry: a step, a note, a sleep."""

from __future__ import annotations

import json
from collections.abc import Iterable

from redrive.core.audit import audit_failed_attempt
from redrive.core.circuit import COUNTED_CATEGORIES
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, choose_letter_code
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    EntryCancelled,
    SleepEnded,
    SleepStarted,
    StepParked,
    ValueRecorded,
)
from redrive.core.retry import RetryDecision, decide_retry
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transition_build import (
    build_entry,
    build_progress,
    build_transition,
    end_attempts,
    idle_status,
    keep_attempts_open,
    resume_run,
    suspend_run,
)
from redrive.core.transitions import AttemptEnd, AttemptWrite, CircuitSampleWrite, EntryWrite, RunWrite, Transition
from redrive.duration import MICROS, to_micros
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode

# -- What circuits add to decisions: marks of how calls ended, and steps that wait until they may be -----


CIRCUIT_OPEN_ERROR_TYPE = "redrive.CircuitOpen"
"""The error type of a step that was not called because its circuit was open."""


def build_circuit_failure(reason: Reason) -> Failure:
    """Return the failure of a step that was not called."""
    return Failure.of(Category.DEPENDENCY_UNAVAILABLE, str(reason), error_type=CIRCUIT_OPEN_ERROR_TYPE)


def collect_circuit_samples(
    outcome: AttemptSucceeded | AttemptFailed | EntryCancelled,
) -> tuple[CircuitSampleWrite, ...]:
    """What a circuit is to hear: failures that speak about the dependency, and whatever ends a probe."""
    admitted = outcome.admitted
    if admitted is None:
        return ()
    good = _dependency_answered(outcome)
    if good is not False and not admitted.probe:
        return ()
    return (
        CircuitSampleWrite(
            key=admitted.key,
            settings=admitted.settings,
            generation=admitted.generation,
            index=outcome.place.index,
            attempt=outcome.attempt,
            good=good,
            category=outcome.failure.category.value if isinstance(outcome, AttemptFailed) else None,
            probe=admitted.probe,
        ),
    )


def _dependency_answered(outcome: AttemptSucceeded | AttemptFailed | EntryCancelled) -> bool | None:
    """Whether the dependency answered; None if there is no telling."""
    match outcome:
        case AttemptSucceeded():
            return True
        case AttemptFailed() if outcome.failure.category in COUNTED_CATEGORIES:
            return False
        case _:
            return None


def park_step(outcome: StepParked) -> Transition:
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
        attempts=() if outcome.noted else (_build_parked_attempt(outcome),),
        change=_build_parked_run(outcome),
        version=run.new_version,
    )


def measure_parked_time(tries: Iterable[tuple[AttemptEnd, int, int]], until: int) -> int:
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


def _build_parked_attempt(outcome: StepParked) -> AttemptWrite:
    """That it waits, said once."""
    return AttemptWrite(
        index=outcome.place.index,
        attempt=0,
        end=AttemptEnd.PARKED,
        category=Category.DEPENDENCY_UNAVAILABLE.value,
        failure=json.dumps(build_circuit_failure(Reason(ReasonCode.CIRCUIT_OPEN, circuit=outcome.circuit)).to_json()),
    )


def _build_parked_run(outcome: StepParked) -> RunWrite | None:
    if outcome.idle:
        return RunWrite(status=RunStatus.SLEEPING, take=True, diverged=False, parked_on=outcome.circuit)
    if outcome.resumes:
        return RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
    return None


# -- What follows from what became of one entry: a step, a note, a sleep ---------------------------------


def record_success(outcome: AttemptSucceeded) -> Transition:
    """The step succeeded."""
    entry = EntryWrite(
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
    return build_progress(
        outcome.run,
        entry,
        change=resume_run(outcome.run) if outcome.resumes else None,
        messages=outcome.messages,
        marks=() if outcome.admitted is None else collect_circuit_samples(outcome),
    )


def record_start(outcome: AttemptStarted) -> Transition:
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
    return build_transition(outcome.run, entry, change=resume_run(outcome.run) if outcome.resumes else None)


def decide_failed_attempt(outcome: AttemptFailed, policy: RetryPolicy, draw: float) -> Transition:
    """An attempt failed: it is tried again, or the step has failed for good."""
    verdict = _decide_retry(outcome, policy, draw)
    if verdict.retry:
        return _schedule_retry(outcome, verdict)
    return _fail_step(outcome, verdict, policy)


def _decide_retry(outcome: AttemptFailed, policy: RetryPolicy, draw: float) -> RetryDecision:
    if outcome.cause is not None:
        return RetryDecision(retry=False, why=outcome.why or Reason(ReasonCode.TEXT, text=outcome.failure.message))
    if outcome.last:
        return RetryDecision(retry=False, why=Reason(ReasonCode.RUN_ENDING))
    return decide_retry(
        outcome.failure, policy, outcome.step, attempt=outcome.attempt, first_ago=outcome.first_ago / MICROS, draw=draw
    )


def _schedule_retry(outcome: AttemptFailed, verdict: RetryDecision) -> Transition:
    delay = to_micros(verdict.delay)
    entry = build_entry(
        outcome.place,
        StepStatus.RETRYING,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        wake_in=delay,
        input=outcome.input,
    )
    change = resume_run(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=idle_status(outcome.run, delay), wake_in=delay, take=True)
    elif outcome.idle and delay:
        change = suspend_run(outcome.run, delay, outcome.hold)
    return _build_failed_progress(outcome, entry, change, _build_failed_attempt(outcome, verdict, delay), verdict)


def _fail_step(outcome: AttemptFailed, verdict: RetryDecision, policy: RetryPolicy) -> Transition:
    ending = FailureReason(
        failure=outcome.failure,
        code=outcome.cause or choose_letter_code(outcome.failure, exhausted=verdict.exhausted),
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
    change = resume_run(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=idle_status(outcome.run), wake_in=0, take=True)
    return _build_failed_progress(outcome, entry, change, _build_failed_attempt(outcome, verdict, None), verdict)


def _build_failed_progress(
    outcome: AttemptFailed, entry: EntryWrite, change: RunWrite | None, attempt: AttemptWrite, verdict: RetryDecision
) -> Transition:
    return build_progress(
        outcome.run,
        entry,
        *keep_attempts_open(outcome.others),
        change=change,
        attempts=(attempt, *end_attempts(outcome.others, AttemptEnd.LOST)),
        only_if=(entry.index, entry.attempt) if outcome.taken else None,
        audit=audit_failed_attempt(outcome, verdict),
        marks=collect_circuit_samples(outcome),
    )


def _build_failed_attempt(outcome: AttemptFailed, verdict: RetryDecision, next_in: int | None) -> AttemptWrite:
    return AttemptWrite(
        index=outcome.place.index,
        attempt=outcome.attempt,
        end=outcome.end,
        began_ago=outcome.began_ago,
        category=outcome.failure.category.value,
        failure=_encode_failure(outcome.failure),
        decision=verdict.to_json(),
        next_in=next_in,
    )


def _encode_failure(failure: Failure) -> str:
    return json.dumps(failure.to_json())


def cancel_entry(outcome: EntryCancelled) -> Transition:
    """Workflow code cancelled what was under way."""
    entry = build_entry(outcome.place, StepStatus.CANCELLED, attempt=outcome.attempt, began_ago=outcome.began_ago)
    return build_progress(
        outcome.run,
        entry,
        change=resume_run(outcome.run) if outcome.resumes else None,
        marks=() if outcome.admitted is None else collect_circuit_samples(outcome),
    )


def record_value(outcome: ValueRecorded) -> Transition:
    """A value stays what it is now."""
    entry = build_entry(outcome.place, StepStatus.SUCCESS, done=outcome.done, output=outcome.output)
    return build_transition(outcome.run, entry, messages=outcome.messages)


def start_sleep(outcome: SleepStarted) -> Transition:
    """A wait begins."""
    entry = build_entry(outcome.place, StepStatus.RUNNING, wake_in=outcome.delay)
    change = suspend_run(outcome.run, outcome.delay, outcome.hold) if outcome.idle else None
    return build_progress(outcome.run, entry, change=change)


def end_sleep(outcome: SleepEnded) -> Transition:
    """A wait is over."""
    entry = build_entry(outcome.place, StepStatus.SUCCESS, done=outcome.done)
    return build_progress(outcome.run, entry, change=resume_run(outcome.run) if outcome.resumes else None)
