"""Time and workers in a test: what happens when time is moved, and when a worker dies.

calm        wait until everything waits for time to pass; a worker that died is replaced
jump        make it later · renew the lease · what is due happens · chores · calm
walk        jump to each due moment in turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from redrive.app import Redrive
from redrive.app.catalogue import collect_schedules
from redrive.app.runtime import Runtime
from redrive.clock import MICROS, SystemClock
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.duration import format_duration
from redrive.errors import ConfigurationError
from redrive.store.filters import RunFilter
from redrive.store.list_query import iterate_pages
from redrive.store.port import Store
from redrive.store.runs import RunRow
from redrive.testing.clock import VirtualClock
from redrive.testing.faulty_store import Plan
from redrive.testing.injection import CallCounts, Crash, FaultSource, StepBodies, next_fault
from redrive.testing.simulated_worker import Activity, SimulatedWorker

T = TypeVar("T")
_IDLE_CYCLES = 10  # turns of the loop without news after which nothing more will come by itself
_QUICK_CYCLES = 100  # turns before real time is given to what goes on
_FOREIGN_PATIENCE = 0.02  # real seconds for a branch that may wait for another branch, or for the world
_MAX_DEATHS = 200
_REAPER_MARGIN = MICROS + 1  # the head start that the reaper gives to workers, and then some
_UNFINISHED = tuple(status for status in RunStatus if status not in FINAL_RUN_STATUSES)


class Simulation:
    """A store, a clock and the worker that is alive."""

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
        self._planned = collect_schedules(app) if schedules else []
        self._runtime = Runtime(app, store, clock)
        self._life: SimulatedWorker | None = None
        self._graves: list[int] = []

    @property
    def simulated_worker(self) -> SimulatedWorker:
        """The worker that is alive now."""
        if self._life is None:
            raise ConfigurationError("this engine is not open; use `async with engine(app) as e`")
        return self._life

    def about(self, call: str) -> str:
        """What the worker's store call that is under way is about, in words."""
        return "" if self._life is None else self._life.about(call)

    # -- opening and closing ---------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store and start a worker."""
        await self._app.attach(self._runtime)
        try:
            await self._start_worker()
        except BaseException:
            await self._close_runtime()
            raise

    async def close(self, *, in_order: bool) -> None:
        """Stop the worker, gracefully or not, and let go of the store."""
        try:
            if in_order:
                await self._stop()
        except (TimeoutError, Crash):
            pass  # then it is killed
        finally:
            if self._life is not None:
                await self._life.kill()
            await self._close_runtime()

    async def _close_runtime(self) -> None:
        self._app.detach()
        self._runtime.worker = None
        await self._runtime.close()

    # -- workers ---------------------------------------------------------------------------------------

    async def restart(self) -> None:
        """Stop the worker in good order and start another."""
        await self.calm()
        try:
            await self._stop()
        except Crash:
            await self.die()
        else:
            await self._start_worker()
        await self.calm()

    async def die(self) -> None:
        """Kill the worker and start another. What the dead one held is free when its lease has passed."""
        simulated_worker, self._life = self.simulated_worker, None
        await simulated_worker.kill()
        dead = simulated_worker.worker.id
        self._graves += [row.lease_until + 1 for row in await self.store.workers() if row.id == dead]
        self._count_death()
        await self._start_worker()

    def _count_death(self) -> None:
        self.deaths += 1
        if self.deaths > _MAX_DEATHS:
            raise AssertionError(f"{_MAX_DEATHS} workers died in this test; its plan lets none live")

    async def _stop(self) -> None:
        simulated_worker = self.simulated_worker
        await self._drive(simulated_worker.worker.stop())
        await self._drive(self._runtime.stop_relays())
        self._life = None
        await simulated_worker.mourn()

    async def _start_worker(self) -> None:
        while True:
            bodies = StepBodies(self._app, self.clock, self.calls, self._faults)
            fires = bool(self._planned)
            simulated_worker = SimulatedWorker(self._app, self.store, self.clock, self._plan, bodies, schedules=fires)
            try:
                await self._drive(simulated_worker.begin(self._runtime))
            except Crash:
                self._count_death()
            else:
                self._life = simulated_worker
                return

    # -- time ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let everything happen that is due; where a worker died, until its lease has passed."""
        self.simulated_worker.beat()
        await self.calm()
        self.simulated_worker.begin_chores()
        await self.calm()
        while self._graves:
            await self.walk(max(self._graves))

    async def poll_again(self) -> None:
        """Let the worker look for work once more: it passes by what somebody holds at that moment."""
        self.simulated_worker.beat()
        await self.calm()

    async def walk(self, to: int) -> None:
        """Go to each moment at which something is due, in order, up to this one."""
        while (moment := await self.next_due_at()) is not None and moment < to:
            await self.jump_to(moment)
        await self.jump_to(max(to, self.clock.now()))  # a new worker may have taken long to be born

    async def jump_to(self, moment: int) -> None:
        """Make it later, and let happen what is due then."""
        self.clock.move_to(moment)
        self.simulated_worker.beat()  # first: a jump over the lease is no reason to lose it
        self.clock.fire()
        await self.calm()
        self.simulated_worker.begin_chores()
        await self.calm()
        self._graves = [until for until in self._graves if until > self.clock.now()]

    async def next_due_at(self) -> int | None:
        """When something happens next: what goes on goes on, or a schedule starts something new."""
        moments = [await self._next_engine_event_at(), *await self._schedule_times()]
        return min((at for at in moments if at is not None), default=None)

    async def _next_engine_event_at(self) -> int | None:
        """A timer, a due run, a deadline, the end of a dead worker's lease."""
        now = self.clock.now()
        soon = now + MICROS if self._life is not None and self._life.has_pending_work else None
        runs = await self.unfinished()
        deadlines = [run.deadline + _REAPER_MARGIN for run in runs if run.deadline is not None]
        moments = [
            self.clock.next_due(),
            soon,
            None if self._life is None else self._life.next_bulk_at,
            *self._graves,
            *deadlines,
            *await self._circuit_times(runs),
            *(run.available_at for run in runs),
        ]
        return min((at for at in moments if at is not None and at > now), default=None)

    async def _circuit_times(self, runs: list[RunRow]) -> list[int]:
        """When circuits turn by themselves, or let more of the runs go on that wait for them."""
        parked = {(run.tenant, run.parked_on) for run in runs if run.parked_on is not None}
        rows = await self.store.circuits_changed_since(0)
        soon = self.clock.now() + MICROS  # chores look once a second
        waiting = [row for row in rows if row.place in parked and not row.is_open]
        waves = [max(row.next_wave_at, soon) for row in waiting]
        return waves + [row.until for row in rows if row.until is not None]

    async def _schedule_times(self) -> list[int]:
        """When schedules start something; soon, where one was not looked at yet."""
        if not self._planned:
            return []
        now = self.clock.now()
        rows = {row.place: row for row in await self.store.schedules.known()}
        known = [(each, rows.get(each.declared.place)) for each in self._planned]
        moments = [now if row is None else each.next(row) for each, row in known]
        return [at if at > now else now + MICROS for at in moments if at is not None]

    async def unfinished(self) -> list[RunRow]:
        """All runs that have not ended."""
        where = RunFilter(status=_UNFINISHED)
        rows = iterate_pages(lambda cursor: self.store.runs(where, limit=500, cursor=cursor))
        return [row async for row in rows]

    async def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something that a worker does and that may need time to pass."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await self.calm(task)
                if not task.done():
                    await self._pass_time(await self._next_engine_event_at())
        except BaseException:
            task.cancel()
            await asyncio.wait([task])
            raise
        return task.result()

    async def _pass_time(self, moment: int | None) -> None:
        if moment is None:
            await asyncio.sleep(0.001)  # it waits for the real world
            return
        self.clock.move_to(moment)
        if self._life is not None:
            self._life.beat()
        self.clock.fire()

    # -- calm ------------------------------------------------------------------------------------------

    async def calm(self, until: asyncio.Future[Any] | None = None) -> None:
        """Return when everything waits for time to pass, or what is awaited is done.

        A worker that died is replaced; while something of the worker's own is awaited, raises Crash.
        """
        watch = _IdleDetector(self.patience)
        while not watch.is_calm and not (until is not None and until.done()):
            await watch.turn()
            if self._life is not None and self._life.is_dead():
                if until is not None:
                    raise Crash
                await self.die()
            watch.look(self._list_activities)

    def _list_activities(self) -> Iterator[Activity]:
        return iter(()) if self._life is None else self._life.doings()


