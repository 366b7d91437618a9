"""Refused writes: the outcome that is recorded instead of one that the store refused."""

from __future__ import annotations

import typing

import pytest
from cases import each

from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.decide_run import replace_refused
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    CancelRequested,
    ChildAwaited,
    ChildUndone,
    CodeDiverged,
    CodeWait,
    DeadlinePassed,
    EntryCancelled,
    EntryRef,
    EventsRefused,
    FollowUpsPlanned,
    LetterClosed,
    LetterReopened,
    ManualActionRequested,
    Outcome,
    PlannedFollowUp,
    QuestionAsked,
    RollbackEnded,
    RollbackRequested,
    RunIdle,
    RunReleased,
    RunView,
    SleepEnded,
    SleepStarted,
    StatusNoted,
    StepParked,
    StepReplayEnded,
    ValueRecorded,
    WaitAnswered,
    WaitFailed,
    WaitStarted,
    WaitTimedOut,
    WorkerLost,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.questions import Audience, Question
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, EventUse, StatusNoteWrite
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace

BAD = "BAD"
"""Marker for content that the store refuses."""

RUN = RunView(id=7, public_id="run7", tenant="acme", workflow="fulfil", fence=3, input="{}", options=RunOptions())
CHARGE = EntryRef(2, "/charge#0", EntryKind.STEP, "charge")
BROKEN = Failure.of(Category.SERVER_ERROR, BAD, error_type="shop.BankDown")

RETURNED = AttemptSucceeded(run=RUN, place=CHARGE, attempt=2, began_ago=3, done=6, input=BAD, output=BAD, resumes=True)

RAISED = AttemptFailed(
    run=RUN,
    place=CHARGE,
    attempt=2,
    began_ago=3,
    first_ago=9,
    done=6,
    input=BAD,
    failure=BROKEN,
    step=StepOptions(timeout=5.0),
    end=AttemptEnd.TIMED_OUT,
    taken=True,
)
BEGAN = AttemptStarted(run=RUN, place=CHARGE, attempt=2, input=BAD, options="{}", limit=5)
PARKED = StepParked(run=RUN, place=CHARGE, made=0, input=BAD, options="{}", circuit="payments", noted=False, idle=True)
NOTED = ValueRecorded(run=RUN, place=CHARGE, output=BAD)
ENDED = WorkflowReturned(run=RUN, output=BAD)
ESCAPED = WorkflowFailed(
    run=RUN,
    ending=FailureReason(
        failure=BROKEN,
        code=LetterCode.EXHAUSTED_RETRIES,
        reason=Reason(ReasonCode.TEXT, text=BAD),
        step="charge",
        step_index=2,
    ),
    place=CHARGE,
    attempt=4,
)
ANSWERED = WaitAnswered(run=RUN, place=CHARGE, done=1, input="{}", output=BAD, uses=())
CHILD_FAILED = WaitFailed(run=RUN, place=CHARGE, done=1, input="{}", ending=ESCAPED.ending)
SET_ASIDE = EventsRefused(run=RUN, place=CHARGE, uses=(EventUse(seq=1, index=2, refused=BAD),))
STATUS = StatusNoted(run=RUN, note=StatusNoteWrite(text=BAD, data=BAD))
ASKED = QuestionAsked(
    run=RUN, place=CHARGE, delay=1, input=BAD, subjects=("tk-1",), seen=0, idle=True, hold=0, kind="task",
    question=Question(text=BAD, schema="{}", audience=Audience()),
)  # fmt: skip
UNDOING = replace(RUN, undoing=True)
REFUND = EntryRef(9, "/charge#0/refund#2", EntryKind.UNDO, "refund")
PLANNED = FollowUpsPlanned(run=UNDOING, plan=(PlannedFollowUp(place=REFUND, input=BAD, options="{}"),))
HANDED = ManualActionRequested(run=UNDOING, place=REFUND, instructions=BAD)
UNDONE = RollbackEnded(run=UNDOING, ending=ESCAPED.ending, ends_as=RunStatus.COMPENSATED, fresh=True)
WITHOUT_USERS_DATA: list[Outcome] = [
    EntryCancelled(run=RUN, place=CHARGE, attempt=1, began_ago=0),
    SleepStarted(run=RUN, place=CHARGE, delay=1, idle=True, hold=0),
    SleepEnded(run=RUN, place=CHARGE, done=1, resumes=False),
    WaitStarted(run=RUN, place=CHARGE, delay=1, input="{}", subjects=("paid",), seen=0, idle=True, hold=0),
    WaitTimedOut(run=RUN, place=CHARGE, done=1, seen=0, limit=1),
    RunIdle(run=RUN, delay=1, hold=0),
    RunReleased(run=RUN),
    WorkerLost(run=RUN, deaths=1, executing=True),
    DeadlinePassed(run=RUN),
    CodeDiverged(run=RUN, difference=Reason(ReasonCode.JOURNAL_NOTHING), wait=CodeWait.NO_MORE),
    CancelRequested(run=RUN, by="ada"),
    RollbackRequested(run=RUN, parent="run6"),
    ChildAwaited(run=UNDOING, place=REFUND, subject="run8"),
    ChildUndone(run=UNDOING, place=REFUND, output="{}", left=False),
    StepReplayEnded(run=RUN, step="charge"),
    LetterClosed(run=RUN, letter="dl-run7", status=LetterStatus.IGNORED, ended=RunStatus.DLQ_PENDING, by="ada"),
    LetterReopened(run=RUN, letter="dl-run7", status=LetterStatus.IGNORED, ended=RunStatus.FAILED, by="ada"),
]
WITH_USERS_DATA: list[Outcome] = [RETURNED, RAISED, BEGAN, PARKED, NOTED, ENDED, ESCAPED, PLANNED, HANDED, UNDONE]
WITH_USERS_DATA += [ANSWERED, ASKED, CHILD_FAILED, SET_ASIDE, STATUS]


