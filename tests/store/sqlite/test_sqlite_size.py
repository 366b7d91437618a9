"""A store with a million finished runs and a hundred thousand due ones; prints figures, asserts none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from store_kit import DAY, SECOND, HandClock, Kit, becomes, entry, writes

from redrive.core.states import RunStatus
from redrive.store import open_store
from redrive.store.chores import PurgeRequest
from redrive.store.filters import LetterFilter, RunFilter

FINISHED, DUE, BATCH = 1_000_000, 100_000, 10_000


async def fill(kit: Kit) -> int:
    """Insert a million finished runs directly, and start the others."""

    def finish(con) -> None:
        con.execute(
            "UPDATE runs SET status = 'SUCCESS', available_at = NULL, started_at = created_at, fence = 1,"
            " finished_at = created_at WHERE finished_at IS NULL"
        )
        con.execute(
            "INSERT INTO results SELECT id, tenant, '1', NULL FROM runs"
            " WHERE id > (SELECT COALESCE(max(run), 0) FROM results)"
        )

    for _ in range(FINISHED // BATCH):
        await kit.start(BATCH, tenant=f"t{_ % 20}")
        await kit.store._connections.write(finish)
        kit.clock.move(SECOND)
    for n in range(DUE // BATCH):
        await kit.start(BATCH, tenant=f"t{n}", queue="q")
    return await kit.worker()


@pytest.mark.slow
async def test_calls_on_a_full_store_are_measured(tmp_path: Path, clock: HandClock) -> None:
    kit = Kit(open_store(f"sqlite:///{tmp_path}/redrive.db", clock), clock, lambda: None, True)
    await kit.store.open()
    began = time.perf_counter()
    worker = await fill(kit)
    print(f"\n{FINISHED:,} finished and {DUE:,} due runs in {time.perf_counter() - began:.0f} s")

    async def measure(what: str, call, times: int = 20) -> None:
        took = []
        for _ in range(times):
            began = time.perf_counter()
            result = await call()
            took.append(time.perf_counter() - began)
        print(f"{what:48} median {sorted(took)[times // 2] * 1e3:8.2f} ms   worst {max(took) * 1e3:8.2f} ms")
        return result

    after = None

    async def claim():
        nonlocal after
        claims = await kit.claim(worker, capacity=100, after=after)
        after = claims.after
        return claims

    runs = (await measure("claim 100", claim)).runs
    await measure("idle claim", lambda: kit.claim(worker, "other"))
    await measure("apply 100 entries", lambda: kit.store.apply([writes(run, entry(0)) for run in runs], worker=worker))
    await measure("finish 100", lambda: kit.store.apply([becomes(r, RunStatus.SUCCESS) for r in runs], worker=worker))
    await measure("start 100", lambda: kit.start(100))
    for where in (
        RunFilter(),
        RunFilter(tenant="t7"),
        RunFilter(status="PENDING"),
        RunFilter(status="RUNNING"),
        RunFilter(status="FAILED"),
        RunFilter(status="SUCCESS"),
        RunFilter(since=clock.now() - 10 * SECOND),
        RunFilter(correlation_id="unknown"),
    ):
        said = {name: value for name in where.__slots__ if (value := getattr(where, name)) is not None}
        await measure(f"list {said}", lambda where=where: kit.store.runs(where, limit=50, cursor=None))
    await measure("list letters", lambda: kit.store.letters(LetterFilter(status="OPEN"), limit=50, cursor=None))
    for chore in ("expire_workers", "paused"):
        await measure(chore, getattr(kit.store, chore))
    await measure("stuck_runs", lambda: kit.store.hung(0, 100))
    await measure("overdue", lambda: kit.store.overdue(0, 100))
    await measure("unclaimable", lambda: kit.store.unclaimable([]))
    purge = PurgeRequest(runs=7 * DAY, letters=DAY, workers=DAY, limit=1000)
    await measure("purge nothing", lambda: kit.store.purge(purge))
    clock.move(8 * DAY)
    await measure("purge 1000 runs", lambda: kit.store.purge(purge))
    await kit.store.close()