class _IdleDetector:
    """Tells calm from a pause between two things: by turns of the loop, and by real time where it must."""

    def __init__(self, patience: float) -> None:
        self._real = SystemClock()
        self._patience = patience
        self._until = self._real.monotonic() + patience
        self._circuit_times = 0
        self._quiet = 0
        self._only_perhaps_since: float | None = None
        self.is_calm = False

    async def turn(self) -> None:
        """Let others have their turn."""
        self._circuit_times += 1
        await asyncio.sleep(0 if self._circuit_times < _QUICK_CYCLES else 0.001)

    def look(self, doings: Callable[[], Iterator[Activity]]) -> None:
        """Look what goes on. Raises TimeoutError when that takes too long."""
        found: Activity | None = None
        for found in doings():
            if not found.may_be_waiting:
                break
        self._quiet = 0 if found else self._quiet + 1
        self.is_calm = self._quiet >= _IDLE_CYCLES
        if found is None:
            return
        now = self._real.monotonic()
        if not found.may_be_waiting:
            self._only_perhaps_since = None
        elif self._only_perhaps_since is None:
            self._only_perhaps_since = now
        else:
            self.is_calm = now - self._only_perhaps_since > _FOREIGN_PATIENCE
        if now > self._until:
            raise TimeoutError(self._describe_activities(doings()))

    def _describe_activities(self, doings: Iterator[Activity]) -> str:
        what = "; ".join(dict.fromkeys(doing.what for doing in doings))
        return (
            f"after {format_duration(self._patience)} of real time this still goes on: {what}. Time cannot be moved "
            "meanwhile; let steps end by themselves, use faults(fail=[Hang]) for one that does not, or give "
            "engine(app, patience=...) more"
        )
