"""Decisions about replayed runs and closed letters: the letter and the audit log record the end."""

from __future__ import annotations

import json

import pytest

from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.outcomes import (
    CancelRequested,
    DeadlinePassed,
    LetterClosed,
    LetterReopened,
    Outcome,
    RunView,
    StepReplayEnded,
    WorkerLost,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.run_options import RunOptions
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import Transition
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode

LETTER = "dl-first"
"""The letter of a run that was replayed as a new run, `run7`."""

BROKEN = Failure.of(Category.SERVER_ERROR, "the bank is down", error_type="shop.BankDown")
ENDING = FailureReason(
    failure=BROKEN, code=LetterCode.EXHAUSTED_RETRIES, reason=Reason(ReasonCode.RUN_ENDING), step="charge"
)


def run(letter: str | None = LETTER, *, dead_letter: bool = True) -> RunView:
    return RunView(
        id=7,
        public_id="run7",
        tenant="acme",
        workflow="fulfil",
        fence=3,
        input="{}",
        options=RunOptions(dead_letter=dead_letter),
        letter=letter,
    )


def decided(outcome: Outcome) -> Transition:
    return decide(outcome, RetryPolicy(), 0.5)


def events(transition: Transition) -> list[tuple[str, str | None, str]]:
    return [(line.event, line.letter, line.by) for line in transition.audit]


# -- replays that succeed -------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status", "resolution"),
    [
        (WorkflowReturned(run=run(), output="1"), RunStatus.SUCCESS, ReasonCode.REPLAY_SUCCEEDED),
        (StepReplayEnded(run=run(), step="charge"), RunStatus.PARTIAL, ReasonCode.STEP_REPLAY_SUCCEEDED),
    ],
)
def test_a_replay_that_ends_well_resolves_its_letter(
    outcome: Outcome, status: RunStatus, resolution: ReasonCode
) -> None:
    transition = decided(outcome)
    assert transition.change is not None
    assert transition.change.status is status
    move = transition.move
    assert move is not None
    assert (move.letter, move.status, move.by) == (LETTER, LetterStatus.RESOLVED, "redrive")
    assert (move.resolution, move.run) == (Reason(resolution).to_text(), None)
    assert transition.ends_replay == LETTER
    assert events(transition) == [("dlq.replay_succeeded", LETTER, "redrive")]
    assert json.loads(transition.audit[0].after or "") == {"run": status.value}


def test_a_run_that_was_not_replayed_resolves_nothing() -> None:
    transition = decided(WorkflowReturned(run=run(None), output="1"))
    assert (transition.move, transition.ends_replay, transition.audit) == (None, None, ())


# -- replays that fail ------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (WorkflowFailed(run=run(), ending=ENDING), RunStatus.DLQ_PENDING),
        (DeadlinePassed(run=run()), RunStatus.TIMED_OUT),
        (WorkerLost(run=run(), deaths=3, executing=True), RunStatus.DLQ_PENDING),
    ],
    ids=["escaped", "expired", "lost"],
)
def test_a_replay_that_fails_opens_the_same_letter_again(outcome: Outcome, status: RunStatus) -> None:
    transition = decided(outcome)
    assert transition.change is not None
    assert transition.change.status is status
    assert transition.letter is not None
    assert transition.letter.public_id == LETTER
    assert (transition.ends_replay, transition.move) == (LETTER, None)
    assert ("dlq.replay_failed", LETTER, "redrive") in events(transition)
    assert "dlq.created" not in [line.event for line in transition.audit]


def test_a_first_failure_creates_a_new_letter() -> None:
    transition = decided(WorkflowFailed(run=run(None), ending=ENDING))
    assert transition.letter is not None
    assert transition.letter.public_id == "dl-run7"
    assert transition.ends_replay is None
    assert events(transition) == [("dlq.created", "dl-run7", "redrive")]


