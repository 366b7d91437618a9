"""Outcomes: every way in which work can begin, wait or end, as a value.

Workers, the reaper and users report what happened with an outcome, and `decide` alone says what follows.
Durations are microseconds. `began_ago` is the time since the attempt began.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from redrive.core.circuit import AdmittedCall
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.questions import Question
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus
from redrive.core.transitions import AttemptEnd, EventUse, MessageWrite, StatusNoteWrite
from redrive.core.waits_and_events import EVENT_KIND
from redrive.reasons import Reason


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run that decisions need.

    `new_version`: the version of the worker's code, where another version recorded the journal.
    `letter`: the dead letter that this run replays. `letter_unwritten`: it is written when the run ends.
    `handler_for`: the failed run that this run handles, directly or through a parent run.
    `undoing`: the function has ended, and the run is being rolled back.
    """

    id: int
    public_id: str
    tenant: str
    workflow: str
    fence: int
    input: str
    options: RunOptions
    deaths: int = 0
    new_version: str | None = None
    letter: str | None = None
    letter_unwritten: bool = False
    correlation_id: str | None = None
    started_at: int | None = None
    handler_for: str | None = None
    undoing: bool = False
    queue: str = "default"


class EntryRef(msgspec.Struct, frozen=True, gc=False):
    """The identity of a journal entry: its index in the run, its key, its kind and its name."""

    index: int
    key: str
    kind: EntryKind
    name: str


class OpenEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry that had not ended when its run was interrupted: executing, or waiting for its time.

    `options`: the recorded options of the step, if this entry was read from the journal.
    """

    place: EntryRef
    attempt: int
    began_ago: int = 0
    executing: bool = True
    options: str | None = None


class _RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    run: RunView


class _EntryOutcome(_RunOutcome, frozen=True, kw_only=True):
    place: EntryRef


# Outcomes of one journal entry. `resumes`: the run was waiting until now.


class AttemptStarted(_EntryOutcome, frozen=True, kw_only=True):
    """An attempt begins, or began a while ago. `limit`: the time from now after which the reaper may end it."""

    attempt: int
    input: str
    options: str
    limit: int
    began_ago: int = 0
    resumes: bool = False


class AttemptSucceeded(_EntryOutcome, frozen=True, kw_only=True):
    """An attempt returned a value.

    `messages`: published by the attempt. `admitted`: the circuit whose probe this call was. `ahead`: the function
    continues before this is recorded. `new`: nothing was recorded about the step before.
    """

    attempt: int
    began_ago: int
    done: int
    input: str
    output: str
    resumes: bool = False
    ahead: bool = False
    new: bool = False
    admitted: AdmittedCall | None = None
    messages: tuple[MessageWrite, ...] = ()


class AttemptFailed(_EntryOutcome, frozen=True, kw_only=True):
    """An attempt raised, timed out, or returned a result that cannot be stored.

    `first_ago`: time since the step's first attempt. `idle`: the run does nothing else, so it may wait.
    `hold`: the longest wait that the worker keeps in memory. `cause`, `stage`, `why`: the engine's own verdict, where
    the failure is not the step's. `taken`: the reaper saw the failure and takes the run from its worker, with `others`
    of its entries open. `releases`: the function continued as if the attempt had succeeded, so the run is released and
    resumed from its journal. `last`: the run is ending and makes no further attempt. `admitted`: the circuit that
    admitted the attempt.
    """

    attempt: int
    began_ago: int
    first_ago: int
    done: int
    input: str
    failure: Failure
    step: StepOptions
    end: AttemptEnd = AttemptEnd.FAILED
    idle: bool = False
    hold: int = 0
    cause: LetterCode | None = None
    stage: Stage = Stage.EXEC
    why: Reason | None = None
    taken: bool = False
    others: tuple[OpenEntry, ...] = ()
    releases: bool = False
    last: bool = False
    resumes: bool = False
    admitted: AdmittedCall | None = None


class StepParked(_EntryOutcome, frozen=True, kw_only=True):
    """The circuit of a step is open, so the step waits without being called.

    `made`: the number of attempts so far. `noted`: the wait is on record already. `idle`: the run does nothing else
    and waits as a whole.
    """

    made: int
    input: str
    options: str
    circuit: str
    noted: bool
    idle: bool
    resumes: bool = False


class EntryCancelled(_EntryOutcome, frozen=True, kw_only=True):
    """Workflow code cancelled an open entry: a step, a sleep or a time limit."""

    attempt: int = 1
    began_ago: int = 0
    resumes: bool = False
    admitted: AdmittedCall | None = None


class ValueRecorded(_EntryOutcome, frozen=True, kw_only=True):
    """A value that a resumed run must see again (`now`, `uuid`, `random`, a started run, a message)."""

    output: str
    done: int | None = None
    messages: tuple[MessageWrite, ...] = ()


class SleepStarted(_EntryOutcome, frozen=True, kw_only=True):
    """A sleep or time limit begins. `idle` and `hold` as in `AttemptFailed`."""

    delay: int
    idle: bool
    hold: int


class SleepEnded(_EntryOutcome, frozen=True, kw_only=True):
    """A sleep is over, or a time limit was reached."""

    done: int
    resumes: bool


class WaitStarted(_EntryOutcome, frozen=True, kw_only=True):
    """A wait begins. `delay`: the time until its limit, None without one. `input`: what it waits for.

    `subjects`: the names of the events, the run, or the queue. `kind`: what the subjects are. `seen`: the wake-ups of
    the run that the worker has seen. `idle` and `hold` as in `AttemptFailed`. `made`, `options`: of a step that others
    execute, the number of attempts so far and its options; `input` is its own.
    """

    delay: int | None
    input: str
    subjects: tuple[str, ...]
    seen: int
    idle: bool
    hold: int
    kind: str = EVENT_KIND
    made: int = 0
    options: str | None = None


class QuestionAsked(WaitStarted, frozen=True, kw_only=True):
    """A wait for the answer of a person begins."""

    question: Question


class WaitAnswered(_EntryOutcome, frozen=True, kw_only=True):
    """A wait is over: its events came, or its run or step has a result. `uses`: events that it took or set aside.

    `attempt`, `began_ago`: of the last attempt of a step that others executed.
    """

    done: int
    input: str
    output: str
    uses: tuple[EventUse, ...] = ()
    resumes: bool = False
    attempt: int = 1
    began_ago: int = 0


class WaitTimedOut(_EntryOutcome, frozen=True, kw_only=True):
    """The limit of a wait has passed, and no fitting event came in time. `limit`: its length."""

    done: int
    seen: int
    limit: int
    resumes: bool = False


class WaitFailed(_EntryOutcome, frozen=True, kw_only=True):
    """A wait is over: its run or step ended without a result, or a person gave an unusable answer.

    `attempt`, `began_ago` as in `WaitAnswered`.
    """

    done: int
    input: str
    ending: FailureReason
    resumes: bool = False
    attempt: int = 1
    began_ago: int = 0


class EventsRefused(_EntryOutcome, frozen=True, kw_only=True):
    """Events came that do not fit a wait. They are set aside, and the wait continues."""

    uses: tuple[EventUse, ...]


class StatusNoted(_RunOutcome, frozen=True, kw_only=True):
    """The code of the run set its status."""

    note: StatusNoteWrite


# Outcomes of the workflow function.


class RunIdle(_RunOutcome, frozen=True, kw_only=True):
    """Every branch of the run waits, at least for `delay`; None if that is unknown.

    `hold`: the longest wait that the worker keeps in memory. `parked_on`: the circuit that a branch waits for. `seen`:
    a branch waits for events, and the worker has seen so many wake-ups of the run.
    """

    delay: int | None
    hold: int
    parked_on: str | None = None
    seen: int | None = None


class WorkflowReturned(_RunOutcome, frozen=True, kw_only=True):
    """The workflow function returned."""

    output: str


class WorkflowFailed(_RunOutcome, frozen=True, kw_only=True):
    """The workflow function raised. `place` and `attempt` name the step that failed, if one did.

    `rolls_back`: the effects of the run are undone before it ends.
    """

    ending: FailureReason
    place: EntryRef | None = None
    attempt: int = 1
    rolls_back: bool = False


class StepReplayEnded(_RunOutcome, frozen=True, kw_only=True):
    """The replay of a single step reached the point where another step would begin."""

    step: str


class CodeWait(StrEnum):
    """The choice for a run whose code changed: wait for fitting code, or give up."""

    FOR_CODE = "for_code"
    NO_MORE = "no_more"


class CodeDiverged(_RunOutcome, frozen=True, kw_only=True):
    """The code requests other entries than the journal holds."""

    difference: Reason
    wait: CodeWait
    delay: int = 0


# Outcomes of a rollback, or of the confirmation of reserved steps.


class PlannedFollowUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A planned action that undoes, confirms or cancels a step.

    `runs`: False if it is uncertain that the step happened. The action is then listed for users and not executed.
    """

    place: EntryRef
    input: str
    options: str
    runs: bool = True