def name(outcome: Outcome) -> str:
    return type(outcome).__name__


def test_every_outcome_is_among_the_cases() -> None:
    cases = [*WITHOUT_USERS_DATA, *WITH_USERS_DATA]
    assert {type(one) for one in cases} == set(typing.get_args(Outcome))


@each("outcome", WITH_USERS_DATA)
def test_the_replacement_contains_nothing_of_the_refused_write(outcome: Outcome) -> None:
    policy = RetryPolicy(max_retries=-1)
    assert BAD in repr(decide(outcome, policy, 0.5))
    assert BAD not in repr(decide(replace_refused(outcome, "text holds a NUL"), policy, 0.5))


@each("outcome", WITHOUT_USERS_DATA)
def test_an_outcome_without_anything_of_the_users_stays_as_it_is(outcome: Outcome) -> None:
    assert replace_refused(outcome, "disk on fire") is outcome


@pytest.mark.parametrize("outcome", [RETURNED, RAISED], ids=name)
def test_a_result_or_failure_that_cannot_be_stored_fails_its_step_at_once(outcome: Outcome) -> None:
    replaced = replace_refused(outcome, "text holds a NUL")
    transition = decide(replaced, RetryPolicy(max_retries=-1), 0.5)
    entry = transition.entries[0]
    assert (entry.index, entry.status, entry.attempt, entry.done) == (2, StepStatus.FAILED, 2, 6)
    assert (entry.began_ago, entry.input) == (3, "null")
    ending = FailureReason.from_json(entry.failure or "")
    assert (ending.code, ending.stage) == (LetterCode.INFRASTRUCTURE_FAILURE, Stage.COMMIT)
    assert ending.failure.error_type == "redrive.errors.DataRefused"
    assert ending.failure.category is Category.INTERNAL
    assert ending.reason.params["why"] == Reason(ReasonCode.STORE_REFUSED_DATA, why="text holds a NUL")
    assert str(ending.reason) == (
        "step 'charge' failed 2 times (internal): the store refused the data: text holds a NUL"
    )


def test_a_refused_result_still_wakes_its_run() -> None:
    replaced = replace_refused(RETURNED, "x")
    assert isinstance(replaced, AttemptFailed)
    assert replaced.resumes


def test_a_refused_failure_found_by_the_reaper_stays_marked_as_such() -> None:
    replaced = replace_refused(RAISED, "x")
    assert isinstance(replaced, AttemptFailed)
    assert (replaced.taken, replaced.end, replaced.step) == (True, AttemptEnd.TIMED_OUT, RAISED.step)


def test_a_refused_begin_mark_is_written_without_its_input() -> None:
    replaced = replace_refused(BEGAN, "x")
    assert isinstance(replaced, AttemptStarted)
    assert (replaced.input, replaced.options, replaced.limit) == ("null", "{}", 5)


@pytest.mark.parametrize("outcome", [NOTED, ENDED, ESCAPED], ids=name)
def test_a_refused_write_of_the_whole_run_ends_it_with_a_letter(outcome: Outcome) -> None:
    transition = decide(replace_refused(outcome, "text holds a NUL"), RetryPolicy(), 0.5)
    assert transition.change is not None
    assert transition.change.status is RunStatus.DLQ_PENDING
    letter = transition.letter
    assert letter is not None
    assert (letter.code, letter.stage) == ("infrastructure_failure", "commit")
    assert letter.reason == Reason(ReasonCode.STORE_REFUSED_DATA, why="text holds a NUL").to_text()


@pytest.mark.parametrize("outcome", [PLANNED, UNDONE], ids=name)
def test_a_rollback_that_cannot_be_recorded_stops_and_keeps_what_it_was_for(outcome: Outcome) -> None:
    transition = decide(replace_refused(outcome, "text holds a NUL"), RetryPolicy(), 0.5)
    assert transition.change is not None
    assert (transition.change.status, transition.change.failure) == (RunStatus.DLQ_PENDING, None)
    assert transition.letter is not None
    assert transition.letter.code == "compensation_failed"


def test_a_failure_that_cannot_be_recorded_is_rolled_back_all_the_same() -> None:
    transition = decide(replace_refused(replace(ESCAPED, rolls_back=True), "x"), RetryPolicy(), 0.5)
    assert transition.change is not None
    assert transition.change.status is RunStatus.COMPENSATING
