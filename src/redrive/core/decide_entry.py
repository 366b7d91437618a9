"""Decisions about one journal entry: a step, a recorded value, a sleep, or a wait for an event, a run or a person."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core import outcomes
from redrive.core.audit import audit_failed_attempt
from redrive.core.circuit import COUNTED_CATEGORIES
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, choose_letter_code
from redrive.core.payload.plain_json import to_json_text
from redrive.core.questions import QuestionKind, QuestionStatus, encode_plan, task_id
from redrive.core.retry import RetryDecision, decide_retry
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transition_build import (
    build_entry,
    build_transition,
    end_attempts,
    idle_status,
    keep_attempts_open,
    resume_run,
    suspend_run,
)
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    CircuitSampleWrite,
    QuestionEnd,
    QuestionWrite,
    RunWrite,
    Transition,
    WaitWrite,
)
from redrive.core.waits_and_events import RUN_KIND, STEP_KIND
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.time_values import MICROS, to_micros

CIRCUIT_OPEN_ERROR_TYPE = "redrive.CircuitOpen"
"""The error type of a step that was not called because its circuit was open."""


def record_start(outcome: outcomes.AttemptStarted) -> Transition:
    """Record that an attempt began. From now on the reaper may end it when its limit has passed."""
    entry = build_entry(
        outcome.place,
        StepStatus.RUNNING,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        limit_in=outcome.limit,
        input=outcome.input,
        options=outcome.options,
    )
    return build_transition(outcome.run, entry, change=resume_run(outcome.run, outcome.resumes))


def record_success(outcome: outcomes.AttemptSucceeded) -> Transition:
    """Record the result of a step."""
    entry = build_entry(
        outcome.place,
        StepStatus.SUCCESS,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        output=outcome.output,
        new=outcome.new,
    )
    return build_transition(
        outcome.run,
        entry,
        progress=True,
        change=resume_run(outcome.run, outcome.resumes) if outcome.resumes else None,
        messages=outcome.messages,
        samples=() if outcome.admitted is None else _collect_circuit_samples(outcome),
    )


def decide_failed_attempt(outcome: outcomes.AttemptFailed, policy: RetryPolicy, draw: float) -> Transition:
    """Schedule the next attempt, or fail the step for good."""
    if outcome.cause is not None:
        why = outcome.why or Reason(ReasonCode.TEXT, text=outcome.failure.message)
        decision = RetryDecision(retry=False, why=why)
    elif outcome.last:
        decision = RetryDecision(retry=False, why=Reason(ReasonCode.RUN_ENDING))
    else:
        first_ago = outcome.first_ago / MICROS
        decision = decide_retry(
            outcome.failure, policy, outcome.step, attempt=outcome.attempt, first_ago=first_ago, draw=draw
        )
    delay = to_micros(decision.delay) if decision.retry else None
    change = resume_run(outcome.run, outcome.resumes)
    if outcome.taken or outcome.releases:
        change = RunWrite(status=idle_status(outcome.run, delay or 0), wake_in=delay or 0, take=True)
    elif outcome.idle and delay:
        change = suspend_run(outcome.run, delay, outcome.hold)
    attempt = AttemptWrite(
        index=outcome.place.index,
        attempt=outcome.attempt,
        end=outcome.end,
        began_ago=outcome.began_ago,
        category=outcome.failure.category.value,
        failure=to_json_text(outcome.failure.to_json()),
        decision=decision.to_json(),
        next_in=delay,
    )
    entry = build_entry(
        outcome.place,
        StepStatus.RETRYING if decision.retry else StepStatus.FAILED,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=None if decision.retry else outcome.done,
        wake_in=delay,
        input=outcome.input,
        failure=None if decision.retry else _build_step_failure(outcome, decision, policy).to_json(),
    )
    decided = build_transition(
        outcome.run,
        entry,
        *keep_attempts_open(outcome.others),
        progress=True,
        change=change,
        attempts=(attempt, *end_attempts(outcome.others, AttemptEnd.LOST)),
        audit=audit_failed_attempt(outcome, decision),
        samples=_collect_circuit_samples(outcome),
    )
    # The reaper read the attempt earlier: its worker may have ended it since.
    return replace(decided, only_if=(entry.index, entry.attempt)) if outcome.taken else decided


def _build_step_failure(outcome: outcomes.AttemptFailed, decision: RetryDecision, policy: RetryPolicy) -> FailureReason:
    reason = Reason(
        ReasonCode.STEP_FAILED,
        step=outcome.place.name,
        n=outcome.attempt,
        category=outcome.failure.category.value,
        why=decision.why,
    )
    return FailureReason(
        failure=outcome.failure,
        code=outcome.cause or choose_letter_code(outcome.failure, exhausted=decision.exhausted),
        reason=reason,
        stage=outcome.stage,
        step=outcome.place.name,
        step_index=outcome.place.index,
        attempts=outcome.attempt,
        policy=policy,
        duration=outcome.began_ago,
    )


def cancel_entry(outcome: outcomes.EntryCancelled) -> Transition:
    """Record that workflow code cancelled an entry."""
    entry = build_entry(outcome.place, StepStatus.CANCELLED, attempt=outcome.attempt, began_ago=outcome.began_ago)
    change = resume_run(outcome.run, outcome.resumes)
    decided = build_transition(
        outcome.run, entry, progress=True, change=change, samples=_collect_circuit_samples(outcome)
    )
    if entry.kind is EntryKind.STEP:
        return replace(decided, ended_waits=(entry.index,))  # workers of a queue may execute it
    if entry.kind is not EntryKind.WAIT:
        return decided
    withdrawn = QuestionEnd(index=entry.index, status=QuestionStatus.WITHDRAWN)
    return replace(decided, ended_waits=(entry.index,), question_ends=(withdrawn,))


def record_value(outcome: outcomes.ValueRecorded) -> Transition:
    """Record a value that a resumed run must see again."""
    entry = build_entry(outcome.place, StepStatus.SUCCESS, done=outcome.done, output=outcome.output)
    return build_transition(outcome.run, entry, messages=outcome.messages)


def start_sleep(outcome: outcomes.SleepStarted) -> Transition:
    """Record the start of a sleep or time limit, and suspend a run that does nothing else."""
    entry = build_entry(outcome.place, StepStatus.RUNNING, wake_in=outcome.delay)
    change = suspend_run(outcome.run, outcome.delay, outcome.hold) if outcome.idle else None
    return build_transition(outcome.run, entry, progress=True, change=change)


def end_sleep(outcome: outcomes.SleepEnded) -> Transition:
    """Record the end of a sleep or time limit."""
    entry = build_entry(outcome.place, StepStatus.SUCCESS, done=outcome.done)
    return build_transition(outcome.run, entry, progress=True, change=resume_run(outcome.run, outcome.resumes))


def park_step(outcome: outcomes.StepParked) -> Transition:
    """Let a step wait for its circuit without an attempt, and suspend a run that does nothing else."""
    run, place = outcome.run, outcome.place
    attempts: tuple[AttemptWrite, ...] = ()
    if not outcome.noted:
        failure = build_circuit_failure(Reason(ReasonCode.CIRCUIT_OPEN, circuit=outcome.circuit))
        parked = AttemptWrite(
            index=place.index,
            attempt=0,
            end=AttemptEnd.PARKED,
            category=failure.category.value,
            failure=to_json_text(failure.to_json()),
        )
        attempts = (parked,)
    change = None
    if outcome.idle:
        change = RunWrite(status=RunStatus.SLEEPING, take=True, diverged=False, parked_on=outcome.circuit)
    elif outcome.resumes:
        change = RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
    entry = build_entry(place, StepStatus.PENDING, attempt=outcome.made, input=outcome.input, options=outcome.options)
    # A parked step is not progress: it says nothing about whether the run kills its worker.
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=(entry,),
        attempts=attempts,
        change=change,
        version=run.new_version,
    )


def build_circuit_failure(reason: Reason) -> Failure:
    """Return the failure of a step that was not called."""
    return Failure.of(Category.DEPENDENCY_UNAVAILABLE, str(reason), error_type=CIRCUIT_OPEN_ERROR_TYPE)


def measure_parked_time(attempts: Iterable[tuple[AttemptEnd, int, int]], until: int) -> int:
    """Return how long a step waited for its circuit: from each time it was parked to its next call.

    `attempts` are ends with their start and end times, in order. `until` ends the last wait.
    """
    total, since = 0, None
    for end, began_at, ended_at in (*attempts, (AttemptEnd.LOST, until, until)):
        if end is AttemptEnd.PARKED:
            since = ended_at if since is None else since
        elif since is not None:
            total, since = total + max(0, began_at - since), None
    return total


def _collect_circuit_samples(
    outcome: outcomes.AttemptSucceeded | outcomes.AttemptFailed | outcomes.EntryCancelled,
) -> tuple[CircuitSampleWrite, ...]:
    """Return the sample for the circuit that admitted a call: of a counted failure, and of each probe."""
    admitted = outcome.admitted
    if admitted is None:
        return ()
    good, category = None, None
    if isinstance(outcome, outcomes.AttemptSucceeded):
        good = True
    elif isinstance(outcome, outcomes.AttemptFailed):
        category = outcome.failure.category
        # Other failures say nothing about the dependency.
        good = False if category in COUNTED_CATEGORIES else None
    if good is not False and not admitted.probe:
        return ()
    sample = CircuitSampleWrite(
        key=admitted.key,
        settings=admitted.settings,
        generation=admitted.generation,
        index=outcome.place.index,
        attempt=outcome.attempt,
        good=good,
        category=None if category is None else category.value,
        probe=admitted.probe,
    )
    return (sample,)


WAIT_EXPIRED_ERROR_TYPE = "redrive.errors.WaitExpired"
"""The error type of a wait whose limit has passed."""


def start_wait(outcome: outcomes.WaitStarted) -> Transition:
    """Record the start of a wait, and suspend a run that does nothing else."""
    entry = build_entry(outcome.place, StepStatus.RUNNING, wake_in=outcome.delay, input=outcome.input)
    if outcome.kind == STEP_KIND:
        # A step that others execute has no attempt under way before a worker takes it.
        entry = replace(entry, status=StepStatus.PENDING, attempt=outcome.made, options=outcome.options)
    change = None
    if outcome.idle:
        change = suspend_run(outcome.run, outcome.delay, outcome.hold, seen=outcome.seen)
    index = outcome.place.index
    waits = tuple(WaitWrite(index=index, kind=outcome.kind, subject=subject) for subject in outcome.subjects)
    decided = build_transition(outcome.run, entry, progress=True, change=change)
    return replace(decided, waits=waits)


def ask_question(outcome: outcomes.QuestionAsked) -> Transition:
    """Record the start of a wait for a person, together with the question."""
    run, place, asked = outcome.run, outcome.place, outcome.question
    question = QuestionWrite(
        public_id=task_id(run.public_id, place.index),
        index=place.index,
        key=place.key,
        run_id=run.public_id,
        workflow=run.workflow,
        kind=QuestionKind.ASK,
        question=asked.text,
        schema=asked.schema,
        role=None if asked.audience.role is None else asked.audience.role.value,
        people=to_json_text(asked.audience.people),
        apart_from=to_json_text(asked.apart_from),
        shown=asked.shown,
        due_in=outcome.delay,
        next_in=asked.plan[0].after if asked.plan else None,
        plan=encode_plan(asked.plan),
        notify=asked.notify,
    )
    return replace(start_wait(outcome), questions=(question,))


def answer_wait(outcome: outcomes.WaitAnswered) -> Transition:
    """Record the answer of a wait. Taking the events is part of it, so no second wait can take them."""
    entry = build_entry(
        outcome.place,
        StepStatus.SUCCESS,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        output=outcome.output,
    )
    change = resume_run(outcome.run, outcome.resumes)
    decided = build_transition(outcome.run, entry, progress=True, change=change)
    return replace(decided, uses=outcome.uses, ended_waits=(entry.index,))


def expire_wait(outcome: outcomes.WaitTimedOut) -> Transition:
    """Record that the limit of a wait has passed. The store refuses this if an event came first."""
    ending = build_wait_failure(outcome.place, outcome.limit)
    entry = build_entry(outcome.place, StepStatus.FAILED, done=outcome.done, failure=ending.to_json())
    change = resume_run(outcome.run, outcome.resumes)
    decided = build_transition(outcome.run, entry, progress=True, change=change)
    index = outcome.place.index
    expired = QuestionEnd(index=index, status=QuestionStatus.EXPIRED)
    return replace(decided, ended_waits=(index,), expires=(index, outcome.seen), question_ends=(expired,))


def fail_wait(outcome: outcomes.WaitFailed) -> Transition:
    """Record that the run or the step which the wait was for ended without a result, or that an answer is unusable."""
    entry = build_entry(
        outcome.place,
        StepStatus.FAILED,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        failure=outcome.ending.to_json(),
    )
    change = resume_run(outcome.run, outcome.resumes)
    decided = build_transition(outcome.run, entry, progress=True, change=change)
    return replace(decided, ended_waits=(entry.index,))


def await_child(outcome: outcomes.ChildAwaited) -> Transition:
    """Record that a rollback waits for a child. Its entry begins only when the child has ended."""
    wait = WaitWrite(index=outcome.place.index, kind=RUN_KIND, subject=outcome.subject)
    return replace(build_transition(outcome.run), waits=(wait,))


def finish_child(outcome: outcomes.ChildUndone) -> Transition:
    """Record that a rollback is done with a child. An entry that is skipped without an attempt is only listed."""
    status, attempt = (StepStatus.SKIPPED, 0) if outcome.left else (StepStatus.SUCCESS, 1)
    entry = build_entry(outcome.place, status, attempt=attempt, output=outcome.output)
    decided = build_transition(outcome.run, entry, progress=True)
    return replace(decided, ended_waits=(entry.index,))


def build_answer_failure(place: outcomes.EntryRef, by: str, why: Reason) -> FailureReason:
    """Return the failure of a wait whose answer fits the form and not the type."""
    reason = Reason(ReasonCode.ANSWER_UNUSABLE, by=by, why=why)
    failure = Failure.of(Category.VALIDATION, str(reason), error_type="redrive.errors.PayloadError")
    return FailureReason(
        failure=failure, code=LetterCode.VALIDATION_FAILED, reason=reason, step=place.name, step_index=place.index,
        attempts=1,
    )  # fmt: skip


def build_wait_failure(place: outcomes.EntryRef, limit: int) -> FailureReason:
    """Return the failure of a wait whose limit, in microseconds, has passed."""
    reason = Reason(ReasonCode.WAIT_EXPIRED, wait=place.name, limit=limit / 1_000_000)
    failure = Failure.of(Category.TIMEOUT, str(reason), error_type=WAIT_EXPIRED_ERROR_TYPE)
    return FailureReason(
        failure=failure, code=LetterCode.TIMEOUT, reason=reason, step=place.name, step_index=place.index, attempts=1
    )


def set_events_aside(outcome: outcomes.EventsRefused) -> Transition:
    """Record that events do not fit the wait that found them."""
    return replace(build_transition(outcome.run), uses=outcome.uses)
