"""The worker: claim due runs, execute them, settle what happens, stop without losing anything.

run         claim ──> launch ──> (executions settle through the committer) ──> claim ...
stop        begin nothing new ──> steps in flight end ──> release the rest ──> retire
died        the store declared this worker dead: put everything down, enlist anew
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from redrive.clock import MICROS, Clock
from redrive.core.classify import Rule
from redrive.core.ending import Ending, LetterCode, Stage
from redrive.core.failure import capture
from redrive.core.options import RunOptions
from redrive.core.outcome import Diverged, Ended, Escaped, Outcome, Released, RunView, Wait
from redrive.core.states import FINAL, RunStatus
from redrive.core.transition import NewRun
from redrive.errors import StoreError
from redrive.settle.settler import LocalSettler, Settled, Settler, until_answered
from redrive.settle.view import options_of, view_of, view_of_claimed
from redrive.signals.tally import Ear, Tally
from redrive.signals.traces import Tracing
from redrive.store.port import Store, Transaction
from redrive.store.records import Beat, Catalogue, Claim, Claimed, Claims, Lane, NewWorker, Started
from redrive.worker.acting import Acting
from redrive.worker.attempt import Attempt
from redrive.worker.bell import Bell
from redrive.worker.branch import install_task_factory
from redrive.worker.circuits import Circuits, Heeding
from redrive.worker.committer import Committer
from redrive.worker.definition import Step, WorkflowDefinition
from redrive.worker.execution import Execution
from redrive.worker.lease import Lease
from redrive.worker.threads import Threads

__all__ = ["Worker", "WorkerSettings"]

log = logging.getLogger("redrive.worker")

_PAUSE = 1.0  # how long to leave a store alone that gives out no work because it fails
_GOODBYE = 10.0  # how long a worker that stops waits for a store that does not answer
_UNWIND = 1.0  # how long code that was put down may take to unwind before it is left alone
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
        self.abandoned = 0
        self.threads: Threads
        self.committer: Committer
        self.lease: Lease
        self.steps = steps
        self.acting = acting or Acting({}, ())
        self._workflows = workflows
        self._catalogue = catalogue
        self._on_ended = on_ended
        self.published = on_published
        self.around_step = around_step
        self.settler = LocalSettler(store, clock, ears=ears)
        self._tally = tally
        self.tracing = tracing
        self.circuits = Circuits(store, clock, wanted=has_circuits)
        self._executions: dict[int, Execution] = {}
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._resting: set[Execution] = set()
        self._after: Lane | None = None
        self._stopping = False
        self._claiming: asyncio.Task[None] | None = None
        self._calm: asyncio.Event
        self._services: list[asyncio.Task[None]] = []
        self._undo_factory: Callable[[], None] = lambda: None
        self._automatic = True
        self._claim_under_way = False
        self._asking = False  # the store may be giving us runs right now
        self._more_due = True  # as far as is known: due runs that the last claim did not bring
        self._promised = 0  # slots for runs that are being started here
        self._asked: frozenset[int] = frozenset()
        self._strays: frozenset[int] = frozenset()

    # -- life ---------------------------------------------------------------------------------------

    async def start(self, *, automatic: bool = True) -> None:
        """Enlist and begin to claim. `automatic=False`: somebody else renews the lease."""
        self._automatic = automatic
        self._stopping = False
        self._calm = asyncio.Event()
        size = self.settings.concurrency
        self.threads = Threads(steps=size, workflows=size * (1 + _HELD_PER_SLOT))
        self.committer = Committer(self._heeding(), self.published)
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
        self._claiming = asyncio.create_task(self._claim_forever(), name="redrive claims")

    def _heeding(self) -> Settler:
        """The settler, with an ear for what is said about dependencies if any step has a circuit."""
        return Heeding(self.settler, self.circuits) if self.circuits.wanted else self.settler

    async def _enlist(self) -> None:
        worker = NewWorker(
            name=self.settings.name,
            version=self.version,
            workflows=tuple(self._workflows),
            lease=int(self.settings.lease * MICROS),
        )
        self.id = await until_answered(lambda: self.store.enlist(worker, self._catalogue), self.clock)
        self.settler.worker = self.id
        self.lease = Lease(
            self.store.lease_line(),
            self.clock,
            self.id,
            self.settings.lease,
            heartbeats=self._heartbeats,
            on_beat=self.heard,
            overdue=self._overdue,
        )
        if self._automatic:
            self.lease.start()

    async def stop(self, grace: float | None = None) -> None:
        """Let steps and claims in flight end, within the grace period; give everything else back; retire."""
        self._stopping = True
        for execution in list(self._executions.values()):
            execution.wind_up()
        await self._settle_down(self.settings.grace if grace is None else grace)
        await self._end(self._claiming)
        await self._give_back(list(self._executions.values()))
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
        tasks = [*self.services, *self._tasks.values()]
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
        self._look_for_calm()
        await self._calm.wait()
        over.cancel()

    def _look_for_calm(self) -> None:
        if not self._stopping or self._asking or self._promised:
            return
        if not any(execution.busy for execution in self._executions.values()):
            self._calm.set()

    async def _give_back(self, executions: list[Execution]) -> None:
        for execution in executions:
            self.committer.post(execution.release())
            execution.put_down()
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

    # -- claiming -----------------------------------------------------------------------------------

    async def _claim_forever(self) -> None:
        while True:
            wait = await self._claim_once()
            if wait > 0:
                await self.bell.wait(wait)

    async def _claim_once(self) -> float:
        """Claim what there is room for; returns how long to wait for more, at the most."""
        room, before = self._free, self._after
        if not room or not self.lease.healthy():
            self._more_due = True
            return self.settings.poll
        claims = await self._claim(room)
        self._take(claims.runs, claims.now)
        self._more_due = len(claims.runs) >= room or self._after != before
        if claims.runs and self._more_due and self._free:
            return 0.0
        if claims.next_in is None:
            return self.settings.poll
        return min(self.settings.poll, max(claims.next_in, 1) / MICROS)

    def _set_aside(self, claimed: Claimed, error: Exception) -> None:
        """A run that cannot even be begun here becomes a letter; the others go on."""
        log.error("run %s cannot be executed", claimed.public_id, exc_info=error)
        view = RunView(
            id=claimed.id,
            public_id=claimed.public_id,
            tenant=claimed.tenant,
            workflow=claimed.workflow,
            fence=claimed.fence,
            input=claimed.input,
            options=self._readable_options(claimed.options),
            correlation_id=claimed.correlation_id,
            started_at=claimed.started_at,
            handler_for=claimed.handler_for,
            undoing=claimed.status is RunStatus.COMPENSATING,
        )
        reason = f"what the store holds of this run cannot be read: {error}"
        ending = Ending(
            failure=capture(error), code=LetterCode.INFRASTRUCTURE_FAILURE, reason=reason, stage=Stage.INPUT
        )
        self.committer.post(Escaped(run=view, ending=ending))

    def _readable_options(self, text: str) -> RunOptions:
        try:
            return self.options_of(text)
        except (KeyError, TypeError, ValueError):
            return RunOptions()

    async def _claim(self, capacity: int) -> Claims:
        claim = Claim(
            worker=self.id,
            workflows=tuple(self._workflows),
            capacity=capacity,
            suspect=not any(e.view.deaths for e in self._executions.values()),
            after=self._after,
        )
        self._claim_under_way = self._asking = True
        began = self.clock.monotonic()
        try:
            claims = await self.store.claim(claim)
            if claims.runs and self._tally is not None:
                self._tally.claims.add(self.clock.monotonic() - began)
            if claims.runs and self.circuits.wanted:
                await self.circuits.catch_up()  # before anything of theirs is called
        except StoreError as error:
            self._asking = False
            self._look_for_calm()
            log.warning("no work can be claimed at the moment: %s", error)
            await self.clock.sleep(min(_PAUSE, self.settings.lease / 10))
            return Claims(runs=[], now=self.store.now(), next_in=0, after=self._after)
        finally:
            self._claim_under_way = self._asking = False
        self._after = claims.after
        # A worker that was declared dead meanwhile has another id now, and what it claimed is not its own.
        return claims if claim.worker == self.id else replace(claims, runs=[])

    @property
    def _free(self) -> int:
        taken = len(self._executions) - len(self._resting) + self._promised
        return 0 if self._stopping else max(0, self.settings.concurrency - taken)

    def has_time_for(self, runs: Sequence[NewRun]) -> bool:
        """True if it could take these at once, and nobody who was there before has to wait for that."""
        return (
            self._automatic
            and not (self._more_due or self.is_claiming)
            and len(runs) <= self._free
            and self.lease.healthy()
            and all(run.delay <= 0 and run.workflow in self._workflows for run in runs)
        )

    async def begin_with(
        self, runs: Sequence[NewRun], accept: Callable[[int], Awaitable[list[Started]]]
    ) -> list[Started]:
        """Have runs accepted under this worker's name, and begin with them: no claim is needed for these."""
        me = self.id
        self._promised += len(runs)
        try:
            started = await accept(me)
            if self.circuits.wanted:
                await self.circuits.catch_up()  # as after a claim
        finally:
            self._promised -= len(runs)
            self._look_for_calm()
        claimed = [each.claimed for each in started if each.claimed is not None]
        self._take(claimed if me == self.id else [], claimed[0].created_at if claimed else 0)
        if len(claimed) < len(started):
            self.bell.ring()
        return started

    def _take(self, runs: Iterable[Claimed], now: int) -> None:
        """Begin with runs that are ours from now on, or give them back if we stop."""
        for claimed in runs:
            try:
                self._launch(claimed, now)
            except Exception as error:
                self._set_aside(claimed, error)
        self._look_for_calm()

    def _launch(self, claimed: Claimed, now: int) -> None:
        if self._stopping:
            view = view_of_claimed(claimed, self.options_of(claimed.options), self.version)
            self.committer.post(Released(run=view))
            return
        self._begin(Execution(self, claimed, self._workflows[claimed.workflow], claimed_at=now))

    def confirm(self, before: Execution, ended: Ended) -> None:
        """The function of a run returned, and what it reserved is to be confirmed."""
        after = Execution(self, before.claimed, before.workflow, claimed_at=before.claimed_at, ended=ended)
        after.follow(before)
        if self._stopping:
            after.wind_up()
        self._begin(after)

    def _begin(self, execution: Execution) -> None:
        before = self._executions.get(execution.claimed.id)
        if before is not None:
            before.put_down()  # it was taken from here and has come back, sooner than the heartbeat tells
        self._executions[execution.claimed.id] = execution
        task = execution.launch()
        self._tasks[execution] = task
        task.add_done_callback(lambda task: self._gone(execution, task))

    def _gone(self, execution: Execution, task: asyncio.Task[None]) -> None:
        self._forget(execution)
        self._tasks.pop(execution, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s broke its worker's task", execution.claimed.public_id, exc_info=error)
        execution.come_apart()

    def _forget(self, execution: Execution) -> None:
        """Whoever is put down may be due again at any time: look when."""
        if self._executions.get(execution.claimed.id) is execution:
            self._let_go(execution)
            self.bell.ring()

    def _let_go(self, execution: Execution) -> None:
        del self._executions[execution.claimed.id]
        self._resting.discard(execution)
        self._look_for_calm()

    @property
    def executions(self) -> Collection[Execution]:
        """The runs in this worker's hands."""
        return list(self._executions.values())

    def tells_of(self) -> set[str]:
        """The runs of which `on_ended` will tell as soon as anybody can know.

        None, if time is in the hands of a test: it may stand still between an end and its answer.
        """
        if not self._automatic or not self.lease.healthy():
            return set()
        return {execution.claimed.public_id for execution in self._executions.values()}

    @property
    def services(self) -> list[asyncio.Task[None]]:
        """The worker's own tasks: the committer first."""
        return [*self._services, *filter(None, [self._claiming])]

    @property
    def is_claiming(self) -> bool:
        """True while a claim is under way, or about to be made."""
        return self._claim_under_way or self.bell.rung

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
        crowded = len(self._resting) >= self.settings.concurrency * _HELD_PER_SLOT
        return 0 if crowded or self._stopping else int(self.settings.hold * MICROS)

    def resting(self, execution: Execution) -> None:
        """The run waits in memory and does not take up a slot."""
        self._resting.add(execution)
        self.bell.ring()

    def awake(self, execution: Execution) -> None:
        """The run goes on."""
        self._resting.discard(execution)

    def put_down(self, execution: Execution) -> None:
        """The run is no longer this worker's."""
        self._forget(execution)
        task = self._tasks.get(execution)
        if task is not None and not task.done():
            self.clock.call_later(_UNWIND, lambda: self._left_alone(task))

    def _left_alone(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self.abandoned += 1
            log.warning("code that was put down has not unwound: %s", task.get_name())

    def came_to_stop(self) -> None:
        """A branch of a run that is being wound up came to a stop."""
        self._look_for_calm()

    def transaction(self) -> Transaction:
        """A transaction for a transactional step, well within the lease."""
        return self.store.transaction(min(self.settings.transaction_limit, self.settings.lease / 3))

    def ended(self, claimed: Claimed, settled: Settled) -> None:
        """The run came to an end, or to a pause; tell those in this process who wait for it."""
        change, execution = settled.transition.change, self._executions.get(claimed.id)
        if execution is not None and change is not None and change.status in FINAL:
            self._let_go(execution)
            if self._more_due or claimed.deaths or settled.transition.starts:
                self.bell.ring()
        if self._on_ended is not None:
            self._on_ended(claimed, settled)

    async def code_changed(self, claimed: Claimed, view: RunView, difference: str) -> Outcome:
        """Whether to leave the run for a worker that has its code, or to give up."""
        log.warning("run %s: %s", claimed.public_id, difference)
        if claimed.version == self.version:
            return Diverged(run=view, difference=difference, wait=Wait.NO_MORE)
        workers = await until_answered(self.store.workers, self.clock)
        someone = any(w.version == claimed.version and w.state == "LIVE" for w in workers)
        since = claimed.diverged_at
        waited = 0.0 if since is None else (self.store.now() - since) / MICROS
        if not someone and waited >= self.settings.code_wait:
            return Diverged(run=view, difference=difference, wait=Wait.NO_MORE)
        pause = min(5.0, max(0.1, self.settings.code_wait / 10))
        return Diverged(run=view, difference=difference, wait=Wait.FOR_CODE, delay=int(pause * MICROS))

    # -- heartbeats -----------------------------------------------------------------------------------

    def _heartbeats(self) -> dict[tuple[int, int], str | None]:
        """Called by the lease, from its thread: the signs of life of all steps."""
        executions = list(self._executions.values())
        self._asked = frozenset(execution.claimed.id for execution in executions)
        signs: dict[tuple[int, int], str | None] = {}
        for execution in executions:
            signs.update(execution.heartbeats())
        return signs

    def _overdue(self) -> bool:
        """Called by the lease, from its thread: whether an attempt is past its time by a whole lease."""
        late = self.clock.monotonic() - self.settings.lease
        attempts = [attempt for execution in self.executions for attempt in list(execution.open.values())]
        return any(attempt.due is not None and attempt.due < late for attempt in attempts)

    def heard(self, beat: Beat) -> None:
        """Act on a heartbeat's answer: let go of what was taken away, give back what got lost."""
        if not beat.alive:
            if not self._stopping:
                self._services.append(asyncio.get_running_loop().create_task(self._rise()))
            return
        for run in self._asked - beat.held:
            execution = self._executions.get(run)
            if execution is None or execution.dead or execution.settling or execution.claimed_at > beat.now:
                continue  # gone by itself, about to hear for itself, or claimed after this was asked
            log.warning("run %s was taken from this worker", execution.claimed.public_id)
            self._lost(1)
            execution.put_down()
        self._look_for_strays(beat.held - self._asked - self._executions.keys())

    def _lost(self, runs: int, *, lease: bool = False) -> None:
        if self._tally is not None:
            self._tally.runs_lost += runs
            self._tally.leases_lost += lease

    def _look_for_strays(self, unknown: frozenset[int]) -> None:
        """Runs the store counts as this worker's, twice in a row, although no claim brought them."""
        if self._claim_under_way or self._promised or self._stopping:
            unknown = frozenset()
        strays = unknown & self._strays
        self._strays = unknown
        if strays:
            self._services.append(asyncio.get_running_loop().create_task(self._return_strays(strays)))

    async def _return_strays(self, strays: frozenset[int]) -> None:
        """Give back runs whose claim was answered but never heard."""
        me = self.id
        for held in await until_answered(lambda: self.store.held(me), self.clock):
            if me == self.id and held.run.id in strays and held.run.id not in self._executions:
                await self.committer.submit(Released(run=view_of(held.run)))
        self.bell.ring()

    async def _rise(self) -> None:
        """This worker was declared dead: whatever it held is gone. Begin anew under another id."""
        log.warning("worker %d was declared dead; it lets go of its runs and enlists again", self.id)
        self._lost(len(self._executions), lease=True)
        for execution in list(self._executions.values()):
            execution.put_down()
        self.committer.forget()
        await self.lease.stop()
        await self._enlist()
        self.bell.ring()
