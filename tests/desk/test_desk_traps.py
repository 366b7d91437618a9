"""Known faults of similar systems, tested through the engine on every database. See traps.md."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from desk_kit import ONCE, Ledger, ended, failed, new_app, shop
from engines import OnStore

from redrive import RetryPolicy
from redrive.errors import Conflict, NotFound, RedriveError
from redrive.store.filters import LetterFilter
from redrive.testing import Crash, faults
from redrive.testing.faulty_store import LOSE, Call, Fault, crash_after, crash_before

_TOLD = ["dlq.created", "dlq.retry", "dlq.replay_failed"]
THREE = RetryPolicy(max_retries=3, base_delay=1, jitter=0)


async def test_a1_a_step_that_always_fails_is_tried_four_times_and_becomes_one_letter(on_store: OnStore) -> None:
    """Trap A1: the counter that never grows."""
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=THREE)
    async def act() -> None:
        ledger.called("act")

    @app.workflow
    async def job() -> None:
        await act()

    async with on_store(app) as e:
        letter = await failed(e, job)
        assert (ledger.counts["act"], letter.attempts, letter.code) == (4, 4, "exhausted_retries")
        await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert ledger.counts["act"] == 8
        (only,) = (await app.dlq.list()).items
        assert (only.id, only.attempts, only.replay_count) == (letter.id, 4, 1)


class Strike:
    """A fault at the n-th write after it was armed."""

    def __init__(self) -> None:
        self.left = 0
        self.fault = LOSE

    def arm(self, number: int, fault: Fault) -> None:
        self.left, self.fault = number, fault

    def __call__(self, call: Call) -> Fault | None:
        if call.name != "apply" or self.left <= 0:
            return None
        self.left -= 1
        return self.fault if self.left == 0 else None


async def test_a8_a_crash_at_any_write_leaves_one_letter(on_store: OnStore) -> None:
    """Trap A8: dead-lettering in three statements. The test covers failing replays as well."""
    s, plan, tried = shop(), Strike(), 0
    async with on_store(s.app, plan=plan) as e:
        for make in (lambda: crash_before(Crash()), lambda: crash_after(Crash()), lambda: LOSE):
            number = 1
            while True:
                plan.arm(number, make())
                letter = await failed(e, s.order, "lamp", number)
                await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
                if plan.left > 0:
                    break
                now = await s.app.dlq.get(letter.id)
                assert (now.status, now.replay_count) == ("OPEN", 1)
                assert [line.event for line in now.history] == _TOLD
                number, tried = number + 1, tried + 1
        letters = (await s.app.dlq.list(limit=500)).items
        assert len(letters) == len({letter.run_id for letter in letters}) == tried + 3
        assert tried >= 9


async def test_a9_a_page_is_full_although_other_tenants_have_newer_letters(on_store: OnStore) -> None:
    """Trap A9: the limit before the tenant filter."""
    s = shop()
    async with on_store(s.app) as e:
        for tenant, count in (("small", 12), ("big", 60)):
            for number in range(count):
                await s.order.start("lamp", number, tenant=tenant)
            await e.finish_all()
        page = await s.app.dlq.list(LetterFilter(tenant="small"), limit=10)
        assert [letter.tenant for letter in page.items] == ["small"] * 10
        rest = await s.app.dlq.list(LetterFilter(tenant="small"), limit=10, cursor=page.next)
        assert len(rest.items) == 2
        assert not {x.id for x in page.items} & {x.id for x in rest.items}


async def test_with_unlimited_retention_no_failed_run_is_removed(on_store: OnStore) -> None:
    s = shop(new_app(dlq_retention="forever", retention="1d", retention_runs=0))
    async with on_store(s.app) as e:
        kept, closed, replayed = [await failed(e, s.order, item, 40) for item in ("lamp", "desk", "sofa")]
        assert closed.expires_at is None
        await s.app.dlq.resolve(closed.id, by="ann")
        s.ledger.broken.clear()
        await s.app.dlq.replay(replayed.id, by="ann")
        await e.advance("900d")
        assert [(await s.app.dlq.get(each.id)).status for each in (kept, closed)] == ["OPEN", "RESOLVED"]
        for each in (kept, closed):
            assert (await s.app.runs.get(each.run_id)).steps
        assert (await s.app.dlq.get(replayed.id)).purged, "a run that ended well is removed as always"


async def test_a13_a_letter_outlives_its_purged_run_and_explains_the_consequence(on_store: OnStore) -> None:
    """Trap A13: purge cascades into the dead letters, or is blocked by them."""
    s = shop()
    async with on_store(s.app) as e:
        kept = await failed(e, s.order, "lamp", 40)
        closed = await failed(e, s.order, "desk", 50)
        await s.app.dlq.resolve(closed.id, by="ann")
        await e.advance("10d")
        assert (await s.app.runs.get(kept.run_id)).steps  # an open letter keeps its run
        now = await s.app.dlq.get(closed.id)
        assert (now.input, now.message, now.status) == (closed.input, closed.message, "RESOLVED")
        assert now.purged
        with pytest.raises(RedriveError, match=r"purged|does not exist"):
            await s.app.runs.retry(closed.run_id)
        with pytest.raises(Conflict):
            await s.app.dlq.replay(closed.id)
        s.ledger.broken.clear()
        assert (await ended(e, (await s.app.dlq.replay(kept.id)).run_id)).status == "SUCCESS"


async def test_a21_the_letter_is_created_although_the_worker_dies_at_the_last_failure(on_store: OnStore) -> None:
    """Trap A21, also seen in similar systems: after a crash in the last attempt the run stays locked."""
    app, ledger = new_app(), Ledger(broken={"act"})

    @app.step(retry=THREE)
    async def act() -> None:
        ledger.called("act")

    @app.workflow
    async def job() -> None:
        await act()

    async with on_store(app) as e:
        with faults("act", [TimeoutError, TimeoutError, TimeoutError, Crash]):
            letter = await failed(e, job)
        assert (e.crashes, letter.attempts, letter.code) == (1, 4, "exhausted_retries")
        assert len((await app.dlq.list()).items) == 1


async def test_a22_a_replay_runs_and_a_duplicate_does_not_even_after_ten_thousand_runs(on_store: OnStore) -> None:
    """Trap A22: the queue's job id is the run's, and is forgotten after a hundred jobs."""
    s = shop()

    @s.app.workflow
    async def other(number: int) -> None: ...

    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40, idempotency_key="order 7")
        await s.app.workflows.pause("other")
        await other.start_many([(number,) for number in range(10_000)])
        assert (await s.order.start("lamp", 40, idempotency_key="order 7")).id == letter.run_id
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        assert (await s.order.start("lamp", 40, idempotency_key="order 7")).id == letter.run_id
        assert s.ledger.counts == {"reserve": 1, "charge": 2, "ship": 1}


async def test_a23_a_live_worker_keeps_its_replay(on_store: OnStore) -> None:
    """Trap A23: "RUNNING means stale" without proof that the holder is dead."""
    app, ledger = new_app(lease="30s"), Ledger(broken={"act"})

    @app.step(timeout="2h", retry=ONCE)
    async def act() -> str:
        ledger.called("act")
        await e.clock.sleep(3600)
        return "done"

    @app.workflow
    async def job() -> str:
        return await act()

    async with on_store(app) as e:
        letter = await failed(e, job)
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id)).run_id)
        assert run.result == "done"
        assert ledger.counts["act"] == 2
        assert e.crashes == 0


async def test_a26_a_key_returns_its_run_while_running_after_success_and_after_failure(on_store: OnStore) -> None:
    """Trap A26: no in-flight state, only a hash of the result."""
    s = shop()
    async with on_store(s.app) as e:
        keyed = [s.order.start("lamp", 40, idempotency_key="order 7") for _ in range(20)]
        (run_id,) = {handle.id for handle in await asyncio.gather(*keyed)}
        await e.finish_all()
        again = await s.order.start("lamp", 40, idempotency_key="order 7")
        assert (again.id, await again.status()) == (run_id, "DLQ_PENDING")
        with pytest.raises(Conflict, match="with another input"):
            await s.order.start("lamp", 41, idempotency_key="order 7")
        s.ledger.broken.clear()
        await s.app.dlq.replay(run_id)
        await e.finish_all()
        after = await s.order.start("lamp", 40, idempotency_key="order 7")
        assert after.id == run_id
        assert await after.result("5s") == ["lamp reserved", "40 charged", "lamp shipped"]
        assert s.ledger.counts == {"reserve": 1, "charge": 2, "ship": 1}


async def test_a26_a_key_is_not_forgotten_before_the_letter_that_could_replay_it(on_store: OnStore) -> None:
    """Trap A26: the key expires before the dead letter does."""
    s = shop(new_app(dlq_retention="60d"))
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40, idempotency_key="order 7")
        assert letter.expires_at - letter.failed_at == timedelta(days=60)
        await e.advance("59d")
        assert (await s.order.start("lamp", 40, idempotency_key="order 7")).id == letter.run_id
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letter.id)).run_id)
        assert s.ledger.counts == {"reserve": 1, "charge": 2, "ship": 1}
        await e.advance("200d")
        with pytest.raises(NotFound):
            await s.app.dlq.get(letter.id)
        assert (await s.order.start("lamp", 40, idempotency_key="order 7")).id != letter.run_id
