"""The runtime of an open app: its store, worker and chores, and the callers that wait for results."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from redrive import chores
from redrive.app.code_check import check_history
from redrive.app.declarations import collect_schedules
from redrive.app.events_from_runs import AppRuns
from redrive.app.notification_chore import NotificationChore
from redrive.app.results import Results, ResultSource
from redrive.clock import MICROS, Clock, SystemClock
from redrive.core.new_run import StartableWorkflow
from redrive.core.notification_rules import Escalation
from redrive.core.redact import Redactor
from redrive.core.roles import Role
from redrive.core.transitions import NewRun
from redrive.desk.audit import Audit
from redrive.desk.bulk_execution import BulkExecutor, BulkWorker
from redrive.desk.circuits import Circuits
from redrive.desk.event_sender import DeclaredEvents, EventSender
from redrive.desk.letters import DeadLetters
from redrive.desk.models import Caller
from redrive.desk.notifications import NotificationDisplay, Notifications
from redrive.desk.outbox_and_sinks import Outbox, Sinks
from redrive.desk.policies import Policies
from redrive.desk.presenter import Presenter
from redrive.desk.preview import Previewer
from redrive.desk.replays import Replayer
from redrive.desk.run_starter import RunStarter
from redrive.desk.runs import Runs
from redrive.desk.saga import Sagas
from redrive.desk.saved_views import SavedViews
from redrive.desk.schedules import Schedules
from redrive.desk.tasks import Tasks
from redrive.desk.validation import AudienceCheck, PayloadChecker
from redrive.desk.workflows import Workflows
from redrive.errors import ConfigurationError
from redrive.notify.digest import SENDER_SINKS
from redrive.observability.counters import Counters, SettleListener, StatsCache, metrics_enabled
from redrive.observability.decision_log import DecisionLog
from redrive.observability.tracing import current_traceparent, make_tracing
from redrive.settings import Settings, parse_metrics_address
from redrive.sinks import SinkDefinition
from redrive.store import open_store
from redrive.store.children import WokenRun
from redrive.store.circuits import CircuitRow
from redrive.store.encryption.codec import refuse_unreadable
from redrive.store.encryption.keyring import Keyring
from redrive.store.events import SendResult
from redrive.store.outbox import NewSink
from redrive.store.port import DeskStore, Store
from redrive.store.runs import StartResult
from redrive.store.sql_store import repeat_until_answered
from redrive.worker.backend import Backend, LocalBackend
from redrive.worker.claimer import Wakeup
from redrive.worker.rollback import ActionRunner
from redrive.worker.worker import StepWrapper, Worker, WorkerSettings

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.observability.metrics import MetricsEndpoint

T = TypeVar("T")
_POLL_INTERVAL = 1.0  # seconds after which an idle worker looks for work without a notification
_BRIDGE_POLL = 0.2  # the same for the messages that a bridge delivers: an end of a run that its job waits for
_BATCH = 1000  # runs that are started in one commit
_STARTS_AT_ONCE = 3  # the server writes two of them in two processes, and the third is made meanwhile
_STORE_PATIENCE = 8.0  # seconds for which a caller waits for a store that does not answer
_REAL_TIME = SystemClock()
_PUNCTUAL_INTERVALS = 3  # a time of a schedule counts as missed after this many intervals of the chores
_SLOW_CHORE_FACTOR = 30  # purging and monitoring happen once in this many intervals of the chores


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of users, on a store or on a tenant's view of it."""

    runs: Runs
    dlq: DeadLetters
    sagas: Sagas
    tasks: Tasks
    policies: Policies
    circuits: Circuits
    outbox: Outbox
    audit: Audit
    starter: RunStarter
    notifications: Notifications
    schedules: Schedules
    views: SavedViews