class FollowUpsPlanned(_RunOutcome, frozen=True, kw_only=True):
    """The plan of a rollback or confirmation, in order. No action of it has begun."""

    plan: tuple[PlannedFollowUp, ...]


class ManualActionRequested(_EntryOutcome, frozen=True, kw_only=True):
    """A user has to perform the next action and confirm it. The run waits for that."""

    instructions: str


class ChildAwaited(_EntryOutcome, frozen=True, kw_only=True):
    """A rollback waits for the end of a child, whose `subject` is the name under which runs wait for it."""

    subject: str


class ChildUndone(_EntryOutcome, frozen=True, kw_only=True):
    """A child of the run needs nothing more. `left`: its effects stay. `output`: its id and its status."""

    output: str
    left: bool


class RollbackEnded(_RunOutcome, frozen=True, kw_only=True):
    """A rollback is over: everything is undone, or nothing may be undone (`forward`).

    `ending`: the failure that the run was rolled back for. `ends_as`: its final status. `fresh`: no dead letter
    records the failure yet. `count`: the number of compensations. `uncertain`: names of steps that may have happened.
    `left`: children whose effects stay. `succeeded`: the run had a result, and its parent was rolled back.
    """

    ending: FailureReason
    ends_as: RunStatus
    fresh: bool
    forward: bool = False
    count: int = 0
    uncertain: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    succeeded: bool = False


# Outcomes from outside the run: its worker, its deadline, a user.


class RunReleased(_RunOutcome, frozen=True, kw_only=True):
    """The worker gives the run back. Any worker may claim it after `delay`; None if only a wake-up makes it due.

    `seen` as in `RunIdle`.
    """

    open: tuple[OpenEntry, ...] = ()
    delay: int | None = 0
    seen: int | None = None


class WorkerLost(_RunOutcome, frozen=True, kw_only=True):
    """The worker of the run died; the log names it. `deaths` includes this death if the run may have caused it."""

    deaths: int
    executing: bool
    worker: str = ""
    wake_in: int = 0
    open: tuple[OpenEntry, ...] = ()


class DeadlinePassed(_RunOutcome, frozen=True, kw_only=True):
    """The deadline of the run passed."""

    open: tuple[OpenEntry, ...] = ()


class CancelRequested(_RunOutcome, frozen=True, kw_only=True):
    """A user cancelled the run."""

    by: str
    reason: str = ""
    open: tuple[OpenEntry, ...] = ()


class RollbackRequested(_RunOutcome, frozen=True, kw_only=True):
    """The rollback of the run `parent` reached this child of it, which had succeeded."""

    parent: str


class LetterClosed(_RunOutcome, frozen=True, kw_only=True):
    """A user closed the run's dead letter without a replay, or the letter expired.

    `status`: the letter's new status. `ended`: the status in which the run ended.
    """

    letter: str
    status: LetterStatus
    ended: RunStatus
    by: str
    reason: str | None = None


class LetterReopened(_RunOutcome, frozen=True, kw_only=True):
    """A user reopened a letter that a user had closed.

    `status`: the letter's status until now. `ended`: the status of the run since the letter was closed.
    """

    letter: str
    status: LetterStatus
    ended: RunStatus
    by: str
    reason: str | None = None


Outcome: TypeAlias = (
    AttemptStarted | AttemptSucceeded | AttemptFailed | StepParked | EntryCancelled | ValueRecorded
    | SleepStarted | SleepEnded | WaitStarted | QuestionAsked | WaitAnswered | WaitTimedOut | WaitFailed
    | EventsRefused | StatusNoted
    | RunIdle | WorkflowReturned | WorkflowFailed | StepReplayEnded | CodeDiverged
    | FollowUpsPlanned | ManualActionRequested | ChildAwaited | ChildUndone | RollbackEnded
    | RunReleased | WorkerLost | DeadlinePassed | CancelRequested | RollbackRequested | LetterClosed | LetterReopened
)  # fmt: skip
