"""The overview of a tenant: waiting, running and late runs, open letters, and the last hour; counts are bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

import msgspec

from redrive.clock import MICROS
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.duration import to_datetime
from redrive.store.filters import GroupFilter, LetterFilter, RunFilter
from redrive.store.groups import GroupTotals
from redrive.store.list_query import OLDEST_CURSOR
from redrive.store.port import DeskStore
from redrive.store.runs import RunSummary

MAX_COUNTED_RUNS = 1_000
"""The highest count of runs in one state."""

_MAX_HOUR_RUNS = 5_000  # runs of the last hour that are read
_MINUTES_SHOWN = 60
_MINUTE_MICROS = 60 * MICROS
_MAX_RETRYING = 12
FAILED_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT})
"""The statuses of runs that count as failed."""


class RunsPerMinute(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour by minutes, the present one last: runs that were started, and those of them that failed.

    `since` is when counting began: if there were too many runs, only the newest are counted, and it is `capped`.
    """

    started: tuple[int, ...]
    failed: tuple[int, ...]
    since: datetime
    begin: datetime
    capped: bool

    @property
    def good(self) -> tuple[int, ...]:
        """Started runs that have not failed, by minute."""
        return tuple(all - bad for all, bad in zip(self.started, self.failed, strict=True))

    @property
    def share(self) -> float | None:
        """The share of started runs that failed, from 0 to 1; None without runs."""
        return sum(self.failed) / sum(self.started) if sum(self.started) else None


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
    minutes: RunsPerMinute


async def load_overview(store: DeskStore, tenant: str | None) -> Overview:
    """Read the overview of one tenant, or of all."""
    now = store.now()
    oldest = await store.letters(LetterFilter(tenant=tenant, status=LetterStatus.OPEN), limit=1, cursor=OLDEST_CURSOR)
    waiting = await store.run_summaries(
        RunFilter(tenant=tenant, status=RunStatus.PENDING), most=MAX_COUNTED_RUNS, oldest=True
    )
    due = [run.available_at for run in waiting if (run.available_at or now) < now - _MINUTE_MICROS]
    causes = await store.group_totals(GroupFilter(tenant=tenant))
    hour = RunFilter(tenant=tenant, since=now - _MINUTES_SHOWN * _MINUTE_MICROS)
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
        minutes=_count_runs_per_minute(await store.run_summaries(hour, most=_MAX_HOUR_RUNS), now),
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


def _count_runs_per_minute(runs: Sequence[RunSummary], now: int) -> RunsPerMinute:
    begin = now // _MINUTE_MICROS - _MINUTES_SHOWN + 1
    started = Counter(run.created_at // _MINUTE_MICROS - begin for run in runs)
    failed = Counter(run.created_at // _MINUTE_MICROS - begin for run in runs if run.status in FAILED_STATUSES)
    capped = len(runs) >= _MAX_HOUR_RUNS
    since = runs[-1].created_at if capped else begin * _MINUTE_MICROS
    return RunsPerMinute(
        started=tuple(started[minute] for minute in range(_MINUTES_SHOWN)),
        failed=tuple(failed[minute] for minute in range(_MINUTES_SHOWN)),
        since=to_datetime(since),
        begin=to_datetime(begin * _MINUTE_MICROS),
        capped=capped,
    )
