"""Decisions: the transition for each outcome, in each state in which the outcome can occur."""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.chores.reaper import make_lost_outcomes
from redrive.core.circuit import AdmittedCall
from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.failure import Failure, compute_fingerprint
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow
from redrive.core.keys_and_ids import keyed_payload_hash, letter_id
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
    OpenEntry,
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
from redrive.core.payload.plain_json import to_json_text
from redrive.core.questions import Audience, Question
from redrive.core.retry import RETRYABLE_CATEGORIES, RetryDecision, compute_backoff
from redrive.core.roles import Role
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import (
    FINAL_RUN_STATUSES,
    RUN_MOVES,
    STEP_MOVES,
    EntryKind,
    LetterStatus,
    RunStatus,
    StepStatus,
    is_legal_move,
)
from redrive.core.transition_build import drop_passed_states
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    EntryWrite,
    EventUse,
    RunWrite,
    StatusNoteWrite,
    Transition,
)
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store.chores import HeldRun
from redrive.store.runs import RunRow

SECOND = 1_000_000
R, S = RunStatus, StepStatus

POLICY = RetryPolicy(max_retries=3, base_delay=5, factor=2, jitter=0)
KEY = b"the key of fingerprints"
RUN = RunView(
    id=7, public_id="run7", tenant="acme", workflow="fulfil", fence=3, input='{"order":1}', options=RunOptions()
)
CHARGE = EntryRef(2, "/charge#0", EntryKind.STEP, "charge")
SHIP = EntryRef(3, "1/ship#0", EntryKind.STEP, "ship")
NAP = EntryRef(4, "/redrive.sleep#0", EntryKind.SLEEP, "redrive.sleep")
WAIT = EntryRef(6, "/redrive.wait_for paid#0", EntryKind.WAIT, "redrive.wait_for paid")
NOTE = EntryRef(5, "/redrive.now#0", EntryKind.NOTE, "redrive.now")
DOWN = Failure.of(Category.SERVER_ERROR, "the bank is down", error_type="shop.BankDown")
WRONG = Failure.of(Category.VALIDATION, "no such account", error_type="shop.BadAccount")

EXECUTING = OpenEntry(place=CHARGE, attempt=2, began_ago=4 * SECOND)
WAITING = OpenEntry(place=SHIP, attempt=3, executing=False)
NAPPING = OpenEntry(place=NAP, attempt=1, executing=False)
OPEN = (EXECUTING, WAITING, NAPPING)


def raised(failure: Failure = DOWN, **others: object) -> AttemptFailed:
    given: dict[str, object] = {
        "run": RUN,
        "place": CHARGE,
        "attempt": 1,
        "began_ago": 2 * SECOND,
        "first_ago": 9 * SECOND,
        "done": 6,
        "input": '{"order":1}',
        "failure": failure,
        "step": StepOptions(),
    }
    return AttemptFailed(**{**given, **others})  # type: ignore[arg-type]


def began(*, resumes: bool = False) -> AttemptStarted:
    return AttemptStarted(
        run=RUN,
        place=CHARGE,
        attempt=2,
        input='{"order":1}',
        options=StepOptions().to_json(),
        limit=600 * SECOND,
        resumes=resumes,
    )


def returned(*, resumes: bool = False, run: RunView = RUN) -> AttemptSucceeded:
    return AttemptSucceeded(
        run=run,
        place=CHARGE,
        attempt=2,
        began_ago=3 * SECOND,
        done=6,
        input='{"order":1}',
        output='"receipt"',
        resumes=resumes,
    )


def parked(*, idle: bool, resumes: bool = False, noted: bool = False, made: int = 0) -> StepParked:
    return StepParked(
        run=RUN,
        place=CHARGE,
        made=made,
        input='{"order":1}',
        options=StepOptions().to_json(),
        circuit="payments",
        noted=noted,
        idle=idle,
        resumes=resumes,
    )


def slept(*, idle: bool, delay: int = 60 * SECOND, run: RunView = RUN) -> SleepStarted:
    return SleepStarted(run=run, place=NAP, delay=delay, idle=idle, hold=5 * SECOND)


def asked() -> QuestionAsked:
    question = Question(text="Go?", schema="{}", audience=Audience(role=Role.ADMIN))
    values = {"run": RUN, "place": WAIT, "delay": None, "input": "{}", "subjects": ("tk-1",), "kind": "task"}
    return QuestionAsked(**values, seen=2, idle=True, hold=0, question=question)


def awaited(*, idle: bool, hold: int = 5 * SECOND, delay: int | None = None) -> WaitStarted:
    return WaitStarted(run=RUN, place=WAIT, delay=delay, input="{}", subjects=("paid",), seen=2, idle=idle, hold=hold)


def answered(*, resumes: bool = False) -> WaitAnswered:
    use = EventUse(seq=3, index=6)
    return WaitAnswered(run=RUN, place=WAIT, done=6, input="{}", output="1", uses=(use,), resumes=resumes)


def expired(*, resumes: bool = False) -> WaitTimedOut:
    return WaitTimedOut(run=RUN, place=WAIT, done=6, seen=2, limit=SECOND, resumes=resumes)


def child_failed(*, resumes: bool = False) -> WaitFailed:
    return WaitFailed(run=RUN, place=WAIT, done=6, input="{}", ending=ending(), resumes=resumes)


def woke(*, resumes: bool = False, run: RunView = RUN) -> SleepEnded:
    return SleepEnded(run=run, place=NAP, done=6, resumes=resumes)


def ending(failure: Failure = DOWN) -> FailureReason:
    return FailureReason(
        failure=failure,
        code=LetterCode.EXHAUSTED_RETRIES,
        reason=Reason(
            ReasonCode.STEP_FAILED,
            step="charge",
            n=4,
            category="server_error",
            why=Reason(ReasonCode.RETRIES_EXHAUSTED),
        ),
        step="charge",
        step_index=2,
        attempts=4,
    )


def lost(run: RunView = RUN, **others: object) -> WorkerLost:
    given: dict[str, object] = {"run": run, "deaths": 1, "executing": True, "open": OPEN}
    return WorkerLost(**{**given, **others})  # type: ignore[arg-type]


def closed(ended: RunStatus) -> LetterClosed:
    return LetterClosed(run=RUN, letter="dl-run7", status=LetterStatus.IGNORED, ended=ended, by="ada")


def reopened(ended: RunStatus) -> LetterReopened:
    return LetterReopened(run=RUN, letter="dl-run7", status=LetterStatus.IGNORED, ended=ended, by="ada")


def quiet(outcome: Outcome) -> Outcome:
    """Return the outcome for a run without a dead letter."""
    return replace(outcome, run=replace(outcome.run, options=RunOptions(dead_letter=False)))


# -- every outcome in every state in which it can occur --------------------------------------------------


