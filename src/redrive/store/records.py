"""What goes into a store and what comes out of it: one frozen record for each kind of row or request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from redrive.clock import MICROS
from redrive.core.idempotency import decode_key, letter_id
from redrive.core.journal import EntryRow
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, AuditWrite, EntryWrite, NewRun
from redrive.errors import DataRefused
from redrive.records import field_names
from redrive.store.workers import ClaimedRun

# -- What goes into a store and what comes out of it: one frozen record for each kind of row or requ -----


Item = TypeVar("Item")


class StartResult(msgspec.Struct, frozen=True, gc=False):
    """The accepted run: new, the one an equal key already named, or a clash (same key, other input).

    `maker` is the credential that bound the key of a run that is not new.
    """

    public_id: str
    new: bool
    clash: bool = False
    maker: str | None = None
    claimed: ClaimedRun | None = None  # if the worker that was named has it from the beginning


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class RunRow(msgspec.Struct, frozen=True, gc=False):
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


class LetterRow(msgspec.Struct, frozen=True, gc=False):
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


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class LetterState(msgspec.Struct, frozen=True, gc=False):
    """How a letter stands, without what it tells: all that deciding about it takes."""

    public_id: str
    run_id: str
    tenant: str
    status: LetterStatus
    closed_by: str | None
    resolution: str | None


class DecisionCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
        return self.run.letter or letter_id(self.run.public_id) if self.letter is None else self.letter.public_id


class Triage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a person notes on a letter without deciding about its run. `None` leaves things as they are.

    A comment is a line of the audit log and nothing else.
    """

    letter: str
    audit: AuditWrite
    owner: str | None = None
    tags: tuple[str, ...] | None = None


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class GroupPage(msgspec.Struct, frozen=True):
    """A page of failure groups, the one seen last first. All that happened before `as_of` is counted."""

    items: list[GroupRow]
    next: str | None
    prev: str | None
    as_of: int


class HeldRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run that a dead worker held, that passed its deadline, or whose step hangs.

    `open` are its entries that have not ended: attempts under way, retries and sleeps that wait.
    """

    run: RunRow
    worker: int | None
    open: tuple[EntryRow, ...]


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored retry policy. Empty strings mean "any"."""

    tenant: str
    workflow: str
    step: str
    policy: str
    updated_at: int
    updated_by: str


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
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
    keeps: Mapping[str, int] = msgspec.field(default_factory=dict)

    def numbers(self, workflows: Iterable[str]) -> dict[int, list[str]]:
        """How many are kept, with the workflows that this is true of; those without a number are left out."""
        found: dict[int, list[str]] = {}
        for name in workflows:
            if (keep := self.keeps.get(name, self.keep)) is not None:
                found.setdefault(keep, []).append(name)
        return found


# -- From rows to records. The order of columns here is the order in the statements that select them -----


_KINDS = {kind.value: kind for kind in EntryKind}
_STEPS = {status.value: status for status in StepStatus}
_RUNS = {status.value: status for status in RunStatus}
_LETTERS = {status.value: status for status in LetterStatus}
_RUN_WIDTH, _ENTRY_WIDTH = len(field_names(RunRow)), len(field_names(EntryRow))
_REPLAY_COLUMNS = (
    "letter", "number", "mode", "digest", "request", "run_id", "by", "reason", "key", "changes", "at",
    "ended_at", "outcome",
)  # fmt: skip
_AUDIT_COLUMNS = ("id", "tenant", "at", "event", "by", "subject", "letter", "before", "after", "reason")


def entry_row(row: Sequence[Any]) -> EntryRow:
    """One row of `entries`, whatever is behind it. Columns are in the order of the record's fields."""
    return EntryRow(row[0], row[1], _KINDS[row[2]], row[3], _STEPS[row[4]], *row[5:_ENTRY_WIDTH])


def attempt_row(row: Sequence[Any]) -> AttemptRow:
    """One row of `attempts`."""
    index, attempt, fence, end, *rest = row
    began_at, ended_at, category, failure, decision, next_at, worker = rest
    return AttemptRow(
        index=index,
        attempt=attempt,
        fence=fence,
        end=AttemptEnd(end),
        began_at=began_at,
        ended_at=ended_at,
        category=category,
        failure=failure,
        decision=decision,
        next_at=next_at,
        worker=worker,
    )


def run_row(row: Sequence[Any]) -> RunRow:
    """One row of `runs`, with or without the payloads behind it; the rank is the priority, turned round."""
    return RunRow(*row[:5], -row[5], _RUNS[row[6]], *row[7:_RUN_WIDTH])  # type: ignore[call-arg]  # mypy lets the first star take all


def letter_row(row: Sequence[Any]) -> LetterRow:
    """One row of `letters`."""
    tags = () if row[-1] == "[]" else tuple(json.loads(row[-1]))
    return LetterRow(*row[:6], _LETTERS[row[6]], *row[7:-1], tags)  # type: ignore[call-arg]  # mypy lets the first star take all


def letter_state(row: Sequence[Any]) -> LetterState:
    """The few columns of `letters` that deciding takes."""
    public_id, run_id, tenant, status, closed_by, resolution = row
    return LetterState(public_id, run_id, tenant, _LETTERS[status], closed_by, resolution)


