"""The one place that decides what follows from what happened.

    decide(outcome, policy, draw, now) -> transition

An exception in a worker, a crash found by the reaper and a deadline that passed all come through
here, so they cannot differ. `decide` is pure: the policy in force, the random draw and the time are
arguments, and what it returns is rows to write, with delays instead of times.
"""

from __future__ import annotations

from typing import assert_never

from redrive.core import decide_run as losing
from redrive.core import decide_run as rollback
from redrive.core import decide_run as runs
from redrive.core import decide_step as steps
from redrive.core.decide_step import park_step
from redrive.core.failure_handlers import add_handler_runs
from redrive.core.notifications import add_notifications
from redrive.core.notify_rules import NotifyRule
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    CancelRequested,
    CodeDiverged,
    DeadlinePassed,
    EntryCancelled,
    FollowUpsPlanned,
    LetterClosed,
    ManualActionRequested,
    Outcome,
    RollbackEnded,
    RunIdle,
    RunReleased,
    RunView,
    SleepEnded,
    SleepStarted,
    StepParked,
    StepReplayEnded,
    ValueRecorded,
    WorkerLost,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.transitions import Transition
from redrive.policy import RetryPolicy


def decide(
    outcome: Outcome, policy: RetryPolicy, draw: float, now: int = 0, notify: NotifyRule | None = None, key: bytes = b""
) -> Transition:
    """Turn what happened into what is to be written. `now` is only told to those who hear of a failure.

    `key` is the one of the fingerprints of the run's tenant; every outcome that may be a failure needs it.

    Whatever may end a run in failure goes on through `_told`; `notify` says which people hear of it.
    """
    match outcome:
        case AttemptSucceeded():
            return steps.record_success(outcome)
        case AttemptStarted():
            return steps.record_start(outcome)
        case WorkflowReturned():
            return runs.complete_run(outcome)
        case AttemptFailed():
            return add_notifications(steps.decide_failed_attempt(outcome, policy, draw), outcome, notify, now, key)
        case ValueRecorded():
            return steps.record_value(outcome)
        case SleepStarted():
            return steps.start_sleep(outcome)
        case SleepEnded():
            return steps.end_sleep(outcome)
        case RunIdle():
            return runs.suspend_idle_run(outcome)
        case StepParked():
            return park_step(outcome)
        case EntryCancelled():
            return steps.cancel_entry(outcome)
        case WorkflowFailed():
            return _add_handlers_and_notifications(runs.fail_run(outcome, key), outcome.run, notify, now, key)
        case StepReplayEnded():
            return runs.end_step_replay(outcome)
        case FollowUpsPlanned():
            return rollback.record_plan(outcome)
        case ManualActionRequested():
            return rollback.request_manual_action(outcome)
        case RollbackEnded():
            decided = rollback.end_rollback(outcome, key)
            if not outcome.fresh:
                return add_notifications(decided, outcome.run, notify, now, key)
            return _add_handlers_and_notifications(decided, outcome.run, notify, now, key)
        case RunReleased():
            return losing.release_run(outcome)
        case WorkerLost():
            return _add_handlers_and_notifications(
                losing.recover_run(outcome, draw, key), outcome.run, notify, now, key
            )
        case DeadlinePassed():
            return _add_handlers_and_notifications(runs.time_out_run(outcome, key), outcome.run, notify, now, key)
        case CodeDiverged():
            return _add_handlers_and_notifications(
                losing.decide_diverged_run(outcome, key), outcome.run, notify, now, key
            )
        case CancelRequested():
            return runs.cancel_run(outcome)
        case LetterClosed():
            return runs.close_letter(outcome)
        case _:
            assert_never(outcome)


def _add_handlers_and_notifications(
    decided: Transition, run: RunView, notify: NotifyRule | None, now: int, key: bytes
) -> Transition:
    """With the runs that handle a failure, and what people are told of it."""
    return add_notifications(add_handler_runs(decided, run, now), run, notify, now, key)
