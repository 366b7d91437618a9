"""Lock conflicts: every way to take a run from a worker conflicts with that worker's writes.

Each test stops one side in the middle of its transaction, on a separate connection, and observes the other
side.
"""

from __future__ import annotations

import asyncio
import random

import asyncpg
import cluster
import pytest
from postgres_kit import Bench, eventually
from store_kit import DAY, LEASE, SECOND, becomes, catalogue, entry, failed_try, writes

from redrive.core.states import RunStatus, StepStatus
from redrive.errors import StoreUnavailable
from redrive.store.chores import PurgeRequest
from redrive.store.postgres import apply as applying
from redrive.store.postgres import lease
from redrive.store.postgres.pool import PostgresSession
from redrive.store.sql_files import replace_schema
from redrive.store.workers import NewWorker

pytestmark = pytest.mark.parametrize("ready_url", cluster.ENOUGH, indirect=True)
RUNNING = StepStatus.RUNNING


# -- a worker writes while its run is taken ------------------------------------------------------------


async def test_taking_a_run_waits_for_an_open_write(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    async with bench.line() as line, line.transaction():
        (written,) = await applying.apply(line, bench.time, [writes(run, entry(0, output="o"))], worker)
        taking = asyncio.create_task(bench.store.apply([becomes(run, RunStatus.CANCELLED, take=True)]))
        await bench.waits()
        assert not taking.done()
    (taken,) = await taking
    assert written.kept
    assert taken.kept
    assert [row.output for row in await bench.store.journal(run.id)] == ["o"]


async def test_a_write_waits_for_an_open_take_and_is_refused(bench: Bench) -> None:
    """The fence is read after the lock is held: an earlier snapshot would still show the old one."""
    worker, run = await bench.kit.held()
    async with bench.line() as line, line.transaction():
        take = becomes(run, RunStatus.PENDING, wake_in=0, take=True)
        (taken,) = await applying.apply(line, bench.time, [take], None)
        writing = asyncio.create_task(bench.store.apply([writes(run, entry(0))], worker=worker))
        await bench.waits()
        assert not writing.done()
    (written,) = await writing
    assert taken.kept
    assert not written.kept
    assert await bench.store.journal(run.id) == []


async def test_a_zombie_cannot_commit_after_the_next_worker_has_read_the_journal(bench: Bench) -> None:
    """A share lock that does not conflict with a change of the fence would allow it."""
    zombie, run = await bench.kit.held()
    heir = await bench.kit.worker()
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(run, entry(0, output="late"))], zombie)
        lost = becomes(run, RunStatus.PENDING, wake_in=0, take=True)
        taking = asyncio.create_task(bench.store.apply([lost]))
        await bench.waits()
        assert (await bench.kit.claim(heir)).runs == []  # not claimable while the zombie can still commit
    assert (await taking)[0].kept
    (again,) = (await bench.kit.claim(heir)).runs
    assert [row.output for row in again.journal] == ["late"]


async def test_a_worker_is_not_declared_dead_during_a_write(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    bench.clock.move(DAY)
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(run, entry(0))], worker)
        assert await bench.store.expire_workers() == []  # the call does not wait; the next round declares it dead
        assert [row.state for row in await bench.store.workers()] == ["LIVE"]
    assert [row.id for row in await bench.store.expire_workers()] == [worker]


