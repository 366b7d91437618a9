"""The engine of a test: store, worker and chores in virtual time, and reports of runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from redrive.app import Redrive, RunHandle, Workflow
from redrive.app.declarations import find_circuit
from redrive.clock import MICROS
from redrive.core.circuit import CircuitState, CircuitStatus, build_rules, close_circuit, open_circuit
from redrive.core.keys_and_ids import letter_id
from redrive.core.outbox import TopicPattern
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus, StepStatus
from redrive.desk.models import DeadLetter, Run, SentEvent, StepRecord, Task
from redrive.desk.runs import find_failure_handler_runs
from redrive.errors import ConfigurationError, NotFound, RunFailed
from redrive.settle.circuits import make_circuit_update, update_circuit
from redrive.sinks import Message, read_message
from redrive.store import open_store
from redrive.store.circuits import CircuitCase, CircuitUpdate
from redrive.store.filters import OutboxFilter, RunFilter, TaskFilter
from redrive.store.port import Store
from redrive.store.result_page import iterate_pages
from redrive.testing.faulty_store import Plan, no_faults
from redrive.testing.simulation import Simulation
from redrive.testing.step_faults import registered_name
from redrive.testing.virtual_clock import VirtualClock
from redrive.time_values import Duration, format_duration, parse_duration, to_micros
from redrive.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The end of a run: its result or error, each step with each attempt, and its dead letter.

    `described` is the value of `handle.describe()`. The other attributes are shortcuts.
    """

    described: Run
    letter: DeadLetter | None
    error: RunFailed | None
    value: Any

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.described.id

    @property
    def status(self) -> RunStatus:
        """The status of the run. It compares equal to texts such as "SUCCESS" and "DLQ_PENDING"."""
        return self.described.status

    @property
    def result(self) -> Any:
        """The result of the workflow; raises RunFailed if the run failed, as `handle.result()` does."""
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The journal: steps, sleeps and time limits in the order in which they began, with all their attempts."""
        return self.described.steps

    def step(self, name: str) -> StepRecord:
        """Return the first journal entry with this name."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(dict.fromkeys(step.name for step in self.steps)) or "none"
        raise LookupError(f"run {self.id} has no step {name!r}; it has: {names}")


_MAX_RUN_TIME = 366 * 86_400 * MICROS
_MAX_JUMPS = 50_000


@asynccontextmanager
async def engine(
    app: Redrive,
    *,
    store: Store | str | None = None,
    clock: VirtualClock | None = None,
    seed: int = 0,
    plan: Plan = no_faults,
    patience: Duration = "10s",
) -> AsyncIterator[Engine]:
    """Open an app with a worker in virtual time, on SQLite in memory.

        async with engine(app) as e:
            handle = await fulfil.start(order)
            await e.settle()                     # do everything that is due now
            await e.advance("2d")                # let two days pass, without waiting for them
            assert await handle.result() == receipt

    - `store`: a URL, or a store of your own that was made with the same `clock`. The engine opens and closes it.
    - `seed`: the same seed gives the same jitter and ids.
    - `plan`: makes store calls of the worker fail (see `redrive.testing.faulty_store`).
    - `patience`: the real time that steps may take. A step that takes an hour awaits `e.clock.sleep(3600)` instead.
    """
    if isinstance(store, str) or store is None:
        clock = clock or VirtualClock(seed=seed)
        store = open_store(store or "sqlite:///:memory:", clock)
    elif clock is None:
        raise ConfigurationError("an engine on your own store needs the clock of that store: give clock=")
    simulation = Simulation(app, store, clock, plan=plan, patience=parse_duration(patience, "patience"))
    await simulation.open()
    try:
        yield Engine(app, simulation)
    except BaseException:
        await simulation.close(in_order=False)
        raise
    await simulation.close(in_order=True)


