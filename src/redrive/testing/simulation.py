"""Time and workers in a test: the consequences of moving time, and of the death of a worker.

wait_until_idle   wait until everything waits for time to pass; replace a worker that died
jump_to           move time, renew the lease, fire due timers, do chores, wait until idle
advance_to        jump to each due moment in turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from redrive.app import Redrive
from redrive.app.declarations import collect_schedules
from redrive.app.runtime import Runtime
from redrive.clock import MICROS, SystemClock
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.errors import ConfigurationError
from redrive.store.filters import RunFilter, TaskFilter
from redrive.store.port import Store
from redrive.store.result_page import iterate_pages
from redrive.store.runs import RunRow
from redrive.testing.faulty_store import Plan
from redrive.testing.simulated_worker import Activity, SimulatedWorker
from redrive.testing.step_faults import CallCounts, Crash, FaultSource, StepBodies, next_fault
from redrive.testing.virtual_clock import VirtualClock
from redrive.time_values import format_duration

T = TypeVar("T")
_IDLE_CYCLES = 10  # cycles of the event loop without activity, after which no activity will begin by itself
_QUICK_CYCLES = 100  # cycles before activities get real time
_FOREIGN_PATIENCE = 0.02  # real seconds for a branch that may wait for another branch, or for the real world
_MAX_DEATHS = 200
_REAPER_MARGIN = MICROS + 1  # the reaper waits this long after a deadline, to let workers act first
_UNFINISHED = tuple(status for status in RunStatus if status not in FINAL_RUN_STATUSES)


class Simulation:
    """A store, a clock, and the worker that is alive."""

    def __init__(
        self,
        app: Redrive,
        store: Store,
        clock: VirtualClock,
        *,
        plan: Plan,
        patience: float,
        faults: FaultSource = next_fault,
        schedules: bool = True,
    ) -> None:
        self.store = store
        self.clock = clock
        self.patience = patience
        self.deaths = 0
        self.calls: CallCounts = CallCounts()
        self._app = app
        self._plan = plan
        self._faults = faults
        self._schedules = collect_schedules(app) if schedules else []
        self._runtime = Runtime(app, store, clock)
        self._alive: SimulatedWorker | None = None
        self._dead_leases: list[int] = []  # the ends of the leases of dead workers, which still hold runs

    @property
    def simulated_worker(self) -> SimulatedWorker:
        """The worker that is alive now."""
        if self._alive is None:
            raise ConfigurationError("this engine is not open; use `async with engine(app) as e`")
        return self._alive

    def describe_call(self, call: str) -> str:
        """Describe the store call that the worker makes now; return "" if nothing is known about it."""
        return "" if self._alive is None else self._alive.describe_call(call)

    async def open(self) -> None:
        """Open the store and start a worker."""
        await self._app.attach(self._runtime)
        try:
            await self._start_worker()
        except BaseException:
            await self._close_runtime()
            raise

    async def close(self, *, in_order: bool) -> None:
        """Stop the worker, gracefully or not, and close the store."""
        try:
            if in_order:
                await self._stop_worker()
        except (TimeoutError, Crash):
            pass  # then the worker is killed
        finally:
            if self._alive is not None:
                await self._alive.kill()
            await self._close_runtime()

    async def _close_runtime(self) -> None:
        self._app.detach()
        self._runtime.worker = None
        await self._runtime.close()

    async def restart(self) -> None:
        """Stop the worker gracefully and start another."""
        await self.wait_until_idle()
        try:
            await self._stop_worker()
        except Crash:
            await self.replace_worker()
        else:
            await self._start_worker()
        await self.wait_until_idle()

    async def replace_worker(self) -> None:
        """Kill the worker and start another. Runs of the dead one are free when its lease has passed."""
        dead, self._alive = self.simulated_worker, None
        await dead.kill()
        self._dead_leases += [row.lease_until + 1 for row in await self.store.workers() if row.id == dead.worker.id]
        self._count_death()
        await self._start_worker()

    def _count_death(self) -> None:
        self.deaths += 1
        if self.deaths > _MAX_DEATHS:
            raise AssertionError(f"{_MAX_DEATHS} workers died in this test; its plan lets none live")

    async def _stop_worker(self) -> None:
        stopping = self.simulated_worker
        await self._drive(stopping.worker.stop())
        await self._drive(self._runtime.stop_relays())
        self._alive = None
        await stopping.clean_up()

    async def _start_worker(self) -> None:
        while self._alive is None:
            bodies = StepBodies(self._app, self.clock, self.calls, self._faults)
            schedules = bool(self._schedules)
            new = SimulatedWorker(self._app, self.store, self.clock, self._plan, bodies, schedules=schedules)
            try:
                await self._drive(new.start(self._runtime))
            except Crash:
                self._count_death()
            else:
                self._alive = new

    async def settle(self) -> None:
        """Let everything happen that is due; if a worker died, move time until its lease has passed."""
        await self.poll_again()
        self.simulated_worker.begin_chores()
        await self.wait_until_idle()
        while self._dead_leases:
            await self.advance_to(max(self._dead_leases))

    async def poll_again(self) -> None:
        """Let the worker look for work once more: a claim skips runs that are locked at that moment."""
        self.simulated_worker.beat()
        await self.wait_until_idle()

    async def advance_to(self, end: int) -> None:
        """Jump to each moment at which something is due, in order, up to this one."""
        while (moment := await self.next_due_at()) is not None and moment < end:
            await self.jump_to(moment)
        await self.jump_to(max(end, self.clock.now()))  # the start of a new worker may have moved time further

    async def jump_to(self, moment: int) -> None:
        """Move time, and let everything happen that is due then."""
        self.clock.move_to(moment)
        self.simulated_worker.beat()  # first, so that a jump over the end of the lease does not lose it
        self.clock.fire()
        await self.wait_until_idle()
        self.simulated_worker.begin_chores()
        await self.wait_until_idle()
        self._dead_leases = [until for until in self._dead_leases if until > self.clock.now()]

    async def next_due_at(self) -> int | None:
        """Return the next time at which something is due: in the engine, or by a schedule."""
        moments = [await self._next_engine_event_at(), *await self._schedule_times()]
        return min((at for at in moments if at is not None), default=None)

    async def _next_engine_event_at(self) -> int | None:
        """Return the time of the next timer, due run, deadline, circuit change or end of a dead worker's lease."""
        now, worker = self.clock.now(), self._alive
        runs = await self.unfinished()
        moments = [
            self.clock.next_due(),
            now + MICROS if worker is not None and worker.has_pending_work else None,
            None if worker is None else worker.next_bulk_at,
            *self._dead_leases,
            *(run.deadline + _REAPER_MARGIN for run in runs if run.deadline is not None),
            *await self._circuit_times(runs),
            *await self._task_times(runs),
            *(run.available_at for run in runs),
        ]
        return min((at for at in moments if at is not None and at > now), default=None)

    async def _circuit_times(self, runs: list[RunRow]) -> list[int]:
        """Return the times at which circuits change by themselves, or release parked runs."""
        parked = {(run.tenant, run.parked_on) for run in runs if run.parked_on is not None}
        rows = await self.store.circuits_changed_since(0)
        soon = self.clock.now() + MICROS  # chores run once a second
        waiting = [row for row in rows if row.circuit_key in parked and not row.is_open]
        waves = [max(row.next_wave_at, soon) for row in waiting]
        return waves + [row.until for row in rows if row.until is not None]

    async def _task_times(self, runs: list[RunRow]) -> list[int]:
        """Return the times of reminders and escalations of open tasks."""
        if not any(run.status in (RunStatus.SLEEPING, RunStatus.COMPENSATING) for run in runs):
            return []
        page = await self.store.questions(TaskFilter(status="OPEN"), limit=500, cursor=None)
        return [row.next_at for row in page.items if row.next_at is not None]

    async def _schedule_times(self) -> list[int]:
        """Return the next times of schedules; a second from now for one that the scheduler has not seen yet."""
        if not self._schedules:
            return []
        now = self.clock.now()
        rows = {row.key: row for row in await self.store.schedules.known()}
        known = [(each, rows.get(each.declared.key)) for each in self._schedules]
        moments = [now if row is None else each.next(row) for each, row in known]
        return [at if at > now else now + MICROS for at in moments if at is not None]

    async def unfinished(self) -> list[RunRow]:
        """Return all runs that have not ended."""
        where = RunFilter(status=_UNFINISHED)
        rows = iterate_pages(lambda cursor: self.store.runs(where, limit=500, cursor=cursor))
        return [row async for row in rows]

    async def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work of a worker, and move time as far as the work needs it."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await self.wait_until_idle(task)
                if task.done():
                    break
                moment = await self._next_engine_event_at()
                if moment is None:
                    await asyncio.sleep(0.001)  # the work waits for the real world
                    continue
                self.clock.move_to(moment)
                if self._alive is not None:
                    self._alive.beat()
                self.clock.fire()
        except BaseException:
            task.cancel()
            await asyncio.wait([task])
            raise
        return task.result()

    async def wait_until_idle(self, until: asyncio.Future[Any] | None = None) -> None:
        """Return when everything waits for time to pass, or when `until` is done.

        Replaces a worker that died. With `until`, which is work of that worker, it raises Crash instead.
        """
        detector = _IdleDetector(self.patience)
        while not detector.is_idle and not (until is not None and until.done()):
            await detector.wait_one_cycle()
            if self._alive is not None and self._alive.is_dead():
                if until is not None:
                    raise Crash
                await self.replace_worker()
            detector.look(self._alive)


