"""What follows for a run as a whole: it waits, its function ended, its time did, or a person said so."""

from __future__ import annotations

import json
from typing import assert_never

from redrive.core.audit import (
    ENGINE_ACTOR,
    audit_letter_closed,
    audit_replay_ended,
    audit_rollback,
    audit_run_cancelled,
    audit_run_failed,
)
from redrive.core.classify import Category
from redrive.core.failure import Failure, compute_fingerprint
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.idempotency import letter_id, payload_hash
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    CancelRequested,
    CodeDiverged,
    CodeWait,
    DeadlinePassed,
    FollowUpsPlanned,
    LetterClosed,
    ManualActionRequested,
    Outcome,
    RollbackEnded,
    RunIdle,
    RunReleased,
    RunView,
    StepParked,
    StepReplayEnded,
    ValueRecorded,
    WorkerLost,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.retry import compute_backoff
from redrive.core.run_options import DEFAULT_RETRY, StepOptions
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transition_build import (
    build_entry,
    build_progress,
    build_transition,
    end_attempts,
    idle_status,
    keep_attempts_open,
    suspend_run,
)
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    EntryWrite,
    LetterStatusWrite,
    LetterWrite,
    RunWrite,
    Transition,
)
from redrive.duration import MICROS, to_micros
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace

# -- How a run ends: well, answered for, or buried with a letter -----------------------------------------


def end_run(
    status: RunStatus,
    *,
    output: str | None = None,
    failure: str | None = None,
    deaths: int | None = None,
    unparks: bool = False,
) -> RunWrite:
    """The end of a run. The fence rises with it: nothing that was decided before is written after."""
    return RunWrite(
        status=status, take=True, output=output, failure=failure, deaths=deaths, parked_on="" if unparks else None
    )


def resolve_replay(run: RunView, change: RunWrite, resolution: Reason) -> Transition:
    """A replay ended well: nobody needs the letter any more."""
    if run.letter is None:
        return build_transition(run, change=change)
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        change=change,
        move=LetterStatusWrite(
            letter=run.letter, status=LetterStatus.RESOLVED, by=ENGINE_ACTOR, resolution=resolution.to_text()
        ),
        ends_replay=run.letter,
        audit=audit_replay_ended(run, change.status),
    )


def dead_letter_run(
    run: RunView,
    ending: FailureReason,
    status: RunStatus,
    *,
    key: bytes,
    entries: tuple[EntryWrite, ...] = (),
    attempts: tuple[AttemptWrite, ...] = (),
    deaths: int | None = None,
    closes: bool = False,
) -> Transition:
    """End a run in failure: its letter and its state, in one transition. `key` is that of fingerprints."""
    text = ending.to_json()
    letter = build_letter(run, ending, text, key) if run.options.dead_letter else None
    if letter is None and status is RunStatus.DLQ_PENDING:
        status = RunStatus.FAILED
    # What a run is rolled back for stays on record until that is over; how it got stuck is in the letter.
    keeps = run.undoing and ending.code is LetterCode.COMPENSATION_FAILED and ending.cause is None
    change = end_run(status, failure=None if keeps else text, deaths=deaths, unparks=closes)
    decided = build_transition(run, *entries, attempts=attempts, change=change, letter=letter, closes=closes)
    return replace(decided, ends_replay=run.letter, audit=audit_run_failed(run, ending, letter, status))


def build_letter(run: RunView, ending: FailureReason, text: str, key: bytes) -> LetterWrite:
    """What is put before people about a failed run."""
    return LetterWrite(
        public_id=run.letter or letter_id(run.public_id),
        code=ending.code.value,
        stage=ending.stage.value,
        category=ending.failure.category.value,
        reason=ending.reason.to_text(),
        failure=text,
        fingerprint=compute_fingerprint(ending.failure, workflow=run.workflow, step=ending.step, key=key),
        expires_in=run.options.letter_keeps,
        payload_hash=payload_hash(run.input),
        step=ending.step,
        step_index=ending.step_index,
        attempts=ending.attempts,
    )


# -- What follows a function that failed after it had done something: a plan, its execution, an end ------


ROLLBACK_HEAD_START = 3600 * MICROS
"""Microseconds by which a rollback is due before its time: it does not queue behind runs not yet begun."""


