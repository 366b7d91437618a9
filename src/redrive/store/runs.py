"""Runs: their records, the calls that read them, and what both databases share when they write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from redrive.clock import MICROS
from redrive.core.journal import EntryRow
from redrive.core.keys_and_ids import decode_key
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, AuditWrite, EntryWrite, NewRun
from redrive.record_fields import field_names, replace
from redrive.store.claims import ClaimedRun
from redrive.store.filters import RunFilter
from redrive.store.list_query import ListQuery, detect_popular, filter_values, parse_states
from redrive.store.result_page import Page, PageRequest, Window
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("runs.sql")

ENDED_STATUSES = frozenset(
    {StepStatus.SUCCESS, StepStatus.FAILED, StepStatus.DLQ, StepStatus.SKIPPED, StepStatus.CANCELLED}
)
"""Statuses of journal entries that have ended."""

_KINDS = {kind.value: kind for kind in EntryKind}
_STEPS = {status.value: status for status in StepStatus}
_RUNS = {status.value: status for status in RunStatus}


class StartResult(msgspec.Struct, frozen=True, gc=False):
    """The accepted run: a new one, the one that an equal key names, or a clash (same key, other input).

    `maker` is the credential that bound the key of a run that is not new. `claimed` is set if the worker named
    in the call holds the run from the beginning.
    """

    public_id: str
    new: bool
    clash: bool = False
    maker: str | None = None
    claimed: ClaimedRun | None = None


class AttemptRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored attempt that did not succeed."""

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
    """A stored run. Lists leave out its input and its output. `pin`: the only version whose workers may claim it."""

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
    pin: str = ""
    input: str | None = None
    options: str | None = None
    output: str | None = None
    failure: str | None = None


class RunSummary(msgspec.Struct, frozen=True, gc=False):
    """The few columns of a run that charts of recent work need."""

    id: int
    status: RunStatus
    created_at: int
    available_at: int | None


class RunCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Runs by the time of their start, the present slot last: all that were started, and those of them that failed.

    `begin` is the beginning of the first slot. If there were too many runs, only the newest are counted: it is
    `capped`, and `since` is the start of the oldest run that is counted.
    """

    started: tuple[int, ...]
    failed: tuple[int, ...]
    begin: int
    since: int
    capped: bool

    @property
    def good(self) -> tuple[int, ...]:
        """Started runs that have not failed, by slot."""
        return tuple(all - bad for all, bad in zip(self.started, self.failed, strict=True))

    @property
    def share(self) -> float | None:
        """The share of started runs that failed, from 0 to 1; None without runs."""
        return sum(self.failed) / sum(self.started) if any(self.started) else None


_RUN_WIDTH, _ENTRY_WIDTH = len(field_names(RunRow)), len(field_names(EntryRow))


class StatusNoteRow(msgspec.Struct, frozen=True, gc=False):
    """The latest status that the code of a run set."""

    tenant: str
    at: int
    text: str
    progress: float | None
    data: str | None


class RunDesk(Protocol):
    """Calls that read runs. A tenant view answers them too."""

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        """Return a run with its payloads."""

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        """Return those of the runs that exist, with their payloads."""

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        """Return a page of runs, newest first, without inputs and outputs."""

    async def run_summaries(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunSummary]:
        """Return the newest matching runs, up to `most`; with `oldest`, the oldest ones first."""

    async def run_counts(self, where: RunFilter, *, seconds: int, slots: int, most: int) -> RunCounts:
        """Count the newest runs, up to `most`, by slots of so many seconds; the present slot is the last."""

    async def journal(self, run: int) -> list[EntryRow]:
        """Return all entries of a run in the order of their index, superseded ones included."""

    async def attempts(self, run: int) -> list[AttemptRow]:
        """Return all attempts of a run that did not succeed, in order of time."""

    async def status_note(self, run: int) -> StatusNoteRow | None:
        """Return the status that the code of a run set."""

    async def move_run(self, run: int, version: str, pin: str, audit: AuditWrite) -> bool:
        """Move a pinned run to another version of the code; return False if it is not pinned, or ended for good."""


class RunCalls:
    """Implements `RunDesk`."""

    database: Database

    @read_call()
    async def run(self, session: Session, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        row = await session.row(SQL["run"], public_id=public_id, tenant=tenant)
        return None if row is None else run_row(row)

    @read_call()
    async def runs_by_id(self, session: Session, public_ids: Sequence[str]) -> list[RunRow]:
        return await read_runs(session, public_ids)

    @read_call()
    async def runs(self, session: Session, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "runs", await detect_popular(session, filter_values(where)), run_row)
        found = await query.fetch(request.window, _wanted_states(where))
        return request.page(found.rows, found.reached)

    @read_call()
    async def run_summaries(
        self, session: Session, where: RunFilter, *, most: int, oldest: bool = False
    ) -> list[RunSummary]:
        values = await detect_popular(session, filter_values(where))
        query = ListQuery(
            session, "runs", values, lambda row: RunSummary(row[0], _RUNS[row[1]], *row[2:4]), "runs.summaries"
        )
        window = Window(most=most, above=0) if oldest else Window(most=most)
        return (await query.fetch(window, _wanted_states(where))).rows

    @read_call()
    async def run_counts(self, session: Session, where: RunFilter, *, seconds: int, slots: int, most: int) -> RunCounts:
        width = seconds * MICROS
        first = await session.now() // width - slots + 1
        where = replace(where, since=first * width)
        query = ListQuery(session, "runs", await detect_popular(session, filter_values(where)), tuple)
        rows = await query.count_by_slot(width, most)
        started, failed = Counter[int](), Counter[int]()
        for slot, all, bad, _ in rows:
            started[slot - first] += all
            failed[slot - first] += bad
        capped = started.total() >= most
        return RunCounts(
            started=tuple(started[slot] for slot in range(slots)),
            failed=tuple(failed[slot] for slot in range(slots)),
            begin=first * width,
            since=min(row[3] for row in rows) if capped else first * width,
            capped=capped,
        )

    @read_call()
    async def journal(self, session: Session, run: int) -> list[EntryRow]:
        return [entry_row(row) for row in await session.rows(SQL["journal"], run=run)]

    @write_call()
    async def move_run(self, session: Session, run: int, version: str, pin: str, audit: AuditWrite) -> bool:
        return await session.change(SQL["move_run"], audit, run=run, version=version, pin=pin)

    @read_call()
    async def status_note(self, session: Session, run: int) -> StatusNoteRow | None:
        row = await session.row(SQL["status_note"], run=run)
        return None if row is None else build_record(StatusNoteRow, row)

    @read_call()
    async def attempts(self, session: Session, run: int) -> list[AttemptRow]:
        rows = await session.rows(SQL["attempts"], run=run)
        return [build_record(AttemptRow, row, end=AttemptEnd) for row in rows]


def _wanted_states(where: RunFilter) -> Sequence[str] | None:
    """Return the states that a filter wants; None for all. Only a run that has not ended waits for anything."""
    states = parse_states(where.status, RunStatus)
    if where.waits_for is None:
        return states
    waiting = (RunStatus.SLEEPING.value, RunStatus.RUNNING.value, RunStatus.COMPENSATING.value)
    return [state for state in waiting if states is None or state in states]


async def read_runs(session: Session, public_ids: Sequence[str]) -> list[RunRow]:
    """Return those of the runs that exist, with their payloads."""
    return [run_row(row) for row in await session.rows(SQL["runs_by_id"], public_ids=list(public_ids))]


async def read_journals(session: Session, runs: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """Return the journals of these runs, superseded entries included."""
    if not runs:
        return {}
    rows = await session.rows(SQL["journals"], runs=list(runs))
    return {run: tuple([entry_row(row[1:]) for row in group]) for run, group in groupby(rows, key=itemgetter(0))}


def entry_row(row: Sequence[Any]) -> EntryRow:
    """Return a row of `entries` as a record. Columns behind the record's last field are ignored."""
    return EntryRow(row[0], row[1], _KINDS[row[2]], row[3], _STEPS[row[4]], *row[5:_ENTRY_WIDTH])


