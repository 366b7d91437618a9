"""Idempotency keys: one key is one run, while it runs, after it ended, and until the key expires (trap A26)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import cluster
import engines
import pytest
from engines import OnStore
from starting_people import build

import redrive
from redrive import Redrive, RetryPolicy, RunFailed, step_info
from redrive.app import Workflow
from redrive.core.keys_and_ids import flow_key
from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow
from redrive.store.filters import RunFilter
from redrive.testing import Engine, RunReport, crash_everywhere

PEOPLE = Path(__file__).with_name("starting_people.py")
PATIENCE = 60
ONCE = RetryPolicy(max_retries=0)


class Bank:
    """An app that charges, and records the keys of its charges."""

    def __init__(self, **settings: Any) -> None:
        self.app = Redrive("sqlite:///:memory:", **settings)
        self.keys: list[str] = []
        self.broken = False

        @self.app.step(retry=ONCE)
        async def charge(amount: int) -> int:
            self.keys.append(step_info().idempotency_key)
            if self.broken:
                raise ConnectionError("down")
            return amount

        @self.app.workflow
        async def pay(amount: int, wait: float = 0) -> int:
            await redrive.sleep(wait)
            return await charge(amount)

        @self.app.workflow
        async def refund(amount: int) -> int:
            return await charge(-amount)

        @self.app.workflow
        async def invoice(amount: int) -> int:
            return amount

        self.pay, self.refund, self.invoice = pay, refund, invoice


async def same(workflow: Workflow[..., Any, Any], *args: Any, **options: Any) -> str:
    """Start the same run twice more and return its id; assert that another input is refused."""
    ids = {(await workflow.start(*args, **options)).id for _ in range(2)}
    with pytest.raises(Conflict, match=r"was used for run \w+ with another input; use a new key"):
        await workflow.start(-1, **options)
    (run_id,) = ids
    return run_id


# -- repeats -------------------------------------------------------------------------------------------


async def test_a26_a_key_returns_its_run_while_running_and_after_success(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app) as e:
        first = await bank.pay.start(40, 3600, idempotency_key="A-1")
        assert await same(bank.pay, 40, 3600, idempotency_key="A-1") == first.id
        await e.advance("30m")
        assert await same(bank.pay, 40, 3600, idempotency_key="A-1") == first.id
        await e.advance("31m")
        again = await bank.pay.start(40, 3600, idempotency_key="A-1")
        assert (again.id, await again.result()) == (first.id, 40)
        assert len(bank.keys) == 1


async def test_a26_a_key_returns_the_failed_run_after_a_failure(on_store: OnStore) -> None:
    bank = Bank()
    bank.broken = True
    async with on_store(bank.app) as e:
        first = await e.run(bank.pay, 40, idempotency_key="A-1")
        assert await same(bank.pay, 40, idempotency_key="A-1") == first.id
        with pytest.raises(RunFailed):
            await e.app.handle(first.id).result()
        assert len(bank.keys) == 1


async def test_a26_the_answer_outlives_the_run_and_an_expired_key_is_free(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app) as e:
        first = await e.run(bank.pay, 40, idempotency_key="A-1")
        await e.advance("29d")
        again = await bank.pay.start(40, idempotency_key="A-1")
        assert (again.id, await again.result()) == (first.id, 40)
        assert (await again.describe()).input is None  # only the answer is left
        await e.advance("2d")
        with pytest.raises(NotFound):
            await again.status()
        other = await e.run(bank.pay, 41, idempotency_key="A-1")
        assert (other.id != first.id, other.result) == (True, 41)


async def test_the_setting_limits_the_lifetime_of_a_key(on_store: OnStore) -> None:
    bank = Bank(idempotency_retention="2h")
    async with on_store(bank.app) as e:
        first = await e.run(bank.pay, 40, idempotency_key="A-1")
        await e.advance("1h")
        assert await same(bank.pay, 40, idempotency_key="A-1") == first.id
        await e.advance("61m")
        assert (await bank.pay.start(40, idempotency_key="A-1")).id != first.id


async def test_a_run_that_takes_longer_than_the_retention_keeps_its_key(on_store: OnStore) -> None:
    bank = Bank(idempotency_retention="2h")
    bank.broken = True
    async with on_store(bank.app) as e:
        first = await bank.pay.start(40, 86_400, idempotency_key="A-1")
        await e.advance("20h")
        assert await same(bank.pay, 40, 86_400, idempotency_key="A-1") == first.id
        await e.advance("5h")  # the run has failed by now and waits for a user
        assert await first.status() == "DLQ_PENDING"
        await e.app.runtime.purger.run_once()
        assert await same(bank.pay, 40, 86_400, idempotency_key="A-1") == first.id


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
async def test_a_key_is_kept_while_its_letter_can_be_replayed(on_store: OnStore, mode: str) -> None:
    bank = Bank(idempotency_retention="1d", dlq_retention="60d", retention="1d")
    bank.broken = True
    async with on_store(bank.app) as e:
        run = await e.run(bank.pay, 40, idempotency_key="A-1")
        await e.advance("40d")
        await e.app.runtime.purger.run_once()
        assert await same(bank.pay, 40, idempotency_key="A-1") == run.id  # the letter is open
        assert run.letter is not None
        await bank.app.workflows.pause("pay", by="ann")
        await bank.app.dlq.replay(run.letter.id, mode, by="ann")
        await e.advance("10d")
        await e.app.runtime.purger.run_once()
        assert await same(bank.pay, 40, idempotency_key="A-1") == run.id  # the letter is being replayed
        bank.broken = False
        await bank.app.workflows.resume("pay", by="ann")
        await e.advance("2d")
        await e.app.runtime.purger.run_once()
        assert (await bank.pay.start(41, idempotency_key="A-1")).id != run.id  # nothing is left to replay


async def test_keys_are_separate_for_each_tenant_and_workflow(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app):
        starts = [
            await bank.pay.start(40, idempotency_key="A-1"),
            await bank.refund.start(40, idempotency_key="A-1"),
            await bank.pay.start(40, idempotency_key="A-1", tenant="acme"),
            await bank.pay.start(40, idempotency_key="pay:A-1", tenant="acme"),
            await bank.app.receive_event("pay", "A-1", bank.pay, 40),
        ]
        assert len({handle.id for handle in starts}) == 5


async def test_a_schedule_fired_by_two_leaders_starts_one_run(on_store: OnStore) -> None:
    """Each schedule and fire time has a key, so a stale leader starts nothing twice."""
    bank = Bank()
    async with on_store(bank.app) as e:
        for hour in (1, 2):
            fire_time = f"2030-03-31T0{hour}:00:00+00:00"
            fired = [await bank.pay.start(1, idempotency_key=f"nightly {fire_time}") for _leader in ("old", "new")]
            assert fired[0].id == fired[1].id
        await e.finish_all()
        assert len(bank.keys) == 2


# -- events --------------------------------------------------------------------------------------------


async def test_an_event_starts_its_workflow_once_however_often_it_is_delivered(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app) as e:
        first = await e.app.receive_event("orders", "e-1", bank.pay, 40, tenant="acme")
        assert (await e.app.receive_event("orders", "e-1", "pay", amount=40, tenant="acme")).id == first.id
        await e.finish_all()
        again = await e.app.receive_event("orders", "e-1", bank.pay, 40, tenant="acme")
        assert (again.id, await again.result()) == (first.id, 40)
        assert len(bank.keys) == 1
        found = await e.app.runs.list(RunFilter(idempotency_key="e-1"))
        assert [run.id for run in found.items] == [first.id]


async def test_another_event_is_another_run(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app):
        received = [
            await bank.app.receive_event(stream, event, bank.pay, 40, tenant=tenant)
            for stream, event, tenant in [
                ("orders", "e-1", "a"), ("orders", "e-2", "a"), ("refunds", "e-1", "a"),
                ("orders", "e-1", "b"), ("orders:e", "1", "a"), ("orders", "e:1", "a"),
                ("orders%3Ae", "1", "a"),
            ]
        ]  # fmt: skip
        assert len({handle.id for handle in received}) == 7


async def test_an_event_with_other_content_or_for_another_workflow_is_a_conflict(on_store: OnStore) -> None:
    bank = Bank()
    async with on_store(bank.app) as e:
        first = await e.app.receive_event("orders", "e-1", bank.invoice, 40)
        for workflow, amount in ((bank.invoice, 41), (bank.refund, 40)):
            with pytest.raises(Conflict, match=r"event 'e-1' of stream 'orders' was received before") as told:
                await e.app.receive_event("orders", "e-1", workflow, amount)
            assert first.id in str(told.value)
        assert len((await e.app.runs.list()).items) == 1


async def test_an_invalid_event_is_refused(on_store: OnStore) -> None:
    bank = Bank()
    receive: Any = bank.app.receive_event
    async with on_store(bank.app) as e:
        for stream, event in (("", "e"), ("s", ""), ("s", "x" * 300), ("s", 7), ("\0", "e"), ("s", "\ud800")):
            with pytest.raises(InputError, match=r"stream|event_id"):
                await receive(stream, event, bank.pay, 40)
        with pytest.raises(InputError, match="leave idempotency_key out"):
            await receive("s", "e", bank.pay, 40, idempotency_key="k")
        with pytest.raises(UnknownWorkflow):
            await receive("s", "e", "unknown", 40)
        assert (await e.app.runs.list()).items == []


async def test_an_event_received_in_a_workflow_is_recorded_like_any_start() -> None:
    bank = Bank()

    @bank.app.workflow
    async def relay(event: str) -> str:
        handle = await bank.app.receive_event("orders", event, bank.pay, 40)
        return handle.id

    async def check(e: Engine, run: RunReport) -> None:
        (child,) = (await e.app.runs.list(RunFilter(workflow="pay"))).items
        assert (child.id, child.parent) == (run.result, run.id)
        assert (await e.app.receive_event("orders", "e-1", bank.pay, 40)).id == child.id

    await crash_everywhere(relay, "e-1", check=check)


# -- idempotency keys of steps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "options"), [("FROM_FAILED", {}), ("STEP_ONLY", {}), ("FROM_STEP", {"from_step": 1}), ("FULL", {})]
)
async def test_a_replay_of_any_mode_keeps_the_steps_key_unless_it_is_a_new_operation(
    on_store: OnStore, mode: str, options: dict[str, Any]
) -> None:
    bank = Bank()
    bank.broken = True
    async with on_store(bank.app) as e:
        run = await e.run(bank.pay, 40, tenant="a:b")
        assert run.letter is not None
        await e.app.dlq.replay(run.letter.id, mode, by="ann", **options)
        await e.finish_all()
        key = flow_key("a:b", run.id, "/charge#0", 0)
        assert bank.keys == [key, key]
        bank.broken = False
        letter = await e.app.dlq.get(run.letter.id)
        failed = next(step for step in letter.steps if step.name == "charge" and not step.superseded)
        options = {"from_step": failed.index} if options else {}
        await e.app.dlq.replay(run.letter.id, mode, by="ann", new_operation=True, **options)
        await e.finish_all()
        assert bank.keys[2:] == [flow_key("a:b", run.id, "/charge#0", 1)]
        assert key not in bank.keys[2:]


# -- concurrent starts ---------------------------------------------------------------------------------


async def told(url: str, how: str, processes: int, each: int) -> list[str]:
    """Make `each` concurrent starts in each of several processes, and return the run ids."""
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    words = (sys.executable, str(PEOPLE), url, how, str(each))
    computers = [await asyncio.create_subprocess_exec(*words, **pipes) for _ in range(processes)]
    try:
        async with asyncio.timeout(PATIENCE):
            for computer in computers:
                assert computer.stdout is not None
                assert await computer.stdout.readline() == b"ready\n"
            answers = await asyncio.gather(*(computer.communicate(b"go\n") for computer in computers))
    finally:
        for computer in computers:
            if computer.returncode is None:
                computer.kill()
                await computer.wait()
    return [run_id for out, _ in answers for run_id in json.loads(out)]


@pytest.mark.parametrize(("kind", "how"), engines.paired("key", "event"))
async def test_a_hundred_concurrent_starts_from_four_processes_are_one_run(tmp_path: Path, kind: str, how: str) -> None:
    if kind == "sqlite":
        await _one_run(f"sqlite:///{tmp_path}/redrive.db", how)
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        await _one_run(url, how)


async def _one_run(url: str, how: str) -> None:
    app = build(url)
    async with app.client():  # creates the schema before the processes start
        pass
    ids = await told(url, how, 4, 25)
    assert len(ids) == 100
    assert len(set(ids)) == 1
    async with app:
        assert await app.handle(ids[0], "pay").result(PATIENCE) == "A-1 charged"
        assert [run.id for run in (await app.runs.list()).items] == [ids[0]]