class Engine:
    """An open app in a test, made by `async with engine(app) as e`."""

    def __init__(self, app: Redrive, simulation: Simulation) -> None:
        self.app = app
        self.store = simulation.store
        self.clock = simulation.clock
        self._simulation = simulation

    @property
    def worker(self) -> Worker:
        """The worker that is alive now."""
        return self._simulation.simulated_worker.worker

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self.clock.time

    async def settle(self) -> None:
        """Do everything that is due now, and return when nothing more is.

        Time does not move, with one exception: after an injected `Crash`, it moves until the lease of the dead
        worker has passed, so that its runs are free again.
        """
        await self._simulation.settle()

    async def advance(self, duration: Duration) -> None:
        """Let time pass: jump to each moment at which something is due, in order, and settle there."""
        await self._simulation.wait_until_idle()
        await self._simulation.advance_to(self.clock.now() + to_micros(parse_duration(duration, "advance")))

    async def run(self, workflow: Workflow[..., Any, Any], *args: Any, **options: Any) -> RunReport:
        """Start a run and let time pass until it has ended, or waits for a decision of a user.

        Takes the arguments of `workflow.start`. Raises TimeoutError if the run has not ended after a year.
        """
        return await self.finish(await workflow.start(*args, **options))

    async def finish(self, handle: RunHandle[Any]) -> RunReport:
        """Let time pass until a run has ended, and return its report."""
        began, polled_again = self.clock.now(), False
        await self.settle()
        for _ in range(_MAX_JUMPS):
            if await handle.status() in FINAL_RUN_STATUSES:
                value, error, letter = None, None, None
                try:
                    value = await handle.result(timeout=self._simulation.patience)
                except RunFailed as failed:
                    error = failed
                with suppress(NotFound):
                    letter = await self.app.dlq.get(letter_id(handle.id))
                return RunReport(described=await handle.describe(), letter=letter, error=error, value=value)
            moment = await self._simulation.next_due_at()
            if moment is not None and moment - began <= _MAX_RUN_TIME:
                polled_again = False
                await self._simulation.jump_to(moment)
            elif not polled_again:
                polled_again = True
                await self._simulation.poll_again()
            else:
                break
        raise TimeoutError(await self._explain_unfinished(handle, began))

    async def send(
        self, run: RunHandle[Any] | str, name: str, payload: Any = None, *, key: str | None = None, by: str = "test"
    ) -> SentEvent:
        """Send an event to a run, and do everything that is due because of it."""
        sent = await self.app.runs.send(run if isinstance(run, str) else run.id, name, payload, key=key, by=by)
        await self.settle()
        return sent

    async def tasks(self, run: RunReport | RunHandle[Any] | str | None = None) -> list[Task]:
        """Do everything that is due, and return the open tasks, of one run if given, in order."""
        await self.settle()
        where = TaskFilter(status="OPEN", run_id=run if run is None or isinstance(run, str) else run.id)
        return [task async for task in iterate_pages(lambda at: self.app.tasks.list(where, cursor=at))][::-1]

    async def answer(
        self, value: Any, *, task: Task | str | None = None, note: str | None = None, by: str = "test"
    ) -> Task:
        """Answer a task, by default the first open one, and do everything that is due because of it."""
        if task is None:
            task = next(iter(await self.tasks()), None)
            if task is None:
                raise ConfigurationError("no task is open: let the workflow come to redrive.ask() first")
        answered = await self.app.tasks.answer(task if isinstance(task, str) else task.id, value, note=note, by=by)
        await self.settle()
        return answered

    async def children(self, run: RunReport | RunHandle[Any] | str) -> list[Run]:
        """Do everything that is due, and return the runs that a run started, in the order of their start."""
        await self.settle()
        where = RunFilter(parent=run if isinstance(run, str) else run.id)
        found = [each.id async for each in iterate_pages(lambda at: self.app.runs.list(where, cursor=at))]
        return [await self.app.runs.get(id) for id in reversed(found)]

    async def handlers(self, run: RunReport | RunHandle[Any] | str) -> list[RunReport]:
        """Finish the runs that handle the failure of a run; return their reports in the order of their start."""
        id = run if isinstance(run, str) else run.id
        await self.settle()
        return [await self.finish(self.app.handle(each)) for each in await find_failure_handler_runs(self.store, id)]

    async def finish_all(self) -> None:
        """Let time pass until every run has ended. Raises TimeoutError after a year."""
        until = self.clock.now() + _MAX_RUN_TIME
        while unfinished := await self._simulation.unfinished():
            if self.clock.now() > until:
                raise TimeoutError(
                    f"after a year of virtual time {len(unfinished)} runs have not ended, and schedules may "
                    "always start new ones; let time pass with advance() instead"
                )
            await self.finish(self.app.handle(unfinished[0].public_id))

    async def _explain_unfinished(self, handle: RunHandle[Any], began: int) -> str:
        run = await handle.describe()
        waited = format_duration((self.clock.now() - began) / MICROS)
        latest = next((step for step in reversed(run.steps) if step.ended_at is None), None)
        where = "" if latest is None else f", in {latest.name!r} ({latest.status}, attempt {latest.attempt})"
        next_at = "nothing will ever wake it" if run.next_at is None else f"it is due at {run.next_at}"
        parked = f" it is parked on circuit {run.parked_on!r};" if run.parked_on else ""
        paused = " its workflow is paused;" if run.workflow in await self.store.paused() else ""
        return (
            f"run {run.id} of workflow {run.workflow!r} has not ended after {waited} of virtual time: it is "
            f"{run.status}{where};{paused}{parked} {next_at}"
        )

    def calls(self, step: Any, *, run: str | None = None, key: str | None = None) -> int:
        """Return how often the body of a step was called; in one run, or at one journal key, if given.

        Calls that were replaced by a fault do not count. Repeated calls after a crash do.
        """
        name = registered_name(step, "step")
        if name not in self.app.registered_steps:
            known = ", ".join(sorted(self.app.registered_steps)) or "none"
            raise ConfigurationError(f"no step is called {name!r}; registered are: {known}")
        return sum(
            count
            for (its_run, its_name, its_key), count in self._simulation.calls.items()
            if its_name == name and run in (None, its_run) and key in (None, its_key)
        )

    async def published(self, topic: str = "*", *, run: str | None = None) -> list[Message]:
        """Return the messages on a topic, or a pattern such as `orders.*`, that were committed so far, in order.

        Messages without a sink are included. Subscribers get their messages when the engine settles. As for sinks,
        `*` leaves out the topics of the engine.
        """
        where, pattern = OutboxFilter(topic=topic, run_id=run), TopicPattern.read(topic)
        rows = iterate_pages(lambda cursor: self.store.messages(where, limit=500, cursor=cursor))
        return [read_message(row) async for row in rows if pattern.matches(row.topic)][::-1]

    async def compensations(self, run: RunReport | RunHandle[Any] | str) -> list[str]:
        """Return the names of the steps that were undone so far, in the order in which that happened."""
        run_id = run if isinstance(run, str) else run.id
        entries = (await self.app.saga(run_id)).entries
        return [entry.step for entry in entries if entry.status == StepStatus.SUCCESS]

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Query the database of the store, for instance the tables that transactional steps write to."""
        transaction = self.store.transaction(self._simulation.patience)
        try:
            return await transaction.fetch(statement, *params)
        finally:
            await transaction.rollback()

    async def circuit(
        self, key: str, state: Literal["open", "half_open", "closed"], *, tenant: str = DEFAULT_TENANT
    ) -> None:
        """Set the state of a circuit, as if its dependency had failed or recovered.

        An open circuit admits probes when its time has passed, as in production. To keep it open, use
        `app.circuits.open`. `key` is the name of the circuit, or `workflow/step`.
        """
        code = find_circuit(self.app.registered_steps, key)

        def decide(case: CircuitCase) -> CircuitUpdate:
            now = case.row.state
            match state:
                case "open":
                    requested = open_circuit(now, build_rules(code), case.now)
                case "half_open":
                    requested = CircuitState(status=CircuitStatus.HALF_OPEN, generation=now.generation + 1)
                case "closed":
                    requested = close_circuit(now)
                case _:
                    raise ConfigurationError(f"a circuit is 'open', 'half_open' or 'closed', not {state!r}")
            return make_circuit_update(case, requested, settings=json.dumps(code.to_json()), why="set by a test")

        row, _ = await update_circuit(self.store, (tenant, key), decide)
        self.worker.circuits.learn(row)
        await self.settle()

    @property
    def crashes(self) -> int:
        """The number of workers that died so far."""
        return self._simulation.deaths

    async def restart(self) -> None:
        """Deploy: stop the worker gracefully, so that it gives back its runs, and start another."""
        await self._simulation.restart()

    async def crash(self) -> None:
        """Kill the worker as SIGKILL would, start another, and move time until the lease of the dead one has passed."""
        await self._simulation.wait_until_idle()
        await self._simulation.replace_worker()
        await self._simulation.settle()