Entry: TypeAlias = tuple[tuple[StepStatus, ...], StepStatus]
"""A written entry: its possible states before, and its state afterwards."""


@dataclass(frozen=True, slots=True)
class Case:
    """An outcome, the possible states of its run before, and the state after; None for no change."""

    what: str
    outcome: Outcome
    finds: tuple[RunStatus, ...]
    leaves: RunStatus | None
    entries: tuple[Entry, ...] = ()


HELD = (R.RUNNING,)
ASLEEP = (R.SLEEPING,)
EITHER = (R.RUNNING, R.SLEEPING)
UNFINISHED = (R.PENDING, R.RUNNING, R.SLEEPING)
BACK = (R.COMPENSATING,)

BEGUN: Entry = ((S.PENDING, S.RETRYING, S.RUNNING), S.RUNNING)
DONE: Entry = ((S.RUNNING,), S.SUCCESS)
LEFT: Entry = ((S.RUNNING,), S.SKIPPED)
RETRIED: Entry = ((S.RUNNING,), S.RETRYING)
FAILED: Entry = ((S.RUNNING,), S.FAILED)
KEPT: Entry = ((S.RUNNING,), S.RUNNING)
SHUT_OUT: Entry = ((S.PENDING, S.RUNNING, S.RETRYING), S.PENDING)
STOPPED: Entry = ((S.PENDING, S.RUNNING, S.RETRYING), S.CANCELLED)
DEAD: Entry = ((S.FAILED, S.DLQ), S.DLQ)
PLANNED: Entry = ((), S.PENDING)
LISTED: Entry = ((), S.SKIPPED)

HANGS = raised(taken=True, end=AttemptEnd.TIMED_OUT, others=(replace(EXECUTING, place=SHIP),))
HUNG = raised(attempt=4, taken=True, end=AttemptEnd.TIMED_OUT, others=(WAITING, NAPPING))
UNFIT = raised(cause=LetterCode.VALIDATION_FAILED, stage=Stage.OUTPUT)
GIVEN_UP = EntryCancelled(run=RUN, place=CHARGE, attempt=2, began_ago=SECOND)
WITH_STEP = WorkflowFailed(run=RUN, ending=ending(), place=CHARGE, attempt=4)
ALONE = WorkflowFailed(run=RUN, ending=ending())
DIFFERENCE = Reason(ReasonCode.JOURNAL_NOTHING)
PATIENT = CodeDiverged(run=RUN, difference=DIFFERENCE, wait=CodeWait.FOR_CODE, delay=SECOND)
CHANGED = CodeDiverged(run=RUN, difference=DIFFERENCE, wait=CodeWait.NO_MORE)
LONELY = lost(deaths=0, executing=False, wake_in=SECOND, open=(WAITING, NAPPING))
POISON = lost(replace(RUN, deaths=2), deaths=3)

UNDOING = replace(RUN, undoing=True)
SAGA = replace(RUN, options=RunOptions(rollback=True))
REFUND = EntryRef(9, "/charge#0/refund#2", EntryKind.UNDO, "refund")
TO_UNDO = PlannedFollowUp(place=REFUND, input='{"order":1,"result":2}', options=StepOptions().to_json())
PLAN = FollowUpsPlanned(run=UNDOING, plan=(TO_UNDO, replace(TO_UNDO, runs=False)))


def undone(ends_as: RunStatus = R.COMPENSATED, **others: Any) -> RollbackEnded:
    return RollbackEnded(run=UNDOING, ending=ending(), ends_as=ends_as, **{"fresh": True, **others})


def undoing(outcome: Outcome) -> Outcome:
    """Return the outcome for a run that is being rolled back."""
    return replace(outcome, run=replace(outcome.run, undoing=True))


