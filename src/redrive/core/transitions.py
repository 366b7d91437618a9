"""Transitions: rows about one run that the store writes together or not at all, guarded by the run's fence.

`decide` and the desk build transitions, and the store applies them without knowing their meaning. Times are delays
in microseconds, because only the store's clock counts: `wake_in=5_000_000` becomes "due five seconds after the
store's now", and `began_ago` is subtracted from it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.core.outbox import Bundle
from redrive.core.questions import QuestionKind, QuestionStatus
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus


class AttemptEnd(StrEnum):
    """The end of an attempt without success. The journal entry itself records a success.

    PARKED has the attempt number 0: the circuit was open, so the step was not called.
    """

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"
    RELEASED = "RELEASED"
    CANCELLED = "CANCELLED"
    PARKED = "PARKED"


class EntryWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new state of a journal entry. `None` leaves a recorded value unchanged.

    `index`: identifies the entry within its run, in the order in which entries first began. `done`: its completion
    number. `limit_in`: the time after which the reaper may end the attempt. `new`: a hint that the entry is not
    recorded yet, with which a store may write it faster.
    """

    index: int
    key: str
    kind: EntryKind
    name: str
    status: StepStatus
    attempt: int = 1
    began_ago: int = 0
    done: int | None = None
    wake_in: int | None = None
    limit_in: int | None = None
    input: str | None = None
    output: str | None = None
    failure: str | None = None
    options: str | None = None
    new: bool = False


class AttemptWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt that did not succeed, with the decision that followed."""

    index: int
    attempt: int
    end: AttemptEnd
    began_ago: int = 0
    category: str | None = None
    failure: str | None = None
    decision: str | None = None
    next_in: int | None = None


class RunWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new state of a run.

    `wake_in`: the delay after which workers may claim it; None if they may not. `release`: its worker gives it up.
    `take`: raises the fence, so that processes which read the run before can write nothing more about it; every
    release does that. `deaths`, `diverged`, `parked_on`, `ends_as`: None leaves the stored value unchanged, and ""
    clears `parked_on`. `ends_as`: the status after a rollback. `seen`: the number of wake-ups that the worker has
    seen; if the run has more by now, it is due at once.
    """

    status: RunStatus
    wake_in: int | None = None
    release: bool = True
    take: bool = False
    output: str | None = None
    failure: str | None = None
    deaths: int | None = None
    diverged: bool | None = None
    parked_on: str | None = None
    ends_as: RunStatus | None = None
    seen: int | None = None


class WaitWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An open wait of a run, for lists and for those who wake it. `subject`: the name of the event, for instance."""

    index: int
    kind: str
    subject: str


class QuestionWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A question to people that is asked by the journal entry at `index`.

    `people` and `apart_from` are JSON lists of names, `shown` is JSON, `schema` a JSON Schema. `plan`: the steps that
    are due while the question is open; the first is due after `next_in`.
    """

    public_id: str
    index: int
    key: str
    run_id: str
    workflow: str
    kind: QuestionKind
    question: str
    schema: str
    role: str | None = None
    people: str = "[]"
    apart_from: str = "[]"
    shown: str | None = None
    due_in: int | None = None
    next_in: int | None = None
    plan: str | None = None
    notify: str | None = None


class QuestionEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of an open question. `by`, `answer` (JSON) and `note`: those of a user's decision on a compensation."""

    index: int
    status: QuestionStatus
    by: str | None = None
    answer: str | None = None
    note: str | None = None


class EventUse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The journal entry that took an event of the run, or set it aside because its payload did not fit."""

    seq: int
    index: int
    refused: str | None = None


class StatusNoteWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The latest status that the code of a run set: a text, a share between 0 and 1, and JSON data."""

    text: str
    progress: float | None = None
    data: str | None = None


class LetterWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The dead letter of a run; a second one for the same run reopens the first.

    `message` is the beginning of the error message, which searches read without parsing the whole failure.
    """

    public_id: str
    code: str
    stage: str
    category: str
    reason: str
    failure: str
    fingerprint: str
    expires_in: int
    payload_hash: str
    message: str = ""
    step: str | None = None
    step_index: int | None = None
    attempts: int = 0


class LetterStatusWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new status of a dead letter. `by`, `resolution`: who closed it, and why. `run`: the run it belongs to now.

    OPEN reopens a closed letter, which is kept for `expires_in` from now. Other statuses leave a closed one unchanged.
    """

    letter: str
    status: LetterStatus
    by: str | None = None
    resolution: str | None = None
    run: str | None = None
    expires_in: int | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run to start. The caller makes `public_id`, so that the store recognises a repeated request.

    `key`: the encoded idempotency key. `key_hash`: the hash of the input it was used with. `key_maker`: the credential
    that requests the run; None for a process that uses the store directly. `options`: the snapshot from which
    processes without the code decide. `replay_of`: the run that this one replays. `root`: the first run of that
    chain. `letter`: the dead letter that the replay resolves. `index`: pairs of field and value to search by.
    `handler_for`: the run whose failure this one handles. `owner`: the run whose end cancels this one.
    """

    public_id: str
    tenant: str
    workflow: str
    input: str
    options: str
    queue: str = "default"
    priority: int = 0
    delay: int = 0
    timeout: int | None = None
    deadline: int | None = None
    version: str = ""
    correlation_id: str | None = None
    parent: str | None = None
    key: str | None = None
    key_hash: str | None = None
    key_keeps: int = 0
    key_maker: str | None = None
    root: str | None = None
    replay_of: str | None = None
    generation: int = 0
    letter: str | None = None
    index: tuple[tuple[str, str], ...] = ()
    handler_for: str | None = None
    owner: str | None = None


class ReopenWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The changes that let an ended run continue. Its timeout starts again.

    `letter`: the dead letter that this replay resolves. `supersedes`: indexes of entries that no longer count.
    `loosens`: indexes of entries whose results stand, but that the function need not request again. `sole_step`: the
    key of the only entry that may begin. `new_operation`: outside services see new idempotency keys. `index`: the new
    pairs to search by; None leaves them unchanged.
    """

    letter: str
    supersedes: tuple[int, ...] = ()
    loosens: tuple[int, ...] = ()
    sole_step: str | None = None
    input: str | None = None
    options: str | None = None
    new_operation: bool = False
    index: tuple[tuple[str, str], ...] | None = None


class ReplayWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's decision to replay, and the run that executes it.

    `digest`: equal for equal decisions. `key`: distinguishes equal decisions. `changes`: the edits of the input.
    """

    letter: str
    mode: str
    digest: str
    request: str
    run_id: str
    by: str
    reason: str | None = None
    key: str | None = None
    changes: str | None = None


class MessageWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to publish. Its id is derived from its run, entry and number, so a repeat has the same id."""

    public_id: str
    topic: str
    payload: str
    run_id: str
    correlation_id: str
    key: str | None = None
    trace: str | None = None


class AuditWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of the audit log. `subject`: the run, policy or workflow concerned.

    `token`: identifies an entry that is sent twice; an entry in a transition needs none.
    """

    event: str
    tenant: str
    by: str
    subject: str
    letter: str | None = None
    before: str | None = None
    after: str | None = None
    reason: str | None = None
    token: str | None = None


class CircuitSampleWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a call that a circuit admitted. `good`: None if it says nothing about the dependency.

    `settings`: the circuit's settings in the code. `probe`: the call held a permit, which it returns.
    """

    key: str
    settings: str
    generation: int
    index: int
    attempt: int
    good: bool | None
    category: str | None = None
    probe: bool = False


class Transition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one decision writes about one run.

    `fence`: the store refuses the transition if the run's fence has risen since. `only_if`: index and attempt of the
    entry that must still be executing; set by a process that does not hold the run. `closes`: cancels all open entries.
    `clears_suspicion`: resets the count of worker deaths. `version`: the version of the code, where it is new for this
    run. `reopens`, `replay`: a user's replay. `starts`: new runs, which replay this run or handle its failure.
    `ends_replay`: the letter whose replay ends with `change`. `samples`: written for circuits. `messages`: published to
    every sink that the store knows at that time. `waits`: waits that begin. `ended_waits`: indexes of waits that end.
    `uses`: events that were taken or set aside. `expires`: index and seen wake-ups of a wait whose limit has passed;
    the transition is refused if the limit is not reached, or if another wake-up came first. `questions`,
    `question_ends`: questions to people that begin and end. `closes`, and every end of a run but success, withdraws its
    open questions.
    """

    run: int
    tenant: str
    fence: int
    entries: tuple[EntryWrite, ...] = ()
    attempts: tuple[AttemptWrite, ...] = ()
    change: RunWrite | None = None
    letter: LetterWrite | None = None
    move: LetterStatusWrite | None = None
    reopens: ReopenWrite | None = None
    starts: tuple[NewRun, ...] = ()
    replay: ReplayWrite | None = None
    ends_replay: str | None = None
    audit: tuple[AuditWrite, ...] = ()
    messages: tuple[MessageWrite, ...] = ()
    only_if: tuple[int, int] | None = None
    closes: bool = False
    clears_suspicion: bool = False
    version: str | None = None
    samples: tuple[CircuitSampleWrite, ...] = ()
    waits: tuple[WaitWrite, ...] = ()
    ended_waits: tuple[int, ...] = ()
    uses: tuple[EventUse, ...] = ()
    expires: tuple[int, int] | None = None
    note: StatusNoteWrite | None = None
    questions: tuple[QuestionWrite, ...] = ()
    question_ends: tuple[QuestionEnd, ...] = ()


class TransitionResult(msgspec.Struct, frozen=True, gc=False):
    """The store's answer to a transition. `kept`: False if the fence had risen.

    `bundled`: the number and the bundle of each message; None for a message that is in no bundle.
    """

    kept: bool
    now: int
    bundled: tuple[tuple[int, Bundle] | None, ...] = ()
