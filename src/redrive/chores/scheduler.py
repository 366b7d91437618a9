"""The scheduler: starts runs at the times of their schedules.

    keep      read the state of the schedules in this code; adopt those that no live worker keeps
    due       find the times that have come, and whether the latest of them is still to be started
    start     a run for each, with a key made of its schedule and its time
    record    note that the times up to this one are done

Any number of processes do so at once. Several starts for one time are one run, because they have the same key:
starts by several processes, by one that was suspended meanwhile, or after a crash between start and record. A
time whose start failed is not recorded. It is tried again until it is too late for it.
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
_REREAD_INTERVAL = 60_000_000  # microseconds after which the schedules are read again
_MISSED_AFTER = 60_000_000  # microseconds: a time counts as missed if it is later than this


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
        """Return False while a live worker keeps it with another expression, or another zone."""
        return (row.expression, row.zone) == (self.schedule.cron.expression, self.schedule.cron.zone)

    def next(self, row: ScheduleRow) -> int | None:
        """Return the next time; None while it is paused or not in force, or if there is none."""
        is_on = row.paused_at is None and self.is_in_force(row)
        return self.schedule.cron.next(row.passed) if is_on else None


class _DueTime(msgspec.Struct, frozen=True, kw_only=True):
    """Due times of a schedule, with the run to start; without one, the times were missed."""

    planned: WorkflowSchedule
    due: DueTimes
    run: NewRun | None


class Scheduler:
    """Starts scheduled runs. `worker` returns the id of this process's worker; `on_start` is called after starts."""

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
        self._planned = {each.declared.key: each for each in planned}
        self._worker = worker
        self._on_start = on_start
        self._punctual = max(_MISSED_AFTER, punctual)
        self._next_check_at = 0
        self._logged: dict[ScheduleKey, int] = {}

    async def run_once(self) -> int:
        """Start the runs that are due or were asked for; return their number.

        Times are read from the store only if some may be due; requests, which an index finds, each time.
        """
        if not self._planned:
            return 0
        requested = await self._start_requested()
        ahead = self._next_check_at - self._store.now()
        if 0 < ahead <= _REREAD_INTERVAL:  # if it is more, the clock was set back
            return requested
        declared = [each.declared for each in self._planned.values()]
        rows = await self._store.schedules.keep(declared, worker=self._worker())
        now = self._store.now()
        due = [found for row in rows if (found := self._find_due(row, now)) is not None]
        started = requested
        for begin in range(0, len(due), _BATCH):
            started += await self._start_and_record(due[begin : begin + _BATCH])
        self._next_check_at = now
        if not due:
            # A schedule without a next time is read again at once: a user or another worker may change that.
            times = [self._planned[row.key].next(row) for row in rows]
            self._next_check_at = min(now + _REREAD_INTERVAL, *(now if at is None else at for at in times))
        return started

    def _find_due(self, row: ScheduleRow, now: int) -> _DueTime | None:
        """Return the due times of a schedule; None if there are none, or if its run cannot be made."""
        planned = self._planned[row.key]
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
        except Exception as error:  # of any kind: the user's function makes the input
            self._log_failure_once(planned, found.latest, error)
            return None

    async def _start_requested(self) -> int:
        """Start the runs that users asked for. Each request is answered once, by any worker that has the schedule."""
        due: list[_DueTime] = []
        for row in await self._store.schedules.requested():
            planned, at = self._planned.get(row.key), row.requested_at
            if planned is None or at is None or not planned.is_in_force(row):
                continue
            run = None
            try:
                if self._store.now() - at <= max(planned.schedule.catch_up, self._punctual):
                    run = planned.run(at)
                else:
                    log.warning("manual start of %s expired; it is dropped", planned)
            except Exception as error:  # of any kind: the user's function makes the input
                log.error("%s could not be started by hand: %s", planned, error)
            due.append(_DueTime(planned=planned, due=DueTimes(first=at, latest=at, starts=run is not None), run=run))
        return await self._start_and_record(due, requested=True) if due else 0

    async def _start_and_record(self, due: Sequence[_DueTime], *, requested: bool = False) -> int:
        begun = await self._start_runs([each for each in due if each.run is not None])
        done = [(each, None) for each in due if each.run is None] + begun
        progress = [
            ScheduleProgress(
                schedule=each.planned.declared, at=each.due.latest, run=None if answer is None else answer.public_id
            )
            for each, answer in done
        ]
        moved = await self._store.schedules.record_progress(progress, requested=requested) if progress else []
        for (each, answer), has_moved in zip(done, moved, strict=True):
            # Otherwise another process was first, and logs it; why a request was dropped is logged already.
            if has_moved and not (requested and answer is None):
                _log_due_time(each, answer)
        new = sum(answer is not None and answer.new for _, answer in done)
        if new:
            self._on_start()
        return new

    async def _start_runs(self, due: list[_DueTime]) -> list[tuple[_DueTime, StartResult | None]]:
        """Start the runs. One that the store refuses does not hinder the others."""
        if not due:
            return []
        try:
            answers = await self._store.start([each.run for each in due if each.run is not None])
        except DataRefused as error:
            if len(due) == 1:
                self._log_failure_once(due[0].planned, due[0].due.latest, error)
                return []
            half = len(due) // 2
            return await self._start_runs(due[:half]) + await self._start_runs(due[half:])
        return list(zip(due, answers, strict=True))

    def _log_failure_once(self, planned: WorkflowSchedule, at: int, error: Exception) -> None:
        key, local = planned.declared.key, planned.schedule.cron.local(at)
        if self._logged.get(key) != at:
            self._logged[key] = at
            log.error("%s could not be started for %s, trying again until it is too late: %s", planned, local, error)


def _log_due_time(each: _DueTime, answer: StartResult | None) -> None:
    """Log the run that was started, and the times that were missed."""
    local, due, planned = each.planned.schedule.cron.local, each.due, each.planned
    first, latest = local(due.first), local(due.latest)
    if answer is None:
        log.warning("%s missed its times from %s to %s, which are too long ago to be started", planned, first, latest)
        return
    if due.first != due.latest:
        log.warning("%s missed its times from %s on; only the latest, %s, is started", planned, first, latest)
    log.info("%s started run %s for %s", planned, answer.public_id, latest)
