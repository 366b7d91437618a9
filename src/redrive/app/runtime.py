"""An app at work: its open store, its worker, its chores, and those who wait for results."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.app.catalogue import collect_schedules
from redrive.app.channels import NotificationChore
from redrive.app.results import Results
from redrive.chores import (
    CircuitUpdater,
    GroupAggregator,
    Purger,
    Reaper,
    Relay,
    RelayForwarder,
    Scheduler,
    UnclaimableRunMonitor,
    run_every,
)
from redrive.clock import MICROS, Clock, SystemClock
from redrive.core.new_run import StartableWorkflow
from redrive.core.redact import Redactor
from redrive.core.transitions import NewRun
from redrive.desk.audit import Audit
from redrive.desk.bulk_execution import BulkExecutor, BulkWorker
from redrive.desk.circuits import Circuits
from redrive.desk.decisions import Replayer
from redrive.desk.letters import DeadLetters
from redrive.desk.models import Caller
from redrive.desk.notifications import NotificationDisplay, Notifications
from redrive.desk.outbox import Outbox, Sinks
from redrive.desk.presenter import Presenter
from redrive.desk.preview import Previewer
from redrive.desk.runs import Runs, RunStarter
from redrive.desk.saga import Sagas
from redrive.desk.saved_views import SavedViews
from redrive.desk.settings import Policies, Schedules, Workflows
from redrive.desk.validation import PayloadChecker
from redrive.errors import ConfigurationError
from redrive.notify.digest import SENDER_SINKS
from redrive.observability.counters import Counters, SettleListener
from redrive.observability.logs import DecisionLog
from redrive.observability.metrics import MetricsEndpoint, StatsCache, metrics_enabled
from redrive.observability.tracing import current_traceparent, make_tracing
from redrive.settings import Settings, parse_metrics_address
from redrive.sinks import SinkDefinition
from redrive.store import open_store
from redrive.store.circuits import CircuitRow
from redrive.store.encryption.keyring import Keyring
from redrive.store.outbox import NewSink
from redrive.store.port import DeskStore, Store
from redrive.store.runs import StartResult
from redrive.store.session import repeat_until_answered
from redrive.worker.attempt import Attempt
from redrive.worker.claimer import Wakeup
from redrive.worker.rollback import ActionRunner
from redrive.worker.worker import Worker, WorkerSettings

if TYPE_CHECKING:
    from redrive.app.app import Redrive

# -- An app at work: its open store, its worker, its chores, and those who wait for results --------------


T = TypeVar("T")
_POLL_INTERVAL = 1.0  # how long an idle worker trusts the bell
_STORE_PATIENCE = 8.0  # seconds for which a caller waits for a store that does not answer
_REAL_TIME = SystemClock()
_PUNCTUAL_INTERVALS = 3  # times of a schedule are looked at once in an interval; so many of them are no delay
_SLOW_CHORE_FACTOR = 30  # purging and watching are done once in so many intervals of the reaper


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """What people can do, on one store or on a view of one."""

    runs: Runs
    dlq: DeadLetters
    sagas: Sagas
    policies: Policies
    circuits: Circuits
    outbox: Outbox
    audit: Audit
    starter: RunStarter
    notifications: Notifications
    schedules: Schedules
    views: SavedViews


class Runtime:
    """What exists between opening an app and closing it."""

    def __init__(self, app: Redrive, store: Store, clock: Clock) -> None:
        self._app = app
        self._pid = os.getpid()
        self._store = store
        self.clock = clock
        self.results = Results(store, self._runs_reported_here)
        self._redactor = Redactor.parse(app.settings.redact)
        self.tally = Counters() if metrics_enabled(app.settings.metrics) else None
        reporter = DecisionLog(self._redactor)
        self._ears: tuple[SettleListener, ...] = (reporter,) if self.tally is None else (reporter, self.tally)
        self.tracing = make_tracing()
        self.recent = StatsCache(store.figures, clock)
        self.endpoint: MetricsEndpoint | None = None
        self._set_begun = Wakeup(clock)
        desk = self.desk(store, clock)
        self.runs = desk.runs
        self.dlq = desk.dlq
        self.sagas = desk.sagas
        self.policies = desk.policies
        self.circuits = desk.circuits
        self.outbox = desk.outbox
        self.audit = desk.audit
        self.notifications = desk.notifications
        self.schedules = desk.schedules
        self.views = desk.views
        self.workflows = Workflows(store, clock, self.ring, app.registered_workflows)
        self.sinks = Sinks(store, clock)
        self.reaper = self.new_reaper(store)
        self.purger = self.new_purger(store)
        self.folder = GroupAggregator(store)
        self.bulk_worker = self.new_bulk_worker(store)
        self.circuit_updater = self.new_circuit_updater(store)
        self.scheduler = self.new_scheduler(store)
        self.watch = UnclaimableRunMonitor(store)
        self._actions = ActionRunner(app.follow_up_steps.connections, app.follow_up_steps.allowed)
        self.worker: Worker | None = None
        self.notification_chore = self.new_notification_chore(store)
        self.relays: list[Relay] = []
        self._relaying: list[asyncio.Task[None]] = []
        self._one_suspect = asyncio.Lock()
        self._chores: list[asyncio.Task[None]] = []
        self._poll = math.inf

    def new_reaper(self, store: Store) -> Reaper:
        """The chore that ends what its worker does not end, on the store or on another face of it."""
        return Reaper(store, self.clock, ears=self._ears, tally=self.tally)

    def new_bulk_worker(self, store: Store) -> BulkWorker:
        """The chore that carries out sets, on the store or on another face of it."""
        # What the user who began a set may see is not known here, so it counts as nothing.
        replayer = self._make_replayer(store, self.clock, Caller(sees_payloads=False))
        return BulkWorker(store, BulkExecutor(store, self.clock, replayer).decide)

    async def _wait_for_bulk(self, most: float) -> None:
        """Wait until somebody here begins a set or lets one go on, or until a rate allows more of one."""
        await self._set_begun.wait(self.bulk_worker.pause(most))

    def new_circuit_updater(self, store: Store) -> CircuitUpdater:
        """The chore that turns circuits and lets parked runs go on, on the store or on another face of it."""
        return CircuitUpdater(store, self.turned)

    def new_scheduler(self, store: Store) -> Scheduler:
        """The chore that starts what schedules say, on the store or on another face of it."""
        return Scheduler(
            store,
            collect_schedules(self._app),
            worker=lambda: 0 if self.worker is None else self.worker.id,
            on_start=self.ring,
            punctual=int(_PUNCTUAL_INTERVALS * self._app.settings.chores * MICROS),
        )

    def turned(self, row: CircuitRow) -> None:
        """A circuit stands like this: let the worker of this process know, and look for work."""
        if self.worker is not None:
            self.worker.circuits.learn(row)
            self.worker.wakeup.notify()

    def new_notification_chore(self, store: Store) -> NotificationChore:
        """The chore that tells people, on the store or on another face of it."""

        async def begin(sinks: list[SinkDefinition]) -> None:
            await self._register_sinks(sinks)
            if self.worker is not None:
                self._start_relays(store, sinks)

        return NotificationChore(self._app, store, self.clock, self._redactor, begin, self.wake_all_relays)

    async def _on_rules_changed(self) -> None:
        """Somebody stored a rule: from now on whatever it asks for has somewhere to go."""
        await self._register_sinks(self.notification_chore.sinks)

    def new_purger(self, store: Store) -> Purger:
        """The chore that removes what was kept long enough, on the store or on another face of it."""
        return Purger(store, self.clock, self._app.settings)

    def desk(self, store: DeskStore, clock: Clock, caller: Caller | None = None) -> Desk:
        """What people can do, on the store or on a view of it; a caller over HTTP may see less."""
        shaper = Presenter(self._redactor)
        replayer = self._make_replayer(store, clock, caller)
        previewer = Previewer(store, replayer, shaper)
        return Desk(
            runs=Runs(store, clock, shaper, replayer, previewer, self.changed, self._store.workers, ears=self._ears),
            dlq=DeadLetters(store, clock, shaper, replayer, previewer, self._set_begun.notify),
            sagas=Sagas(store, shaper, replayer),
            policies=Policies(store, clock),
            circuits=Circuits(store, clock, self.turned),
            outbox=Outbox(store, clock, shaper, self.wake_all_relays),
            audit=Audit(store, shaper),
            starter=self._make_starter(store, clock, caller),
            notifications=Notifications(store, clock, self._make_showing(), self._on_rules_changed),
            schedules=Schedules(store, clock),
            views=SavedViews(store, clock),
        )

    def _make_showing(self) -> NotificationDisplay:
        return NotificationDisplay(redactor=self._redactor, base_url=self._app.settings.base_url)

    def _make_starter(self, store: DeskStore, clock: Clock, caller: Caller | None) -> RunStarter:
        keeps = int(self._app.settings.idempotency_retention * MICROS)
        checker = self._make_checker(store)
        return RunStarter(store, clock, checker, self._find_startable, self.ring, keeps, caller)

    def _find_startable(self, name: str) -> StartableWorkflow | None:
        workflow = self._app.registered_workflows.get(name)
        return None if workflow is None else workflow.startable()

    def _make_replayer(self, store: DeskStore, clock: Clock, caller: Caller | None = None) -> Replayer:
        checker = self._make_checker(store)
        return Replayer(store, clock, checker, self._redactor, self.changed, self.tally, caller)

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
    def store(self) -> Store:
        """The open store, in the process that opened it."""
        if os.getpid() != self._pid:
            raise ConfigurationError(
                "this process was forked from one that had the app open; connections cannot be shared, "
                "so open the app anew in each process"
            )
        return self._store

    async def open(self) -> None:
        """Open the store."""
        await self.store.open()

    async def work(
        self,
        *,
        automatic: bool = True,
        store: Store | None = None,
        wrap_step: Callable[[Attempt, Callable[[], Any]], Callable[[], Any]] | None = None,
    ) -> Worker:
        """Start a worker and its chores.

        Tests drive both themselves (`automatic=False`: no lease thread, no chores, no polling), show the
        worker another face of the store, and put something around the body of every step.
        """
        app, settings = self._app, self._app.settings
        wanted = await self.answered(self.notification_chore.is_needed)
        await self._register_sinks([*app.registered_sinks.values(), *(self.notification_chore.sinks if wanted else ())])
        worker = Worker(
            store or self.store,
            self.clock,
            WorkerSettings(
                name=f"{socket.gethostname()}:{os.getpid()}",
                concurrency=settings.concurrency,
                lease=settings.lease,
                grace=settings.grace,
                hold=settings.hold,
                code_wait=settings.code_wait,
                max_payload=settings.max_payload,
                poll=_POLL_INTERVAL if automatic else math.inf,
            ),
            workflows={name: workflow.definition for name, workflow in app.registered_workflows.items()},
            catalogue=app.catalogue(),
            steps=app.registered_steps,
            actions=self._actions,
            rules=app.rules,
            has_circuits=any(step.options.circuit for step in app.registered_steps.values()),
            on_ended=self.results.on_run_ended,
            on_published=self.wake_relays,
            outgoing=RelayForwarder(self._outbox_relays),
            wrap_step=wrap_step,
            ears=self._ears,
            tally=self.tally,
            tracing=self.tracing,
        )
        self._serve_metrics()
        await worker.start(automatic=automatic)
        self.worker = worker
        self._poll = _POLL_INTERVAL if automatic else math.inf
        self._start_relays(store or self.store, app.registered_sinks.values())
        if automatic:
            await self.answered(self.notification_chore.run_once)
            self._chores = [
                asyncio.create_task(run_every(settings.chores, self.notification_chore.run_once, self.clock)),
                asyncio.create_task(run_every(settings.chores, self.reaper.run_once, self.clock)),
                asyncio.create_task(run_every(settings.chores, self.folder.run_once, self.clock)),
                asyncio.create_task(
                    run_every(settings.chores, self.bulk_worker.run_once, self.clock, pause=self._wait_for_bulk)
                ),
                asyncio.create_task(run_every(settings.chores, self.circuit_updater.run_once, self.clock)),
                asyncio.create_task(run_every(settings.chores, self.scheduler.run_once, self.clock)),
                asyncio.create_task(run_every(settings.chores * _SLOW_CHORE_FACTOR, self.purger.run_once, self.clock)),
                asyncio.create_task(run_every(settings.chores * _SLOW_CHORE_FACTOR, self.watch.run_once, self.clock)),
            ]
        return worker

    def _serve_metrics(self) -> None:
        """Answer scrapers from here on, if the settings say where."""
        address = parse_metrics_address(self._app.settings.metrics)
        if address is not None and self.endpoint is None:
            self.endpoint = MetricsEndpoint(*address, self.tally, self.recent)

    async def _register_sinks(self, sinks: Iterable[SinkDefinition]) -> None:
        """Whatever is published from now on, by whichever worker, is for these sinks, too."""
        known = [NewSink(name=each.name, kind=each.kind, topics=each.topics) for each in sinks]
        if known:
            await self.answered(lambda: self.store.put_sinks(known))

    def _start_relays(self, store: Store, sinks: Iterable[SinkDefinition]) -> None:
        """Begin to bring messages to sinks."""
        one, rules = self._one_suspect, self._app.rules
        relays = [
            Relay(store, self.clock, each, rules, self.tally, tracing=self.tracing, one_suspect=one) for each in sinks
        ]
        self.relays += relays
        self._relaying += [asyncio.create_task(relay.run(self._poll), name="redrive relay") for relay in relays]

    async def stop_relays(self, *, in_order: bool = True) -> None:
        """Bring no more messages anywhere; what was claimed and not tried is given back, if `in_order`."""
        for task in self._relaying:
            task.cancel()
        await asyncio.gather(*self._relaying, return_exceptions=True)
        await asyncio.gather(*(relay.stop() if in_order else relay.kill() for relay in self.relays))
        self.relays, self._relaying = [], []

    async def close(self) -> None:
        """Stop the worker in good order, then let go of the store."""
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        if self.worker is not None:
            await self.worker.stop()
        await self.stop_relays()
        if self.endpoint is not None:
            await self.endpoint.close()
        await self._actions.close()
        self.results.close()
        await self._store.close()

    async def start(self, runs: Sequence[NewRun]) -> list[StartResult]:
        """Start runs. The worker of this process holds them from the beginning if it has time."""
        if self.worker is None:
            return await self.answered(lambda: self.store.start(runs))
        async with self.worker.reserve(runs) as reservation:
            worker = reservation.worker_id
            started = await self.answered(lambda: self.store.start(runs, worker=worker))
            reservation.started = started
        return started

    def _runs_reported_here(self) -> set[str]:
        """The runs in the hands of this process's worker, which will say how they end."""
        return set() if self.worker is None else self.worker.runs_reported_here()

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store, again for some seconds if it does not answer: a caller waits, in real time."""
        return await repeat_until_answered(ask, _REAL_TIME, patience=_STORE_PATIENCE)

    def starting(self, workflow: str) -> AbstractContextManager[str | None]:
        """Around the start of runs: gives the trace that they belong to, if there is one."""
        return nullcontext(current_traceparent()) if self.tracing is None else self.tracing.starting(workflow)

    def ring(self) -> None:
        """There may be work: wake the worker of this process."""
        if self.worker is not None:
            self.worker.wakeup.notify()

    def wake_relays(self) -> None:
        """There may be messages: wake the relays of this process, but those that the teller alone feeds."""
        for relay in self._outbox_relays():
            relay.ring()

    def _outbox_relays(self) -> list[Relay]:
        return [relay for relay in self.relays if relay.name not in SENDER_SINKS]

    def wake_all_relays(self) -> None:
        """There may be messages of any kind: wake all relays of this process."""
        for relay in self.relays:
            relay.ring()

    def changed(self, run_id: str) -> None:
        """A person changed a run: let its waiters and its worker look."""
        self.results.poll_now(run_id)
        self.ring()


# -- Making the store of an app: the one its URL names, sealed if there are keys -------------------------


def make_store(settings: Settings, clock: Clock) -> Store:
    """Return the store that the settings name, not yet opened."""
    return open_store(settings.url, clock, Keyring.parse(settings.encryption_keys))
