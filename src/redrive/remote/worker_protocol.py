"""The protocol between remote workers and the server, version 1: records, and outcomes as JSON.

A worker reports outcomes, never transitions. Of a run, an outcome names only the id and the fence: the server has the
tenant, the input and the options in its own rows. All other records travel as they are; the golden files of the tests
hold their form. Both sides ignore unknown fields. Durations are microseconds.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from redrive.core import outcomes
from redrive.core.failure_reason import FailureReason
from redrive.core.journal import EntryRow
from redrive.core.outcomes import EntryRef, Outcome, RunView, WorkflowReturned
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import CircuitSampleWrite, EntryWrite, NewRun, RunWrite, Transition
from redrive.reasons import Reason
from redrive.settle.settler import Settled
from redrive.store.children import AwaitedRun, Child
from redrive.store.circuits import SuccessCount
from redrive.store.claims import ClaimedRun, Lane
from redrive.store.events import Mailbox
from redrive.store.questions import AskedQuestion
from redrive.store.runs import AttemptRow
from redrive.store.workers import Catalogue
from redrive.worker.backend import RollbackCause

PROTOCOL = 1
"""The version of the protocol that this code speaks."""

WORKER_PATH = "worker"
"""The first part of the paths of all calls of remote workers, below the prefix of the API."""

WORKER_HEADER = "Redrive-Worker"
"""The header with the id of the worker, in every call after its registration."""

PROTOCOL_HEADER = "Redrive-Protocol"
"""The header with the version of the protocol, in every call."""

_WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_ENTRY_BYTES = 400  # of an entry without its payloads
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


GZIP = "gzip"
"""The feature of a server that takes compressed requests."""


class WorkerLimits(_Record, frozen=True, kw_only=True):
    """Limits of a server: bytes of a payload and of a request, outcomes in a batch, runs of a claim."""

    payload: int
    body: int
    batch: int
    claim: int


class Registration(_Record, frozen=True, kw_only=True):
    """A worker that wants to execute runs, or steps. `lease` is in microseconds. A step worker has no catalogue.

    `previous`: its id before the server declared it dead, if the worker was alive and could not reach the server.
    `keys`: the worker has encryption keys.
    """

    name: _Name
    protocols: tuple[int, ...] = (PROTOCOL,)
    catalogue: Catalogue = Catalogue(version="", workflows=(), steps=())
    lease: _Count = 30_000_000
    queues: tuple[str, ...] | None = None
    previous: _Count = 0
    keys: bool = False


class Registered(_Record, frozen=True, kw_only=True):
    """The answer to a registration. `lease` and `wait` are in microseconds; `wait` is the longest long poll.

    `features`: what this server understands beside the first version of the protocol.
    """

    worker: int
    protocol: int
    now: int
    lease: int
    wait: int
    limits: WorkerLimits
    features: tuple[str, ...] = ()


class ClaimCall(_Record, frozen=True, kw_only=True):
    """A request for up to `capacity` due runs, as in `ClaimRequest`. `keys`: the worker decrypts payloads itself.

    `max_bytes`: the size of all journals from which on the rest is left out, 0 for no limit. The worker reads the rest
    page by page.
    """

    capacity: _Count
    suspect: bool
    after: Lane | None = None
    keys: bool = False
    max_bytes: _Count = 0


class ClaimReply(_Record, frozen=True, kw_only=True):
    """The answer to a claim, as in `ClaimResult`. `unfinished`: runs whose journals continue.

    Each has the number of entries that it brought.
    """

    runs: list[ClaimedRun]
    now: int
    next_in: int | None
    after: Lane | None
    unfinished: tuple[tuple[int, int], ...] = ()


class WaitCall(_Record, frozen=True, kw_only=True):
    """A long poll until there may be work, at most `wait` microseconds."""

    wait: _Count


class WaitReply(_Record, frozen=True, kw_only=True):
    """The answer to a long poll: True if there may be work."""

    due: bool
    now: int


class Batch(_Record, frozen=True, kw_only=True):
    """Outcomes of a worker. Batches are numbered 1, 2, 3, and so on; a repeat has the same number and content."""

    number: _Count
    outcomes: list[msgspec.Raw]


class ChangeAnswer(_Record, frozen=True, kw_only=True):
    """The new state of a run, as far as its worker needs it."""

    status: RunStatus
    wake_in: int | None = None
    release: bool = True
    failure: str | None = None


class EntryAnswer(_Record, frozen=True, kw_only=True):
    """The new state of the outcome's entry, as far as its worker needs it."""

    status: StepStatus
    attempt: int
    wake_in: int | None = None
    done: int | None = None
    failure: str | None = None


