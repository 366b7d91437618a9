"""The notifier between processes: notified after the commit, received by others, reconnected when lost."""

from __future__ import annotations

import asyncio

import asyncpg
from postgres_kit import Bench, eventually
from store_kit import SECOND, becomes, entry, noted, writes

from redrive.core.states import RunStatus
from redrive.store.postgres import PostgresStore


async def heard(store: PostgresStore) -> None:
    """Wait until a store has been notified since the last call."""
    await asyncio.wait_for(store.changed(), 30)


async def listening(store: PostgresStore) -> None:
    """Wait until a store listens: it is notified once then, for everything it missed."""
    await heard(store)


async def test_a_start_in_one_process_notifies_another(bench: Bench) -> None:
    other = await bench.beside()
    await listening(other)
    await bench.kit.start()
    await heard(other)


async def test_a_released_run_notifies_other_processes(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    other = await bench.beside()
    await listening(other)
    await bench.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    await heard(other)


async def test_a_resumed_workflow_notifies_other_processes(bench: Bench) -> None:
    other = await bench.beside()
    await bench.store.pause("w", noted("workflow.paused"))
    await listening(other)
    await bench.store.resume("w", noted("workflow.resumed"))
    await heard(other)


async def all_rung(bench: Bench) -> None:
    """Wait until the store has sent its notifications."""
    if bench.store._notifier._notifying is not None:
        await bench.store._notifier._notifying


async def count_rings(bench: Bench, work) -> int:
    """Count the notifications that a separate listener receives, up to a last one that this helper sends."""
    await all_rung(bench)
    rings: list[str] = []
    con = await asyncpg.connect(bench.address.url)
    channel = f"redrive_{bench.address.schema}"
    await con.add_listener(channel, lambda *args: rings.append(args[3]))
    await work()
    await all_rung(bench)
    await bench.sql(f"NOTIFY {channel}, 'last'")

    async def last() -> bool:
        return "last" in rings

    await eventually(last)
    await con.close()
    return len(rings) - 1


async def test_frequent_writes_do_not_notify(bench: Bench) -> None:
    """Recording steps, waiting and ending do not concern other processes."""
    await bench.kit.start(2)
    worker = await bench.kit.worker()
    one, two = (await bench.kit.claim(worker)).runs

    async def work() -> None:
        for n in range(20):
            await bench.store.apply([writes(one, entry(n)), writes(two, entry(n))], worker=worker)
        await bench.store.apply([becomes(one, RunStatus.SLEEPING, wake_in=SECOND, take=True)], worker=worker)
        await bench.store.apply([becomes(two, RunStatus.SUCCESS, take=True)], worker=worker)

    assert await count_rings(bench, work) == 0


async def test_a_start_that_a_worker_claims_at_once_does_not_notify(bench: Bench) -> None:
    worker = await bench.kit.worker()

    async def work() -> None:
        for _ in range(5):
            (started,) = await bench.store.start([bench.kit.new()], worker=worker)
            assert started.claimed is not None

    assert await count_rings(bench, work) == 0


async def test_many_starts_share_few_notifications(bench: Bench) -> None:
    async def work() -> None:
        await asyncio.gather(*(bench.kit.start() for _ in range(200)))

    rings = await count_rings(bench, work)
    assert 1 <= rings < 100


async def test_a_lost_listener_reconnects_and_notifies_for_what_it_missed(bench: Bench) -> None:
    other = await bench.beside()
    await listening(other)
    for _ in range(3):
        ended = await bench.sql(
            "SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert ended
        await heard(other)  # it is back
        await bench.kit.start()
        await heard(other)


async def test_polling_finds_everything_without_a_notifier(bench: Bench) -> None:
    silent = await bench.beside(bell="off")
    hearing = asyncio.ensure_future(silent.changed())
    await silent.start([bench.kit.new()])
    worker = await bench.kit.worker()
    assert len((await bench.kit.claim(worker)).runs) == 1
    assert not hearing.done()
    hearing.cancel()
    rows = await bench.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()")
    assert len(rows) <= 1  # the second store may listen, this one does not
