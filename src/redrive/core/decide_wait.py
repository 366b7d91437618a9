"""Decisions about waits for events, runs and people, in workflow code and in a rollback.

`decide_step` has sleeps and time limits, which are entries like steps.
"""

from __future__ import annotations

from redrive.core import outcomes
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.payload.plain import to_json_text
from redrive.core.questions import QuestionKind, QuestionStatus, encode_plan, task_id
from redrive.core.states import StepStatus
from redrive.core.transition_build import build_entry, build_transition, resume_run, suspend_run
from redrive.core.transitions import QuestionEnd, QuestionWrite, Transition, WaitWrite
from redrive.core.waits import RUN_KIND, STEP_KIND
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace

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
