"""A whole engine in a test: store, worker and chores, with time that stands still until it is moved."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from redrive.app import Redrive, RunHandle, Workflow
from redrive.app.compensation import find_circuit
from redrive.clock import MICROS
from redrive.core.circuit import CircuitState, CircuitStatus, build_rules, close_circuit, open_circuit
from redrive.core.idempotency import letter_id
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus, StepStatus
from redrive.desk.models import DeadLetter, Run, StepRecord
from redrive.desk.runs import find_failure_handler_runs
from redrive.duration import Duration, format_duration, parse_duration, to_micros
from redrive.errors import ConfigurationError, NotFound, RunFailed
from redrive.policy import Circuit
from redrive.settle.circuits import make_circuit_update, update_circuit
from redrive.sinks import Message, read_message
from redrive.store import open_store
from redrive.store.circuits import CircuitCase, CircuitUpdate
from redrive.store.filters import OutboxFilter
from redrive.store.list_query import iterate_pages
from redrive.store.port import Store
from redrive.testing.clock import VirtualClock
from redrive.testing.faulty_store import Plan, no_faults
from redrive.testing.injection import registered_name
from redrive.testing.simulation import Simulation
from redrive.worker.worker import Worker

# -- A run that came to its end under a test's eyes ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a run went: what it returned or why it failed, every step with every attempt, its dead letter.

    `described` is what `handle.describe()` shows; the rest is what tests ask for most.
    """

    described: Run
    letter: DeadLetter | None
    error: RunFailed | None
    value: Any

    @property
    def id(self) -> str:
        """The run's id."""
        return self.described.id

    @property
    def status(self) -> RunStatus:
        """How it ended: compare with "SUCCESS", "DLQ_PENDING" and so on."""
        return self.described.status

    @property
    def result(self) -> Any:
        """What the workflow returned. Raises the RunFailed that `handle.result()` raises."""
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The journal: steps, sleeps and time limits in the order they began, with all their attempts."""
        return self.described.steps

    def step(self, name: str) -> StepRecord:
        """The first entry of that name."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(dict.fromkeys(step.name for step in self.steps)) or "none"
        raise LookupError(f"run {self.id} has no step {name!r}; it has: {names}")


