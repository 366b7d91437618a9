"""Schedule: start runs whose time has come.

    keep      how do the schedules of this code stand? those that nobody keeps are kept by this worker
    due       which of their times have come, and is the latest of them still to be started?
    start     a run for each, under the key of its schedule and its time
    mark      their times up to this one are over

Any number of nodes do so at once. What several of them start at the same time, what one starts that slept
meanwhile, and what is started again because a node died before it had marked it, is one run: the key is the
same. A time that could not be started is not marked, and is tried again until it is too late for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from redrive.core.schedule import DueTimes, Schedule, find_due_times
from redrive.core.transitions import NewRun
from redrive.errors import DataRefused
from redrive.store.port import Store
from redrive.store.runs import StartResult
from redrive.store.settings import NewSchedule, ScheduleKey, ScheduleProgress, ScheduleRow

log = logging.getLogger("redrive.chores")

_BATCH = 500
_REREAD_INTERVAL = 60_000_000  # how long a node may trust what it read last
_MISSED_AFTER = 60_000_000  # so late a time is not called missed


class WorkflowSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of a workflow; `run` makes the run for one of its times."""

    workflow: str
    schedule: Schedule
    run: Callable[[int], NewRun]

    @property
    def declared(self) -> NewSchedule:
        """The schedule as the store knows it."""
        schedule = self.schedule
        return NewSchedule(
            tenant=schedule.tenant,
            workflow=self.workflow,
            name=schedule.name,
            expression=schedule.cron.expression,
            zone=schedule.cron.zone,
        )

    def __str__(self) -> str:
        tenant, name = self.schedule.tenant, self.schedule.name
        return f"schedule {name!r} of workflow {self.workflow!r} (tenant {tenant!r})"

    def is_in_force(self, row: ScheduleRow) -> bool:
        """False while a live worker keeps it with another expression, or another zone."""
        return (row.expression, row.zone) == (self.schedule.cron.expression, self.schedule.cron.zone)

    def next(self, row: ScheduleRow) -> int | None:
        """When it fires next; None while it is paused or not in force, or if it never does again."""
        is_on = row.paused_at is None and self.is_in_force(row)
        return self.schedule.cron.next(row.passed) if is_on else None


class _DueTime(msgspec.Struct, frozen=True, kw_only=True):
    """A time of a schedule for which a run is to be started, or not any more."""

    planned: WorkflowSchedule
    due: DueTimes
    run: NewRun | None


class Scheduler:
    """Starts what is due. `worker` gives the id of this process's worker; `on_start`: runs were started."""

    def __init__(
        self,
        store: Store,
        planned: Sequence[WorkflowSchedule],
        *,
        worker: Callable[[], int],
        on_start: Callable[[], None],
        punctual: int = 0,
    ) -> None:
        self._store = store
        self._planned = {each.declared.place: each for each in planned}
        self._worker = worker
        self._on_start = on_start
        self._punctual = max(_MISSED_AFTER, punctual)
        self._look_at = 0
        self._told: dict[ScheduleKey, int] = {}

    async def run_once(self) -> int:
        """Start what is due; returns how many runs that were. Asks the store only when something may be."""
        ahead = self._look_at - self._store.now()
        if not self._planned or 0 < ahead <= _REREAD_INTERVAL:  # more than that, and the clock was set back
            return 0
        declared = [each.declared for each in self._planned.values()]
        rows = await self._store.schedules.keep(declared, worker=self._worker())
        now = self._store.now()
        fires = [fire for row in rows if (fire := self._find_due(row, now)) is not None]
        started = 0
        for begin in range(0, len(fires), _BATCH):
            started += await self._start_and_record(fires[begin : begin + _BATCH])
        self._look_at = now if fires else self._next_check_at(rows, now)
        return started

    def _next_check_at(self, rows: Sequence[ScheduleRow], now: int) -> int:
        """When the first of them is due; at once where a person or another node may change what is."""
        moments = [self._planned[row.place].next(row) for row in rows]
        return min(now + _REREAD_INTERVAL, *(now if at is None else at for at in moments))

    def _find_due(self, row: ScheduleRow, now: int) -> _DueTime | None:
        """What is to be done about a schedule now; nothing, if its run cannot be made."""
        planned = self._planned[row.place]
        if row.paused_at is not None or not planned.is_in_force(row):
            return None
        schedule = planned.schedule
        found = find_due_times(
            schedule.cron, passed=row.passed, now=now, latest_by=max(schedule.catch_up, self._punctual)
        )
        if found is None:
            return None
        try:
            return _DueTime(planned=planned, due=found, run=planned.run(found.latest) if found.starts else None)
        except Exception as error:  # whatever the user's function raises
            self._log_failure_once(planned, found.latest, error)
            return None

    async def _start_and_record(self, fires: Sequence[_DueTime]) -> int:
        begun = await self._start_runs([fire for fire in fires if fire.run is not None])
        over = [(fire, None) for fire in fires if fire.run is None] + begun
        marks = [
            ScheduleProgress(
                schedule=fire.planned.declared, at=fire.due.latest, run=None if answer is None else answer.public_id
            )
            for fire, answer in over
        ]
        moved = await self._store.schedules.mark(marks) if marks else []
        for (fire, answer), is_news in zip(over, moved, strict=True):
            if is_news:
                _log_fire(fire, answer)
        new = sum(answer is not None and answer.new for _, answer in over)
        if new:
            self._on_start()
        return new

    async def _start_runs(self, fires: list[_DueTime]) -> list[tuple[_DueTime, StartResult | None]]:
        """Start the runs; one that the store refuses does not keep the others back."""
        if not fires:
            return []
        try:
            answers = await self._store.start([fire.run for fire in fires if fire.run is not None])
        except DataRefused as error:
            if len(fires) == 1:
                self._log_failure_once(fires[0].planned, fires[0].due.latest, error)
                return []
            half = len(fires) // 2
            return await self._start_runs(fires[:half]) + await self._start_runs(fires[half:])
        return list(zip(fires, answers, strict=True))

    def _log_failure_once(self, planned: WorkflowSchedule, at: int, error: Exception) -> None:
        """Say once for each time that it cannot be started."""
        place = planned.declared.place
        if self._told.get(place) != at:
            self._told[place] = at
            log.error(
                "%s could not be started for %s: %s; it is tried again until that is too late",
                planned,
                planned.schedule.cron.local(at),
                error,
            )


def _log_fire(fire: _DueTime, answer: StartResult | None) -> None:
    """Say what was started, and what never will be."""
    local, due = fire.planned.schedule.cron.local, fire.due
    if answer is None:
        log.warning(
            "%s missed its times from %s to %s; nothing is started for them, because that is too long ago",
            fire.planned,
            local(due.first),
            local(due.latest),
        )
        return
    if due.first != due.latest:
        log.warning(
            "%s missed its times from %s on; only the latest, %s, is started",
            fire.planned,
            local(due.first),
            local(due.latest),
        )
    log.info("%s started run %s for %s", fire.planned, answer.public_id, local(due.latest))