class Answer(_Record, frozen=True, kw_only=True):
    """The decision on one outcome. `samples`: key and settings of circuits about which something was recorded."""

    kept: bool
    change: ChangeAnswer | None = None
    entry: EntryAnswer | None = None
    clears: bool = False
    samples: tuple[tuple[str, str], ...] = ()


class Answers(_Record, frozen=True, kw_only=True):
    """The decisions on a batch, in order."""

    number: int
    now: int
    answers: list[Answer]


class StepHeartbeat(_Record, frozen=True, kw_only=True):
    """A heartbeat of a step."""

    run: _Count
    index: _Count
    details: str | None = None


class BeatCall(_Record, frozen=True, kw_only=True):
    """A heartbeat of the worker, with those of its steps. `tickets`: those of a step worker that it still works on."""

    steps: tuple[StepHeartbeat, ...] = ()
    tickets: tuple[str, ...] = ()


class BeatReply(_Record, frozen=True, kw_only=True):
    """The answer to a heartbeat: whether the worker is alive, and which runs it holds.

    `cancelled`: tickets whose tasks the worker should stop. `drain`: the worker should begin nothing more, and end.
    `every`: microseconds until the next heartbeat, more if very many workers send some.
    """

    alive: bool
    held: list[int]
    now: int
    cancelled: tuple[str, ...] = ()
    drain: bool = False
    every: int = 0


class RetireCall(_Record, frozen=True, kw_only=True):
    """The end of a worker that stopped by itself."""


class Begun(_Record, frozen=True, kw_only=True):
    """Attempts that began, sent beside the batches while the worker's event loop is blocked."""

    outcomes: list[msgspec.Raw]


class HeldReply(_Record, frozen=True, kw_only=True):
    """A run that the worker holds."""

    id: int
    public_id: str
    tenant: str
    workflow: str
    fence: int

    def to_view(self) -> RunView:
        """Return the run with as much as releasing it needs."""
        return RunView(
            id=self.id,
            public_id=self.public_id,
            tenant=self.tenant,
            workflow=self.workflow,
            fence=self.fence,
            input="null",
            options=RunOptions(),
        )


class History(_Record, frozen=True, kw_only=True):
    """The record of a run that the worker holds. With `more`, its journal continues.

    The pages after the first have nothing but entries of the journal.
    """

    journal: list[EntryRow]
    attempts: list[AttemptRow]
    cause: RollbackCause
    children: list[Child] = []
    more: bool = False


class MailboxReply(_Record, frozen=True, kw_only=True):
    """The unread events of a run that the worker holds; None if it does not hold the run."""

    mailbox: Mailbox | None


class WakeupsCall(_Record, frozen=True, kw_only=True):
    """A request for the wake-ups of runs that the worker holds."""

    runs: tuple[_WholeNumber, ...]


class WakeupsReply(_Record, frozen=True, kw_only=True):
    """Pairs of a run and the number of its wake-ups."""

    wakeups: tuple[tuple[int, int], ...]


class AwaitedCall(_Record, frozen=True, kw_only=True):
    """A run that another one waits for, which the worker holds.

    `ends`: cancel it if it is a child that ends with its parent. `undo`: begin its rollback if it has succeeded.
    """

    run_id: _Name
    ends: bool = False
    undo: bool = False


class AwaitedReply(_Record, frozen=True, kw_only=True):
    """The run that is waited for; None if the worker does not hold the one that waits."""

    awaited: AwaitedRun | None


class AskedCall(_Record, frozen=True, kw_only=True):
    """A journal entry of a run that the worker holds, which asks people a question."""

    index: _Count


class AskedReply(_Record, frozen=True, kw_only=True):
    """The answer to the question; None if the worker does not hold the run."""

    asked: AskedQuestion | None


class StartCall(_Record, frozen=True, kw_only=True):
    """Runs to start. With `claim`, the worker holds those that are new and due."""

    runs: list[NewRun]
    claim: bool = False


class CircuitCall(_Record, frozen=True, kw_only=True):
    """A circuit about which calls were recorded."""

    tenant: str
    key: str
    settings: str


class CircuitsCall(_Record, frozen=True, kw_only=True):
    """A request for the circuits that changed since a time; `successes` are counted first, once for each `number`."""

    since: _WholeNumber | None = None
    number: _Count = 0
    successes: tuple[SuccessCount, ...] = ()


class VersionCall(_Record, frozen=True, kw_only=True):
    """A question about a version of the code of a workflow."""

    version: str
    workflow: str = ""


