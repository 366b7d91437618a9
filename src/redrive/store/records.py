"""What goes into a store and what comes out of it: one frozen record for each kind of row or request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Generic, TypeVar

from redrive.core.journal import EntryRow
from redrive.core.keys import letter_id
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transition import AttemptEnd, AuditWrite
from redrive.frozen import dataclass
from redrive.store.workers import Claimed

__all__ = [
    "AttemptRow",
    "AuditRow",
    "Case",
    "GroupPage",
    "GroupRow",
    "HeldRun",
    "LetterRow",
    "Page",
    "PolicyRow",
    "Purge",
    "ReplayRow",
    "RunRow",
    "Started",
    "Triage",
]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Started:
    """The accepted run: new, the one an equal key already named, or a clash (same key, other input).

    `maker` is the credential that bound the key of a run that is not new.
    """

    public_id: str
    new: bool
    clash: bool = False
    maker: str | None = None
    claimed: Claimed | None = None  # if the worker that was named has it from the beginning


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
    handler_for: str | None = None
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
class LetterState:
    """How a letter stands, without what it tells: all that deciding about it takes."""

    public_id: str
    run_id: str
    tenant: str
    status: LetterStatus
    closed_by: str | None
    resolution: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that ended, with its letter and all that deciding about a replay takes.

    `replays` are the decisions taken so far, in order of time.
    """

    run: RunRow
    letter: LetterState | None
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
    failure: str | None = None


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
    """How long things are kept, in microseconds, and how many rows one call may remove.

    `keep`: of each workflow no more than so many finished runs are kept, however young the others are;
    `keeps` are the numbers of those workflows that have one of their own.
    """

    runs: int
    letters: int
    workers: int
    limit: int
    audit: int = 365 * 86_400_000_000
    messages: int = 86_400_000_000
    keep: int | None = None
    keeps: Mapping[str, int] = field(default_factory=dict)

    def numbers(self, workflows: Iterable[str]) -> dict[int, list[str]]:
        """How many are kept, with the workflows that this is true of; those without a number are left out."""
        found: dict[int, list[str]] = {}
        for name in workflows:
            if (keep := self.keeps.get(name, self.keep)) is not None:
                found.setdefault(keep, []).append(name)
        return found