CASES = [
    Case("begins", began(), HELD, None, (BEGUN,)),
    Case("begins after a wait", began(resumes=True), ASLEEP, R.RUNNING, (BEGUN,)),
    Case("returns", returned(), HELD, None, (DONE,)),
    Case("returns at once after a wait", returned(resumes=True), ASLEEP, R.RUNNING, (DONE,)),
    Case("fails while others go on", raised(), HELD, None, (RETRIED,)),
    Case("fails after a wait while others go on", raised(resumes=True), ASLEEP, R.RUNNING, (RETRIED,)),
    Case("fails and all wait", raised(idle=True, hold=SECOND), EITHER, R.SLEEPING, (RETRIED,)),
    Case("hangs and is retried", HANGS, HELD, R.SLEEPING, (RETRIED, KEPT)),
    Case("fails for good", raised(WRONG), HELD, None, (FAILED,)),
    Case("fails for good after a wait", raised(attempt=4, resumes=True), ASLEEP, R.RUNNING, (FAILED,)),
    Case("hangs and fails for good", HUNG, HELD, R.PENDING, (FAILED,)),
    Case("gives a result that cannot be kept", UNFIT, HELD, None, (FAILED,)),
    Case("fails while the run is ending", raised(last=True), HELD, None, (FAILED,)),
    Case("is given up by workflow code", GIVEN_UP, EITHER, None, (STOPPED,)),
    Case("notes a value", ValueRecorded(run=RUN, place=NOTE, output="17"), HELD, None, (DONE,)),
    Case("sleeps while others go on", slept(idle=False), HELD, None, (BEGUN,)),
    Case("sleeps and all wait", slept(idle=True), HELD, R.SLEEPING, (BEGUN,)),
    Case("wakes among others", woke(), HELD, None, (DONE,)),
    Case("wakes", woke(resumes=True), ASLEEP, R.RUNNING, (DONE,)),
    Case("waits in every branch", RunIdle(run=RUN, delay=60 * SECOND, hold=SECOND), HELD, R.SLEEPING),
    Case("waits for an event while others go on", awaited(idle=False), HELD, None, (BEGUN,)),
    Case("asks people", asked(), HELD, R.SLEEPING, (BEGUN,)),
    Case("waits for an event", awaited(idle=True), HELD, R.SLEEPING, (BEGUN,)),
    Case("waits for an event in the store", awaited(idle=True, hold=0, delay=SECOND), HELD, R.SLEEPING, (BEGUN,)),
    Case("gets its event", answered(resumes=True), ASLEEP, R.RUNNING, (DONE,)),
    Case("gets its event in time for the limit of others", answered(), HELD, None, (DONE,)),
    Case("gets no event in time", expired(resumes=True), ASLEEP, R.RUNNING, (FAILED,)),
    Case("waits for a run that fails", child_failed(resumes=True), ASLEEP, R.RUNNING, (FAILED,)),
    Case("gets an event that does not fit", EventsRefused(run=RUN, place=WAIT, uses=()), EITHER, None),
    Case("sets its status", StatusNoted(run=RUN, note=StatusNoteWrite(text="packing")), EITHER, None),
    Case("waits for events in every branch", RunIdle(run=RUN, delay=None, hold=0, seen=2), HELD, R.SLEEPING),
    Case("is given back while it waits for an event", RunReleased(run=RUN, delay=None, seen=2), EITHER, R.SLEEPING),
    Case("finds its circuit open while others go on", parked(idle=False), HELD, None, (SHUT_OUT,)),
    Case("finds it open after a wait", parked(idle=False, resumes=True), ASLEEP, R.RUNNING, (SHUT_OUT,)),
    Case("finds it open and all wait", parked(idle=True), EITHER, R.SLEEPING, (SHUT_OUT,)),
    Case("waits for a circuit", RunIdle(run=RUN, delay=None, hold=SECOND, parked_on="a"), HELD, R.SLEEPING),
    Case("ends", WorkflowReturned(run=RUN, output="1"), HELD, R.SUCCESS),
    Case("fails with a step", WITH_STEP, HELD, R.DLQ_PENDING, (DEAD,)),
    Case("fails with a step, quietly", quiet(WITH_STEP), HELD, R.FAILED, (DEAD,)),
    Case("fails by itself", ALONE, HELD, R.DLQ_PENDING),
    Case("is given back", RunReleased(run=RUN, open=OPEN), EITHER, R.PENDING, (KEPT,)),
    Case("is given back early", RunReleased(run=RUN, open=OPEN[1:], delay=SECOND), EITHER, R.SLEEPING),
    Case("loses its worker", lost(), HELD, R.PENDING, (KEPT,)),
    Case("loses its worker while it waits", LONELY, ASLEEP, R.SLEEPING),
    Case("loses its last worker", POISON, HELD, R.DLQ_PENDING, (KEPT,)),
    Case("loses its last worker, quietly", quiet(POISON), HELD, R.FAILED, (KEPT,)),
    Case("expires", DeadlinePassed(run=RUN, open=OPEN), UNFINISHED, R.TIMED_OUT, (STOPPED,) * 3),
    Case("expires quietly", quiet(DeadlinePassed(run=RUN)), UNFINISHED, R.TIMED_OUT),
    Case("meets other code", PATIENT, HELD, R.SLEEPING),
    Case("meets other code for good", CHANGED, HELD, R.DLQ_PENDING),
    Case("is cancelled", CancelRequested(run=RUN, by="ada", open=OPEN), UNFINISHED, R.CANCELLED, (STOPPED,) * 3),
    Case("stops before what it may not begin", StepReplayEnded(run=RUN, step="charge"), HELD, R.PARTIAL),
    Case("fails and is rolled back", replace(WITH_STEP, run=SAGA, rolls_back=True), HELD, R.COMPENSATING, (DEAD,)),
    Case("fails and its reservations are cancelled", replace(ALONE, rolls_back=True), HELD, R.COMPENSATING),
    Case("expires and is rolled back", DeadlinePassed(run=SAGA, open=OPEN), UNFINISHED, R.COMPENSATING, (STOPPED,) * 3),
    Case("is cancelled and rolled back", CancelRequested(run=SAGA, by="ada"), UNFINISHED, R.COMPENSATING),
    Case("plans what to undo", PLAN, BACK, None, (PLANNED, LISTED)),
    Case(
        "hands a task to a person",
        ManualActionRequested(run=UNDOING, place=REFUND, instructions="x"),
        BACK,
        R.COMPENSATING,
        (BEGUN,),
    ),
    Case("waits for a child", ChildAwaited(run=UNDOING, place=REFUND, subject="run8"), BACK, None),
    Case("is done with a child", ChildUndone(run=UNDOING, place=REFUND, output="{}", left=False), BACK, None, (DONE,)),
    Case("leaves a child", ChildUndone(run=UNDOING, place=REFUND, output="{}", left=True), BACK, None, (LEFT,)),
    Case("is undone with its parent", RollbackRequested(run=RUN, parent="run6"), (R.SUCCESS,), R.COMPENSATING),
    Case("was undone with its parent", undone(succeeded=True), BACK, R.COMPENSATED),
    Case("keeps its success", undone(succeeded=True, forward=True), BACK, R.SUCCESS),
    Case("undoes after a wait", undoing(returned(resumes=True)), BACK, R.COMPENSATING, (DONE,)),
    Case("fails to undo and waits", undoing(raised(idle=True)), BACK, R.COMPENSATING, (RETRIED,)),
    Case("hangs undoing", undoing(HANGS), BACK, R.COMPENSATING, (RETRIED, KEPT)),
    Case("hangs undoing for good", undoing(HUNG), BACK, R.COMPENSATING, (FAILED,)),
    Case("is given back undoing", undoing(RunReleased(run=RUN, open=OPEN)), BACK, R.COMPENSATING, (KEPT,)),
    Case("loses its worker undoing", undoing(lost()), BACK, R.COMPENSATING, (KEPT,)),
    Case("loses its worker, waiting to undo", undoing(LONELY), BACK, R.COMPENSATING),
    Case("loses its last worker undoing", undoing(POISON), BACK, R.DLQ_PENDING, (KEPT,)),
    Case("finds no code that can undo it", undoing(PATIENT), BACK, R.COMPENSATING),
    Case("finds no code that can undo it, for good", undoing(CHANGED), BACK, R.DLQ_PENDING),
    Case("cannot be undone", undoing(WITH_STEP), BACK, R.DLQ_PENDING, (DEAD,)),
    Case("cannot be undone, quietly", quiet(undoing(WITH_STEP)), BACK, R.FAILED, (DEAD,)),
    Case("is undone", undone(), BACK, R.COMPENSATED),
    Case("is undone after its letter", undone(fresh=False), BACK, R.COMPENSATED),
    Case("is undone after its deadline", undone(R.TIMED_OUT), BACK, R.TIMED_OUT),
    Case("is undone after it was cancelled", undone(R.CANCELLED), BACK, R.CANCELLED),
    Case("has cancelled its reservations", undone(R.DLQ_PENDING), BACK, R.DLQ_PENDING),
    Case("had passed a pivot", undone(forward=True), BACK, R.DLQ_PENDING),
    Case("has its letter closed", closed(R.DLQ_PENDING), (R.DLQ_PENDING,), R.FAILED),
    Case("has its letter reopened", reopened(R.FAILED), (R.FAILED,), R.DLQ_PENDING),
    Case("has its letter reopened after a deadline", reopened(R.TIMED_OUT), (R.TIMED_OUT,), R.TIMED_OUT),
    Case("has its letter closed after a deadline", closed(R.TIMED_OUT), (R.TIMED_OUT,), R.TIMED_OUT),
]

FOUND = [(case, state) for case in CASES for state in case.finds]
ENDING = [case for case in CASES if case.leaves in FINAL_RUN_STATUSES]
WAITS = [case for case in CASES if case.leaves in (R.PENDING, R.SLEEPING)]