class VersionReply(_Record, frozen=True, kw_only=True):
    """The answer: True if a live worker has this version."""

    alive: bool


class Done(_Record, frozen=True, kw_only=True):
    """The answer to a call without a result."""

    now: int


JOURNAL_BYTES = 8 << 20
"""The size of the journals of one answer from which on the rest is left out. One entry is sent in any case."""


def count_fitting(journal: Sequence[EntryRow], most: int) -> tuple[int, int]:
    """Return how many of these entries fit into about `most` bytes, and their size."""
    size = 0
    for number, entry in enumerate(journal):
        size += _ENTRY_BYTES + sum(
            len(text) for text in (entry.input, entry.output, entry.failure, entry.heartbeat) if text is not None
        )
        if size > most:
            return number, size
    return len(journal), size


def digest_batch(body: bytes) -> str:
    """Return the digest by which a repeated batch is recognised."""
    return hashlib.sha256(body).hexdigest()


# Outcomes. Each has a short name as its tag `k`. Records with their own JSON form are texts on the wire.

OUTCOME_NAMES: dict[type[Any], str] = {
    outcomes.AttemptStarted: "began",
    outcomes.AttemptSucceeded: "returned",
    outcomes.AttemptFailed: "raised",
    outcomes.StepParked: "parked",
    outcomes.EntryCancelled: "interrupted",
    outcomes.ValueRecorded: "recorded",
    outcomes.SleepStarted: "slept",
    outcomes.SleepEnded: "woke",
    outcomes.WaitStarted: "awaits",
    outcomes.QuestionAsked: "asks",
    outcomes.WaitAnswered: "answered",
    outcomes.WaitTimedOut: "unanswered",
    outcomes.WaitFailed: "child_failed",
    outcomes.EventsRefused: "events_refused",
    outcomes.StatusNoted: "status",
    outcomes.RunIdle: "waits",
    outcomes.WorkflowReturned: "ended",
    outcomes.WorkflowFailed: "failed",
    outcomes.StepReplayEnded: "step_replayed",
    outcomes.CodeDiverged: "diverged",
    outcomes.FollowUpsPlanned: "planned",
    outcomes.ManualActionRequested: "manual",
    outcomes.ChildAwaited: "child_awaited",
    outcomes.ChildUndone: "child_undone",
    outcomes.RollbackEnded: "rolled_back",
    outcomes.RunReleased: "released",
    outcomes.DeadlinePassed: "expired",
}
"""The outcomes that a worker may report. All others are those of the engine or of users."""

_NOT_SENT = frozenset({"run", "taken", "others"})  # `taken` and `others` belong to the reaper
_ENCODERS: dict[Any, Callable[[Any], Any]] = {
    FailureReason: FailureReason.to_json,
    StepOptions: StepOptions.to_json,
    Reason: Reason.to_text,
}
_DECODERS: dict[Any, Callable[[str], Any]] = {
    FailureReason: FailureReason.from_json,
    StepOptions: StepOptions.from_json,
    Reason: Reason.from_text,
}


def _wire_type(kind: Any) -> Any:
    """Return the type of a field on the wire."""
    if kind in _ENCODERS:
        return str
    if kind is int:
        return _WholeNumber
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(_wire_type(each) for each in get_args(kind))]  # noqa: UP007 - made at run time
    return kind


def _read_fields(kind: type[Any]) -> list[tuple[str, Any, Any]]:
    """Return name, type and default of the fields of an outcome that are sent."""
    hints = get_type_hints(kind)
    found = [field for field in msgspec.structs.fields(kind) if field.name not in _NOT_SENT]
    return [(field.name, hints[field.name], field.default) for field in found]


def _make_wire_class(kind: type[Any], tag: str) -> type[msgspec.Struct]:
    # `unwritten`: the letter of a rollback is written when the run ends.
    fields: list[Any] = [("run", _Count), ("fence", _Count), ("unwritten", bool, False)]
    for name, hint, default in _FIELDS[kind]:
        wire = _wire_type(hint)
        fields.append((name, wire) if default is msgspec.NODEFAULT else (name, wire, default))
    return msgspec.defstruct(kind.__name__, fields, tag_field="k", tag=tag, kw_only=True, omit_defaults=True)