class _IdleDetector:
    """Distinguishes an idle worker from a pause between two activities, by cycles of the loop and by real time."""

    def __init__(self, patience: float) -> None:
        self._real = SystemClock()
        self._patience = patience
        self._until = self._real.monotonic() + patience
        self._cycles = 0
        self._quiet_cycles = 0
        self._maybe_waiting_since: float | None = None
        self.is_idle = False

    async def wait_one_cycle(self) -> None:
        """Let other tasks run."""
        self._cycles += 1
        await asyncio.sleep(0 if self._cycles < _QUICK_CYCLES else 0.001)

    def look(self, worker: SimulatedWorker | None) -> None:
        """Look at the worker's activities. Raises TimeoutError when they take too long."""
        found: Activity | None = None
        for found in () if worker is None else worker.activities():
            if not found.may_be_waiting:
                break
        self._quiet_cycles = 0 if found else self._quiet_cycles + 1
        self.is_idle = self._quiet_cycles >= _IDLE_CYCLES
        if worker is None or found is None:
            return
        now = self._real.monotonic()
        if not found.may_be_waiting:
            self._maybe_waiting_since = None
        elif self._maybe_waiting_since is None:
            self._maybe_waiting_since = now
        else:
            self.is_idle = now - self._maybe_waiting_since > _FOREIGN_PATIENCE
        if now > self._until:
            what = "; ".join(dict.fromkeys(activity.what for activity in worker.activities()))
            raise TimeoutError(
                f"after {format_duration(self._patience)} of real time the worker is still busy: {what}. Time cannot "
                "be moved meanwhile: let steps end by themselves, use faults(fail=[Hang]) for a step that hangs, or "
                "give engine(app, patience=...) more"
            )
