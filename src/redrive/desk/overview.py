"""How things stand: what waits, what runs, what is late, and how the last hour went. All of it is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from redrive.clock import MICROS
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.duration import moment
from redrive.frozen import dataclass
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.list_query import OLDEST
from redrive.store.port import People
from redrive.store.records import Case, RunGlance

__all__ = ["MOST", "Minutes", "Retrying", "Standing", "standing"]


MOST = 1_000
"""Runs of one state that are counted; more are more."""

_NEWEST = 5_000  # runs of the last hour that are looked at
_HOUR = 60
_MINUTE = 60 * MICROS
_RETRYING = 12
_FAILED = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """The last hour by minutes, the present one last: runs that were started, and those of them that failed.

    `since`: nothing before is counted, as so many runs were started.
    """

    started: tuple[int, ...]
    failed: tuple[int, ...]
    since: datetime

    @property
    def good(self) -> tuple[int, ...]:
        """Those that have not failed, by minute."""
        return tuple(all - bad for all, bad in zip(self.started, self.failed, strict=True))

    @property
    def share(self) -> float | None:
        """Of those started, how many failed, from 0 to 1."""
        return sum(self.failed) / sum(self.started) if sum(self.started) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """A step that failed and is tried again at a time that is known."""

    run_id: str
    workflow: str
    tenant: str
    step: str
    attempt: int
    next_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How things stand for whoever looks. Counts of runs go up to `MOST`."""

    open_letters: int
    oldest_letter: datetime | None
    running: int
    sleeping: int
    waiting: int
    late: int
    late_since: datetime | None
    retrying: tuple[Retrying, ...]
    minutes: Minutes


async def standing(store: People, tenant: str | None) -> Standing:
    """Look at one tenant, or at all."""
    now = store.now()
    oldest = await store.letters(
        LetterFilter(tenant=tenant, status=LetterStatus.OPEN), limit=1, cursor=OLDEST
    )
    waiting = await store.glances(RunFilter(tenant=tenant, status=RunStatus.PENDING), most=MOST, oldest=True)
    due = [run.available_at for run in waiting if (run.available_at or now) < now - _MINUTE]
    hour = RunFilter(tenant=tenant, since=now - _HOUR * _MINUTE)
    return Standing(
        open_letters=await store.count_letters(LetterFilter(tenant=tenant)),
        oldest_letter=moment(oldest.items[0].failed_at) if oldest.items else None,
        running=await _count(store, tenant, RunStatus.RUNNING),
        sleeping=await _count(store, tenant, RunStatus.SLEEPING),
        waiting=len(waiting),
        late=len(due),
        late_since=moment(min(at for at in due if at is not None)) if due else None,
        retrying=await _retrying(store, tenant),
        minutes=_minutes(await store.glances(hour, most=_NEWEST), now),
    )


async def _count(store: People, tenant: str | None, status: RunStatus) -> int:
    return len(await store.glances(RunFilter(tenant=tenant, status=status), most=MOST))


async def _retrying(store: People, tenant: str | None) -> tuple[Retrying, ...]:
    where = RunFilter(tenant=tenant, status=RunStatus.SLEEPING)
    page = await store.runs(where, limit=_RETRYING, cursor=None)
    found = [
        each for case in await store.cases([run.public_id for run in page.items]) for each in _steps(case)
    ]
    return tuple(sorted(found, key=lambda each: each.next_at))


def _steps(case: Case) -> list[Retrying]:
    return [
        Retrying(
            run_id=case.run.public_id,
            workflow=case.run.workflow,
            tenant=case.run.tenant,
            step=entry.name,
            attempt=entry.attempt,
            next_at=moment(entry.wake_at),
        )
        for entry in case.journal
        if entry.status is StepStatus.RETRYING and entry.wake_at is not None and not entry.superseded
    ]


def _minutes(runs: Sequence[RunGlance], now: int) -> Minutes:
    begin = now // _MINUTE - _HOUR + 1
    started = Counter(run.created_at // _MINUTE - begin for run in runs)
    failed = Counter(run.created_at // _MINUTE - begin for run in runs if run.status in _FAILED)
    since = runs[-1].created_at if len(runs) >= _NEWEST else begin * _MINUTE
    return Minutes(
        started=tuple(started[minute] for minute in range(_HOUR)),
        failed=tuple(failed[minute] for minute in range(_HOUR)),
        since=moment(since),
    )