_FIELDS = {kind: _read_fields(kind) for kind in OUTCOME_NAMES}
_WIRE_CLASSES = {kind: _make_wire_class(kind, tag) for kind, tag in OUTCOME_NAMES.items()}
_KINDS = {wire: kind for kind, wire in _WIRE_CLASSES.items()}
_CODED = {
    kind: {
        name: coded for name, hint, _ in _read_fields(kind) for coded in (hint, *get_args(hint)) if coded in _ENCODERS
    }
    for kind in OUTCOME_NAMES
}
_outcome_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Union[tuple(_KINDS)])  # noqa: UP007
_encoder = msgspec.json.Encoder()


def encode_outcome(outcome: Outcome) -> bytes:
    """Return an outcome as JSON."""
    kind: type[Any] = type(outcome)
    wire = _WIRE_CLASSES[kind]
    run = outcome.run
    values = {name: getattr(outcome, name) for name, _, _ in _FIELDS[kind]}
    values["run"], values["fence"], values["unwritten"] = run.id, run.fence, run.letter_unwritten
    for name, coded in _CODED[kind].items():
        if values[name] is not None:
            values[name] = _ENCODERS[coded](values[name])
    return _encoder.encode(wire(**values))


def encode_batch(number: int, batch: Sequence[Outcome]) -> bytes:
    """Return a batch as JSON."""
    return b'{"number":%d,"outcomes":[%b]}' % (number, b",".join(map(encode_outcome, batch)))


def encode_begun(batch: Sequence[Outcome]) -> bytes:
    """Return attempts that began as JSON."""
    return b'{"outcomes":[%b]}' % b",".join(map(encode_outcome, batch))


class ReportedOutcome(msgspec.Struct, frozen=True):
    """An outcome as a worker reported it: the id and the fence of its run, and the rest as fields."""

    run: int
    fence: int
    kind: type[Any]
    unwritten: bool
    fields: Mapping[str, Any]

    def complete(self, view: RunView) -> Outcome:
        """Return the outcome with the server's own view of the run."""
        if self.unwritten:
            view = msgspec.structs.replace(view, letter_unwritten=True)
        outcome: Outcome = self.kind(run=view, **self.fields)
        return outcome


def decode_outcome(text: bytes | msgspec.Raw) -> ReportedOutcome:
    """Return an outcome that a worker sent; raise ValueError if it is none, or not one that a worker may report."""
    wire = _outcome_decoder.decode(text)
    kind = _KINDS[type(wire)]
    fields = {name: getattr(wire, name) for name, _, _ in _FIELDS[kind]}
    for name, coded in _CODED[kind].items():
        if fields[name] is not None:
            try:
                fields[name] = _DECODERS[coded](fields[name])
            except Exception as error:  # of any kind: the text is the worker's
                raise ValueError(f"{name} cannot be read: {type(error).__name__}") from None
    return ReportedOutcome(wire.run, wire.fence, kind, wire.unwritten, fields)


def make_answer(transition: Transition, kept: bool) -> Answer:
    """Return the part of a decision that the worker needs."""
    change, entry = transition.change, transition.entries[0] if transition.entries else None
    return Answer(
        kept=kept,
        change=None
        if change is None
        else ChangeAnswer(status=change.status, wake_in=change.wake_in, release=change.release, failure=change.failure),
        entry=None
        if entry is None
        else EntryAnswer(
            status=entry.status, attempt=entry.attempt, wake_in=entry.wake_in, done=entry.done, failure=entry.failure
        ),
        clears=transition.clears_suspicion,
        samples=tuple((sample.key, sample.settings) for sample in transition.samples),
    )


def read_answer(outcome: Outcome, answer: Answer, now: int) -> Settled:
    """Return an answer as the decision that a local settler would return."""
    run, place = outcome.run, getattr(outcome, "place", None)
    change = answer.change
    entries: tuple[EntryWrite, ...] = ()
    if answer.entry is not None:
        at = place or EntryRef(0, "", EntryKind.STEP, "")
        each = answer.entry
        entries = (
            EntryWrite(
                index=at.index,
                key=at.key,
                kind=at.kind,
                name=at.name,
                status=each.status,
                attempt=each.attempt,
                wake_in=each.wake_in,
                done=each.done,
                failure=each.failure,
            ),
        )
    output = outcome.output if isinstance(outcome, WorkflowReturned) else None
    transition = Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=entries,
        change=None
        if change is None
        else RunWrite(
            status=change.status, wake_in=change.wake_in, release=change.release, failure=change.failure, output=output
        ),
        clears_suspicion=answer.clears,
        samples=tuple(
            CircuitSampleWrite(key=key, settings=settings, generation=0, index=0, attempt=0, good=None)
            for key, settings in answer.samples
        ),
    )
    return Settled(answer.kept, now, transition)
