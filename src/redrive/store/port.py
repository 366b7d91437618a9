"""What the engine asks of a store: few calls, batch-shaped, one transaction each, safe to repeat.

Three rules hold for every implementation and are proved by one conformance suite:

* **Time** is the store's own. Callers pass delays in microseconds; rows hold microseconds since 1970.
* **Fences.** `apply` writes a transition only if the run still carries the transition's fence (and the
  worker, if named, is still alive), under a lock that conflicts with changing either.
* **Repeats.** A call whose reply was lost may be sent again; the second one changes nothing more.

Errors: `StoreUnavailable` means "repeat it", `DataRefused` means "one of these rows is at fault".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from redrive.core.index import index_text
from redrive.core.journal import EntryRow
from redrive.core.keys import letter_id
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transition import Answer, AttemptEnd, AuditWrite, NewRun, Transition
from redrive.errors import InputError

Item = TypeVar("Item")

__all__ = [
    "AttemptRow",
    "AuditFilter",
    "AuditRow",
    "AuditWrite",
    "Beat",
    "Case",
    "Catalogue",
    "CatalogueItem",
    "Claim",
    "Claimed",
    "Claims",
    "EntryRow",
    "GroupFilter",
    "GroupPage",
    "GroupRow",
    "HeldRun",
    "KnownItem",
    "Lane",
    "LeaseLine",
    "LetterFilter",
    "LetterRow",
    "ItemMark",
    "NewRun",
    "NewSet",
    "NewWorker",
    "Page",
    "PolicyRow",
    "Purge",
    "ReplayRow",
    "RunFilter",
    "RunRow",
    "SetItemRow",
    "SetItemStatus",
    "SetRow",
    "SetStatus",
    "Started",
    "Store",
    "Transaction",
    "Triage",
    "WorkerRow",
]


@dataclass(frozen=True, slots=True)
class Started:
    """The accepted run: new, the one an equal key already named, or a clash (same key, other input)."""

    public_id: str
    new: bool
    clash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One try that did not succeed, as recorded."""

    index: int
    attempt: int
    fence: int
    end: AttemptEnd
    began_at: int
    ended_at: int
    category: str | None
    failure: str | None
    decision: str | None
    next_at: int | None
    worker: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as recorded, without its payloads unless they were asked for."""

    id: int
    public_id: str
    tenant: str
    workflow: str
    queue: str
    priority: int
    status: RunStatus
    fence: int
    worker: int | None
    available_at: int | None
    deadline: int | None
    deaths: int
    version: str
    created_at: int
    started_at: int | None
    finished_at: int | None
    correlation_id: str | None
    parent: str | None
    root: str | None
    replay_of: str | None
    generation: int
    parked_on: str | None
    diverged_at: int | None
    letter: str | None = None
    timeout: int | None = None
    input: str | None = None
    options: str | None = None
    output: str | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """One dead letter as recorded."""

    id: int
    public_id: str
    tenant: str
    run: int
    run_id: str
    workflow: str
    status: LetterStatus
    code: str
    stage: str
    category: str
    reason: str
    failure: str
    fingerprint: str
    payload_hash: str
    input: str
    options: str
    step: str | None
    step_index: int | None
    attempts: int
    replay_count: int
    owner: str | None
    correlation_id: str | None
    version: str
    created_at: int
    failed_at: int
    closed_at: int | None
    closed_by: str | None
    resolution: str | None
    expires_at: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRow:
    """One replay of a letter as recorded; `outcome` is how its run ended, None while it goes on."""

    number: int
    letter: str
    mode: str
    digest: str
    request: str
    run_id: str
    by: str
    reason: str | None
    key: str | None
    changes: str | None
    at: int
    ended_at: int | None
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One line of the audit log as recorded."""

    id: int
    tenant: str
    at: int
    event: str
    by: str
    subject: str
    letter: str | None
    before: str | None
    after: str | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that ended, with its letter and all that deciding about a replay takes.

    `replays` are the decisions taken so far, in order of time.
    """

    run: RunRow
    letter: LetterRow | None
    journal: tuple[EntryRow, ...]
    replays: tuple[ReplayRow, ...]

    @property
    def subject(self) -> str:
        """The id of the letter, whether it was ever written or not."""
        return (
            self.run.letter or letter_id(self.run.public_id) if self.letter is None else self.letter.public_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Triage:
    """What a person notes on a letter without deciding about its run. `None` leaves things as they are.

    A comment is a line of the audit log and nothing else.
    """

    letter: str
    audit: AuditWrite
    owner: str | None = None
    tags: tuple[str, ...] | None = None


def _as_micros(filter: RunFilter | LetterFilter | AuditFilter, *names: str) -> None:
    """People give datetimes; rows hold microseconds since 1970."""
    for name in names:
        value = getattr(filter, name)
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise InputError(f"{name} needs a time zone, for example datetime.now(UTC)")
            object.__setattr__(filter, name, int(value.timestamp() * 1_000_000))


def _refuse_empty(filter: RunFilter | LetterFilter) -> None:
    """An empty text is a slip: as a filter it would mean nothing, or everything."""
    if getattr(filter, "text", None) == "":
        raise InputError("text is empty; leave it out to look for everything")


def _as_tuple(filter: RunFilter | LetterFilter) -> None:
    """People give one state, or several in whatever holds them."""
    if filter.status is not None and not isinstance(filter.status, str | tuple):
        object.__setattr__(filter, "status", tuple(filter.status))


def _as_texts(filter: RunFilter | LetterFilter) -> None:
    """People give a value for each field of the index, or several of which any will do; rows hold texts."""
    given = filter.index
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise InputError(f"index takes an object from field to value, not {given!r:.60}")
    texts = {
        field: tuple(map(index_text, value if isinstance(value, tuple | list) else [value]))
        for field, value in given.items()
    }
    object.__setattr__(filter, "index", texts or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. What is left out does not filter; no tenant means all tenants.

    `index` gives values of fields that the workflow declared to be searched by.
    """

    tenant: str | None = None
    workflow: str | None = None
    status: RunStatus | str | Sequence[RunStatus | str] | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    index: Mapping[str, Any] | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _as_micros(self, "since", "until")
        _as_texts(self)
        _as_tuple(self)
        _refuse_empty(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters to list. What is left out does not filter; no tenant means all tenants.

    `index` gives values of fields that the workflow declared to be searched by.
    """

    tenant: str | None = None
    status: LetterStatus | str | Sequence[LetterStatus | str] | None = None
    code: str | None = None
    stage: str | None = None
    category: str | None = None
    workflow: str | None = None
    step: str | None = None
    fingerprint: str | None = None
    owner: str | None = None
    tag: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None
    text: str | None = None
    index: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _as_micros(self, "since", "until")
        _as_texts(self)
        _as_tuple(self)
        _refuse_empty(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines of the audit log to list. `event` may end in `.` for all events of a kind."""

    tenant: str | None = None
    event: str | None = None
    by: str | None = None
    subject: str | None = None
    letter: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _as_micros(self, "since", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Which failure groups to list: those with open letters, or with `status=None` all of them."""

    tenant: str | None = None
    status: LetterStatus | str | None = LetterStatus.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """The letters of one tenant that have one cause, counted.

    `id` is its place in the list, which changes when it is seen again. `trend` counts failures by hour, the
    oldest first and the present hour last. `letter` is one of them, with what it says.
    """

    id: int
    tenant: str
    fingerprint: str
    workflow: str
    step: str | None
    open: int
    total: int
    first_seen: int
    last_seen: int
    trend: tuple[int, ...]
    letter: str | None
    reason: str | None
    code: str | None
    category: str | None


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A page of a list, newest first, with cursors to its neighbours."""

    items: list[Item]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """A page of failure groups, the one seen last first. All that happened before `as_of` is counted."""

    items: list[GroupRow]
    next: str | None
    prev: str | None
    as_of: int


class SetStatus(StrEnum):
    """Whether letters of a set are still to be decided on."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    STOPPED = "STOPPED"


class SetItemStatus(StrEnum):
    """What became of a set's decision on one letter."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSet:
    """Letters to decide on together: those that are open now and match `where`, or those that are named.

    `public_id` is made by the caller, so that a repeat is recognised. `action` is REPLAY, RESOLVE or IGNORE,
    `request` what a replay is asked to do. No tenant ("") means letters of all tenants.
    """

    public_id: str
    tenant: str
    action: str
    by: str
    reason: str | None = None
    request: str | None = None
    where: LetterFilter | None = None
    letters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRow:
    """A set as recorded. `total` grows until all its letters are `listed`."""

    id: int
    public_id: str
    tenant: str
    action: str
    status: SetStatus
    by: str
    reason: str | None
    request: str | None
    wanted: str | None
    listed: bool
    total: int
    done: int
    failed: int
    created_at: int
    ended_at: int | None
    closed_by: str | None
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItemRow:
    """One letter of a set: the run that its replay let go on, or why the decision was refused."""

    id: int
    letter: str
    status: SetItemStatus = SetItemStatus.PENDING
    run_id: str | None = None
    error: str | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemMark:
    """What became of the decision on a letter of a set, named by its number there."""

    id: int
    status: SetItemStatus
    run_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueItem:
    """What is known of one registered workflow or step."""

    name: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownItem:
    """A workflow or step as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A worker process that wants to claim runs."""

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker as recorded."""

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of due work that is served in turn with the others: see `core.fair`."""

    tenant: str
    queue: str
    rank: int
    workflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's wish for up to `capacity` due runs of these workflows.

    Lanes are visited in turn, starting after `after`; at most one suspect is taken, and only if
    `suspect` says that the worker holds none.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that is now this worker's, with all it takes to execute it."""

    id: int
    public_id: str
    tenant: str
    workflow: str
    fence: int
    version: str
    input: str
    options: str
    deadline: int | None
    deaths: int
    correlation_id: str | None
    root: str | None
    generation: int
    created_at: int
    diverged_at: int | None
    letter: str | None = None
    sole_step: str | None = None
    status: RunStatus = RunStatus.RUNNING
    journal: tuple[EntryRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a claim brought, how long until the next run is due (if any is known), and where to go on."""

    runs: list[Claimed]
    now: int
    next_in: int | None
    after: Lane | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer to a heartbeat: `alive` is False once the worker was declared dead."""

    alive: bool
    held: frozenset[int]
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRun:
    """A run that a dead worker held, that passed its deadline, or whose step hangs.

    `open` are its entries that have not ended: attempts under way, retries and sleeps that wait.
    """

    run: RunRow
    worker: int | None
    open: tuple[EntryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """A stored retry policy. Empty strings mean "any"."""

    tenant: str
    workflow: str
    step: str
    policy: str
    updated_at: int
    updated_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """How long things are kept, in microseconds, and how many rows one call may remove."""

    runs: int
    letters: int
    workers: int
    limit: int
    audit: int = 365 * 86_400_000_000


class LeaseLine(Protocol):
    """A worker's own connection for heartbeats, used from the lease's thread only."""

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> Beat:
        """Renew the lease; note the heartbeats of steps, keyed by (run, entry index)."""

    def close(self) -> None:
        """Give the connection back."""


class Transaction(Protocol):
    """The transaction of one transactional step, on a connection of its own."""

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return its rows."""

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row."""

    async def commit(self, worker: int, transition: Transition) -> Answer:
        """Record the step as the transaction's last act and commit; roll back if the fence is gone."""

    async def rollback(self) -> None:
        """Undo everything. Harmless after `commit`."""


class Store(Protocol):
    """The whole port."""

    async def open(self, *, migrate: bool = True) -> None:
        """Connect; bring the schema up to date if that is safe, otherwise say what to do."""

    async def close(self) -> None:
        """Let go of every connection."""

    def now(self) -> int:
        """The store's time in microseconds since 1970, as well as this process knows it."""

    def change_token(self) -> int:
        """A number that changes when another process commits; the bell between processes."""

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started]:
        """Accept runs, each together with its idempotency key."""

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        """Register a worker and what its code contains; return the worker's id."""

    async def retire(self, worker: int) -> None:
        """Mark a worker as stopped. Runs it still holds are orphans at once."""

    async def workers(self) -> list[WorkerRow]:
        """All workers still known, newest first."""

    def lease_line(self) -> LeaseLine:
        """Open the connection for one worker's heartbeats."""

    async def claim(self, claim: Claim) -> Claims:
        """Give a live worker due runs, each under a fence one higher than before."""

    async def apply(self, transitions: Sequence[Transition], *, worker: int | None = None) -> list[Answer]:
        """Write each transition whose fence still holds; one commit for all of them."""

    def transaction(self, limit: float) -> Transaction:
        """A transaction for one step; it begins at its first statement and lasts at most `limit` seconds."""

    # -- chores --------------------------------------------------------------------------------------

    async def bury(self) -> list[WorkerRow]:
        """Declare workers dead whose lease has run out; return all dead or stopped ones that hold runs."""

    async def held(self, worker: int) -> list[HeldRun]:
        """The runs a worker holds, with their open entries."""

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        """Runs in which an attempt passed its limit by more than `margin`.

        The limit is set by the begin mark of the present claim (`limit_in`); where the step's options
        name a heartbeat timeout, each heartbeat moves it on, up to the step's own timeout.
        """

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        """Unfinished runs that passed their deadline by more than `margin`."""

    async def expiring(self, limit: int) -> list[RunRow]:
        """Runs whose open letters nobody decided on in time."""

    async def purge(self, purge: Purge) -> int:
        """Remove what was kept long enough; return the number of rows removed."""

    async def fold(self, limit: int) -> int:
        """Add up to `limit` changes of letters to the failure groups; return how many there were.

        Any number of nodes may do so at once; each change is added once.
        """

    async def claim_set(self, lease: int) -> SetRow | None:
        """Take a set that nobody works on, for as long as the lease lasts; the one that waited longest."""

    async def advance(
        self, set: SetRow, marks: Sequence[ItemMark], *, limit: int, lease: int
    ) -> list[SetItemRow] | None:
        """Note what became of letters of a set; return the next ones, which may be none for the moment.

        None if there is nothing more to do for the caller: the set is done, was stopped, or is another's.
        What was decided is noted in any case. A set with a filter is listed along the way.
        """

    # -- people --------------------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        """Note something on a letter; False if there is no such letter."""

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        """Add lines to the audit log."""

    async def begin_set(self, new: NewSet, audit: AuditWrite) -> None:
        """Accept a set of letters to decide on."""

    async def stop_set(self, public_id: str, audit: AuditWrite) -> bool:
        """Let no further letter of a set be decided on; False if it is over already."""

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        """One run with its payloads."""

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        """Several runs with their payloads, for those who wait for results."""

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        """A page of runs, newest first."""

    async def journal(self, run: int) -> list[EntryRow]:
        """All entries of a run, superseded ones too, in order of their index."""

    async def attempts(self, run: int) -> list[AttemptRow]:
        """All tries of a run that did not succeed, in order of time."""

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        """One dead letter."""

    async def letter_of(self, run: int) -> LetterRow | None:
        """The dead letter of a run."""

    async def cases(self, ids: Sequence[str]) -> list[Case]:
        """What deciding about these takes, each named by its letter's or its run's id, if they exist.

        All of it as of one moment: a letter that is open belongs to a run with the fence it was opened under.
        """

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        """A page of the audit log, newest first."""

    async def known(self, names: Sequence[str]) -> list[KnownItem]:
        """The workflows and steps of these names, as far as any code registered them."""

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        """A page of dead letters, newest first."""

    async def count_letters(self, where: LetterFilter) -> int:
        """How many letters match."""

    async def set_of(self, public_id: str) -> SetRow | None:
        """One set of letters."""

    async def set_items(
        self, set: SetRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[SetItemRow]:
        """A page of a set's letters, the last ones first."""

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        """A page of failure groups, the one seen last first."""

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        """Due runs by workflow (counted up to 1,000) that nobody can claim.

        Those are runs of workflows which neither a live worker has registered nor the caller names here.
        """

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        """All stored retry policies."""

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        """Store a policy, replacing the one with the same tenant, workflow and step."""

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        """Remove a policy; False if there was none, and then nothing is noted."""

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        """Let no run of the workflow be claimed until it is resumed."""

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        """Undo `pause`; nothing is noted if it was not paused."""

    async def paused(self) -> dict[str, str]:
        """Paused workflows and who paused them."""
