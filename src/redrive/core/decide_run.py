"""Decisions about a run as a whole: waiting, ended, rolled back, released, recovered, replaced.

dead letter   the run failed: its letter and its status are one transition
rollback      plan -> compensations -> end: what the run did is undone before it ends
recovery      another worker continues the run, unless it killed too many workers
"""

from __future__ import annotations

import json
from typing import assert_never

from redrive.core import audit, outcomes, transitions
from redrive.core.classify import Category
from redrive.core.failure import Failure, compute_fingerprint
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.keys_and_ids import keyed_payload_hash, letter_id
from redrive.core.outcomes import RunView
from redrive.core.questions import ManualAnswer, QuestionKind, task_id
from redrive.core.retry import compute_backoff
from redrive.core.roles import Permission, find_lowest_role
from redrive.core.run_options import StepOptions
from redrive.core.secret_and_sealed_text import is_sealed
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transition_build import (
    build_entry,
    build_transition,
    end_attempts,
    idle_status,
    keep_attempts_open,
    suspend_run,
)
from redrive.core.transitions import AttemptEnd, RunWrite, Transition
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.time_values import MICROS, to_micros

ROLLBACK_HEAD_START = 3600 * MICROS
"""Microseconds by which a rollback is due before its time, so that it does not queue behind new runs."""

_SEARCHED_LENGTH = 1_000  # characters of an error message that searches read


# The function of the run waits or ends.


def suspend_idle_run(outcome: outcomes.RunIdle) -> Transition:
    """Suspend a run of which every branch waits."""
    change = suspend_run(outcome.run, outcome.delay, outcome.hold, outcome.parked_on, outcome.seen)
    return build_transition(outcome.run, change=change)


def complete_run(outcome: outcomes.WorkflowReturned) -> Transition:
    """End a run with the value that its function returned."""
    # `take` raises the fence with every end, so that no earlier decision about the run can be written after it.
    change = RunWrite(status=RunStatus.SUCCESS, take=True, output=outcome.output)
    return _resolve_replay(outcome.run, change, ReasonCode.REPLAY_SUCCEEDED)


def end_step_replay(outcome: outcomes.StepReplayEnded) -> Transition:
    """End the replay of a single step. The rest of the function was not executed."""
    reason = Reason(ReasonCode.STEP_REPLAYED_ALONE, step=outcome.step)
    ending = _build_ending(Category.UNKNOWN, "redrive.RunPartial", LetterCode.NON_RETRYABLE, reason)
    change = RunWrite(status=RunStatus.PARTIAL, take=True, failure=ending.to_json())
    return _resolve_replay(outcome.run, change, ReasonCode.STEP_REPLAY_SUCCEEDED)


def fail_run(outcome: outcomes.WorkflowFailed, key: bytes) -> Transition:
    """End a run whose function raised, or start its rollback."""
    ending, run, place = outcome.ending, outcome.run, outcome.place
    entries = () if place is None else (build_entry(place, StepStatus.DLQ, attempt=outcome.attempt),)
    if outcome.rolls_back:
        ends_as = RunStatus.COMPENSATED if run.options.rollback else RunStatus.DLQ_PENDING
        return build_transition(run, *entries, change=_start_rollback(ending, ends_as))
    return _dead_letter_run(run, ending, RunStatus.DLQ_PENDING, key=key, entries=entries)


# The run is ended from outside: by its deadline or a user.


def time_out_run(outcome: outcomes.DeadlinePassed, key: bytes) -> Transition:
    """End a run that passed its deadline, or start its rollback."""
    run, reason = outcome.run, Reason(ReasonCode.DEADLINE_PASSED)
    ending = _build_ending(Category.TIMEOUT, "redrive.DeadlinePassed", LetterCode.TIMEOUT, reason)
    attempts = end_attempts(outcome.open, AttemptEnd.CANCELLED)
    if _may_need_rollback(run):
        change = _start_rollback(ending, RunStatus.TIMED_OUT)
        return build_transition(run, attempts=attempts, change=change, closes=True)
    return _dead_letter_run(run, ending, RunStatus.TIMED_OUT, key=key, attempts=attempts, closes=True)