def may_need_rollback(run: RunView) -> bool:
    """True if a worker has to look what of this run is to be undone; one nobody ever had, did nothing."""
    return run.options.undoes and run.fence > 0


def start_rollback(ending: FailureReason, ends_as: RunStatus) -> RunWrite:
    """Any worker may undo what the run did, with the journal in its hands."""
    return RunWrite(
        status=RunStatus.COMPENSATING,
        wake_in=-ROLLBACK_HEAD_START,
        take=True,
        failure=ending.to_json(),
        parked_on="",
        ends_as=ends_as,
    )


def interrupt_for_rollback(outcome: DeadlinePassed | CancelRequested, change: RunWrite) -> Transition:
    """Let go of what is under way, to have what was done undone."""
    attempts = end_attempts(outcome.open, AttemptEnd.CANCELLED)
    return build_transition(outcome.run, attempts=attempts, change=change, closes=True)


def record_plan(outcome: FollowUpsPlanned) -> Transition:
    """The whole plan before anything of it begins: whoever goes on with it finds the same."""
    entries = tuple(
        EntryWrite(
            index=each.place.index,
            key=each.place.key,
            kind=each.place.kind,
            name=each.place.name,
            status=StepStatus.PENDING if each.runs else StepStatus.SKIPPED,
            attempt=0,
            input=each.input,
            options=each.options,
        )
        for each in outcome.plan
    )
    return build_progress(outcome.run, *entries)


def request_manual_action(outcome: ManualActionRequested) -> Transition:
    """A person has to do what comes next; the run waits until they say that it is done."""
    entry = build_entry(outcome.place, StepStatus.RUNNING, output=json.dumps(outcome.instructions))
    change = RunWrite(status=RunStatus.COMPENSATING, take=True, diverged=False)
    return build_progress(outcome.run, entry, change=change)


def end_rollback(outcome: RollbackEnded, key: bytes) -> Transition:
    """The rollback is over: the run ends as it was to end."""
    run, ending = outcome.run, outcome.ending
    line = audit_rollback(outcome)
    if outcome.ends_as is RunStatus.CANCELLED:
        change = end_run(RunStatus.CANCELLED, failure=ending.to_json())
        decided = resolve_replay(run, change, Reason(ReasonCode.RUN_CANCELLED))
    elif outcome.ends_as is not RunStatus.COMPENSATED or outcome.forward:
        back = RunStatus.DLQ_PENDING if outcome.ends_as is RunStatus.COMPENSATED else outcome.ends_as
        decided = dead_letter_run(run, ending, back, key=key)
    else:
        decided = _resolve_rolled_back(outcome, key)
    return replace(decided, audit=(*decided.audit, *line))


def _resolve_rolled_back(outcome: RollbackEnded, key: bytes) -> Transition:
    """Nobody has to do anything about a run that was rolled back; that it failed stays on record."""
    run, text = outcome.run, outcome.ending.to_json()
    resolution = Reason(ReasonCode.ROLLED_BACK)
    decided = resolve_replay(run, end_run(RunStatus.COMPENSATED, failure=text), resolution)
    if not outcome.fresh or not run.options.dead_letter:
        return decided
    letter = build_letter(run, outcome.ending, text, key)
    failed = audit_run_failed(replace(run, undoing=False), outcome.ending, letter, RunStatus.COMPENSATED)
    move = LetterStatusWrite(
        letter=letter.public_id, status=LetterStatus.RESOLVED, by=ENGINE_ACTOR, resolution=resolution.to_text()
    )
    return replace(decided, letter=letter, move=move, audit=failed)


# -- What follows for a run as a whole: it waits, its function ended, its time did, or a person said -----


def suspend_idle_run(outcome: RunIdle) -> Transition:
    """Nothing goes on in the run but waits."""
    change = suspend_run(outcome.run, outcome.delay, outcome.hold, outcome.parked_on)
    return build_transition(outcome.run, change=change)


def complete_run(outcome: WorkflowReturned) -> Transition:
    """The function returned."""
    change = end_run(RunStatus.SUCCESS, output=outcome.output)
    if outcome.run.letter is None:
        return build_transition(outcome.run, change=change)
    return resolve_replay(outcome.run, change, Reason(ReasonCode.REPLAY_SUCCEEDED))