class RuntimeBase(ABC):
    """The parts that every open app has, beside its store or not: a worker, and the callers that wait for results."""

    def __init__(self, app: Redrive, clock: Clock, source: ResultSource, counters: Counters | None = None) -> None:
        self._app = app
        self.clock = clock
        self.counters = counters
        self.results = Results(source, lambda: set() if self.worker is None else self.worker.runs_reported_here())
        self.tracing = make_tracing()
        self.endpoint: MetricsEndpoint | None = None
        self.worker: Worker | None = None
        self.wake_listeners: set[Callable[[], None]] = set()
        self._actions = ActionRunner(app.follow_up_steps.connections, app.follow_up_steps.allowed)

    @abstractmethod
    async def start(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> list[StartResult]:
        """Start runs. If the worker of this process has time, it holds them from the beginning.

        With `in_slot`, the caller is a run that waits for them, and they take its place.
        """

    async def start_many(self, runs: Sequence[NewRun]) -> list[StartResult]:
        """Start runs, a thousand to a commit. After an error no more are started."""
        batches = [runs[begin : begin + _BATCH] for begin in range(0, len(runs), _BATCH)]
        if len(batches) == 1 or self.worker is not None:  # a worker reserves its slots for one start at a time
            return [result for batch in batches for result in await self.start(batch)]
        results: list[StartResult] = []
        begun: deque[asyncio.Task[list[StartResult]]] = deque()
        try:
            for batch in batches:
                begun.append(asyncio.create_task(self.start(batch)))
                if len(begun) == _STARTS_AT_ONCE:
                    results += await begun.popleft()
            while begun:
                results += await begun.popleft()
        finally:
            await asyncio.gather(*begun, return_exceptions=True)
        return results

    async def ask_store(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make a store call; repeat it for some seconds of real time if the store does not answer."""
        return await repeat_until_answered(ask, _REAL_TIME, patience=_STORE_PATIENCE)

    def trace_start(self, workflow: str) -> AbstractContextManager[str | None]:
        """Return a context for starting runs, which gives the trace that they belong to, or None."""
        return nullcontext(current_traceparent()) if self.tracing is None else self.tracing.trace_start(workflow)

    def wake_workers(self) -> None:
        """Wake the worker of this process and remote workers, because there may be work."""
        if self.worker is not None:
            self.worker.wakeup.notify()
        for listener in self.wake_listeners:
            listener()

    def changed(self, run_id: str) -> None:
        """Look up a run that a user changed, and wake the worker."""
        self.results.poll_now(run_id)
        self.wake_workers()

    def _make_worker(
        self,
        backend: Backend,
        *,
        poll: float,
        wrap_step: StepWrapper | None,
        on_published: Callable[[], None] = lambda: None,
        forwarder: chores.RelayForwarder | None = None,
    ) -> Worker:
        """Return a worker with the settings and the code of the app."""
        app, settings = self._app, self._app.settings
        return Worker(
            backend,
            self.clock,
            WorkerSettings(
                name=f"{socket.gethostname()}:{os.getpid()}",
                queues=settings.queues or None,
                concurrency=settings.concurrency,
                lease=settings.lease,
                grace=settings.grace,
                hold=settings.hold,
                code_wait=settings.code_wait,
                max_payload=settings.max_payload,
                poll=poll,
            ),
            workflows={name: workflow.definition for name, workflow in app.registered_workflows.items()},
            catalogue=app.catalogue(),
            steps=app.registered_steps,
            actions=self._actions,
            rules=app.rules,
            has_circuits=any(step.options.circuit for step in app.registered_steps.values()),
            on_ended=self.results.on_run_ended,
            on_published=on_published,
            forwarder=forwarder,
            wrap_step=wrap_step,
            counters=self.counters,
            tracing=self.tracing,
        )


class Runtime(RuntimeBase):
    """The parts of an app that exist while it is open beside its store."""

    def __init__(self, app: Redrive, store: Store, clock: Clock) -> None:
        super().__init__(app, clock, store, Counters() if metrics_enabled(app.settings.metrics) else None)
        self._pid = os.getpid()
        self._store = store
        store.on_woken = self.on_woken
        self._redactor = Redactor.parse(app.settings.redact)
        decision_log = DecisionLog(self._redactor)
        self.listeners: tuple[SettleListener, ...] = (
            (decision_log,) if self.counters is None else (decision_log, self.counters)
        )
        self.stats_cache = StatsCache(store.stats, clock)
        self._bulk_begun = Wakeup(clock)
        desk = self.desk(store, clock)
        self.runs = desk.runs
        self.dlq = desk.dlq
        self.sagas = desk.sagas
        self.tasks = desk.tasks
        self.policies = desk.policies
        self.circuits = desk.circuits
        self.outbox = desk.outbox
        self.audit = desk.audit
        self.starter = desk.starter
        self.notifications = desk.notifications
        self.schedules = desk.schedules
        self.views = desk.views
        self.workflows = Workflows(store, clock, self.wake_workers, app.registered_workflows)
        self.sinks = Sinks(store, clock)
        self.reaper = self.new_reaper(store)
        self.purger = self.new_purger(store)
        self.group_aggregator = chores.GroupAggregator(store)
        self.letter_escalator = self.new_letter_escalator(store)
        self.task_escalator = self.new_task_escalator(store)
        self.replay_counter = chores.ReplayCounter(store)
        self.bulk_worker = self.new_bulk_worker(store)
        self.circuit_updater = self.new_circuit_updater(store)
        self.scheduler = self.new_scheduler(store)
        self.child_updater = self.new_child_updater(store)
        self.unclaimable_monitor = chores.UnclaimableRunMonitor(store)
        self.notification_chore = self.new_notification_chore(store)
        self.relays: list[chores.Relay] = []
        self._relaying: list[asyncio.Task[None]] = []
        self._one_suspect = asyncio.Lock()
        self._chores: list[asyncio.Task[None]] = []
        self._poll = math.inf
        self._delivers = False  # this process delivers messages although it has no worker

    def new_reaper(self, store: Store) -> chores.Reaper:
        """Return the chore that ends runs and attempts that their workers do not end."""
        return chores.Reaper(store, self.clock, listeners=self.listeners, counters=self.counters)

    def new_bulk_worker(self, store: Store) -> BulkWorker:
        """Return the chore that executes bulk operations."""
        # The permissions of the user who began the operation are not known here, so payloads stay hidden.
        # A bulk operation needs the role ADMIN; whether the user has a higher one is not known either.
        replayer = self._make_replayer(store, self.clock, Caller(sees_payloads=False, role=Role.ADMIN))
        return BulkWorker(store, BulkExecutor(store, self.clock, replayer).decide)

    def new_circuit_updater(self, store: Store) -> chores.CircuitUpdater:
        """Return the chore that updates circuits and releases parked runs."""
        return chores.CircuitUpdater(store, self.learn_circuit)

    def new_child_updater(self, store: Store) -> chores.ChildUpdater:
        """Return the chore that cancels children of ended runs and wakes runs whose children ended."""
        return chores.ChildUpdater(store, self.clock, listeners=self.listeners)

    def new_scheduler(self, store: Store) -> chores.Scheduler:
        """Return the chore that starts scheduled runs."""
        return chores.Scheduler(
            store,
            collect_schedules(self._app),
            worker=lambda: 0 if self.worker is None else self.worker.id,
            on_start=self.wake_workers,
            punctual=int(_PUNCTUAL_INTERVALS * self._app.settings.chores * MICROS),
        )

    def learn_circuit(self, row: CircuitRow) -> None:
        """Pass the state of a circuit to the worker of this process, and wake it."""
        if self.worker is not None:
            self.worker.circuits.learn(row)
            self.worker.wakeup.notify()

    def new_notification_chore(self, store: Store) -> NotificationChore:
        """Return the chore that sends notifications."""

        async def begin(sinks: list[SinkDefinition]) -> None:
            await self._register_sinks(sinks)
            if self.worker is not None or self._delivers:
                self._start_relays(store, sinks)

        return NotificationChore(self._app, store, self.clock, self._redactor, begin, self.wake_all_relays)

    def new_purger(self, store: Store) -> chores.Purger:
        """Return the chore that removes records after their retention time."""
        return chores.Purger(store, self.clock, self._app.settings)

    def new_letter_escalator(self, store: Store) -> chores.LetterEscalator:
        """Return the chore that escalates dead letters that are open for too long."""
        return chores.LetterEscalator(store, self.clock, self._app.settings, self.wake_all_relays)

    def new_task_escalator(self, store: Store) -> chores.TaskEscalator:
        """Return the chore that reminds of open tasks and escalates them."""
        return chores.TaskEscalator(store, self.wake_all_relays)

    def desk(self, store: DeskStore, clock: Clock, caller: Caller | None = None) -> Desk:
        """Return the operations of users, on the store or on a view of it; a caller over HTTP may see less."""
        presenter = Presenter(self._redactor, stacks=caller is None or caller.sees_stacks)
        replayer = self._make_replayer(store, clock, caller)
        previewer, settings = Previewer(store, replayer, presenter), self._app.settings
        return Desk(
            runs=AppRuns(
                store,
                clock,
                presenter,
                replayer,
                previewer,
                self.changed,
                self._store.workers,
                self._make_sender(store, clock, caller),
                listeners=self.listeners,
                check_code=partial(check_history, self._app),
            ),
            dlq=DeadLetters(
                store,
                clock,
                presenter,
                replayer,
                previewer,
                self._bulk_begun.notify,
                self.wake_all_relays,
                None if caller is None else Escalation(after=settings.escalate_after, to=settings.escalate_to),
                self._app.channels.knows,
            ),
            sagas=Sagas(store, presenter, replayer),
            tasks=Tasks(
                store, clock, presenter, self._make_checker(store), replayer, self._make_audience_check(caller), caller
            ),
            policies=Policies(store, clock),
            circuits=Circuits(store, clock, self.learn_circuit),
            outbox=Outbox(store, clock, presenter, self.wake_all_relays),
            audit=Audit(store, presenter),
            starter=RunStarter(
                store,
                clock,
                self._make_checker(store),
                self._find_startable,
                self.wake_workers,
                int(self._app.settings.idempotency_retention * MICROS),
                self._app.handlers.template,
                caller,
            ),
            notifications=Notifications(
                store,
                clock,
                NotificationDisplay(redactor=self._redactor, base_url=self._app.settings.base_url),
                lambda: self._register_sinks(self.notification_chore.sinks),
                self._app.channels.knows,
            ),
            schedules=Schedules(store, clock),
            views=SavedViews(store, clock),
        )

    def _make_sender(self, store: DeskStore, clock: Clock, caller: Caller | None) -> EventSender:
        def find_events(name: str) -> DeclaredEvents:
            return self._app.registered_workflows[name].definition.events

        return EventSender(store, clock, self._make_checker(store), find_events, self.on_sent, caller)

    def on_sent(self, sent: SendResult) -> None:
        """Wake the run that got an event: here if the worker of this process holds it, else by a claim."""
        if self.worker is not None:
            self.worker.wake_waits(sent.run, sent.seq or 0)
            if sent.woke:
                self.worker.wakeup.notify()

    def on_woken(self, woken: Sequence[WokenRun]) -> None:
        """Continue runs that the end of another run woke: here if the worker of this process holds them."""
        if self.worker is not None:
            for each in woken:
                self.worker.wake_waits(each.run, each.wakeups)
        if any(each.due for each in woken):
            self.wake_workers()

    def _find_startable(self, name: str) -> StartableWorkflow | None:
        workflow = self._app.registered_workflows.get(name)
        return None if workflow is None else workflow.make_startable()

    def _make_replayer(self, store: DeskStore, clock: Clock, caller: Caller | None = None) -> Replayer:
        checker = self._make_checker(store)
        audience = self._make_audience_check(caller)
        return Replayer(store, clock, checker, self._redactor, self.changed, audience, caller)

    def _make_audience_check(self, caller: Caller | None) -> AudienceCheck:
        return AudienceCheck(self._store, (caller or Caller()).role)

    def _make_checker(self, store: DeskStore) -> PayloadChecker:
        workflows, steps = self._app.registered_workflows, self._app.registered_steps
        return PayloadChecker(
            store,
            workflow=lambda name: workflows[name].signature if name in workflows else None,
            step=lambda name: steps[name].signature if name in steps else None,
            workers=self._store.workers,
            max_payload=self._app.settings.max_payload,
        )

    @property
    def result_source(self) -> ResultSource:
        """The source of results: the store."""
        return self.store

    def now(self) -> int:
        """Return the store's time in microseconds since 1970."""
        return self.store.now()

    @property
    def store(self) -> Store:
        """The open store. Raises ConfigurationError in a forked process."""
        if os.getpid() != self._pid:
            raise ConfigurationError(
                "this process was forked from one that had the app open, and connections cannot be shared: "
                "open the app in each process"
            )
        return self._store

    async def open(self) -> None:
        """Open the store."""
        await self.store.open()

    async def check_readable(self) -> None:
        """Raise ConfigurationError if this process cannot read what the store holds."""
        await self.ask_store(lambda: refuse_unreadable(self.store))

    async def work(
        self, *, automatic: bool = True, store: Store | None = None, wrap_step: StepWrapper | None = None
    ) -> Worker:
        """Start a worker and its chores.

        Tests drive both themselves (`automatic=False`: no lease thread, no chores, no polling), give the
        worker a wrapped store, and wrap the body of each step.
        """
        app, settings = self._app, self._app.settings
        await self._register_sinks(
            [*app.registered_sinks.values(), *await self.ask_store(self.notification_chore.needed_sinks)]
        )
        worker = self._make_worker(
            LocalBackend(store or self.store, self.clock, listeners=self.listeners),
            poll=_POLL_INTERVAL if automatic else math.inf,
            wrap_step=wrap_step,
            on_published=self.wake_relays,
            forwarder=chores.RelayForwarder(self._outbox_relays),
        )
        address = parse_metrics_address(settings.metrics)
        if address is not None and self.endpoint is None:
            from redrive.observability.metrics import MetricsEndpoint

            self.endpoint = MetricsEndpoint(*address, self.counters, self.stats_cache)
        await worker.start(automatic=automatic)
        self.worker = worker
        self._poll = _POLL_INTERVAL if automatic else math.inf
        self._start_relays(store or self.store, app.registered_sinks.values())
        if automatic:
            await self.ask_store(self.notification_chore.run_once)
            self._start_chores(settings.chores)
        return worker

    def _start_chores(self, interval: float) -> None:
        """Repeat the chores of this process."""
        clock, bulk = self.clock, self.bulk_worker
        often = (
            *(self.notification_chore, self.reaper, self.group_aggregator, self.replay_counter),
            *(self.circuit_updater, self.scheduler, self.child_updater, self.task_escalator),
        )
        loops = [chores.run_every(interval, chore.run_once, clock) for chore in often]
        seldom = interval * _SLOW_CHORE_FACTOR
        loops += [chores.run_every(seldom, chore.run_once, clock) for chore in (self.purger, self.unclaimable_monitor)]
        loops.append(chores.run_every(interval, self.letter_escalator.run_once, clock))
        # The pause ends when a bulk operation is begun or resumed here, or when its rate allows more.
        loops.append(
            chores.run_every(interval, bulk.run_once, clock, pause=lambda most: self._bulk_begun.wait(bulk.pause(most)))
        )
        self._chores = [asyncio.create_task(loop) for loop in loops]

    async def start_chores(self) -> None:
        """Do the chores in a process without a worker, such as a server whose workers are remote.

        Each process may do them: they have no leader, and a repeat changes nothing.
        """
        self._poll = _POLL_INTERVAL
        await self._register_sinks(await self.ask_store(self.notification_chore.needed_sinks))
        await self._deliver()
        await self.ask_store(self.notification_chore.run_once)
        self._start_chores(self._app.settings.chores)

    async def start_delivery(self) -> None:
        """Deliver to the sinks of the app in a process without a worker, such as a bridge."""
        if not self.relays:
            self._poll = _BRIDGE_POLL
            await self._deliver()

    async def _deliver(self) -> None:
        self._delivers = True
        sinks = self._app.registered_sinks.values()
        await self._register_sinks(sinks)
        self._start_relays(self.store, sinks)

    @property
    def encrypts(self) -> bool:
        """True if payloads are stored encrypted."""
        settings = self._app.settings
        keys = Keyring.parse(settings.encryption_keys, settings.secret_key)
        return keys is not None and keys.writes is not None

    async def _register_sinks(self, sinks: Iterable[SinkDefinition]) -> None:
        """Register sinks: messages that any worker publishes from now on are delivered to them, too."""
        known = [NewSink(name=each.name, kind=each.kind, topics=each.topics) for each in sinks]
        if known:
            await self.ask_store(lambda: self.store.put_sinks(known))

    def _start_relays(self, store: Store, sinks: Iterable[SinkDefinition]) -> None:
        """Begin to deliver messages to sinks."""
        one, rules = self._one_suspect, self._app.rules
        relays = [
            chores.Relay(
                store,
                self.clock,
                each,
                rules,
                self.counters,
                tracing=self.tracing,
                one_suspect=one,
                worker=self._live_worker,
            )
            for each in sinks
        ]
        self.relays += relays
        self._relaying += [asyncio.create_task(relay.run(self._poll), name="redrive relay") for relay in relays]

    def _live_worker(self) -> int | None:
        """Return the worker of this process, None while it has no lease."""
        return self.worker.id if self.worker is not None and self.worker.has_lease else None

    async def stop_relays(self, *, in_order: bool = True) -> None:
        """Stop delivering messages. With `in_order`, release messages that were claimed and not tried."""
        for task in self._relaying:
            task.cancel()
        await asyncio.gather(*self._relaying, return_exceptions=True)
        await asyncio.gather(*(relay.stop() if in_order else relay.kill() for relay in self.relays))
        self.relays, self._relaying = [], []

    async def close(self) -> None:
        """Stop the chores, the worker and the relays, then close the store."""
        async with AsyncExitStack() as closing:  # closes each of them, also if closing another one fails
            closing.push_async_callback(self._store.close)
            closing.callback(self.results.close)
            closing.push_async_callback(self._actions.close)
            if self.endpoint is not None:
                closing.push_async_callback(self.endpoint.close)
            closing.push_async_callback(self.stop_relays)
            if self.worker is not None:
                closing.push_async_callback(self.worker.stop)
            for chore in self._chores:
                chore.cancel()
            if self._chores:
                await asyncio.wait(self._chores)

    async def start(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> list[StartResult]:
        store = self.store
        if self.worker is None:
            return await self.ask_store(lambda: store.start(runs))
        async with self.worker.claimer.reserve(runs, in_slot=in_slot) as reservation:
            started = await self.ask_store(lambda: store.start(runs, worker=reservation.worker_id))
            reservation.started = started
        return started

    def wake_relays(self) -> None:
        """Wake the relays of this process that deliver published messages."""
        for relay in self._outbox_relays():
            relay.wake()

    def _outbox_relays(self) -> list[chores.Relay]:
        return [relay for relay in self.relays if relay.name not in SENDER_SINKS]

    def wake_all_relays(self) -> None:
        """Wake all relays of this process, because there may be messages of any kind."""
        for relay in self.relays:
            relay.wake()


def make_store(settings: Settings, clock: Clock) -> Store:
    """Return the store that the settings name, not yet opened."""
    return open_store(settings.url, clock, Keyring.parse(settings.encryption_keys, settings.secret_key))