def decided(case: Case) -> Transition:
    return decide(case.outcome, POLICY, 0.5)


def test_every_outcome_is_among_the_cases() -> None:
    assert {type(case.outcome) for case in CASES} == set(typing.get_args(Outcome))


@each("case, found", FOUND)
def test_a_run_only_ever_makes_legal_moves(case: Case, found: RunStatus) -> None:
    change = decided(case).change
    assert (None if change is None else change.status) == case.leaves
    if change is not None:
        assert is_legal_move(found, change.status)


@each("case", CASES)
def test_a_step_only_ever_makes_legal_moves(case: Case) -> None:
    transition = decided(case)
    written = [S.CANCELLED] * len(case.entries) if transition.closes else [e.status for e in transition.entries]
    assert written == [after for _, after in case.entries]
    for befores, after in case.entries:
        assert all(is_legal_move(before, after) for before in befores)


@each("case", CASES)
def test_every_transition_names_its_run_and_fence(case: Case) -> None:
    transition = decided(case)
    assert (transition.run, transition.tenant, transition.fence) == (7, "acme", 3)


@each("case", CASES)
def test_a_letter_is_written_exactly_when_a_run_ends_in_failure_and_wants_one(case: Case) -> None:
    transition = decided(case)
    ends = (R.DLQ_PENDING, R.TIMED_OUT, R.COMPENSATED)
    failed = transition.change is not None and transition.change.status in ends
    failed = failed and not (
        isinstance(case.outcome, RollbackEnded) and (case.outcome.succeeded or not case.outcome.fresh)
    )
    wanted = case.outcome.run.options.dead_letter and not isinstance(case.outcome, LetterClosed | LetterReopened)
    assert (transition.letter is not None) == (failed and wanted)
    if transition.letter is not None:
        assert transition.letter.public_id == letter_id("run7") == "dl-run7"


@each("case", ENDING)
def test_a_run_that_ended_has_no_holder_and_no_due_time(case: Case) -> None:
    change = decided(case).change
    assert change is not None
    assert change.release
    assert change.wake_in is None


@each("case", CASES)
def test_the_fence_rises_exactly_when_the_run_loses_its_holder(case: Case) -> None:
    change = decided(case).change
    if change is not None:
        assert change.take == change.release


@each("case", WAITS)
def test_a_waiting_or_due_run_has_a_time_or_a_circuit(case: Case) -> None:
    change = decided(case).change
    assert change is not None
    # A held run that waits for events has no time: if its worker dies, it is due at once.
    held = not change.release and isinstance(case.outcome, WaitStarted)
    assert change.wake_in is not None or change.parked_on is not None or change.seen is not None or held


@each("case", ENDING)
def test_every_end_has_a_result_or_an_error(case: Case) -> None:
    change = decided(case).change
    assert change is not None
    stuck = case.outcome.run.undoing and isinstance(case.outcome, WorkerLost | CodeDiverged)
    if isinstance(case.outcome, RollbackEnded) and case.outcome.succeeded:  # the recorded result stays
        assert (change.output, change.failure) == (None, None)
    elif change.status is R.SUCCESS:
        assert (change.output, change.failure) == ("1", None)
    elif stuck:  # the original failure is kept; the letter says why the rollback stopped
        assert change.failure is None
    elif isinstance(case.outcome, LetterClosed | LetterReopened):
        assert (change.output, change.failure) == (None, None)  # the failure recorded before is kept
    else:
        assert change.output is None
        assert FailureReason.from_json(change.failure or "").reason


def test_a_run_that_continues_and_ends_in_one_batch_is_written_once() -> None:
    other = replace(RUN, id=8)

    def batch(*outcomes: Outcome) -> list[bool]:
        transitions = [decide(each, POLICY, 0.5, 0) for each in outcomes]
        drop_passed_states(transitions)
        return [each.change is not None for each in transitions]

    resumed, end = answered(resumes=True), WorkflowReturned(run=RUN, output="1")
    assert batch(resumed, end) == [False, True]
    assert batch(resumed, woke(resumes=True, run=other), replace(end, run=other)) == [True, False, True]
    assert batch(resumed, replace(end, run=replace(RUN, fence=4))) == [True, True]  # it may be refused alone
    assert batch(resumed, expired(resumes=True)) == [True, True]  # so may this
    assert batch(end, resumed) == [True, True]
    both = [decide(each, POLICY, 0.5, 0) for each in (resumed, end)]
    drop_passed_states(both)
    assert both[1].change == replace(decide(end, POLICY, 0.5, 0).change, diverged=False)


def test_the_engine_makes_every_legal_move_of_a_run_that_users_do_not_make() -> None:
    made = {(found, case.leaves) for case in CASES for found in case.finds if case.leaves not in (None, found)}
    made.add((R.PENDING, R.RUNNING))  # by claiming
    legal = {(old, new) for old, allowed in RUN_MOVES.items() for new in allowed}
    assert legal - made == {(old, new) for old, new in legal - made if old in FINAL_RUN_STATUSES}


def test_the_engine_makes_every_legal_move_of_a_step_that_users_and_circuits_do_not_make() -> None:
    made = {(before, after) for case in CASES for befores, after in case.entries for before in befores}
    legal = {(old, new) for old, allowed in STEP_MOVES.items() for new in allowed}
    by_a_person = {(old, new) for old, new in legal if old is S.DLQ}
    by_a_circuit = {(S.RETRYING, S.FAILED), (S.PENDING, S.FAILED)}
    assert legal - made == by_a_person | by_a_circuit


# -- circuits --------------------------------------------------------------------------------------------


def admitted(*, probe: bool = False, generation: int = 0) -> AdmittedCall:
    return AdmittedCall("payments", '{"name":"payments"}', generation, probe)


def test_a_parked_step_uses_no_attempt_and_its_run_is_released() -> None:
    written = decide(parked(idle=True, made=2), POLICY, 0.5)
    (entry,) = written.entries
    assert (entry.status, entry.attempt, entry.input) == (S.PENDING, 2, '{"order":1}')
    assert written.change == RunWrite(
        status=R.SLEEPING, wake_in=None, release=True, take=True, diverged=False, parked_on="payments"
    )


def test_an_open_circuit_is_logged_once() -> None:
    (said,) = decide(parked(idle=False), POLICY, 0.5).attempts
    assert (said.end, said.attempt, said.category) == (AttemptEnd.PARKED, 0, "dependency_unavailable")
    assert "redrive.CircuitOpen" in (said.failure or "")
    assert decide(parked(idle=False, noted=True), POLICY, 0.5).attempts == ()