def end_step_replay(outcome: StepReplayEnded) -> Transition:
    """A replay of one step alone is over, and the function is not."""
    reason = Reason(ReasonCode.STEP_REPLAYED_ALONE, step=outcome.step)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.RunPartial")
    ending = FailureReason(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    change = end_run(RunStatus.PARTIAL, failure=ending.to_json())
    return resolve_replay(outcome.run, change, Reason(ReasonCode.STEP_REPLAY_SUCCEEDED))


def fail_run(outcome: WorkflowFailed, key: bytes) -> Transition:
    """Something left the function: what it did is undone, or the run has failed."""
    ending, run, place = outcome.ending, outcome.run, outcome.place
    entries = () if place is None else (build_entry(place, StepStatus.DLQ, attempt=outcome.attempt),)
    if outcome.rolls_back:
        ends_as = RunStatus.COMPENSATED if run.options.rollback else RunStatus.DLQ_PENDING
        return build_transition(run, *entries, change=start_rollback(ending, ends_as))
    return dead_letter_run(run, ending, RunStatus.DLQ_PENDING, key=key, entries=entries)


def time_out_run(outcome: DeadlinePassed, key: bytes) -> Transition:
    """The run passed its deadline."""
    reason = Reason(ReasonCode.DEADLINE_PASSED)
    failure = Failure.of(Category.TIMEOUT, str(reason), error_type="redrive.DeadlinePassed")
    ending = FailureReason(failure=failure, code=LetterCode.TIMEOUT, reason=reason)
    if may_need_rollback(outcome.run):
        return interrupt_for_rollback(outcome, start_rollback(ending, RunStatus.TIMED_OUT))
    return dead_letter_run(
        outcome.run,
        ending,
        RunStatus.TIMED_OUT,
        key=key,
        attempts=end_attempts(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
    )


def cancel_run(outcome: CancelRequested) -> Transition:
    """A person wants no more of the run."""
    reason = Reason(ReasonCode.RUN_CANCELLED_BY, by=outcome.by, comment=outcome.reason or None)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.RunCancelled")
    ending = FailureReason(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    if may_need_rollback(outcome.run):
        decided = interrupt_for_rollback(outcome, start_rollback(ending, RunStatus.CANCELLED))
        return replace(decided, audit=(audit_run_cancelled(outcome),))
    decided = resolve_replay(
        outcome.run,
        end_run(RunStatus.CANCELLED, failure=ending.to_json(), unparks=True),
        Reason(ReasonCode.RUN_CANCELLED),
    )
    return replace(
        decided,
        attempts=end_attempts(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
        audit=(*decided.audit, audit_run_cancelled(outcome)),
    )


def close_letter(outcome: LetterClosed) -> Transition:
    """A letter is done with: its run, which waited for that, has failed for good."""
    run = outcome.run
    status = RunStatus.FAILED if outcome.ended is RunStatus.DLQ_PENDING else outcome.ended
    resolution = outcome.reason or outcome.status.value.lower()
    return replace(
        build_transition(run, change=end_run(status)),
        move=LetterStatusWrite(letter=outcome.letter, status=outcome.status, by=outcome.by, resolution=resolution),
        audit=(audit_letter_closed(outcome, status),),
    )


# -- What follows when a worker has a run no longer: it gave it back, died, or has other code ------------


def release_run(outcome: RunReleased) -> Transition:
    """The worker gave the run back as it was."""
    status = idle_status(outcome.run, outcome.delay)
    return build_transition(
        outcome.run,
        *keep_attempts_open(outcome.open),
        attempts=end_attempts(outcome.open, AttemptEnd.RELEASED),
        change=RunWrite(status=status, wake_in=outcome.delay, take=True, deaths=0),
    )


def recover_run(outcome: WorkerLost, draw: float, key: bytes) -> Transition:
    """The worker died, or was taken for dead: the run goes on elsewhere, if it killed nobody too often."""
    run = outcome.run
    if outcome.deaths >= run.options.max_crashes and outcome.deaths > run.deaths:
        return _fail_poison_run(outcome, key)
    # One microsecond at least: it waits, whether that is over by now or not.
    change = RunWrite(status=idle_status(run, 1), wake_in=outcome.wake_in, take=True)
    if outcome.executing:
        delay = 0.0
        if outcome.deaths:
            delay = compute_backoff(run.options.retry or DEFAULT_RETRY, outcome.deaths, draw).seconds
        change = RunWrite(status=idle_status(run), wake_in=to_micros(delay), take=True, deaths=outcome.deaths)
    return build_transition(
        run, *keep_attempts_open(outcome.open), attempts=end_attempts(outcome.open, AttemptEnd.LOST), change=change
    )


def _fail_poison_run(outcome: WorkerLost, key: bytes) -> Transition:
    reason = Reason(ReasonCode.WORKERS_DIED, n=outcome.deaths)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.WorkerDied")
    code = LetterCode.COMPENSATION_FAILED if outcome.run.undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = FailureReason(failure=failure, code=code, reason=reason)
    return dead_letter_run(
        outcome.run,
        ending,
        RunStatus.DLQ_PENDING,
        key=key,
        entries=keep_attempts_open(outcome.open),
        attempts=end_attempts(outcome.open, AttemptEnd.LOST),
        deaths=outcome.deaths,
    )


def decide_diverged_run(outcome: CodeDiverged, key: bytes) -> Transition:
    """The code does not fit the journal: wait for code that does, or give up."""
    match outcome.wait:
        case CodeWait.FOR_CODE:
            change = RunWrite(
                status=idle_status(outcome.run, 1), wake_in=outcome.delay, take=True, diverged=True, deaths=0
            )
            return build_transition(outcome.run, change=change)
        case CodeWait.NO_MORE:
            failure = Failure.of(Category.INTERNAL, str(outcome.difference), error_type="redrive.CodeChanged")
            undoing = outcome.run.undoing
            code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.POLICY_VIOLATION
            ending = FailureReason(failure=failure, code=code, reason=outcome.difference)
            return dead_letter_run(outcome.run, ending, RunStatus.DLQ_PENDING, key=key)
        case _:
            assert_never(outcome.wait)


# -- What to record instead of an outcome whose rows the store refused for what they contain -------------


def replace_refused(outcome: Outcome, refusal: str) -> Outcome:
    """The nearest outcome that carries none of the refused data: the failure it amounts to.

    A result that cannot be stored fails its step, a failure that cannot be stored is replaced by a
    plain one, and so is what belongs to the run as a whole.
    """
    reason = Reason(ReasonCode.STORE_REFUSED_DATA, why=refusal)
    failure = Failure.of(Category.INTERNAL, str(reason), error_type=_REFUSED_ERROR_TYPE)
    match outcome:
        case AttemptSucceeded():
            return AttemptFailed(
                run=outcome.run,
                place=outcome.place,
                attempt=outcome.attempt,
                began_ago=outcome.began_ago,
                first_ago=outcome.began_ago,
                done=outcome.done,
                input="null",
                failure=failure,
                step=StepOptions(),
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
                resumes=outcome.resumes,
                admitted=outcome.admitted,
            )
        case AttemptFailed():
            return replace(
                outcome,
                input="null",
                failure=failure,
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
            )
        case AttemptStarted() | StepParked():
            return replace(outcome, input="null")
        case ValueRecorded():
            return _build_refused_failure(outcome, failure, reason)
        case ManualActionRequested():
            return replace(outcome, instructions="what is to be done cannot be shown; see the step's input")
        case WorkflowReturned() | WorkflowFailed() | FollowUpsPlanned() | RollbackEnded():
            return _build_refused_failure(outcome, failure, reason)
        case _:
            return outcome


_REFUSED_ERROR_TYPE = "redrive.errors.DataRefused"


def _build_refused_failure(
    outcome: ValueRecorded | WorkflowReturned | WorkflowFailed | FollowUpsPlanned | RollbackEnded,
    failure: Failure,
    reason: Reason,
) -> WorkflowFailed:
    undoing = outcome.run.undoing
    code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = FailureReason(failure=failure, code=code, reason=reason, stage=Stage.COMMIT)
    rolls_back = isinstance(outcome, WorkflowFailed) and outcome.rolls_back
    return WorkflowFailed(run=outcome.run, ending=ending, rolls_back=rolls_back)
