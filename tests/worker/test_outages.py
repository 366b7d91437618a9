"""Store outages and refused rows: nothing is lost, no attempt is consumed, other runs are not affected."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from file_worker import AT_ONCE, at_work, make_app, until
from wrapped_store import replacing

import redrive
from redrive import Redrive, RunFailed, StepFailed
from redrive.clock import SystemClock
from redrive.core.states import RunStatus
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import DataRefused, StoreError, StoreUnavailable
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.port import LeaseConnection, Store
from redrive.store.sql_store import repeat_until_answered
from redrive.store.workers import Beats, HeartbeatReply
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, inject_faults


class Weather:
    """A switch for outages of the store, for all calls or for calls of some names."""

    def __init__(self) -> None:
        self.out: frozenset[str] = frozenset()
        self.fault: Fault = FAIL
        self.refused: list[str] = []

    def plan(self, call: Call) -> Fault | None:
        if call.name in self.out or "everything" in self.out:
            self.refused.append(call.name)
            return self.fault
        return None

    def over(self, store: Store) -> Store:
        faulty: Store = inject_faults(store, self.plan)
        return faulty


def chain(app: Redrive, calls: list[tuple[str, int]], gate: asyncio.Event) -> Any:
    """Return a workflow of three steps; the second waits at a gate."""

    @app.step
    async def link(name: str) -> str:
        calls.append((name, redrive.step_info().attempt))
        if name == "b":
            await gate.wait()
        return name

    @app.workflow
    async def links() -> list[str]:
        return [await link("a"), await link("b"), await link("c")]

    return links


# -- the store does not answer -------------------------------------------------------------------------


async def test_an_outage_delays_and_consumes_no_attempt(tmp_path: Path) -> None:
    weather, gate = Weather(), asyncio.Event()
    calls: list[tuple[str, int]] = []
    app = make_app(tmp_path, lease=30.0)
    links = chain(app, calls, gate)
    async with at_work(app, weather.over):
        handles = await links.start_many([()] * 5)
        await until(lambda: calls.count(("b", 1)) == 5, "all of them are in the middle")
        weather.out = frozenset({"everything"})
        gate.set()
        await until(lambda: weather.refused.count("apply") > 3, "results cannot be recorded")
        assert ("c", 1) not in calls  # the next step waits until the previous result is durable
        weather.out = frozenset()
        assert await asyncio.gather(*(h.result("20s") for h in handles)) == [["a", "b", "c"]] * 5
        runs = [await handle.describe() for handle in handles]
    assert sorted(calls) == sorted([(name, 1) for name in "abc"] * 5)
    for run in runs:
        assert run.crashes == 0
        assert [[a.status for a in step.attempts] for step in run.steps] == [["SUCCESS"]] * 3


async def test_calls_with_lost_answers_are_repeated_without_a_second_effect(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gate.set()
    calls: list[tuple[str, int]] = []
    app = make_app(tmp_path)
    links = chain(app, calls, gate)
    lost: list[str] = []

    def every_other(call: Call) -> Fault | None:
        if call.name in {"apply", "start"} and call.of_name % 2:
            lost.append(call.name)
            return LOSE
        return None

    def over(store: Store) -> Store:
        faulty: Store = inject_faults(store, every_other)
        return faulty

    async with at_work(app, over):
        handles = await links.start_many([()] * 5)
        assert await asyncio.gather(*(h.result("20s") for h in handles)) == [["a", "b", "c"]] * 5
        runs = [await handle.describe() for handle in handles]
        listed = await app.runs.list()
    assert len(listed.items) == 5
    assert set(lost) == {"apply", "start"}
    assert sorted(calls) == sorted([(name, 1) for name in "abc"] * 5)
    assert all([a.status for a in s.attempts] == ["SUCCESS"] for run in runs for s in run.steps)


async def test_runs_of_a_claim_with_a_lost_answer_are_released(tmp_path: Path) -> None:
    app = make_app(tmp_path, lease=30.0)
    lost: list[int] = []
    gate = asyncio.Event()
    gate.set()
    calls: list[tuple[str, int]] = []
    links = chain(app, calls, gate)

    def make(claim: Callable[[ClaimRequest], Any]) -> Callable[[ClaimRequest], Any]:
        async def claim_and_lose(wanted: ClaimRequest) -> ClaimResult:
            claims: ClaimResult = await claim(wanted)
            if claims.runs and not lost:
                lost.extend(run.id for run in claims.runs)
                raise StoreUnavailable("the answer was lost on purpose")
            return claims

        return claim_and_lose

    async with app.client():  # a worker with free capacity may start a run without a claim
        handles = await links.start_many([()] * 3)
    async with at_work(app, lambda store: replacing(store, "claim", make)):
        assert await asyncio.gather(*(h.result("60s") for h in handles)) == [["a", "b", "c"]] * 3
        runs = [await handle.describe() for handle in handles]
    assert lost
    assert {run.crashes for run in runs} == {0}
    assert sorted(calls) == sorted([(name, 1) for name in "abc"] * 3)


async def test_a_transactional_step_whose_commit_is_not_answered_takes_effect_once(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    lost: list[str] = []

    @app.step(transactional=True)
    async def pay(tx: Any, number: int) -> int:
        await tx.execute("INSERT INTO payments (number) VALUES (?)", number)
        return number

    @app.workflow
    async def buy(number: int) -> int:
        paid: int = await pay(number)  # type: ignore[call-arg]
        return paid

    def plan(call: Call) -> Fault | None:
        if call.name == "transaction.commit" and call.of_name in (1, 2):
            lost.append(call.name)
            return LOSE if call.of_name == 1 else FAIL
        return None

    def over(store: Store) -> Store:
        faulty: Store = inject_faults(store, plan)
        return faulty

    async with at_work(app, over):
        with closing(sqlite3.connect(tmp_path / "redrive.db")) as con, con:
            con.execute("CREATE TABLE payments (number INTEGER)")
        handles = await buy.start_many([(number,) for number in range(4)])
        assert await asyncio.gather(*(h.result("20s") for h in handles)) == [0, 1, 2, 3]
        runs = [await handle.describe() for handle in handles]
    with closing(sqlite3.connect(tmp_path / "redrive.db")) as con:
        paid = con.execute("SELECT number FROM payments ORDER BY number").fetchall()
    assert len(lost) == 2
    assert paid == [(0,), (1,), (2,), (3,)]
    assert {(step.attempt, run.crashes) for run in runs for step in run.steps} == {(1, 0)}


# -- heartbeats fail -----------------------------------------------------------------------------------


class _SilentLine:
    """A lease connection whose heartbeats fail while `silent` returns True."""

    def __init__(self, inner: LeaseConnection, silent: Callable[[], bool]) -> None:
        self._inner = inner
        self._silent = silent

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        if self._silent():
            raise StoreUnavailable("no beat gets through, on purpose")
        return self._inner.beat(beats)

    def close(self) -> None:
        self._inner.close()


async def test_a_worker_whose_heartbeats_fail_begins_nothing_until_they_succeed(tmp_path: Path) -> None:
    gate = asyncio.Event()
    calls: list[tuple[str, int]] = []
    app = make_app(tmp_path, lease=30.0, chores="1h")
    links = chain(app, calls, gate)
    silent = False

    def over(store: Store) -> Store:
        return replacing(store, "lease_connection", lambda line: lambda: _SilentLine(line(), lambda: silent))

    async with at_work(app, over) as worker:
        handle = await links.start()
        await until(lambda: ("b", 1) in calls, "a step is under way")
        silent = True
        worker.lease.good_until = 0.0  # as if the lease had nearly expired
        await until(lambda: not worker.has_lease, "the lease cannot be relied on")
        gate.set()
        waiting = await links.start()

        async def recorded() -> bool:
            return len([s for s in (await handle.describe()).steps if s.status == "SUCCESS"]) == 2

        await until(recorded, "the running step is recorded while the lease still holds")
        assert ("c", 1) not in calls
        assert await waiting.status() is RunStatus.PENDING
        silent = False
        assert await handle.result("10s") == ["a", "b", "c"]
        assert await waiting.result("10s") == ["a", "b", "c"]
    assert calls.count(("c", 1)) == 2


# -- the store refuses a row ---------------------------------------------------------------------------


def refusing(bad: str) -> tuple[Callable[[Store], Store], list[int]]:
    """Return a wrapper for a store that refuses batches with `bad` in a row, and the sizes of the batches."""
    sizes: list[int] = []

    def make(apply: Callable[..., Any]) -> Callable[..., Any]:
        async def checked(transitions: Sequence[Transition], **more: Any) -> list[TransitionResult]:
            sizes.append(len(transitions))
            if any(bad in (e.output or "") for t in transitions for e in t.entries):
                raise DataRefused("one of these rows is bad")
            answers: list[TransitionResult] = await apply(transitions, **more)
            return answers

        return checked

    return lambda store: replacing(store, "apply", make), sizes


async def test_one_bad_row_fails_its_own_step_and_no_other(tmp_path: Path) -> None:
    app = make_app(tmp_path, concurrency=50)
    together = asyncio.Event()
    begun: list[int] = []

    @app.step(retry=AT_ONCE)
    async def make(number: int) -> str:
        begun.append(number)
        await together.wait()  # so that all results go out in one batch
        return "poisonous" if number == 13 else "harmless"

    @app.workflow
    async def job(number: int) -> str:
        return await make(number)

    @app.workflow
    async def careful(number: int) -> str:
        try:
            return await make(number)
        except StepFailed as failed:
            return f"{failed.step} {failed.error_type}"

    over, sizes = refusing("poisonous")
    async with at_work(app, over):
        handles = await job.start_many([(number,) for number in range(20)])
        handles += await careful.start_many([(13,)])
        await until(lambda: len(begun) == 21, "all steps are under way")
        sizes.clear()
        together.set()
        results = await asyncio.gather(*(h.result("20s") for h in handles), return_exceptions=True)
        letter = await app.dlq.get(handles[13].id)
        letters = await app.dlq.list()
    assert [r for n, r in enumerate(results[:20]) if n != 13] == ["harmless"] * 19
    assert isinstance(results[13], RunFailed)
    assert results[20] == "make redrive.errors.DataRefused"
    assert (letter.code, letter.stage, letter.step) == ("infrastructure_failure", "commit", "make")
    assert len(letters.items) == 1
    assert max(sizes) > 10  # it was one batch, and was halved
    assert begun.count(13) == 2  # once in each run: a refused result is not retried


async def test_a_run_whose_result_is_refused_becomes_a_letter(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.workflow
    async def job(word: str) -> str:
        return word

    def make(apply: Callable[..., Any]) -> Callable[..., Any]:
        async def checked(transitions: Sequence[Transition], **more: Any) -> list[TransitionResult]:
            if any(t.change is not None and "bad" in (t.change.output or "") for t in transitions):
                raise DataRefused("one of these rows is bad")
            answers: list[TransitionResult] = await apply(transitions, **more)
            return answers

        return checked

    async with at_work(app, lambda store: replacing(store, "apply", make)):
        good, bad = await job.start("good"), await job.start("bad")
        assert await good.result("10s") == "good"
        with pytest.raises(RunFailed) as caught:
            await bad.result("10s")
    assert caught.value.code == "infrastructure_failure"


class NoTime(SystemClock):
    """A clock on which waiting takes no time and is recorded."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, delay: float) -> None:
        self.slept.append(delay)


def failing(times: int, error: Exception) -> Callable[[], Awaitable[str]]:
    """Return a store call that fails a number of times, then answers."""
    errors = iter([error] * times)

    async def ask() -> str:
        for raised in errors:
            raise raised
        return "answer"

    return ask


async def test_a_store_call_is_retried_until_the_store_answers() -> None:
    clock = NoTime()
    assert await repeat_until_answered(failing(9, StoreError("locked")), clock) == "answer"
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


async def test_a_store_call_with_a_waiting_caller_is_retried_for_some_seconds_only() -> None:
    clock = NoTime()
    assert await repeat_until_answered(failing(3, StoreUnavailable("gone")), clock, patience=1.0) == "answer"
    clock.slept.clear()
    with pytest.raises(StoreUnavailable):
        await repeat_until_answered(failing(99, StoreUnavailable("gone")), clock, patience=1.0)
    assert 1.0 <= sum(clock.slept) < 2.0


async def test_other_store_errors_are_raised_to_a_waiting_caller_at_once() -> None:
    clock = NoTime()
    with pytest.raises(StoreError):
        await repeat_until_answered(failing(1, StoreError("not a database")), clock, patience=1.0)
    assert clock.slept == []
