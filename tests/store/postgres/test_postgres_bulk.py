"""Nodes that fold or claim concurrently, held at that point by an open transaction."""

from __future__ import annotations

import asyncio

from postgres_kit import Bench
from session_kit import postgres_calls
from store_kit import SECOND, ends_in_letter

from redrive.core.transitions import AuditWrite
from redrive.store.bulk import NewBulk
from redrive.store.filters import GroupFilter

LEASE = 15 * SECOND


async def letters(bench: Bench, count: int, tenants: int = 1) -> None:
    for tenant in range(tenants):
        await bench.kit.start(count // tenants, tenant=f"t{tenant}")
    worker = await bench.kit.worker()
    runs = (await bench.kit.claim(worker, capacity=count)).runs
    await bench.store.apply([ends_in_letter(run) for run in runs], worker=worker)


async def test_a_bulk_action_that_another_node_is_claiming_is_skipped(bench: Bench) -> None:
    new = NewBulk(public_id="s", tenant="", action="IGNORE", by="ann", letters=("l",))
    await bench.store.create_bulk(new, AuditWrite(event="e", tenant="", by="ann", subject="s", token="t"))
    async with bench.line() as line, line.transaction():
        assert await postgres_calls(line, bench.time).claim_bulk(LEASE) is not None
        assert await bench.store.claim_bulk(LEASE) is None
    assert await bench.store.claim_bulk(LEASE) is None


async def test_concurrent_folds_take_different_changes_and_add_them_up(bench: Bench) -> None:
    await letters(bench, 10)
    async with bench.line() as line:
        async with line.transaction():
            assert await bench.on(line).fold(6) == 6
            beside = asyncio.create_task(bench.store.fold(6))
            await bench.waits()  # for the group's row, while it has other changes to write
        assert await beside == 4
    (group,) = (await bench.store.groups(GroupFilter(), limit=10, cursor=None)).items
    assert (group.open, group.total, sum(group.trend)) == (10, 10, 10)


async def test_changes_that_a_node_took_and_did_not_commit_are_folded_by_another(bench: Bench) -> None:
    await letters(bench, 3)
    async with bench.line() as line:
        await line.con.execute("BEGIN")
        assert await bench.on(line).fold(10) == 3
        await line.con.execute("ROLLBACK")
    assert await bench.store.fold(10) == 3
    (group,) = (await bench.store.groups(GroupFilter(), limit=10, cursor=None)).items
    assert group.total == 3


async def test_a_store_behind_a_pooler_folds_many_groups_at_once(bench: Bench) -> None:
    await letters(bench, 3, tenants=3)
    other = await bench.beside(statement_cache_size="0")
    assert await other.fold(10) == 3
    groups = (await other.groups(GroupFilter(), limit=10, cursor=None)).items
    assert sorted((each.tenant, each.total) for each in groups) == [("t0", 1), ("t1", 1), ("t2", 1)]