def test_failures_of_the_dependency_are_counted_by_the_circuit() -> None:
    (mark,) = decide(raised(DOWN, admitted=admitted(generation=3)), POLICY, 0.5).samples
    assert (mark.key, mark.generation, mark.good, mark.category) == ("payments", 3, False, "server_error")
    assert (mark.index, mark.attempt, mark.probe) == (CHARGE.index, 1, False)
    assert decide(raised(WRONG, admitted=admitted()), POLICY, 0.5).samples == ()
    assert decide(raised(DOWN), POLICY, 0.5).samples == ()


def test_a_probe_reports_its_outcome_or_returns_its_permit() -> None:
    probe = admitted(probe=True)
    ends: list[Outcome] = [
        replace(returned(), admitted=probe),
        raised(DOWN, admitted=probe),
        raised(WRONG, admitted=probe),
        replace(GIVEN_UP, admitted=probe),
    ]
    marks = [decide(end, POLICY, 0.5).samples for end in ends]
    said = [(mark[0].good, mark[0].probe) for mark in marks]
    assert said == [(True, True), (False, True), (None, True), (None, True)]
    assert decide(replace(GIVEN_UP, admitted=admitted()), POLICY, 0.5).samples == ()


def test_a_run_that_waits_for_a_timer_and_a_circuit_is_due_with_the_timer() -> None:
    long, short = 60 * SECOND, SECOND // 2
    change = decide(RunIdle(run=RUN, delay=long, hold=SECOND, parked_on="a"), POLICY, 0.5).change
    assert change is not None
    assert (change.wake_in, change.release, change.parked_on) == (long, True, "a")
    change = decide(RunIdle(run=RUN, delay=short, hold=SECOND, parked_on="a"), POLICY, 0.5).change
    assert change is not None
    assert (change.wake_in, change.release, change.parked_on) == (short, False, None)


@pytest.mark.parametrize("end", [DeadlinePassed(run=RUN), CancelRequested(run=RUN, by="ada")])
def test_a_run_that_is_ended_from_outside_is_not_parked_any_more(end: Outcome) -> None:
    change = decide(end, POLICY, 0.5).change
    assert change is not None
    assert change.parked_on == ""


# -- steps -----------------------------------------------------------------------------------------------


def test_a_begin_mark_carries_all_that_a_process_without_the_code_needs() -> None:
    assert decide(began(), POLICY, 0.5).entries == (
        EntryWrite(
            index=2,
            key="/charge#0",
            kind=EntryKind.STEP,
            name="charge",
            status=S.RUNNING,
            attempt=2,
            limit_in=600 * SECOND,
            input='{"order":1}',
            options=StepOptions().to_json(),
        ),
    )


def test_a_result_is_recorded_whole_so_that_a_begin_mark_may_be_left_out() -> None:
    transition = decide(returned(), POLICY, 0.5)
    assert transition.entries == (
        EntryWrite(
            index=2,
            key="/charge#0",
            kind=EntryKind.STEP,
            name="charge",
            status=S.SUCCESS,
            attempt=2,
            began_ago=3 * SECOND,
            done=6,
            input='{"order":1}',
            output='"receipt"',
        ),
    )
    assert (transition.attempts, transition.change, transition.letter) == ((), None, None)


def test_a_failed_attempt_is_logged_with_its_number_its_delay_and_its_reason() -> None:
    transition = decide(raised(attempt=2), POLICY, 0.5)
    (entry,), (attempt,) = transition.entries, transition.attempts
    assert entry == EntryWrite(
        index=2,
        key="/charge#0",
        kind=EntryKind.STEP,
        name="charge",
        status=S.RETRYING,
        attempt=2,
        began_ago=2 * SECOND,
        wake_in=10 * SECOND,
        input='{"order":1}',
    )
    assert attempt == AttemptWrite(
        index=2,
        attempt=2,
        end=AttemptEnd.FAILED,
        began_ago=2 * SECOND,
        category="server_error",
        failure=to_json_text(DOWN.to_json()),
        decision=RetryDecision(retry=True, of=4, delay=10.0).to_json(),
        next_in=10 * SECOND,
    )


def test_a_retry_keeps_when_the_attempt_began_even_if_its_begin_mark_never_went_out() -> None:
    """`max_elapsed` counts from the first attempt's beginning, not from its end."""
    (entry,) = decide(raised(began_ago=90 * SECOND), POLICY, 0.5).entries
    assert entry.began_ago == 90 * SECOND


def test_a_step_that_failed_for_good_keeps_the_reason() -> None:
    transition = decide(raised(attempt=4), POLICY, 0.5)
    (entry,), (attempt,) = transition.entries, transition.attempts
    assert (entry.status, entry.done, entry.began_ago, entry.input) == (S.FAILED, 6, 2 * SECOND, '{"order":1}')
    assert FailureReason.from_json(entry.failure or "") == FailureReason(
        failure=DOWN,
        code=LetterCode.EXHAUSTED_RETRIES,
        reason=Reason(
            ReasonCode.STEP_FAILED,
            step="charge",
            n=4,
            category="server_error",
            why=Reason(ReasonCode.RETRIES_EXHAUSTED),
        ),
        stage=Stage.EXEC,
        step="charge",
        step_index=2,
        attempts=4,
        policy=POLICY,
        duration=2 * SECOND,
    )
    assert attempt.next_in is None
    assert RetryDecision.from_json(attempt.decision or "").exhausted


def test_a_failure_that_is_not_the_steps_own_is_never_retried_and_names_its_code_and_stage() -> None:
    transition = decide(
        raised(cause=LetterCode.INFRASTRUCTURE_FAILURE, stage=Stage.COMMIT), RetryPolicy(max_retries=-1), 0.5
    )
    kept = FailureReason.from_json(transition.entries[0].failure or "")
    assert (kept.code, kept.stage) == (LetterCode.INFRASTRUCTURE_FAILURE, Stage.COMMIT)
    assert str(kept.reason) == "step 'charge' failed once (server_error): the bank is down"


def test_a_step_that_fails_while_its_run_is_ending_is_not_tried_again() -> None:
    transition = decide(raised(last=True), RetryPolicy(max_retries=-1), 0.5)
    kept = FailureReason.from_json(transition.entries[0].failure or "")
    assert str(kept.reason) == "step 'charge' failed once (server_error): the run is ending"


@pytest.mark.parametrize(("hold", "release"), [(5, False), (4, True), (0, True)])
def test_a_short_wait_stays_with_its_worker_and_a_long_one_releases_the_run(hold: int, release: bool) -> None:
    """The first delay is 5 seconds."""
    waiting = RunWrite(status=R.SLEEPING, wake_in=5 * SECOND, release=release, take=release, diverged=False)
    assert decide(raised(idle=True, hold=hold * SECOND), POLICY, 0.5).change == waiting
    assert decide(RunIdle(run=RUN, delay=5 * SECOND, hold=hold * SECOND), POLICY, 0.5).change == waiting
    nap = SleepStarted(run=RUN, place=NAP, delay=5 * SECOND, idle=True, hold=hold * SECOND)
    assert decide(nap, POLICY, 0.5).change == waiting