def test_a_replay_of_a_run_that_wants_no_letter_still_ends() -> None:
    transition = decided(WorkflowFailed(run=run(dead_letter=False), ending=ENDING))
    assert transition.change is not None
    assert (transition.change.status, transition.letter) == (RunStatus.FAILED, None)
    assert transition.ends_replay == LETTER
    assert events(transition) == [("dlq.replay_failed", LETTER, "redrive")]


def test_a_replay_that_is_cancelled_leaves_no_letter_open() -> None:
    transition = decided(CancelRequested(run=run(), by="ada", reason="enough"))
    assert transition.move is not None
    assert (transition.move.status, transition.ends_replay) == (LetterStatus.RESOLVED, LETTER)
    assert events(transition) == [("dlq.replay_failed", LETTER, "redrive"), ("run.cancelled", None, "ada")]


# -- letters that a user closes -------------------------------------------------


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (LetterStatus.RESOLVED, "dlq.resolved"),
        (LetterStatus.IGNORED, "dlq.skipped"),
        (LetterStatus.EXPIRED, "dlq.expired"),
    ],
)
@pytest.mark.parametrize(
    ("ended", "becomes"),
    [
        (RunStatus.DLQ_PENDING, RunStatus.FAILED),
        (RunStatus.TIMED_OUT, RunStatus.TIMED_OUT),
        (RunStatus.FAILED, RunStatus.FAILED),
    ],
)
def test_a_closed_letter_ends_the_waiting_of_its_run(
    status: LetterStatus, event: str, ended: RunStatus, becomes: RunStatus
) -> None:
    transition = decided(
        LetterClosed(run=run(), letter=LETTER, status=status, ended=ended, by="ada", reason="paid by hand")
    )
    assert transition.change is not None
    assert (transition.change.status, transition.change.take) == (becomes, True)
    move = transition.move
    assert move is not None
    assert (move.letter, move.status, move.by, move.resolution) == (LETTER, status, "ada", "paid by hand")
    (line,) = transition.audit
    assert (line.event, line.by, line.subject, line.letter) == (event, "ada", "run7", LETTER)
    assert json.loads(line.before or "") == {"letter": "OPEN", "run": ended.value}
    assert json.loads(line.after or "") == {"letter": status.value, "run": becomes.value}
    assert line.reason == "paid by hand"
    assert (transition.letter, transition.ends_replay) == (None, None)


def test_a_letter_closed_without_a_comment_has_a_default_resolution() -> None:
    transition = decided(
        LetterClosed(run=run(), letter=LETTER, status=LetterStatus.IGNORED, ended=RunStatus.DLQ_PENDING, by="ada")
    )
    assert transition.move is not None
    assert (transition.move.resolution, transition.audit[0].reason) == ("ignored", None)


@pytest.mark.parametrize(
    ("ended", "becomes"), [(RunStatus.FAILED, RunStatus.DLQ_PENDING), (RunStatus.TIMED_OUT, RunStatus.TIMED_OUT)]
)
def test_a_reopened_letter_waits_again_with_a_new_retention(ended: RunStatus, becomes: RunStatus) -> None:
    transition = decided(
        LetterReopened(run=run(), letter=LETTER, status=LetterStatus.IGNORED, ended=ended, by="ada", reason="a slip")
    )
    assert transition.change is not None
    assert (transition.change.status, transition.change.take) == (becomes, True)
    move = transition.move
    assert move is not None
    assert (move.letter, move.status, move.by, move.resolution) == (LETTER, LetterStatus.OPEN, None, None)
    assert move.expires_in == run().options.letter_keeps
    (line,) = transition.audit
    assert (line.event, line.by, line.letter, line.reason) == ("dlq.reopened", "ada", LETTER, "a slip")
    assert json.loads(line.before or "") == {"letter": "IGNORED", "run": ended.value}
    assert json.loads(line.after or "") == {"letter": "OPEN", "run": becomes.value}
