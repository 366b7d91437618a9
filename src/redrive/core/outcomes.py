"""What happened: every way in which a piece of work can begin, wait or end, as a value.

The worker, the reaper and a person's command all say what they saw with one of these; `decide` alone
says what follows. Durations are microseconds, `began_ago` is how long ago the attempt began.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from redrive.core.circuit import AdmittedCall
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus
from redrive.core.transitions import AttemptEnd, MessageWrite
from redrive.reasons import Reason


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of a run when deciding about it.

    `new_version` is set while a worker executes the run with other code than recorded its journal.
    `letter` is set while the run is replayed: the letter that hears how it ends; `unwritten`: it will be
    written with that. `handler_for` is the failed run that this one handles, or was started on behalf of.
    `undoing`: its function has ended, and what it did is being undone.
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


class EntryRef(msgspec.Struct, frozen=True, gc=False):
    """A journal entry's identity: its index in the run, its key, its kind and its name."""

    index: int
    key: str
    kind: EntryKind
    name: str


class OpenEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry that had not ended when something happened to its run: executing, or waiting for its time."""

    place: EntryRef
    attempt: int
    began_ago: int = 0
    executing: bool = True


class AttemptStarted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt begins. `resumes`: the run was waiting until now."""

    run: RunView
    place: EntryRef
    attempt: int
    input: str
    options: str
    limit: int
    resumes: bool = False


class AttemptSucceeded(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt returned a value. `messages` are what it published on the way.

    `admitted` is set for the probe of a circuit.
    """

    run: RunView
    place: EntryRef
    attempt: int
    began_ago: int
    done: int
    input: str
    output: str
    resumes: bool = False
    admitted: AdmittedCall | None = None
    messages: tuple[MessageWrite, ...] = ()


class AttemptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt raised, timed out, or gave a result that cannot be kept.

    `first_ago`: since the step's first attempt. `idle`: nothing else in the run is going on, so that
    it may wait; `hold`: how long a wait its worker would rather keep in memory. `cause` and `stage`
    are set where the failure is not the step's own, and `why` is the engine's reason for it. `taken`: the
    reaper saw it and takes the run from its holder, with `others` of its entries open. `last`: the run is
    ending and does not wait for another try. `admitted`: the circuit that let the attempt through.
    """

    run: RunView
    place: EntryRef
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
    last: bool = False
    resumes: bool = False
    admitted: AdmittedCall | None = None


class StepParked(msgspec.Struct, frozen=True, kw_only=True):
    """The circuit of a step's dependency is open, so the step is not called and waits.

    `made` counts the attempts so far. `noted`: that it waits is on record already. `idle`: nothing else
    goes on in the run, which therefore waits as a whole.
    """

    run: RunView
    place: EntryRef
    made: int
    input: str
    options: str
    circuit: str
    noted: bool
    idle: bool
    resumes: bool = False


class EntryCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Workflow code cancelled an entry that was under way: a step, a sleep or a time limit."""

    run: RunView
    place: EntryRef
    attempt: int = 1
    began_ago: int = 0
    resumes: bool = False
    admitted: AdmittedCall | None = None


class ValueRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """A value that must be the same on resuming (`now`, `uuid`, `random`, a started run, a message)."""

    run: RunView
    place: EntryRef
    output: str
    done: int | None = None
    messages: tuple[MessageWrite, ...] = ()


class SleepStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A sleep or time limit begins. `idle` and `hold` as in `Raised`."""

    run: RunView
    place: EntryRef
    delay: int
    idle: bool
    hold: int


class SleepEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A sleep is over, or a time limit was reached."""

    run: RunView
    place: EntryRef
    done: int
    resumes: bool


class RunIdle(msgspec.Struct, frozen=True, kw_only=True):
    """Every branch of the run waits; the first wait is over in `delay`, None if nobody knows when.

    `parked_on`: the circuit that one of them waits for.
    """

    run: RunView
    delay: int | None
    hold: int
    parked_on: str | None = None


class WorkflowReturned(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow function returned."""

    run: RunView
    output: str


class WorkflowFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A failure left the workflow function; `place` and `attempt` name the step it came from, if any.

    `rolls_back`: what the function did is to be undone first.
    """

    run: RunView
    ending: FailureReason
    place: EntryRef | None = None
    attempt: int = 1
    rolls_back: bool = False


class StepReplayEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A replay of one step alone got to the end of what it may do: other steps would begin now."""

    run: RunView
    step: str


class RunReleased(msgspec.Struct, frozen=True, kw_only=True):
    """The worker gives the run back unharmed, to be picked up by any worker after `delay`."""

    run: RunView
    open: tuple[OpenEntry, ...] = ()
    delay: int = 0


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that held the run died. `deaths` counts this one if it is laid to the run."""

    run: RunView
    deaths: int
    executing: bool
    wake_in: int = 0
    open: tuple[OpenEntry, ...] = ()


class DeadlinePassed(msgspec.Struct, frozen=True, kw_only=True):
    """The run's deadline passed."""

    run: RunView
    open: tuple[OpenEntry, ...] = ()


class PlannedFollowUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something to be done about a step: to undo, confirm or cancel it.

    `runs`: False if nobody knows whether the step happened, so that it is listed and nothing more.
    """

    place: EntryRef
    input: str
    options: str
    runs: bool = True


class FollowUpsPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """It is known what has to be undone, or confirmed, in which order; nothing of it has begun."""

    run: RunView
    plan: tuple[PlannedFollowUp, ...]


class ManualActionRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A person has to do what comes next, and says when it is done; the run waits for that."""

    run: RunView
    place: EntryRef
    instructions: str


class RollbackEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The rollback is over: everything is undone, or nothing may be (`forward`).

    `ending` is why the run was rolled back, `ends_as` what it becomes. `fresh`: no letter tells of it yet.
    `uncertain` names the steps of which nobody knows whether they happened.
    """

    run: RunView
    ending: FailureReason
    ends_as: RunStatus
    fresh: bool
    forward: bool = False
    count: int = 0
    uncertain: tuple[str, ...] = ()


class CodeWait(StrEnum):
    """Whether changed code may yet be waited out."""

    FOR_CODE = "for_code"
    NO_MORE = "no_more"


class CodeDiverged(msgspec.Struct, frozen=True, kw_only=True):
    """The code asks for other entries than the journal holds."""

    run: RunView
    difference: Reason
    wait: CodeWait
    delay: int = 0


class CancelRequested(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody cancelled the run."""

    run: RunView
    by: str
    reason: str = ""
    open: tuple[OpenEntry, ...] = ()


class LetterClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody closed the run's letter without a replay, or nobody did anything about it in time.

    `status` is how the letter is closed, `ended` how the run had ended.
    """

    run: RunView
    letter: str
    status: LetterStatus
    ended: RunStatus
    by: str
    reason: str | None = None


Outcome: TypeAlias = (
    AttemptStarted
    | AttemptSucceeded
    | AttemptFailed
    | StepParked
    | EntryCancelled
    | ValueRecorded
    | SleepStarted
    | SleepEnded
    | RunIdle
    | WorkflowReturned
    | WorkflowFailed
    | StepReplayEnded
    | FollowUpsPlanned
    | ManualActionRequested
    | RollbackEnded
    | RunReleased
    | WorkerLost
    | DeadlinePassed
    | CodeDiverged
    | CancelRequested
    | LetterClosed
)