def cancel_run(outcome: outcomes.CancelRequested) -> Transition:
    """End a run that a user cancelled, or start its rollback."""
    reason = Reason(ReasonCode.RUN_CANCELLED_BY, by=outcome.by, comment=outcome.reason or None)
    ending = _build_ending(Category.UNKNOWN, "redrive.RunCancelled", LetterCode.NON_RETRYABLE, reason)
    if _may_need_rollback(outcome.run):
        decided = build_transition(outcome.run, change=_start_rollback(ending, RunStatus.CANCELLED))
    else:
        change = RunWrite(status=RunStatus.CANCELLED, take=True, failure=ending.to_json(), parked_on="")
        decided = _resolve_replay(outcome.run, change, ReasonCode.RUN_CANCELLED)
    return replace(
        decided,
        attempts=end_attempts(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
        audit=(*decided.audit, audit.audit_run_cancelled(outcome)),
    )


def close_letter(outcome: outcomes.LetterClosed) -> Transition:
    """Close a dead letter without a replay. A run that waited for this decision has failed for good."""
    status = RunStatus.FAILED if outcome.ended is RunStatus.DLQ_PENDING else outcome.ended
    resolution = outcome.reason or outcome.status.value.lower()
    return build_transition(
        outcome.run,
        change=RunWrite(status=status, take=True),
        move=transitions.LetterStatusWrite(
            letter=outcome.letter, status=outcome.status, by=outcome.by, resolution=resolution
        ),
        audit=(audit.audit_letter_decision(outcome, status),),
    )


def reopen_letter(outcome: outcomes.LetterReopened) -> Transition:
    """Open a closed letter again, with a new retention. Its run waits for a decision, as before the closing."""
    status = RunStatus.DLQ_PENDING if outcome.ended is RunStatus.FAILED else outcome.ended
    return build_transition(
        outcome.run,
        change=RunWrite(status=status, take=True),
        move=transitions.LetterStatusWrite(
            letter=outcome.letter, status=LetterStatus.OPEN, expires_in=outcome.run.options.letter_keeps
        ),
        audit=(audit.audit_letter_decision(outcome, status),),
    )


# The run is rolled back.


def record_plan(outcome: outcomes.FollowUpsPlanned) -> Transition:
    """Record the whole plan before its first entry begins, so that another worker can continue it."""
    entries = (
        build_entry(
            each.place,
            StepStatus.PENDING if each.runs else StepStatus.SKIPPED,
            attempt=0,
            input=each.input,
            options=each.options,
        )
        for each in outcome.plan
    )
    return build_transition(outcome.run, *entries, progress=True)


def request_manual_action(outcome: outcomes.ManualActionRequested) -> Transition:
    """Suspend a rollback until a user confirms that the action is done."""
    entry = build_entry(outcome.place, StepStatus.RUNNING, output=json.dumps(outcome.instructions))
    change = RunWrite(status=RunStatus.COMPENSATING, take=True, diverged=False)
    decided = build_transition(outcome.run, entry, progress=True, change=change)
    run, place = outcome.run, outcome.place
    question = transitions.QuestionWrite(
        public_id=task_id(run.public_id, place.index),
        index=place.index,
        key=place.key,
        run_id=run.public_id,
        workflow=run.workflow,
        kind=QuestionKind.MANUAL,
        question=outcome.instructions,
        schema=json.dumps({"enum": list(ManualAnswer)}),
        role=find_lowest_role(Permission.DECIDE).value,
    )
    return replace(decided, questions=(question,))


def roll_back_child(outcome: outcomes.RollbackRequested) -> Transition:
    """Start the rollback of a run that has succeeded, because that of its parent reached it. Its result stays."""
    reason = Reason(ReasonCode.PARENT_ROLLED_BACK, run=outcome.parent)
    ending = _build_ending(Category.UNKNOWN, "redrive.ParentRolledBack", LetterCode.NON_RETRYABLE, reason)
    change = _start_rollback(ending, RunStatus.COMPENSATED)
    return build_transition(outcome.run, change=change, audit=audit.audit_child_rollback(outcome))


def end_rollback(outcome: outcomes.RollbackEnded, key: bytes) -> Transition:
    """End a run whose rollback is over, with the status that was chosen when the rollback started."""
    run, ending, ends_as = outcome.run, outcome.ending, outcome.ends_as
    if outcome.succeeded:
        # The recorded result stays. A run that passed its pivot keeps its success as well.
        status = RunStatus.SUCCESS if outcome.forward else RunStatus.COMPENSATED
        decided = _resolve_replay(run, RunWrite(status=status, take=True), ReasonCode.ROLLED_BACK)
    elif ends_as is RunStatus.CANCELLED:
        change = RunWrite(status=RunStatus.CANCELLED, take=True, failure=ending.to_json())
        decided = _resolve_replay(run, change, ReasonCode.RUN_CANCELLED)
    elif ends_as is RunStatus.COMPENSATED and not outcome.forward:
        text = ending.to_json()
        change = RunWrite(status=RunStatus.COMPENSATED, take=True, failure=text)
        decided = _resolve_replay(run, change, ReasonCode.ROLLED_BACK)
        if outcome.fresh and run.options.dead_letter:
            # The letter records the failure, and is resolved at once because its effects are undone.
            letter = _build_letter(run, ending, text, key)
            failed = audit.audit_run_failed(replace(run, undoing=False), ending, letter, RunStatus.COMPENSATED)
            move = _resolve_letter(letter.public_id, ReasonCode.ROLLED_BACK)
            decided = replace(decided, letter=letter, move=move, audit=failed)
    else:
        # Past its pivot (`forward`), a run is not undone: it fails and waits for a replay.
        status = RunStatus.DLQ_PENDING if ends_as is RunStatus.COMPENSATED else ends_as
        decided = _dead_letter_run(run, ending, status, key=key)
    return replace(decided, audit=(*decided.audit, *audit.audit_rollback(outcome)))


def _may_need_rollback(run: RunView) -> bool:
    """Return True if a worker must look for effects to undo. A run without a fence was never executed."""
    return run.options.undoes and run.fence > 0


def _start_rollback(ending: FailureReason, ends_as: RunStatus) -> RunWrite:
    """Return the state of a run that any worker may roll back, reading its journal."""
    return RunWrite(
        status=RunStatus.COMPENSATING,
        wake_in=-ROLLBACK_HEAD_START,
        take=True,
        failure=ending.to_json(),
        parked_on="",
        ends_as=ends_as,
    )


# The worker no longer has the run.


def release_run(outcome: outcomes.RunReleased) -> Transition:
    """Release a run that its worker gives back."""
    # A delay of 1 stands for any wait.
    status = idle_status(outcome.run, 1 if outcome.delay is None else outcome.delay)
    return build_transition(
        outcome.run,
        *keep_attempts_open(outcome.open),
        attempts=end_attempts(outcome.open, AttemptEnd.RELEASED),
        change=RunWrite(status=status, wake_in=outcome.delay, take=True, deaths=0, seen=outcome.seen),
    )


def recover_run(outcome: outcomes.WorkerLost, policy: RetryPolicy, draw: float, key: bytes) -> Transition:
    """Release a run whose worker died, or end it if too many workers died executing it."""
    run, deaths = outcome.run, outcome.deaths
    entries, attempts = keep_attempts_open(outcome.open), end_attempts(outcome.open, AttemptEnd.LOST)
    if deaths >= run.options.max_crashes and deaths > run.deaths:
        code = LetterCode.COMPENSATION_FAILED if run.undoing else LetterCode.INFRASTRUCTURE_FAILURE
        reason = Reason(ReasonCode.WORKERS_DIED, n=deaths)
        ending = _build_ending(Category.UNKNOWN, "redrive.WorkerDied", code, reason)
        return _dead_letter_run(
            run, ending, RunStatus.DLQ_PENDING, key=key, entries=entries, attempts=attempts, deaths=deaths
        )
    if outcome.executing:
        # A run that may have killed its worker backs off as a failed step does.
        delay = compute_backoff(policy, deaths, draw).seconds if deaths else 0.0
        change = RunWrite(status=idle_status(run), wake_in=to_micros(delay), take=True, deaths=deaths)
    else:
        # A delay of 1 stands for any wait: this run sleeps even if its time has come meanwhile.
        change = RunWrite(status=idle_status(run, 1), wake_in=outcome.wake_in, take=True)
    return build_transition(run, *entries, attempts=attempts, change=change)


def decide_diverged_run(outcome: outcomes.CodeDiverged, key: bytes) -> Transition:
    """Wait for code that fits the journal, or end the run."""
    run = outcome.run
    match outcome.wait:
        case outcomes.CodeWait.FOR_CODE:
            status = idle_status(run, 1)
            change = RunWrite(status=status, wake_in=outcome.delay, take=True, diverged=True, deaths=0)
            return build_transition(run, change=change)
        case outcomes.CodeWait.NO_MORE:
            code = LetterCode.COMPENSATION_FAILED if run.undoing else LetterCode.POLICY_VIOLATION
            ending = _build_ending(Category.INTERNAL, "redrive.CodeChanged", code, outcome.difference)
            ending = replace(ending, stage=Stage.FETCH)
            return _dead_letter_run(run, ending, RunStatus.DLQ_PENDING, key=key)
        case _:
            assert_never(outcome.wait)


# The rows that end a run.


def _resolve_replay(run: RunView, change: RunWrite, resolution: ReasonCode) -> Transition:
    """End a run that needs no further decision, and resolve the dead letter that it replays."""
    if run.letter is None:
        return build_transition(run, change=change)
    return build_transition(
        run,
        change=change,
        move=_resolve_letter(run.letter, resolution),
        ends_replay=run.letter,
        audit=audit.audit_replay_ended(run, change.status),
    )


def _resolve_letter(letter: str, resolution: ReasonCode) -> transitions.LetterStatusWrite:
    text = Reason(resolution).to_text()
    return transitions.LetterStatusWrite(
        letter=letter, status=LetterStatus.RESOLVED, by=audit.ENGINE_ACTOR, resolution=text
    )


def _dead_letter_run(
    run: RunView,
    ending: FailureReason,
    status: RunStatus,
    *,
    key: bytes,
    entries: tuple[transitions.EntryWrite, ...] = (),
    attempts: tuple[transitions.AttemptWrite, ...] = (),
    deaths: int | None = None,
    closes: bool = False,
) -> Transition:
    """End a run in failure, with its dead letter. `key` is the tenant's key for fingerprints and hashes."""
    text = ending.to_json()
    letter = _build_letter(run, ending, text, key) if run.options.dead_letter else None
    if letter is None and status is RunStatus.DLQ_PENDING:
        status = RunStatus.FAILED
    # The run keeps the failure that it is rolled back for; its letter says why the rollback stopped.
    keeps_failure = run.undoing and ending.code is LetterCode.COMPENSATION_FAILED and ending.cause is None
    failure, parked_on = None if keeps_failure else text, "" if closes else None
    return build_transition(
        run,
        *entries,
        change=RunWrite(status=status, take=True, failure=failure, deaths=deaths, parked_on=parked_on),
        attempts=attempts,
        letter=letter,
        ends_replay=run.letter,
        audit=audit.audit_run_failed(run, ending, letter, status),
        closes=closes,
    )


def _build_letter(run: RunView, ending: FailureReason, text: str, key: bytes) -> transitions.LetterWrite:
    return transitions.LetterWrite(
        public_id=run.letter or letter_id(run.public_id),
        code=ending.code.value,
        stage=ending.stage.value,
        category=ending.failure.category.value,
        reason=ending.reason.to_text(),
        failure=text,
        message="" if is_sealed(ending.failure.message) else ending.failure.message[:_SEARCHED_LENGTH],
        fingerprint=compute_fingerprint(ending.failure, workflow=run.workflow, step=ending.step, key=key),
        expires_in=run.options.letter_keeps,
        payload_hash=keyed_payload_hash(run.input, key),
        step=ending.step,
        step_index=ending.step_index,
        attempts=ending.attempts,
    )


def _build_ending(category: Category, error_type: str, code: LetterCode, reason: Reason) -> FailureReason:
    """Return the failure of a run that no exception ended."""
    failure = Failure.of(category, str(reason), error_type=error_type)
    return FailureReason(failure=failure, code=code, reason=reason)


# The store refused the rows of a decision.


def replace_refused(outcome: outcomes.Outcome, refusal: str) -> outcomes.Outcome:
    """Return an outcome without the data that the store refused: the failure that the refusal amounts to.

    A result that cannot be stored fails its step, and a workflow result its run. A failure that cannot be stored
    is replaced by a plain one.
    """
    reason = Reason(ReasonCode.STORE_REFUSED_DATA, why=refusal)
    failure = Failure.of(Category.INTERNAL, str(reason), error_type="redrive.errors.DataRefused")
    match outcome:
        case outcomes.AttemptSucceeded():
            return outcomes.AttemptFailed(
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
                releases=outcome.ahead,
                admitted=outcome.admitted,
            )
        case outcomes.AttemptFailed():
            cause = LetterCode.INFRASTRUCTURE_FAILURE
            return replace(outcome, input="null", failure=failure, cause=cause, why=reason, stage=Stage.COMMIT)
        case outcomes.AttemptStarted() | outcomes.StepParked():
            return replace(outcome, input="null")
        case outcomes.EventsRefused():
            return replace(outcome, uses=tuple(replace(use, refused="") for use in outcome.uses))
        case outcomes.StatusNoted():
            return replace(outcome, note=transitions.StatusNoteWrite(text=""))
        case outcomes.ManualActionRequested():
            return replace(outcome, instructions="the instructions cannot be shown: see the input of the step")
        case (
            outcomes.ValueRecorded()
            | outcomes.QuestionAsked()
            | outcomes.WaitAnswered()
            | outcomes.WaitFailed()
            | outcomes.WorkflowReturned()
            | outcomes.WorkflowFailed()
            | outcomes.FollowUpsPlanned()
            | outcomes.RollbackEnded()
        ):
            code = LetterCode.COMPENSATION_FAILED if outcome.run.undoing else LetterCode.INFRASTRUCTURE_FAILURE
            ending = FailureReason(failure=failure, code=code, reason=reason, stage=Stage.COMMIT)
            rolls_back = isinstance(outcome, outcomes.WorkflowFailed) and outcome.rolls_back
            return outcomes.WorkflowFailed(run=outcome.run, ending=ending, rolls_back=rolls_back)
        case _:
            return outcome


def note_status(outcome: outcomes.StatusNoted) -> Transition:
    """Record the status that the code of the run set."""
    return replace(build_transition(outcome.run), note=outcome.note)
