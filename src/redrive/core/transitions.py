"""What is to be written: a fenced bundle of rows that commit together or not at all.

`decide` makes transitions, people make them through the desk, and the store applies them without
asking what they mean. Times are delays in microseconds, because only the store knows what time it
is: `wake_in=5_000_000` becomes "due five seconds after the store's now", `began_ago` the reverse.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.core.outbox import Bundle
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus


class AttemptEnd(StrEnum):
    """How a try of a step ended, other than by success (which the journal entry itself records).

    PARKED is no try at all, and has the number 0: the circuit was open, so that nothing was called.
    """

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"
    RELEASED = "RELEASED"
    CANCELLED = "CANCELLED"
    PARKED = "PARKED"


class EntryWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One journal entry as it shall stand. `None` leaves a recorded value as it is.

    `index` (order of first begin) identifies the entry within its run; `done` is its completion
    number; `limit_in` says when the reaper may end the attempt for a worker that does not.
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


class AttemptWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One try that did not succeed, with the decision that followed (rendered in words when read)."""

    index: int
    attempt: int
    end: AttemptEnd
    began_ago: int = 0
    category: str | None = None
    failure: str | None = None
    decision: str | None = None
    next_in: int | None = None


class RunWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The run's new state.

    `wake_in`: due for a claim after that long; `None`: not claimable. `release`: no worker holds it
    any longer. `take`: raise the fence, so that whoever held it, or read it before, can write nothing
    more about it; whatever releases a run does that.
    `deaths`, `diverged`, `parked_on`: `None` leaves them as they are ("" clears `parked_on`).
    `ends_as`: what the run becomes when everything is undone; `None` leaves that alone, too.
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


class LetterWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The dead letter of a run; a second one for the same run reopens the first."""

    public_id: str
    code: str
    stage: str
    category: str
    reason: str
    failure: str
    fingerprint: str
    expires_in: int
    payload_hash: str
    step: str | None = None
    step_index: int | None = None
    attempts: int = 0


class LetterStatusWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A letter's new status. `by` and `resolution` say how it was closed; `run` hands it to another run."""

    letter: str
    status: LetterStatus
    by: str | None = None
    resolution: str | None = None
    run: str | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run to be accepted. `public_id` is made by the caller, so that a repeat is recognised.

    `key` is the encoded idempotency key, `key_hash` the hash of the input it stands for. `key_maker` names
    the credential that asks for the run, None for a process that works on the store itself.
    `options` is the snapshot from which processes without the code decide. A run that replays another
    names it in `replay_of`, the first of them all in `root`, and the letter it answers for in `letter`.
    `index` holds what it can be searched by, as pairs of field and value. `handler_for` is the engine's mark
    on what handles the failure of a run: the id of that run.
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


class ReopenWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a person changes about a run that has ended, so that it goes on. Its timeout begins anew.

    `supersedes`: the entries, by index, that no longer count. `loosens`: those that still answer whoever
    asks for them, but that the function need not come by again. `sole_step`: the key of the only entry
    that may begin, the run stops before any other. `new_operation`: outside services see new keys.
    `letter`: what hears how it ends. `index`: what it can be searched by from now on; None leaves that alone.
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
    """A person's decision to replay: what was asked for, and which run came of it.

    `digest` is equal for equal decisions, `key` names one decision among equal ones, `changes` is how the
    edited input differs.
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
    """A message to be published. Its id follows from its run, entry and number: a repeat is the same one."""

    public_id: str
    topic: str
    payload: str
    run_id: str
    correlation_id: str
    key: str | None = None
    trace: str | None = None


class AuditWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of the audit log. `subject` is the run, policy or workflow that it is about.

    `token` makes a line that is sent again the same line; what travels in a transition needs none.
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
    """How a call ended that a circuit let through: `good`, bad, or None where that says nothing about it.

    `settings` is the circuit as the code has it. `probe`: the call held a permit, which it gives back.
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
    """Everything one decision writes about one run, guarded by the fence it was made under.

    `only_if`: the entry's index and attempt that must still be under way, because the decision is about
    them and was made by somebody who looked before. `closes`: entries that are still open are cancelled.
    `clears_suspicion`: deaths laid to the run are forgotten. `version`: the code that wrote this, where
    it is another than recorded the run so far. `reopens`, `replay`: a person's replay. `starts`: new runs,
    one that replays this one or those that handle its failure. `ends_replay`: the letter whose replay ends
    as `change` says. `marks`: what a circuit is to hear of the call that ended. `messages` are
    published with it, to every sink that the store knows then.
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
    marks: tuple[CircuitSampleWrite, ...] = ()


class TransitionResult(msgspec.Struct, frozen=True, gc=False):
    """What became of a transition: `kept`, or refused because the run belongs to another by now.

    `bundled` has, for each of its messages, the number it got and the bundle it is in, if it is in one.
    """

    kept: bool
    now: int
    bundled: tuple[tuple[int, Bundle] | None, ...] = ()
