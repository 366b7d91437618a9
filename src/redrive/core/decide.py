"""The single place that turns an outcome into a transition.

    decide(outcome, policy, draw, now) -> transition

A worker that saw an exception, the reaper that found a crash and a user who cancels a run all call `decide`,
so equal outcomes have equal consequences. The function is pure: the retry policy, the random draw and the time
are arguments, and the transition holds rows to write, with delays instead of times.
"""

from __future__ import annotations

from typing import assert_never

from redrive.core import decide_entry, decide_run, outcomes
from redrive.core.engine_messages import add_notifications, announce_question
from redrive.core.failure_handlers import add_handler_runs
from redrive.core.notification_rules import NotifyRule
from redrive.core.outcomes import Outcome
from redrive.core.transitions import Transition
from redrive.policy import RetryPolicy


def decide(
    outcome: Outcome, policy: RetryPolicy, draw: float, now: int = 0, notify: NotifyRule | None = None, key: bytes = b""
) -> Transition:
    """Return the rows to write after an outcome.

    `policy` and `draw` (from 0 to 1) determine the delay of a retry, also after the death of a worker. `now`, `notify`
    and `key` matter for failures only: `notify` chooses the notifications, `key` is the tenant's key for fingerprints.
    """
    # Cases are tried in order, so the outcomes of every successful step and run come first.
    match outcome:
        case outcomes.AttemptSucceeded():
            return decide_entry.record_success(outcome)
        case outcomes.AttemptStarted():
            return decide_entry.record_start(outcome)
        case outcomes.WorkflowReturned():
            return decide_run.complete_run(outcome)
        case outcomes.AttemptFailed():
            failed = decide_entry.decide_failed_attempt(outcome, policy, draw)
            return add_notifications(failed, outcome, notify, now, key)
        case outcomes.ValueRecorded():
            return decide_entry.record_value(outcome)
        case outcomes.SleepStarted():
            return decide_entry.start_sleep(outcome)
        case outcomes.SleepEnded():
            return decide_entry.end_sleep(outcome)
        case outcomes.QuestionAsked():
            return announce_question(decide_entry.ask_question(outcome), outcome.run, notify, now)
        case outcomes.WaitStarted():
            return decide_entry.start_wait(outcome)
        case outcomes.WaitAnswered():
            return decide_entry.answer_wait(outcome)
        case outcomes.WaitTimedOut():
            return decide_entry.expire_wait(outcome)
        case outcomes.WaitFailed():
            return decide_entry.fail_wait(outcome)
        case outcomes.EventsRefused():
            return decide_entry.set_events_aside(outcome)
        case outcomes.StatusNoted():
            return decide_run.note_status(outcome)
        case outcomes.StepParked():
            return decide_entry.park_step(outcome)
        case outcomes.EntryCancelled():
            return decide_entry.cancel_entry(outcome)
        case outcomes.RunIdle():
            return decide_run.suspend_idle_run(outcome)
        case outcomes.RunReleased():
            return decide_run.release_run(outcome)
        case outcomes.StepReplayEnded():
            return decide_run.end_step_replay(outcome)
        case outcomes.FollowUpsPlanned():
            return decide_run.record_plan(outcome)
        case outcomes.ManualActionRequested():
            return announce_question(decide_run.request_manual_action(outcome), outcome.run, notify, now)
        case outcomes.ChildAwaited():
            return decide_entry.await_child(outcome)
        case outcomes.ChildUndone():
            return decide_entry.finish_child(outcome)
        case outcomes.RollbackRequested():
            return decide_run.roll_back_child(outcome)
        case outcomes.CancelRequested():
            return decide_run.cancel_run(outcome)
        case outcomes.LetterClosed():
            return decide_run.close_letter(outcome)
        case outcomes.LetterReopened():
            return decide_run.reopen_letter(outcome)
        case outcomes.RollbackEnded(fresh=False):
            # The handlers of this failure were started when its dead letter was written.
            return add_notifications(decide_run.end_rollback(outcome, key), outcome.run, notify, now, key)
        # The outcomes below may end the run in failure, which starts its handlers.
        case outcomes.RollbackEnded():
            decided = decide_run.end_rollback(outcome, key)
        case outcomes.WorkflowFailed():
            decided = decide_run.fail_run(outcome, key)
        case outcomes.WorkerLost():
            decided = decide_run.recover_run(outcome, policy, draw, key)
        case outcomes.DeadlinePassed():
            decided = decide_run.time_out_run(outcome, key)
        case outcomes.CodeDiverged():
            decided = decide_run.decide_diverged_run(outcome, key)
        case _:
            assert_never(outcome)
    return add_notifications(add_handler_runs(decided, outcome.run, now), outcome.run, notify, now, key)