def run_row(row: Sequence[Any]) -> RunRow:
    """Return a row of `runs` with its payloads as a record. The rank is the negated priority."""
    return RunRow(*row[:5], -row[5], _RUNS[row[6]], *row[7:_RUN_WIDTH])  # type: ignore[call-arg]  # mypy lets the first star take all


def attempt_limits(entry: EntryWrite) -> tuple[int | None, int | None, int | None]:
    """Return an attempt's time limit, its heartbeat timeout, and the nearer of the two.

    They are microseconds from the store's now, like all times of a transition.
    """
    if entry.status is not StepStatus.RUNNING or entry.limit_in is None:
        return None, None, None
    if entry.options is None or (rule := _heartbeat_rule(entry.options)) is None:
        return entry.limit_in, None, entry.limit_in
    timeout, patience = rule
    timeout_in = timeout - entry.began_ago
    return timeout_in, patience, min(entry.limit_in, timeout_in, patience)


# Cached, because every begin mark of a step carries the same text.
@lru_cache(maxsize=1024)
def _heartbeat_rule(options: str) -> tuple[int, int] | None:
    """Return a step's timeout and its heartbeat timeout; None if it has no heartbeat timeout.

    Options that other code wrote in another form hold no rule; the limit that came with them still applies.
    """
    try:
        step = StepOptions.from_json(options)
    except (KeyError, TypeError, ValueError):
        return None
    if step.heartbeat_timeout is None:
        return None
    return int(step.timeout * MICROS), int(step.heartbeat_timeout * MICROS)


def claimed_at_start(run: NewRun, id: int, *, version: str, deadline: int | None, now: int) -> ClaimedRun:
    """Return a run that its worker claims by starting it. A claim would read what was just written."""
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
        queue=run.queue,
    )


def caller_key(key: str) -> str:
    """Return an idempotency key as the caller passed it: the last part of the encoded key."""
    last = key.rpartition(":")[2]
    if "%" not in last:
        return last  # nothing in it was escaped
    try:
        return decode_key(key)[1][-1]
    except (ValueError, IndexError):
        return key