@pytest.mark.parametrize("beside", [{}, {"statement_cache_size": "0"}], ids=["plain", "as behind a pooler"])
async def test_the_connection_of_a_worker_that_hangs_during_a_write_is_ended(
    bench: Bench, beside: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """No timeout of the server covers a client that stops between two messages of one statement."""
    worker, run = await bench.kit.held()
    reaper = await bench.beside(**beside)
    bench.clock.move(DAY)
    async with bench.line() as line:
        await line.con.execute("SET idle_in_transaction_session_timeout = 0; BEGIN")
        await applying.apply(line, bench.time, [writes(run, entry(0))], worker)

        async def is_declared_dead() -> bool:
            return [row.id for row in await reaper.expire_workers()] == [worker]

        await eventually(is_declared_dead)
    assert await bench.store.journal(run.id) == []
    assert "ended 1 connections" in caplog.text


async def test_a_write_waits_for_an_open_declaration_of_death_and_is_refused(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    bench.clock.move(DAY)
    async with bench.line() as line, line.transaction():
        dead, writing = await lease.expire_workers(PostgresSession(line, bench.time), certain=True)
        assert ([row.id for row in dead], writing) == ([worker], [])
        late = asyncio.create_task(bench.store.apply([writes(run, entry(0))], worker=worker))
        await bench.waits()
    assert not (await late)[0].kept
    assert await bench.store.journal(run.id) == []


async def test_a_retiring_worker_waits_for_its_last_write(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(run, entry(0))], worker)
        retiring = asyncio.create_task(bench.store.retire(worker))
        await bench.waits()
        assert not retiring.done()
    await retiring
    assert len(await bench.store.journal(run.id)) == 1


async def test_a_transactional_step_holds_its_run_from_its_record_to_its_commit(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    tx = bench.store.transaction(5.0)
    await tx.execute("CREATE TABLE accounts (name TEXT)")
    (taken,) = await bench.store.apply([becomes(run, RunStatus.CANCELLED, take=True)])
    assert taken.kept  # before its record, the transaction blocks no other
    assert not (await tx.commit(worker, writes(run, entry(0)))).kept
    with pytest.raises(asyncpg.UndefinedTableError):
        await bench.sql("SELECT 1 FROM accounts")


async def test_a_call_that_does_not_get_its_lock_in_time_raises_store_unavailable(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    hurried = await bench.beside()
    short = NewWorker(name="hurried", version="v", workflows=("w",), lease=SECOND)
    await hurried.enlist(short, catalogue("v", "w"))  # its calls wait for locks for a third of a second at most
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(run, entry(0))], worker)
        with pytest.raises(StoreUnavailable, match="lock"):
            await hurried.apply([becomes(run, RunStatus.CANCELLED, take=True)])
    (taken,) = await hurried.apply([becomes(run, RunStatus.CANCELLED, take=True)])
    assert taken.kept


# -- calls that do not wait ----------------------------------------------------------------------------


async def test_a_heartbeat_succeeds_while_the_worker_writes(bench: Bench) -> None:
    """The lease of a busy worker does not depend on a pause between its writes."""
    worker, run = await bench.kit.held()
    beating = bench.store.lease_connection()
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(run, entry(0, RUNNING))], worker)
        bench.clock.move(SECOND)
        answer = (await asyncio.to_thread(beating.beat, {worker: {}}))[worker]
    await asyncio.to_thread(beating.close)
    assert (answer.alive, answer.now) == (True, bench.clock.now())
    assert [row.beat_at for row in await bench.store.workers()] == [bench.clock.now()]


async def test_writes_of_one_worker_share_its_lock(bench: Bench) -> None:
    await bench.kit.start(2)
    worker = await bench.kit.worker()
    one, two = (await bench.kit.claim(worker)).runs
    async with bench.line() as line, line.transaction():
        await applying.apply(line, bench.time, [writes(one, entry(0))], worker)
        assert (await bench.store.apply([writes(two, entry(0))], worker=worker))[0].kept


async def test_a_claim_skips_locked_rows(bench: Bench) -> None:
    ids = await bench.kit.start(3)
    worker = await bench.kit.worker()
    async with bench.line() as line, line.transaction():
        locked = f"SELECT 1 FROM redrive.runs WHERE public_id = '{ids[0]}' FOR UPDATE"
        await line.script(locked)
        claims = await bench.kit.claim(worker)
        assert [run.public_id for run in claims.runs] == ids[1:]
        assert claims.next_in == 0  # more runs are due than it got
    assert [run.public_id for run in (await bench.kit.claim(worker)).runs] == ids[:1]


async def test_a_purge_skips_locked_rows(bench: Bench) -> None:
    await bench.kit.start(2)
    worker = await bench.kit.worker()
    runs = (await bench.kit.claim(worker)).runs
    await bench.store.apply([becomes(run, RunStatus.SUCCESS, take=True) for run in runs], worker=worker)
    bench.clock.move(8 * DAY)
    purge = PurgeRequest(runs=7 * DAY, letters=DAY, workers=900 * DAY, limit=10)
    async with bench.line() as line, line.transaction():
        await line.script(f"SELECT 1 FROM redrive.runs WHERE id = {runs[0].id} FOR UPDATE")
        assert await bench.store.purge(purge) == 1
    assert await bench.store.purge(purge) == 1


# -- deadlocks -----------------------------------------------------------------------------------------


async def deadlocks(bench: Bench) -> int:
    rows = await bench.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return int(rows[0]["deadlocks"])


async def test_waking_runs_waits_for_a_locked_row_with_the_others_already_woken(bench: Bench) -> None:
    await bench.kit.start(3)
    ids = [run.id for run in (await bench.kit.claim(await bench.kit.worker())).runs]
    async with bench.line() as line, line.transaction():
        await line.script(f"SELECT 1 FROM redrive.runs WHERE id = {ids[1]} FOR UPDATE")
        waking = asyncio.create_task(bench.store.wake_runs(ids))
        await bench.waits()
        assert await bench.store.wakeups(ids) == {ids[0]: 1, ids[1]: 0, ids[2]: 1}
    assert sorted(woken.run for woken in await waking) == sorted(ids)
    assert await bench.store.wakeups(ids) == dict.fromkeys(ids, 1)