def test_an_immediate_retry_does_not_wait() -> None:
    at_once = RetryPolicy(max_retries=3, base_delay=0)
    for resumes, change in ((False, None), (True, R.RUNNING)):
        written = decide(raised(idle=True, hold=5 * SECOND, resumes=resumes), at_once, 0.5)
        assert (written.change and written.change.status) == change
        assert (written.entries[0].status, written.entries[0].wake_in) == (S.RETRYING, 0)


def test_a_sleep_is_recorded_with_its_end_and_waking_with_its_turn() -> None:
    (begun,) = decide(slept(idle=False), POLICY, 0.5).entries
    assert (begun.status, begun.wake_in, begun.done) == (S.RUNNING, 60 * SECOND, None)
    (over,) = decide(woke(), POLICY, 0.5).entries
    assert (over.status, over.wake_in, over.done) == (S.SUCCESS, None, 6)


@pytest.mark.parametrize("done", [None, 9])
def test_a_note_keeps_its_value_and_a_started_run_its_turn_as_well(done: int | None) -> None:
    (entry,) = decide(ValueRecorded(run=RUN, place=NOTE, output="17", done=done), POLICY, 0.5).entries
    assert (entry.status, entry.output, entry.done) == (S.SUCCESS, "17", done)


def test_a_step_that_was_interrupted_has_no_turn_and_no_result() -> None:
    outcome = EntryCancelled(run=RUN, place=CHARGE, attempt=2, began_ago=SECOND)
    (entry,) = decide(outcome, POLICY, 0.5).entries
    assert (entry.attempt, entry.began_ago, entry.done, entry.output) == (2, SECOND, None, None)


def test_the_reaper_gives_a_hung_step_its_retry_and_leaves_its_siblings_to_be_repeated() -> None:
    sibling = replace(EXECUTING, place=SHIP)
    outcome = raised(taken=True, end=AttemptEnd.TIMED_OUT, others=(sibling, NAPPING))
    transition = decide(outcome, POLICY, 0.5)
    assert transition.change == RunWrite(status=R.SLEEPING, wake_in=5 * SECOND, take=True)
    assert [(entry.name, entry.status, entry.attempt) for entry in transition.entries] == [
        ("charge", S.RETRYING, 1),
        ("ship", S.RUNNING, 2),
    ]
    assert [(attempt.index, attempt.end) for attempt in transition.attempts] == [
        (2, AttemptEnd.TIMED_OUT),
        (3, AttemptEnd.LOST),
    ]


def test_a_hung_step_that_fails_for_good_makes_its_run_due_at_once() -> None:
    transition = decide(raised(attempt=4, taken=True), POLICY, 0.5)
    assert transition.change == RunWrite(status=R.PENDING, wake_in=0, take=True)


# -- runs ------------------------------------------------------------------------------------------------


def test_an_unhandled_failure_becomes_a_letter_with_all_details() -> None:
    transition = decide(WorkflowFailed(run=RUN, ending=ending(), place=CHARGE, attempt=4), POLICY, 0.5, key=KEY)
    letter = transition.letter
    assert letter is not None
    assert (letter.code, letter.stage, letter.category) == ("exhausted_retries", "exec", "server_error")
    assert (letter.step, letter.step_index, letter.attempts) == ("charge", 2, 4)
    assert letter.reason == ending().reason.to_text()
    assert FailureReason.from_json(letter.failure) == ending()
    assert letter.fingerprint == compute_fingerprint(DOWN, workflow="fulfil", step="charge", key=KEY)
    assert letter.payload_hash == keyed_payload_hash('{"order":1}', KEY)
    assert letter.expires_in == 30 * 86_400 * SECOND
    (entry,) = transition.entries
    assert (entry.index, entry.attempt, entry.done) == (2, 4, None)


def test_a_letter_has_the_retention_set_at_the_start_of_its_run() -> None:
    run = replace(RUN, options=RunOptions(letter_keeps=5))
    letter = decide(WorkflowFailed(run=run, ending=ending()), POLICY, 0.5).letter
    assert letter is not None
    assert letter.expires_in == 5


def test_a_run_that_passed_its_deadline_closes_its_open_steps() -> None:
    transition = decide(DeadlinePassed(run=RUN, open=OPEN), POLICY, 0.5)
    letter = transition.letter
    assert letter is not None
    assert (letter.code, letter.category, letter.step) == ("timeout", "timeout", None)
    assert letter.reason == Reason(ReasonCode.DEADLINE_PASSED).to_text()
    assert [(attempt.index, attempt.end) for attempt in transition.attempts] == [(2, AttemptEnd.CANCELLED)]


@pytest.mark.parametrize(
    ("reason", "words"), [("", "cancelled by ada"), ("ordered twice", "cancelled by ada: ordered twice")]
)
def test_a_cancelled_run_records_user_and_reason_and_has_no_letter(reason: str, words: str) -> None:
    transition = decide(CancelRequested(run=RUN, by="ada", reason=reason, open=OPEN), POLICY, 0.5)
    assert transition.change is not None
    assert str(FailureReason.from_json(transition.change.failure or "").reason) == words
    assert transition.letter is None
    assert [(attempt.index, attempt.end) for attempt in transition.attempts] == [(2, AttemptEnd.CANCELLED)]


def test_changed_code_is_waited_for_without_costing_an_attempt_or_a_crash() -> None:
    outcome = CodeDiverged(run=replace(RUN, deaths=2), difference=DIFFERENCE, wait=CodeWait.FOR_CODE, delay=5 * SECOND)
    assert decide(outcome, POLICY, 0.5) == Transition(
        run=7,
        tenant="acme",
        fence=3,
        change=RunWrite(status=R.SLEEPING, wake_in=5 * SECOND, take=True, diverged=True, deaths=0),
    )


def test_code_that_changed_for_good_is_a_policy_violation_with_the_difference() -> None:
    letter = decide(CodeDiverged(run=RUN, difference=DIFFERENCE, wait=CodeWait.NO_MORE), POLICY, 0.5).letter
    assert letter is not None
    assert (letter.code, letter.category) == ("policy_violation", "internal")
    assert letter.reason == DIFFERENCE.to_text()