def policy_row(row: Sequence[Any]) -> PolicyRow:
    """One row of `policies`."""
    tenant, workflow, step, policy, updated_at, updated_by = row
    return PolicyRow(
        tenant=tenant, workflow=workflow, step=step, policy=policy, updated_at=updated_at, updated_by=updated_by
    )


def replay_row(row: Sequence[Any]) -> ReplayRow:
    """One row of `replays`."""
    return ReplayRow(**dict(zip(_REPLAY_COLUMNS, row, strict=True)))


def audit_row(row: Sequence[Any]) -> AuditRow:
    """One row of `audit`."""
    return AuditRow(**dict(zip(_AUDIT_COLUMNS, row, strict=True)))


# -- What both stores make of the port's records before they write them ----------------------------------


ENDED_STATUSES = frozenset(
    {StepStatus.SUCCESS, StepStatus.FAILED, StepStatus.DLQ, StepStatus.SKIPPED, StepStatus.CANCELLED}
)
"""An entry in one of these states has ended."""


def attempt_limits(entry: EntryWrite) -> tuple[int | None, int | None, int | None]:
    """How long a try may still take, how long it may be silent, and the nearer end of the two.

    Microseconds from the store's now, as everything a transition says about time.
    """
    if entry.status is not StepStatus.RUNNING or entry.limit_in is None:
        return None, None, None
    if entry.options is None or (rule := _heartbeat_rule(entry.options)) is None:
        return entry.limit_in, None, entry.limit_in
    timeout, patience = rule
    timeout_in = timeout - entry.began_ago
    return timeout_in, patience, min(entry.limit_in, timeout_in, patience)


@lru_cache(maxsize=1024)
def _heartbeat_rule(options: str) -> tuple[int, int] | None:
    """A step's timeout and how long it may go without a heartbeat; None if it has no such rule.

    Remembered, because every begin mark of a step brings the same text. Options that other code wrote
    in another form hold no rule for us; the limit that came with them still counts.
    """
    try:
        step = StepOptions.from_json(options)
    except (KeyError, TypeError, ValueError):
        return None
    if step.heartbeat_timeout is None:
        return None
    return int(step.timeout * MICROS), int(step.heartbeat_timeout * MICROS)


def claimed_at_start(run: NewRun, id: int, *, version: str, deadline: int | None, now: int) -> ClaimedRun:
    """A run that its worker has from the beginning: what a claim would read is what was just written."""
    return ClaimedRun(
        id=id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=1,
        version=version,
        input=run.input,
        options=run.options,
        deadline=deadline,
        deaths=0,
        correlation_id=run.correlation_id,
        root=run.root,
        generation=run.generation,
        created_at=now,
        diverged_at=None,
        letter=run.letter,
        started_at=now,
        handler_for=run.handler_for,
    )


def caller_key(key: str) -> str:
    """An idempotency key as the caller gave it, the last part of the encoded one."""
    last = key.rpartition(":")[2]
    if "%" not in last:
        return last  # nothing in it was escaped
    try:
        return decode_key(key)[1][-1]
    except (ValueError, IndexError):
        return key


def triage_values(triage: Triage) -> tuple[str | None, str | None]:
    """What a person notes on a letter, the tags as a JSON array.

    Both are names to look for. SQLite ends a text in JSON at a NUL, and PostgreSQL fails to read such an
    array at all, whoever looks for whatever tag: so like every other name they hold none.
    """
    for name in (triage.owner or "", *(triage.tags or ())):
        if "\0" in name:
            raise DataRefused(f"the store refused a note: {name!r} contains a NUL character")
    # Not escaped: a lone surrogate must be refused, as everywhere else, not smuggled in as \\ud800.
    tags = None if triage.tags is None else json.dumps(triage.tags, ensure_ascii=False)
    return triage.owner, tags


# -- What a look from afar takes: how letters are spread, and how runs go, read from few columns of  -----


FACETS = ("code", "stage", "workflow", "step", "owner")
"""What letters are counted by; the columns of a `FacetRow` behind its id."""


class FacetRow(msgspec.Struct, frozen=True, gc=False):
    """One letter, as far as it is counted."""

    id: int
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Facets:
    """How letters are spread. `counted` were looked at; `by` says for each column how many have a value."""

    counted: int
    by: Mapping[str, Mapping[str, int]]


class RunSummary(msgspec.Struct, frozen=True, gc=False):
    """One run, as far as it matters to how things go."""

    id: int
    status: RunStatus
    created_at: int
    available_at: int | None


def facet_row(row: Sequence[Any]) -> FacetRow:
    """A letter's columns as they come from a store."""
    return FacetRow(row[0], tuple(row[1:]))


def run_summary(row: Sequence[Any]) -> RunSummary:
    """A run's columns as they come from a store."""
    return RunSummary(row[0], RunStatus(row[1]), row[2], row[3])


def facets_of(rows: Sequence[FacetRow]) -> Facets:
    """Count letters by each of their values, the most frequent first."""
    by: dict[str, Mapping[str, int]] = {}
    for place, name in enumerate(FACETS):
        found = Counter(row.values[place] for row in rows)
        by[name] = {value: count for value, count in found.most_common() if value is not None}
    return Facets(len(rows), by)
