"""Crashes and lost replies at every store call of every replay: the replay still happens exactly once.

First the process of the user who decides (and then decides again), then the worker that executes it. P6, and
traps A7 and A8: letter, run and record of the decision are one commit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import cluster
import empty_schema
import pytest
from desk_kit import Shop, failed, shop
from engines import OnStore, engine_on

from redrive import Redrive
from redrive.app.runtime import Runtime
from redrive.desk.models import DeadLetter
from redrive.desk.replays import Replay
from redrive.errors import StoreUnavailable
from redrive.store import open_store
from redrive.store.filters import LetterFilter, RunFilter
from redrive.testing import Crash, Engine, VirtualClock, engine
from redrive.testing.faulty_store import (
    FAIL,
    LOSE,
    Call,
    Fault,
    FaultyStore,
    crash_after,
    crash_before,
    inject_faults,
    nth,
)

pytestmark = pytest.mark.heavy

T = TypeVar("T")
MODES: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("FROM_FAILED", {}, {"reserve": 1, "charge": 2, "ship": 1}),
    ("STEP_ONLY", {}, {"reserve": 1, "charge": 2}),
    ("FROM_STEP", {"from_step": 0}, {"reserve": 2, "charge": 2, "ship": 1}),
    ("SKIP", {"output": "cash"}, {"reserve": 1, "charge": 1, "ship": 1}),
    ("COMPLETE", {"output": "cash"}, {"reserve": 1, "charge": 1, "ship": 1}),
    ("FULL", {"patch": {"amount": 41}}, {"reserve": 2, "charge": 2, "ship": 1}),
]
MANNERS: dict[str, Callable[[], Fault]] = {
    "a crash before": lambda: crash_before(Crash()),
    "a crash after": lambda: crash_after(Crash()),
    "the lost reply of": lambda: LOSE,
    "the failure of": lambda: FAIL,
}
ENOUGH = [("FROM_STEP", "a crash after"), ("FULL", "a crash after")]
# A crash before a call equals a crash after the previous call. `./dev prove` tries both, on PostgreSQL.
MOST = ["a crash after", "the lost reply of", "the failure of"]
# The modes differ in what they decide, which does not depend on the database: two of them are enough on PostgreSQL.
ON_POSTGRES = [
    pytest.param(*mode, manner, marks=() if (mode[0], manner) in ENOUGH else pytest.mark.slow)
    for mode in MODES
    for manner in ("a crash after", "a crash before", "the lost reply of")
]
# Calls that change nothing: a crash at one of them equals a crash at the next write.
WRITES = {"claim", "apply", "start"}
LOOKS = {
    "lease.beat",
    "expire_workers",
    "hung",
    "overdue",
    "held",
    "purge",
    "policies",
    "workers",
    "runs_with_expired_letters",
}


@asynccontextmanager
async def open_client(url: str, clock: VirtualClock) -> AsyncIterator[tuple[Redrive, FaultyStore]]:
    """Open an app without a worker, whose store calls can be made to fail."""
    app = shop(Redrive(url)).app
    store = inject_faults(open_store(url, clock), clock=clock)
    runtime = Runtime(app, store, clock)
    await app.attach(runtime)
    try:
        yield app, store
    finally:
        app.detach()
        await runtime.close()


async def decide(e: Engine, app: Redrive, letter: str, mode: str, options: dict[str, Any]) -> Replay:
    return await patiently(e, app.dlq.replay(letter, mode, by="ann", **options))


async def patiently(e: Engine, call: Coroutine[Any, Any, T]) -> T:
    """Await a decision, and advance the clock while the store call is retried."""
    task = asyncio.create_task(call)
    while not task.done():
        await asyncio.wait([task], timeout=0.02)
        if not task.done():
            e.clock.move_to(e.clock.now() + 100_000)
            e.clock.fire()
    return task.result()


async def check(letter: DeadLetter, s: Shop, mode: str) -> None:
    """Assert that the letter has one replay, with its effects."""
    now = await s.app.dlq.get(letter.id)
    assert [(r.number, r.mode) for r in now.replays] == [(1, mode)]
    assert [r.outcome for r in now.replays] == ["PARTIAL" if mode == "STEP_ONLY" else "SUCCESS"]
    assert (now.status, now.replay_count) == ("RESOLVED", 1)
    assert now.run_id == now.replays[0].run_id
    decided = "dlq.completed" if mode == "COMPLETE" else "dlq.retry"
    assert Counter(line.event for line in now.history) == Counter(["dlq.created", decided, "dlq.replay_succeeded"])
    runs = (await s.app.runs.list(RunFilter(tenant=letter.tenant))).items
    assert len(runs) == (2 if mode == "FULL" else 1)
    assert len((await s.app.dlq.list(LetterFilter(tenant=letter.tenant))).items) == 1
    assert [run for run in runs if run.finished_at is None] == []


@pytest.mark.parametrize(("mode", "options", "calls"), MODES)
async def test_the_deciding_process_may_crash_or_lose_a_reply_at_any_call(
    tmp_path: Path, mode: str, options: dict[str, Any], calls: dict[str, int]
) -> None:
    """All rounds share one database: each has its own tenant, and the clock is not reset."""
    url, clock = f"sqlite:///{tmp_path}/redrive.db", VirtualClock()
    await _at_every_call(lambda name: Target(url, clock, name.replace(" ", "-")), MOST, mode, options, calls)


@pytest.mark.slow
@pytest.mark.parametrize("kind", cluster.POSTGRES[-1:])
@pytest.mark.parametrize(("mode", "options", "calls"), MODES)
async def test_the_deciding_process_may_crash_or_lose_a_reply_at_any_call_on_postgres(
    kind: str, mode: str, options: dict[str, Any], calls: dict[str, int]
) -> None:
    """All rounds share one database: each has its own tenant, and the clock is not reset."""
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        clock = VirtualClock()
        await _at_every_call(lambda name: Target(url, clock, name.replace(" ", "-")), [*MANNERS], mode, options, calls)


async def _at_every_call(
    make_target: Callable[[str], Target],
    manners: Sequence[str],
    mode: str,
    options: dict[str, Any],
    calls: dict[str, int],
) -> None:
    number, tried = 1, set()
    while True:
        for manner in manners:
            fault = MANNERS[manner]()
            call = await _decide_twice(make_target(f"{number} {manner}"), number, fault, mode, options, calls)
            tried.add(call)
        if call is None:
            break
        number += 1
    assert tried >= {"cases", "apply"}


@dataclass(frozen=True)
class Target:
    """Database, clock and tenant of a decision."""

    url: str
    clock: VirtualClock
    tenant: str = "default"


async def _decide_twice(
    target: Target, number: int, fault: Fault, mode: str, options: dict[str, Any], calls: dict[str, int]
) -> str | None:
    """Decide with a fault at one call, then again without; return the name of the call, or None if there was none."""
    url, clock = target.url, target.clock
    s = shop(Redrive(url))
    async with engine_on(url)(s.app, clock=clock) as e:
        letter = await failed(e, s.order, "lamp", 40, tenant=target.tenant)
        s.ledger.broken.clear()
        heard = None
        async with open_client(url, clock) as (app, store):
            before = len(store.calls)
            store.plan = nth(before + number, fault)
            with suppress(Crash, StoreUnavailable):
                heard = await decide(e, app, letter.id, mode, options)
            made = store.calls[before:]
        async with open_client(url, clock) as (app, _):
            answer = await decide(e, app, letter.id, mode, options)
        assert heard in (None, answer)
        await e.finish_all()
        assert await decide(e, s.app, letter.id, mode, options) == answer
        assert s.ledger.counts == calls
        await check(letter, s, mode)
    return made[number - 1] if len(made) >= number else None


class Once:
    """A plan that injects one fault at a numbered call, counted from when the plan is armed."""

    def __init__(self, number: int, fault: Fault, *, only: Container[str] | None = None) -> None:
        self.armed = False
        self._only = only
        self.struck: str | None = None
        self._left = number
        self._fault = fault

    def __call__(self, call: Call) -> Fault | None:
        if not self.armed or call.name in LOOKS or (self._only is not None and call.name not in self._only):
            return None
        self._left -= 1
        if self._left != 0:
            return None
        self.struck = call.name
        return self._fault


@pytest.mark.parametrize(("mode", "options", "calls"), MODES)
async def test_the_worker_may_crash_at_any_call_of_a_replay(
    mode: str, options: dict[str, Any], calls: dict[str, int]
) -> None:
    struck: list[str] = []
    for manner in ("a crash after", "the lost reply of"):
        number = 1
        while (call := await _replay_with(Once(number, MANNERS[manner]()), mode, options, calls)) is not None:
            struck.append(call)
            number += 1
    assert {"claim", "apply"} <= set(struck)
    assert len(struck) >= 6


@pytest.mark.parametrize(("mode", "options", "calls", "manner"), ON_POSTGRES)
async def test_the_worker_may_crash_at_any_write_of_a_replay_on_postgres(
    on_postgres: OnStore, mode: str, options: dict[str, Any], calls: dict[str, int], manner: str
) -> None:
    """All rounds share one database: each has its own tenant, and the clock is not reset."""
    struck: list[str] = []
    clock = VirtualClock()
    while True:
        plan = Once(len(struck) + 1, MANNERS[manner](), only=WRITES)
        where = {"opened": on_postgres, "clock": clock, "tenant": f"t{len(struck)}"}
        if (call := await _replay_with(plan, mode, options, calls, **where)) is None:
            break
        struck.append(call)
    assert {"claim", "apply"} <= set(struck)


async def _replay_with(
    plan: Once,
    mode: str,
    options: dict[str, Any],
    calls: dict[str, int],
    *,
    opened: OnStore = engine,
    clock: VirtualClock | None = None,
    tenant: str = "default",
) -> str | None:
    s = shop()
    async with opened(s.app, plan=plan, clock=clock) as e:
        letter = await failed(e, s.order, "lamp", 40, tenant=tenant)
        s.ledger.broken.clear()
        plan.armed = True
        await s.app.dlq.replay(letter.id, mode, by="ann", **options)
        await e.finish_all()
        if plan.struck is None:
            assert s.ledger.counts == calls
        for name, most in s.ledger.counts.items():  # at least once, and again only where the worker died
            assert calls[name] <= most <= calls[name] + e.crashes, (plan.struck, s.ledger.names)
        assert all(len(s.ledger.keys(name)) == 1 for name in calls)
        await check(letter, s, mode)
    return plan.struck


@pytest.mark.parametrize("kind", ["sqlite", *cluster.ENOUGH])
async def test_a_reopening_interrupted_at_any_call_happens_once(kind: str, tmp_path: Path) -> None:
    if kind == "sqlite":
        await _reopen_at_every_call(f"sqlite:///{tmp_path}/redrive.db")
        return
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        await _reopen_at_every_call(url)


async def _reopen_at_every_call(url: str) -> None:
    s, clock, number = shop(Redrive(url)), VirtualClock(), 0
    made: list[str] = []
    async with engine_on(url)(s.app, clock=clock) as e:
        while len(made) >= number:
            number += 1
            for fault in MANNERS.values():
                letter = await failed(e, s.order, "lamp", 40)
                await s.app.dlq.resolve(letter.id, by="ann")
                async with open_client(url, clock) as (app, store):
                    before = len(store.calls)
                    store.plan = nth(before + number, fault())
                    with suppress(Crash, StoreUnavailable):
                        await patiently(e, app.dlq.reopen(letter.id, by="ann", reason="a slip"))
                    made = store.calls[before:]
                now = await patiently(e, s.app.dlq.reopen(letter.id, by="ann", reason="a slip"))
                assert (now.status, now.closed_by, now.closed_at) == ("OPEN", None, None)
                assert Counter(line.event for line in now.history)["dlq.reopened"] == 1
                assert (await s.app.runs.get(letter.run_id)).status == "DLQ_PENDING"
        assert {"cases", "apply"} <= set(made)  # the last round had no fault