@pytest.mark.parametrize(
    "outcome",
    [
        slept(idle=True),
        raised(idle=True),
        RunIdle(run=RUN, delay=SECOND, hold=0),
        woke(resumes=True),
        began(resumes=True),
        returned(resumes=True),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_code_that_matches_again_is_not_counted_as_changed(outcome: Outcome) -> None:
    """Otherwise a change of code days later would find its waiting time used up."""
    change = decide(outcome, POLICY, 0.5).change
    assert change is not None
    assert change.diverged is False


@pytest.mark.parametrize(
    "outcome",
    [returned(), raised(), raised(WRONG), woke(), slept(idle=False)],
    ids=["returned", "retried", "failed", "woke", "slept"],
)
def test_progress_clears_suspicion_and_records_the_code_version(outcome: Outcome) -> None:
    calm = decide(outcome, POLICY, 0.5)
    assert (calm.clears_suspicion, calm.version) == (False, None)
    run = replace(RUN, deaths=2, new_version="v2")
    suspect = decide(replace(outcome, run=run), POLICY, 0.5)
    assert (suspect.clears_suspicion, suspect.version) == (True, "v2")


def test_the_begin_of_a_step_does_not_count_as_progress() -> None:
    run = replace(RUN, deaths=2, new_version="v2")
    transition = decide(replace(began(), run=run), POLICY, 0.5)
    assert (transition.clears_suspicion, transition.version) == (False, None)


# -- P10: stops and deaths cost no attempt -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (RunReleased(run=RUN, open=OPEN), AttemptEnd.RELEASED),
        (lost(), AttemptEnd.LOST),
        (lost(replace(RUN, deaths=2), deaths=3), AttemptEnd.LOST),
    ],
    ids=["released", "lost", "lost once too often"],
)
def test_an_attempt_cut_short_is_recorded_and_stays_open_under_its_number(outcome: Outcome, end: AttemptEnd) -> None:
    transition = decide(outcome, POLICY, 0.5)
    (entry,) = transition.entries
    assert (entry.name, entry.status, entry.attempt) == ("charge", S.RUNNING, 2)
    assert (entry.done, entry.limit_in, entry.failure) == (None, None, None)
    assert transition.attempts == (AttemptWrite(index=2, attempt=2, end=end, began_ago=4 * SECOND),)


def test_a_run_given_back_is_due_at_once_and_no_longer_suspected() -> None:
    run = replace(RUN, deaths=2)
    now = decide(RunReleased(run=run), POLICY, 0.5).change
    assert now == RunWrite(status=R.PENDING, wake_in=0, take=True, deaths=0)
    later = decide(RunReleased(run=run, delay=7 * SECOND), POLICY, 0.5).change
    assert later == RunWrite(status=R.SLEEPING, wake_in=7 * SECOND, take=True, deaths=0)


# -- P9: retries -------------------------------------------------------------------------------------------

DRAWS = st.floats(0, 1, exclude_max=True)
DELAYS = st.floats(0, 1e6)
POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.integers(-1, 12),
    base_delay=DELAYS,
    factor=st.floats(1, 100),
    max_delay=DELAYS,
    jitter=st.floats(0, 1),
    cap=st.sampled_from(["hard", "mean", "clip"]),
    max_elapsed=st.none() | DELAYS,
    delays=st.none() | st.lists(DELAYS, min_size=1, max_size=5),
)
FAILURES = st.builds(
    Failure,
    category=st.sampled_from(sorted(RETRYABLE_CATEGORIES)),
    error_type=st.just("shop.BankDown"),
    message=st.just("down"),
    retry_after=st.none() | st.floats(0, 86_400),
)


@dataclass(frozen=True, slots=True)
class Try:
    """A single execution of a step, in seconds of a virtual time."""

    began: float
    ended: float
    transition: Transition


def always_failing(policy: RetryPolicy, failure: Failure, draws: Iterator[float], took: float) -> list[Try]:
    """Execute a step that never succeeds as a worker would, but for at most 20 attempts."""
    now, tries = 0.0, list[Try]()
    while len(tries) < 20:
        began_at, now = now, now + took
        outcome = raised(
            failure,
            attempt=len(tries) + 1,
            began_ago=math.ceil(took * SECOND),
            first_ago=math.ceil(now * SECOND),
            idle=True,
        )
        transition = decide(outcome, policy, next(draws))
        tries.append(Try(began_at, now, transition))
        (entry,) = transition.entries
        if entry.status is S.FAILED:
            break
        assert entry.wake_in is not None
        now += entry.wake_in / SECOND
    return tries


def forever(draws: list[float]) -> Iterator[float]:
    while True:
        yield from draws


@settings(deadline=None)
@given(POLICIES, FAILURES, st.lists(DRAWS, min_size=1, max_size=5), st.floats(0, 100))
def test_a_retry_is_never_earlier_than_its_policy_says_nor_more_often(
    policy: RetryPolicy, failure: Failure, draws: list[float], took: float
) -> None:
    tries = always_failing(policy, failure, forever(draws), took)
    chosen = forever(draws)
    for number, one in enumerate(tries[:-1], start=1):
        delay = compute_backoff(policy, number, next(chosen), failure.retry_after)
        (entry,), (attempt,), change = one.transition.entries, one.transition.attempts, one.transition.change
        assert entry.wake_in is not None
        assert entry.wake_in == attempt.next_in == (0 if change is None else change.wake_in)
        assert delay.seconds <= entry.wake_in / SECOND <= delay.seconds + 2 / SECOND
        assert (attempt.attempt, entry.attempt) == (number, number)
        said = RetryDecision.from_json(attempt.decision or "")
        assert (said.retry, said.delay, said.retry_after) == (True, delay.seconds, failure.retry_after)
        if failure.retry_after is not None:
            assert entry.wake_in >= failure.retry_after * SECOND
    if policy.max_retries >= 0:
        assert len(tries) <= policy.max_retries + 1
        if policy.max_elapsed is None:
            assert len(tries) == policy.max_retries + 1
    if policy.max_elapsed is not None:
        assert all(one.began <= policy.max_elapsed + 1e-3 for one in tries[1:])


@settings(deadline=None)
@given(POLICIES, st.integers(1, 30), DRAWS)
def test_jitter_never_carries_a_retry_past_a_hard_maximum(policy: RetryPolicy, attempt: int, draw: float) -> None:
    hard = RetryPolicy.from_json({**policy.to_json(), "cap": "hard", "max_retries": -1, "max_elapsed": None})
    longest = hard.max_delay if hard.delays is None else max(hard.delays)
    (entry,) = decide(raised(attempt=attempt), hard, draw).entries
    assert entry.wake_in is not None
    assert entry.wake_in <= math.ceil(longest * SECOND)


@settings(deadline=None)
@given(st.integers(0, 10), DRAWS)
def test_a_step_that_always_fails_is_executed_once_more_than_it_may_be_retried_and_then_fails(
    retries: int, draw: float
) -> None:
    tries = always_failing(RetryPolicy(max_retries=retries), DOWN, forever([draw]), 1.0)
    assert len(tries) == retries + 1
    assert [one.transition.entries[0].status for one in tries] == [S.RETRYING] * retries + [S.FAILED]


