"""The overview of a tenant: waiting, running and late runs, open letters, and runs over time; counts are bounded."""

from __future__ import annotations

from datetime import datetime

import msgspec

from redrive.clock import MICROS
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.store.filters import GroupFilter, LetterFilter, RunFilter
from redrive.store.groups import GroupTotals
from redrive.store.port import DeskStore
from redrive.store.result_page import OLDEST_CURSOR
from redrive.store.runs import RunCounts
from redrive.time_values import to_datetime

MAX_COUNTED_RUNS = 1_000  # an exact count reads every run in the state: seconds, if a million wait
"""The highest count of runs in one state."""

_MAX_CHARTED_RUNS = 20_000  # the chart of a busier time covers its newest runs only, so that the page loads quickly
_MINUTE_MICROS = 60 * MICROS
_MAX_RETRYING = 12  # as many as the page has room for
FAILED_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT})
"""The statuses of runs that count as failed."""


class RetryingStep(msgspec.Struct, frozen=True, kw_only=True):
    """A failed step whose next attempt is scheduled."""

    run_id: str
    workflow: str
    tenant: str
    step: str
    attempt: int
    next_at: datetime


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one tenant, or of all. Counts of runs end at `MAX_COUNTED_RUNS`.

    `open_letters` are those whose cause is not muted; `causes` counts all causes.
    """

    open_letters: int
    causes: GroupTotals
    oldest_letter: datetime | None
    running: int
    sleeping: int
    waiting: int
    late: int
    late_since: datetime | None
    retrying: tuple[RetryingStep, ...]
    runs: RunCounts


async def load_overview(store: DeskStore, tenant: str | None, *, seconds: int, slots: int) -> Overview:
    """Read the overview of one tenant, or of all. Runs are counted in slots of so many seconds."""
    now = store.now()
    oldest = await store.letters(LetterFilter(tenant=tenant, status=LetterStatus.OPEN), limit=1, cursor=OLDEST_CURSOR)
    waiting = await store.run_summaries(
        RunFilter(tenant=tenant, status=RunStatus.PENDING), most=MAX_COUNTED_RUNS, oldest=True
    )
    due = [run.available_at for run in waiting if (run.available_at or now) < now - _MINUTE_MICROS]
    causes = await store.group_totals(GroupFilter(tenant=tenant))
    return Overview(
        open_letters=causes.need_attention,
        causes=causes,
        oldest_letter=to_datetime(oldest.items[0].failed_at) if oldest.items else None,
        running=await _count_runs(store, tenant, RunStatus.RUNNING),
        sleeping=await _count_runs(store, tenant, RunStatus.SLEEPING),
        waiting=len(waiting),
        late=len(due),
        late_since=to_datetime(min(at for at in due if at is not None)) if due else None,
        retrying=await _list_retrying_steps(store, tenant),
        runs=await store.run_counts(RunFilter(tenant=tenant), seconds=seconds, slots=slots, most=_MAX_CHARTED_RUNS),
    )


async def _count_runs(store: DeskStore, tenant: str | None, status: RunStatus) -> int:
    return len(await store.run_summaries(RunFilter(tenant=tenant, status=status), most=MAX_COUNTED_RUNS))


async def _list_retrying_steps(store: DeskStore, tenant: str | None) -> tuple[RetryingStep, ...]:
    where = RunFilter(tenant=tenant, status=RunStatus.SLEEPING)
    page = await store.runs(where, limit=_MAX_RETRYING, cursor=None)
    found = [
        RetryingStep(
            run_id=case.run.public_id,
            workflow=case.run.workflow,
            tenant=case.run.tenant,
            step=entry.name,
            attempt=entry.attempt,
            next_at=to_datetime(entry.wake_at),
        )
        for case in await store.cases([run.public_id for run in page.items])
        for entry in case.journal
        if entry.status is StepStatus.RETRYING and entry.wake_at is not None and not entry.superseded
    ]
    return tuple(sorted(found, key=lambda each: each.next_at))