async def test_equal_keys_in_any_order_do_not_deadlock(bench: Bench) -> None:
    stores = [bench.store, await bench.beside(), await bench.beside()]
    before = await deadlocks(bench)
    keys = [f"k{n:03d}" for n in range(60)]

    async def start(n: int) -> list[str]:
        order = random.Random(n).sample(keys, len(keys))
        batch = [bench.kit.new(key=key, key_hash="h", key_keeps=DAY) for key in order]
        answers = await stores[n % 3].start(batch)
        return [found for _, found in sorted(zip(order, (each.public_id for each in answers), strict=True))]

    answers = await asyncio.gather(*(start(n) for n in range(12)))
    assert all(each == answers[0] for each in answers)
    assert await deadlocks(bench) == before


@pytest.mark.parametrize("seed", [1, 2])
async def test_concurrent_workers_reapers_heartbeats_and_purges_do_not_deadlock(bench: Bench, seed: int) -> None:
    """None of them fails, and the database never has to abort a transaction."""
    rng = random.Random(seed)
    stores = [bench.store, await bench.beside(), await bench.beside()]
    before = await deadlocks(bench)
    await bench.kit.start(120)
    rounds = 25
    beats: dict[int, dict[tuple[int, int], str | None]] = {}  # each call renews the leases of all three workers

    async def work(store) -> None:
        kit = bench.kit
        worker = await store.enlist(
            NewWorker(name="w", version="v", workflows=("w",), lease=LEASE), catalogue("v", "w")
        )
        line = store.lease_connection()
        for n in range(rounds):
            claim = await type(kit).claim(type(kit)(store, bench.clock, kit.beside, True), worker, capacity=12)
            runs = rng.sample(claim.runs, len(claim.runs))
            marks = [writes(run, entry(n % 3, RUNNING, limit_in=1)) for run in runs]
            beats[worker] = {(run.id, n % 3): None for run in runs}
            ends = [writes(run, entry(n % 3, output="o"), attempts=(failed_try(n % 3),)) for run in runs]
            await asyncio.gather(
                store.apply(marks, worker=worker),
                asyncio.to_thread(line.beat, dict(rng.sample(list(beats.items()), len(beats)))),
                store.apply(list(reversed(ends)), worker=worker),
            )
            back = [becomes(run, RunStatus.PENDING, wake_in=0, take=True) for run in reversed(runs)]
            await store.apply(back, worker=worker)
        await asyncio.to_thread(line.close)

    async def reap_and_purge(store) -> None:
        for _ in range(rounds):
            bench.clock.move(SECOND)
            await store.expire_workers()
            hung = await store.hung(0, 50)
            taken = [becomes(held.run, RunStatus.SLEEPING, wake_in=0, take=True) for held in hung]
            await store.apply(rng.sample(taken, len(taken)))
            await store.purge(PurgeRequest(runs=0, letters=0, workers=DAY, limit=20))
            await bench.kit.start(2)

    await asyncio.gather(*(work(store) for store in stores), *(reap_and_purge(store) for store in stores[:2]))
    assert await deadlocks(bench) == before


async def test_a_deadlock_found_by_the_database_can_be_repeated(bench: Bench) -> None:
    """If two transactions ever deadlock, the aborted one can be repeated."""
    await bench.kit.start(2)
    worker = await bench.kit.worker()
    one, two = (await bench.kit.claim(worker)).runs
    await bench.store.apply([writes(one, entry(0, RUNNING)), writes(two, entry(0, RUNNING))], worker=worker)

    batch = [writes(one, entry(0)), writes(two, entry(0))]
    update = replace_schema("UPDATE redrive.entries SET name = name WHERE run = $1", bench.address.schema)
    con = await asyncpg.connect(bench.address.url, server_settings={"deadlock_timeout": "20s"})
    async with con.transaction():
        await con.execute(update, two.id)
        applied = asyncio.create_task(bench.store.apply(batch, worker=worker))
        await bench.waits()
        stuck = asyncio.create_task(con.execute(update, one.id))
        with pytest.raises(StoreUnavailable, match="two transactions conflicted"):
            await applied
        await stuck
    await con.close()
    answers = await bench.store.apply(batch, worker=worker)
    assert all(answer.kept for answer in answers)


async def test_an_idle_connection_does_not_keep_a_lock(bench: Bench) -> None:
    """A process that is stopped in the middle of a transaction loses it before its lease expires."""
    worker, run = await bench.kit.held()
    short = NewWorker(name="short", version="v", workflows=("w",), lease=2 * SECOND)
    store = await bench.beside()
    await store.enlist(short, catalogue("v", "w"))
    async with store._pool.connection() as line:
        limit = await line.con.fetchval("SHOW idle_in_transaction_session_timeout")
        assert limit == "666ms"
    async with bench.line() as line:
        await line.con.execute("SET idle_in_transaction_session_timeout = '100ms'; BEGIN")
        await applying.apply(line, bench.time, [writes(run, entry(0))], worker)

        async def gone() -> bool:
            return bool(line.con.is_closed())

        await eventually(gone)
    assert (await bench.store.apply([becomes(run, RunStatus.CANCELLED, take=True)]))[0].kept
    assert await bench.store.journal(run.id) == []