def test_a_step_that_always_fails_leaves_exactly_one_letter_that_counts_its_attempts() -> None:
    tries = always_failing(RetryPolicy(max_retries=3), DOWN, forever([0.5]), 1.0)
    assert len(tries) == 4
    assert all(one.transition.letter is None for one in tries)
    kept = FailureReason.from_json(tries[-1].transition.entries[0].failure or "")
    letter = decide(WorkflowFailed(run=RUN, ending=kept, place=CHARGE, attempt=4), POLICY, 0.5).letter
    assert letter is not None
    assert (letter.code, letter.attempts, letter.step) == ("exhausted_retries", 4, "charge")


# -- deaths ------------------------------------------------------------------------------------------------


def row(number: int, *, status: RunStatus = R.RUNNING, deaths: int = 0, options: RunOptions) -> RunRow:
    return RunRow(
        id=number,
        public_id=f"run{number}",
        tenant="acme",
        workflow="fulfil",
        queue="default",
        priority=0,
        status=status,
        fence=1,
        worker=1,
        available_at=None,
        deadline=None,
        deaths=deaths,
        version="v1",
        created_at=0,
        started_at=0,
        finished_at=None,
        correlation_id=None,
        parent=None,
        root=None,
        replay_of=None,
        generation=0,
        parked_on=None,
        diverged_at=None,
        input="{}",
        options=options.to_json(),
    )


def entry_row(attempt: int, status: StepStatus = S.RUNNING) -> EntryRow:
    return EntryRow(
        index=0,
        key="/charge#0",
        kind=EntryKind.STEP,
        name="charge",
        status=status,
        attempt=attempt,
        done=None,
        first_at=0,
        began_at=0,
        ended_at=None,
        wake_at=None,
        limit_at=None,
        input="{}",
        output=None,
        failure=None,
        options=None,
    )


def die(*held: HeldRun, died: bool = True) -> list[Transition]:
    return [decide(outcome, POLICY, 0.5) for outcome in make_lost_outcomes(list(held), 0, died=died)]


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 5))
def test_n_crashes_are_n_deaths_and_no_attempt(max_crashes: int, attempt: int) -> None:
    options = RunOptions(max_crashes=max_crashes)
    deaths = 0
    for crash in range(1, max_crashes + 1):
        held = HeldRun(run=row(1, deaths=deaths, options=options), worker=1, open=(entry_row(attempt),))
        (transition,) = die(held)
        assert transition.change is not None
        assert transition.change.deaths == crash
        assert [entry.attempt for entry in transition.entries] == [attempt]
        assert (transition.letter is not None) == (crash == max_crashes)
        deaths = transition.change.deaths
    assert transition.letter is not None
    assert transition.letter.code == "infrastructure_failure"
    assert transition.letter.reason == Reason(ReasonCode.WORKERS_DIED, n=max_crashes).to_text()


@settings(deadline=None)
@given(st.integers(1, 20), DRAWS, POLICIES)
def test_an_orphan_comes_back_after_the_backoff_of_the_policy_in_force(
    deaths: int, draw: float, policy: RetryPolicy
) -> None:
    run = replace(RUN, options=RunOptions(max_crashes=100), deaths=deaths - 1)
    change = decide(lost(run, deaths=deaths), policy, draw).change
    delay = compute_backoff(policy, deaths, draw).seconds
    assert change is not None
    assert change.wake_in is not None
    assert delay <= change.wake_in / SECOND <= delay + 2 / SECOND


def test_a_run_without_suspicion_is_due_again_at_once() -> None:
    change = decide(lost(deaths=0), POLICY, 0.5).change
    assert change == RunWrite(status=R.PENDING, wake_in=0, take=True, deaths=0)


def test_a_run_that_only_waited_keeps_waiting_and_is_not_suspected() -> None:
    napping = replace(row(1, status=R.SLEEPING, options=RunOptions()), available_at=30)
    executing = row(2, options=RunOptions())
    first, second = die(*(HeldRun(run=run, worker=1, open=()) for run in (napping, executing)))
    assert first.change == RunWrite(status=R.SLEEPING, wake_in=30, take=True)
    assert second.change is not None
    assert second.change.deaths == 1


def test_a_suspect_that_only_waited_does_not_take_the_blame_for_others() -> None:
    napping = row(1, status=R.SLEEPING, deaths=1, options=RunOptions())
    executing = row(2, options=RunOptions())
    _, blamed = die(*(HeldRun(run=run, worker=1, open=()) for run in (napping, executing)))
    assert blamed.change is not None
    assert blamed.change.deaths == 1


def test_a_worker_that_stopped_cleanly_adds_no_death_to_its_runs() -> None:
    (transition,) = die(HeldRun(run=row(1, options=RunOptions()), worker=1, open=()), died=False)
    assert transition.change == RunWrite(status=R.PENDING, wake_in=0, take=True, deaths=0)


def test_a_further_death_is_counted_for_the_suspect_alone() -> None:
    runs = [row(number, deaths=int(number == 2), options=RunOptions()) for number in range(4)]
    transitions = die(*(HeldRun(run=run, worker=1, open=()) for run in runs))
    assert [one.change and one.change.deaths for one in transitions] == [0, 0, 2, 0]


def test_a_run_at_its_death_limit_is_not_dead_lettered_for_the_death_of_another() -> None:
    transition = decide(lost(replace(RUN, deaths=3), deaths=3), POLICY, 0.5)
    assert transition.letter is None
    assert transition.change is not None
    assert transition.change.status is R.PENDING


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(0, 99), st.integers(1, 120), st.integers(2, 5))
def test_one_poisonous_run_among_99_others_gets_the_only_letter(
    seed: int, poison: int, slots: int, max_crashes: int
) -> None:
    """A worker takes as many runs as it has slots, but one suspect at most; the poison kills it at once."""
    options, chance = RunOptions(max_crashes=max_crashes), Random(seed)
    waiting = {number: row(number, options=options) for number in range(100)}
    letters: Counter[int] = Counter()
    crashes = 0
    while waiting:
        order = chance.sample(sorted(waiting), len(waiting))
        fresh = [number for number in order if not waiting[number].deaths]
        suspects = [number for number in order if waiting[number].deaths]
        claimed = (suspects[:1] + fresh)[:slots]
        if poison not in claimed:
            for number in claimed:  # they end, which clears their suspicion
                del waiting[number]
            continue
        crashes += 1
        held = [HeldRun(run=waiting[number], worker=1, open=()) for number in claimed]
        for number, transition in zip(claimed, die(*held), strict=True):
            assert transition.change is not None
            letters[number] += transition.letter is not None
            if transition.letter is not None:
                del waiting[number]
            elif transition.change.deaths is not None:
                waiting[number] = replace(waiting[number], deaths=transition.change.deaths)
    assert letters.total() == 1
    assert letters[poison] == 1
    assert crashes == max_crashes
