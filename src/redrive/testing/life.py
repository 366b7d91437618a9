"""One worker from its birth to its end, with the chores of its process.

It sees the store through a line of its own, which dies with it: whatever code of a killed worker is
still unwinding, nothing of it reaches the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from redrive.app import Redrive
from redrive.app.runtime import Runtime
from redrive.chores import Folder, Relay
from redrive.clock import MICROS
from redrive.errors import StoreError
from redrive.store.port import Store
from redrive.testing.bodies import Bodies
from redrive.testing.clock import VirtualClock
from redrive.testing.faulty_store import Plan, crash_before, inject_faults
from redrive.testing.injection import Crash
from redrive.testing.quiet import Doing, doings
from redrive.testing.witness import Witness
from redrive.worker.lease import Lease
from redrive.worker.worker import Worker

__all__ = ["Life"]

_PURGE_EVERY = 3600 * MICROS
_LAST_TURNS = 20  # of the loop, between a deadly fault in a step and death


class Life:
    """A worker and its chores, which do nothing by themselves: no thread, no loop, no polling."""

    worker: Worker

    def __init__(
        self,
        app: Redrive,
        store: Store,
        clock: VirtualClock,
        plan: Plan,
        bodies: Bodies,
        *,
        schedules: bool = True,
    ) -> None:
        self.bodies = bodies
        self._heard = self._reaped = True
        self._lost: Lease | None = None
        self._clock = clock
        self._line = inject_faults(store, plan, clock=clock)
        self.witness = Witness(self._line)
        self._folder = Folder(self._line)
        self._purged_at = clock.now()
        self._schedules = schedules
        self._chores: asyncio.Task[None] | None = None
        self._last_turns = _LAST_TURNS

    async def begin(self, runtime: Runtime) -> None:
        """Start the worker. Raises Crash if it dies at once."""
        store = cast(Store, self.witness)
        self._runtime = runtime
        self._reaper = runtime.new_reaper(self._line)
        self._set_worker = runtime.new_set_worker(store)
        self._releaser = runtime.new_releaser(store)
        self._scheduler = runtime.new_scheduler(self._line) if self._schedules else None
        self._notifying = runtime.new_notifying(store)
        self._purger = runtime.new_purger(self._line)
        self.worker = await runtime.work(automatic=False, store=store, around_step=self.bodies.around)

    async def kill(self) -> None:
        """End it as SIGKILL would."""
        self._line.plan = lambda call: crash_before(Crash())
        await self.worker.kill()
        await self._runtime.stop_relays(in_order=False)
        await self.mourn()

    async def mourn(self) -> None:
        """The worker ended: so do its chores, and threads that hang on purpose."""
        self.bodies.release()
        if self._chores is not None:
            self._chores.cancel()
            await asyncio.wait([self._chores])

    def is_dead(self) -> bool:
        """True if its line was cut, or a step killed it (then it has some turns to record that it began)."""
        self._last_turns -= self.bodies.killed
        return self._line.dead or self._last_turns <= 0

    @property
    def is_behind(self) -> bool:
        """True if the next heartbeat or the next chores, a second from now, will have something to do."""
        return not (self._heard and self._reaped)

    def doings(self) -> Iterator[Doing]:
        """What goes on in it although time stands still."""
        yield from doings(self.worker, self._clock, self.bodies.executing())
        if self.bodies.killed:
            yield Doing("the worker is dying")
        if self._chores is not None and not self._chores.done() and not self._clock.waits(self._chores):
            yield Doing("chores are being done")
        if not all(self._rests(relay) for relay in self._runtime.relays):
            yield Doing("messages are being delivered")

    def _rests(self, relay: Relay) -> bool:
        """True if a relay has nothing to do before time is moved."""
        return relay.is_idle or (bool(relay.tasks) and all(self._clock.waits(task) for task in relay.tasks))

    def about(self, call: str) -> str:
        """What the store call under way is about, in words; "" if there is no telling."""
        if call == "apply":
            return self.witness.about
        if call.startswith("transaction."):
            names = [attempt.step for run in self.worker.executions for attempt in run.open.values()]
            return " and ".join(f"step {name!r} was under way" for name in dict.fromkeys(names))
        return ""

    def beat(self) -> None:
        """Renew the lease and hear what the store says, as a thread does in production every second."""
        lease = self.worker.lease
        if lease is self._lost or lease.is_over:
            return  # the worker enlists anew, and will have another; or it retires
        try:
            beat = lease.beat_once()
        except Crash:
            return  # it shows in `is_dead`
        self._heard = beat is not None
        if beat is None:
            return
        self._lost = None if beat.alive else lease
        self.worker.on_heartbeat(beat)
        # The worker gives back what it does not know after it heard of it twice.
        self._heard = beat.held <= {run.claimed.id for run in self.worker.executions}
        self.worker.wakeup.notify()  # and look for work, which polling does in production
        self._runtime.ring_all()

    @property
    def next_set(self) -> int | None:
        """When a decision on many letters may go on that waits for its rate."""
        return self._set_worker.next_at

    def begin_chores(self) -> None:
        """Reap and purge, unless that is under way."""
        if self._chores is None or self._chores.done():
            self._chores = asyncio.create_task(self._do_chores(), name="redrive chores")

    async def _do_chores(self) -> None:
        try:
            reaped = await self._reaper.run_once()
            await self._folder.run_once()
            decided = await self._set_worker.run_once() + await self._releaser.run_once()
            await self._notifying.run_once()
            if self._scheduler is not None:
                await self._scheduler.run_once()
            if self._clock.now() - self._purged_at >= _PURGE_EVERY:
                self._purged_at = self._clock.now()
                await self._purger.run_once()
        except (StoreError, Crash):
            self._reaped = False  # put off until the next time; a death shows in `is_dead`
            return
        self._reaped = True
        if reaped or decided:
            self.worker.wakeup.notify()