# -- A whole engine in a test: store, worker and chores, with time that stands still until it is mov -----


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
            await e.settle()                     # everything that is due now has happened
            await e.advance("2d")                # two days pass, in order, in no time
            assert await handle.result() == receipt

    The same `seed` gives the same jitter and ids. `store` is a URL, or a store of your own made with the
    same `clock`; the engine opens and closes it. `plan` makes the worker's store calls fail (see
    `redrive.testing.faulty_store`). Steps may do real work, for at most `patience` of real time; one that
    takes an hour awaits `e.clock.sleep(3600)` instead.
    """
    if isinstance(store, str) or store is None:
        clock = clock or VirtualClock(seed=seed)
        store = open_store(store or "sqlite:///:memory:", clock)
    elif clock is None:
        raise ConfigurationError("an engine on a store of your own needs the clock it was made with: clock=")
    world = Simulation(app, store, clock, plan=plan, patience=parse_duration(patience, "patience"))
    await world.open()
    try:
        yield Engine(app, world)
    except BaseException:
        await world.close(in_order=False)
        raise
    await world.close(in_order=True)


class Engine:
    """An app at work in a test. Make one with `async with engine(app) as e`."""

    def __init__(self, app: Redrive, world: Simulation) -> None:
        self.app = app
        self.store = world.store
        self.clock = world.clock
        self._world = world

    @property
    def worker(self) -> Worker:
        """The worker that is alive now."""
        return self._world.simulated_worker.worker

    # -- time ------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What time it is in here."""
        return self.clock.time

    async def settle(self) -> None:
        """Let everything happen that is due now, and return when nothing more is.

        Time does not move, with one exception: where a `Crash` was injected, it moves until the dead
        worker's lease has passed, so that its runs are free again.
        """
        await self._world.settle()

    async def advance(self, duration: Duration) -> None:
        """Let time pass: to each moment at which something is due, in order, settling at each."""
        await self._world.calm()
        await self._world.walk(self.clock.now() + to_micros(parse_duration(duration, "advance")))

    # -- runs ------------------------------------------------------------------------------------------

    async def run(self, workflow: Workflow[..., Any, Any], *args: Any, **options: Any) -> RunReport:
        """Start a run and let time pass until it has ended, or waits for a person.

        Takes what `workflow.start` takes. A run that has not ended after a year is an error.
        """
        return await self.finish(await workflow.start(*args, **options))

    async def finish(self, handle: RunHandle[Any]) -> RunReport:
        """Let time pass until a run has ended, and tell how it went."""
        began, looked_again = self.clock.now(), False
        await self.settle()
        for _ in range(_MAX_JUMPS):
            if await handle.status() in FINAL_RUN_STATUSES:
                return await self._report(handle)
            moment = await self._world.next_due_at()
            if moment is not None and moment - began <= _MAX_RUN_TIME:
                looked_again = False
                await self._world.jump_to(moment)
            elif not looked_again:
                looked_again = True
                await self._world.poll_again()
            else:
                break
        raise TimeoutError(await self._explain_unfinished(handle, began))

    async def handlers(self, run: RunReport | RunHandle[Any] | str) -> list[RunReport]:
        """The runs that handle the failure of a run, in the order they were started, once they have ended."""
        id = run if isinstance(run, str) else run.id
        await self.settle()
        return [await self.finish(self.app.handle(each)) for each in await find_failure_handler_runs(self.store, id)]

    async def finish_all(self) -> None:
        """Let time pass until every run has ended. Not ended after a year is an error."""
        until = self.clock.now() + _MAX_RUN_TIME
        while unfinished := await self._world.unfinished():
            if self.clock.now() > until:
                raise TimeoutError(
                    f"after a year of virtual time {len(unfinished)} runs have not ended, and schedules may "
                    "always start new ones; let time pass with advance() instead"
                )
            await self.finish(self.app.handle(unfinished[0].public_id))

    async def _report(self, handle: RunHandle[Any]) -> RunReport:
        value, error = None, None
        try:
            value = await handle.result(timeout=self._world.patience)
        except RunFailed as failed:
            error = failed
        try:
            letter = await self.app.dlq.get(letter_id(handle.id))
        except NotFound:
            letter = None
        return RunReport(described=await handle.describe(), letter=letter, error=error, value=value)

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

    # -- looking ---------------------------------------------------------------------------------------

    def calls(self, step: Any, *, run: str | None = None, key: str | None = None) -> int:
        """How often the body of a step was really called; in one run, or at one journal key, if given.

        Calls that a fault replaced do not count; repeats after a crash do.
        """
        name = registered_name(step, "step")
        if name not in self.app.registered_steps:
            known = ", ".join(sorted(self.app.registered_steps)) or "none"
            raise ConfigurationError(f"no step is called {name!r}; registered are: {known}")
        return sum(
            count
            for (its_run, its_name, its_key), count in self._world.calls.items()
            if its_name == name and run in (None, its_run) and key in (None, its_key)
        )

    async def published(self, topic: str = "*", *, run: str | None = None) -> list[Message]:
        """The messages on a topic, or on `orders.*`, that were committed so far, in order.

        Whether any sink wants them does not matter; subscribers get theirs when time settles.
        """
        where = OutboxFilter(topic=topic, run_id=run)
        rows = iterate_pages(lambda cursor: self.store.messages(where, limit=500, cursor=cursor))
        return [read_message(row) async for row in rows][::-1]

    async def compensations(self, run: RunReport | RunHandle[Any] | str) -> list[str]:
        """What of a run was undone so far, in the order in which that happened: the names of the steps."""
        run_id = run if isinstance(run, str) else run.id
        entries = (await self.app.saga(run_id)).entries
        return [entry.step for entry in entries if entry.status == StepStatus.SUCCESS]

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Query the store's database, for instance the tables that transactional steps write to."""
        transaction = self.store.transaction(self._world.patience)
        try:
            return await transaction.fetch(statement, *params)
        finally:
            await transaction.rollback()

    # -- circuits ----------------------------------------------------------------------------------------

    async def circuit(
        self, key: str, state: Literal["open", "half_open", "closed"], *, tenant: str = DEFAULT_TENANT
    ) -> None:
        """Make a circuit stand like this, as if its dependency had failed or come back.

        One that is open lets probes through when its time has passed, as in production; one that shall
        stay open is opened with `app.circuits.open`. `key` is its name, or `workflow/step`.
        """
        code = find_circuit(self.app.registered_steps, key)
        row, _ = await update_circuit(self.store, (tenant, key), lambda case: _make_circuit_update(case, code, state))
        self.worker.circuits.learn(row)
        await self.settle()

    # -- deaths and deploys ----------------------------------------------------------------------------

    @property
    def crashes(self) -> int:
        """How many workers died so far."""
        return self._world.deaths

    async def restart(self) -> None:
        """Deploy: the worker stops in good order, giving back its runs, and another starts."""
        await self._world.restart()

    async def crash(self) -> None:
        """Kill the worker as SIGKILL would, start another, and let the dead one's lease pass."""
        await self._world.calm()
        await self._world.die()
        await self._world.settle()


def _make_circuit_update(case: CircuitCase, code: Circuit, state: str) -> CircuitUpdate:
    """A circuit as a test wants it, with the settings of the code."""
    now = case.row.state
    match state:
        case "open":
            wanted = open_circuit(now, build_rules(code), case.now)
        case "half_open":
            wanted = CircuitState(status=CircuitStatus.HALF_OPEN, generation=now.generation + 1)
        case "closed":
            wanted = close_circuit(now)
        case _:
            raise ConfigurationError(f"a circuit is 'open', 'half_open' or 'closed', not {state!r}")
    return make_circuit_update(case, wanted, settings=json.dumps(code.to_json()), why="a test said so")
