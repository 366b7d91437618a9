"""The worker: claim due runs, execute them, settle what happens, stop without losing anything.

run         claim ──> launch ──> (executions settle through the committer) ──> claim ...
stop        begin nothing new ──> steps in flight end ──> release the rest ──> retire
died        the store declared this worker dead: put everything down, enlist anew
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from redrive.clock import MICROS, Clock
from redrive.core.classify import Rule
from redrive.core.options import RunOptions
from redrive.core.outcome import Diverged, Ended, Outcome, Released, RunView, Wait
from redrive.core.states import FINAL
from redrive.core.transition import NewRun
from redrive.errors import StoreError
from redrive.frozen import dataclass
from redrive.reasons import Reason
from redrive.settle.settler import LocalSettler, Outgoing, Settled, Settler, until_answered
from redrive.settle.view import options_of, view_of_claimed
from redrive.signals.tally import Ear, Tally
from redrive.signals.traces import Tracing
from redrive.store.port import Store, Transaction
from redrive.store.records import Started
from redrive.store.workers import Beat, Catalogue, Claimed, NewWorker, living
from redrive.worker.acting import Acting
from redrive.worker.attempt import Attempt
from redrive.worker.beats import Beats
from redrive.worker.bell import Bell
from redrive.worker.branch import install_task_factory
from redrive.worker.circuits import Circuits, Heeding
from redrive.worker.claims import Claiming, Give, unreadable
from redrive.worker.committer import Committer
from redrive.worker.definition import Step, WorkflowDefinition
from redrive.worker.execution import Execution
from redrive.worker.hands import Hands
from redrive.worker.lease import Lease
from redrive.worker.threads import Threads

__all__ = ["Worker", "WorkerSettings"]

log = logging.getLogger("redrive.worker")

_GOODBYE = 10.0  # how long a worker that stops waits for a store that does not answer
_MOMENT = 1.0  # how long runs may wait in line
_UNWIND = 1.0  # how long a worker that vanishes waits for its tasks
_HELD_PER_SLOT = 10  # runs that wait in memory, for each run that may execute


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works. Times are seconds; `poll` is how long an idle worker trusts the bell."""

    name: str
    concurrency: int = 100
    lease: float = 30.0
    grace: float = 30.0
    hold: float = 5.0
    code_wait: float = 600.0
    max_payload: int = 1 << 20
    transaction_limit: float = 5.0
    poll: float = 1.0


class Worker:
    """Executes runs of the registered workflows, up to `concurrency` at a time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
        *,
        workflows: Mapping[str, WorkflowDefinition],
        catalogue: Catalogue,
        steps: Mapping[str, Step[Any, Any]] = MappingProxyType({}),
        acting: Acting | None = None,
        rules: Sequence[Rule] = (),
        has_circuits: bool = False,
        on_ended: Callable[[Claimed, Settled], None] | None = None,
        on_published: Callable[[], None] = lambda: None,
        outgoing: Outgoing | None = None,
        around_step: Callable[[Attempt, Callable[[], Any]], Callable[[], Any]] | None = None,
        ears: Sequence[Ear] = (),
        tally: Tally | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.version = catalogue.version
        self.max_payload = settings.max_payload
        self.rules = rules
        self.bell = Bell(clock)
        self.id = 0
        self.threads: Threads
        self.committer: Committer
        self.lease: Lease
        self.steps = steps
        self.acting = acting or Acting({}, ())
        self.workflows = workflows
        self._catalogue = catalogue
        self._on_ended = on_ended
        self.published = on_published
        self.around_step = around_step
        self.settler = LocalSettler(store, clock, ears=ears, outgoing=outgoing)
        self.tally = tally
        self.tracing = tracing
        self.circuits = Circuits(store, clock, wanted=has_circuits)
        self.hands = Hands(clock, self.bell, settings.concurrency, self.look_for_calm)
        self._stopping = False
        self.claiming = Claiming(self)
        self.beats = Beats(self)
        self._claims: asyncio.Task[None] | None = None
        self._calm: asyncio.Event
        self._services: list[asyncio.Task[None]] = []
        self._undo_factory: Callable[[], None] = lambda: None
        self._automatic = True

    # -- life ---------------------------------------------------------------------------------------

    async def start(self, *, automatic: bool = True) -> None:
        """Enlist and begin to claim. `automatic=False`: somebody else renews the lease."""
        self._automatic = automatic
        self._stopping = False
        self._calm = asyncio.Event()
        size = self.settings.concurrency
        self.threads = Threads(steps=size, workflows=size * (1 + _HELD_PER_SLOT))
        self.committer = Committer(self._heeding())
        self._undo_factory = install_task_factory(asyncio.get_running_loop())
        try:
            await self._enlist()
            if self.circuits.wanted:
                await until_answered(self.circuits.refresh, self.clock)
        except BaseException:
            self.threads.close()
            self._undo_factory()
            raise
        self._services = [asyncio.create_task(self.committer.run(), name="redrive committer")]
        if automatic:
            listening = self.bell.listen(self.store.changed, self.published)
            self._services.append(asyncio.create_task(listening, name="redrive bell"))
        if automatic and self.circuits.wanted:
            self._services.append(asyncio.create_task(self.circuits.follow(), name="redrive circuits"))
        self._claims = asyncio.create_task(self.claiming.forever(), name="redrive claims")

    def _heeding(self) -> Settler:
        """The settler, with an ear for what is said about dependencies if any step has a circuit."""
        return Heeding(self.settler, self.circuits) if self.circuits.wanted else self.settler

    async def _enlist(self) -> None:
        worker = NewWorker(
            name=self.settings.name,
            version=self.version,
            workflows=tuple(self.workflows),
            lease=int(self.settings.lease * MICROS),
        )
        self.id = await until_answered(lambda: self.store.enlist(worker, self._catalogue), self.clock)
        self.settler.worker = self.id
        self.lease = Lease(
            self.store.lease_line(),
            self.clock,
            self.id,
            self.settings.lease,
            heartbeats=self.beats.signs,
            on_beat=self.heard,
            overdue=self.beats.overdue,
        )
        if self._automatic:
            self.lease.start()

    async def stop(self, grace: float | None = None) -> None:
        """Let steps and claims in flight end, within the grace period; give everything else back; retire."""
        self._stopping = True
        self._release(self.hands.in_line)
        for execution in self.executions:
            execution.wind_up()
        await self._settle_down(self.settings.grace if grace is None else grace)
        await self._end(self._claims)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self.claiming.arrived()  # or they would wait for the end of a lease
        await self._give_back()
        for service in self._services:
            await self._end(service)
        await self.circuits.close()
        await self.lease.stop()
        await self._retire()
        self.threads.close()
        self._undo_factory()

    def hurry(self) -> None:
        """Cut the grace period short: what is in flight is given back as it is."""
        self._calm.set()

    async def kill(self) -> None:
        """Vanish as a crash would: nothing is given back and nothing more is sent."""
        self._stopping = True
        tasks = [*self.services, *self.hands.tasks]
        for execution in self.executions:
            execution.put_down()
        for task in tasks:
            task.cancel()
        ended, _ = await asyncio.wait(tasks, timeout=_UNWIND)
        for task in ended:
            if not task.cancelled():
                task.exception()  # a crash asks nobody what went wrong
        await self.circuits.close()
        await self.lease.stop()
        self.threads.close()
        self._undo_factory()

    async def _settle_down(self, grace: float) -> None:
        """Wait until no step is in flight and no run on its way here, or the grace period is over."""
        over = self.clock.call_later(grace, self._calm.set)
        self.look_for_calm()
        await self._calm.wait()
        over.cancel()

    def look_for_calm(self) -> None:
        """See whether a worker that stops may go on with that."""
        if not self._stopping or self.claiming.expects_runs:
            return
        if not self.hands.busy:
            self._calm.set()

    def _release(self, executions: Iterable[Execution]) -> None:
        for execution in executions:
            self.committer.post(execution.release())
            execution.put_down()

    async def _give_back(self) -> None:
        self._release(self.executions)
        goodbye = asyncio.create_task(self.committer.flush())
        await asyncio.wait([goodbye], timeout=_GOODBYE)
        if not goodbye.done():
            goodbye.cancel()
            log.warning("the store did not answer; runs held here are taken up when the lease has run out")

    async def _retire(self) -> None:
        try:
            await self.store.retire(self.id)
        except StoreError as error:
            log.warning("could not say goodbye to the store, the lease will run out: %s", error)

    @staticmethod
    async def _end(task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    # -- runs ---------------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """How many runs it executes at a time."""
        return self.settings.concurrency

    @property
    def room(self) -> int:
        """How many more runs it could execute."""
        taken = self.hands.at_work + self.claiming.promised
        return 0 if self._stopping else max(0, self.settings.concurrency - taken)

    def has_time_for(self, runs: Sequence[NewRun]) -> bool:
        """True if it could take these at once, and nobody who was there before has to wait for that."""
        return self._automatic and self.claiming.has_time_for(runs)

    async def begin_with(
        self, runs: Sequence[NewRun], accept: Callable[[int], Awaitable[list[Started]]]
    ) -> list[Started]:
        """Have runs accepted under this worker's name, and begin with them: no claim is needed for these."""
        return await self.claiming.begin_with(runs, accept)

    async def take_over(self, count: int, give: Give, patience: float, *, ahead: bool) -> bool:
        """Have runs given to this worker when it has room for them; False if it has no time.

        `ahead`: as soon as nobody waits in line for its room. They are begun as others end.
        """
        return self._automatic and await self.claiming.take_over(count, give, patience, ahead=ahead)

    def take(self, runs: Iterable[Claimed], now: int, *, ahead: bool = False) -> None:
        """Begin with runs that are ours from now on, or give them back if we stop.

        `ahead`: there is not room for all of them yet. What is not begun in a moment is given back, for
        whoever has room, and as it is with runs that are due: a pause holds for them.
        """
        for claimed in runs:
            try:
                self._launch(claimed, now, self.hands.line_up if ahead else self.hands.begin)
            except Exception as error:
                self.committer.post(unreadable(claimed, error))
        if self.hands.in_line:
            self.clock.call_later(_MOMENT, lambda: self._give_up_line(now))
        self.look_for_calm()

    def _launch(self, claimed: Claimed, now: int, begin: Callable[[Execution], None]) -> None:
        if self._stopping:
            view = view_of_claimed(claimed, self.options_of(claimed.options), self.version)
            self.committer.post(Released(run=view))
            return
        begin(Execution(self, claimed, self.workflows[claimed.workflow], claimed_at=now))

    def _give_up_line(self, since: int) -> None:
        """Give back what is in line since then, or longer."""
        self._release([each for each in self.hands.in_line if each.claimed_at <= since])

    def confirm(self, before: Execution, ended: Ended) -> None:
        """The function of a run returned, and what it reserved is to be confirmed."""
        after = Execution(self, before.claimed, before.workflow, claimed_at=before.claimed_at, ended=ended)
        after.follow(before)
        if self._stopping:
            after.wind_up()
        self.hands.begin(after)

    @property
    def executions(self) -> Collection[Execution]:
        """The runs in this worker's hands."""
        return self.hands.all

    def tells_of(self) -> set[str]:
        """The runs of which `on_ended` will tell as soon as anybody can know.

        None, if time is in the hands of a test: it may stand still between an end and its answer.
        """
        if not self._automatic or not self.lease.healthy():
            return set()
        return {execution.claimed.public_id for execution in self.hands.held.values()}

    @property
    def services(self) -> list[asyncio.Task[None]]:
        """The worker's own tasks: the committer first."""
        return [*self._services, *filter(None, [self._claims])]

    @property
    def is_stopping(self) -> bool:
        """True from the moment it is told to stop."""
        return self._stopping

    @property
    def is_claiming(self) -> bool:
        """True while a claim is under way, or about to be made."""
        return self.claiming.under_way or self.bell.rung

    @property
    def is_being_cancelled(self) -> bool:
        """True when the whole loop is being torn down, rather than one run's task."""
        return any(service.cancelling() or service.done() for service in self._services[:1])

    # -- what executions ask of their worker ----------------------------------------------------------

    def options_of(self, text: str) -> RunOptions:
        """The parsed snapshot; runs of one workflow share it."""
        return options_of(text)

    def hold(self) -> int:
        """How long a wait to keep in memory, in microseconds: not at all when many are waiting already."""
        crowded = self.hands.at_rest >= self.settings.concurrency * _HELD_PER_SLOT
        return 0 if crowded or self._stopping else int(self.settings.hold * MICROS)

    def came_to_stop(self) -> None:
        """A branch of a run that is being wound up came to a stop."""
        self.look_for_calm()

    def transaction(self) -> Transaction:
        """A transaction for a transactional step, well within the lease."""
        return self.store.transaction(min(self.settings.transaction_limit, self.settings.lease / 3))

    def ended(self, claimed: Claimed, settled: Settled) -> None:
        """The run came to an end, or to a pause; tell those in this process who wait for it."""
        change, execution = settled.transition.change, self.hands.held.get(claimed.id)
        if execution is not None and change is not None and change.status in FINAL:
            self.hands.let_go(execution)
            self.claiming.has_more_room()
            if claimed.deaths or settled.transition.starts:
                self.bell.ring()
        if self._on_ended is not None:
            self._on_ended(claimed, settled)

    async def code_changed(self, claimed: Claimed, view: RunView, difference: Reason) -> Outcome:
        """Whether to leave the run for a worker that has its code, or to give up."""
        log.warning("run %s: %s", claimed.public_id, difference)
        if claimed.version == self.version:
            return Diverged(run=view, difference=difference, wait=Wait.NO_MORE)
        workers = await until_answered(self.store.workers, self.clock)
        someone = any(each.version == claimed.version for each in living(workers, self.store.now()))
        since = claimed.diverged_at
        waited = 0.0 if since is None else (self.store.now() - since) / MICROS
        if not someone and waited >= self.settings.code_wait:
            return Diverged(run=view, difference=difference, wait=Wait.NO_MORE)
        pause = min(5.0, max(0.1, self.settings.code_wait / 10))
        return Diverged(run=view, difference=difference, wait=Wait.FOR_CODE, delay=int(pause * MICROS))

    # -- heartbeats -----------------------------------------------------------------------------------

    def heard(self, beat: Beat) -> None:
        """Act on a heartbeat's answer."""
        if beat.alive:
            self.beats.heard(beat)
        elif not self._stopping:
            self.serve(self._rise())

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that goes on until it is done, or the worker ends."""
        self._services.append(asyncio.get_running_loop().create_task(work))

    def lost(self, runs: int, *, lease: bool = False) -> None:
        """Count runs that were taken from this worker, and a lease."""
        if self.tally is not None:
            self.tally.runs_lost += runs
            self.tally.leases_lost += lease

    async def _rise(self) -> None:
        """This worker was declared dead: whatever it held is gone. Begin anew under another id."""
        log.warning("worker %d was declared dead; it lets go of its runs and enlists again", self.id)
        self.lost(len(self.hands.held), lease=True)
        for execution in self.executions:
            execution.put_down()
        self.committer.forget()
        self.id = 0  # what is on its way to the dead one does not arrive here
        await self.lease.stop()
        await self._enlist()
        self.bell.ring()
