"""The time of a page of dead letters, and of failure groups, in a large store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from bench.ours.copies import copy_letters
from bench.ours.job import Job
from bench.ours.replays import Parcels
from redrive import RunFailed
from redrive.app import RunHandle
from redrive.store.filters import LetterFilter

__all__ = ["letters"]

GROUPS, TENANTS = 1000, 10
LOOKS = 100

# A letter is copied under other ids; each tenant has a tenth of them, each cause a thousandth.
_OWN = {
    "id": "n + 1",
    "public_id": "'dl-copy' || n",
    "tenant": f"'tenant-' || (n % {TENANTS})",
    "run": "-n",
    "run_id": "'copy' || n",
    "fingerprint": f"'cause-' || (n / {TENANTS} % {GROUPS})",
}


async def letters(job: Job) -> dict[str, float]:
    """Pages of a filtered list and of the groups, one after the other; and how fast changes are folded."""
    parcels = Parcels(job.url, job.concurrency)
    async with parcels.app:
        await _failed(await parcels.parcel.start(1))
    await copy_letters(job.url, _OWN, job.size)
    async with parcels.app.client() as app:
        begun = time.perf_counter()
        while await app.runtime.group_aggregator.run_once():
            pass
        folded = job.size / (time.perf_counter() - begun)
        where = LetterFilter(tenant="tenant-3", status="OPEN", workflow="parcel", step="ship")
        return {
            "list": await _slow(lambda cursor: app.dlq.list(where, cursor=cursor)),
            "groups": await _slow(lambda cursor: app.dlq.groups(cursor=cursor)),
            "folded": folded,
        }


async def _failed(handle: RunHandle[Any]) -> None:
    with suppress(RunFailed):
        await handle.result()


async def _slow(page: Callable[[str | None], Awaitable[Any]]) -> float:
    """Return the 95th percentile of a hundred pages, in ms."""
    taken: list[float] = []
    cursor: str | None = None
    for _ in range(LOOKS):
        begun = time.perf_counter()
        found = await page(cursor)
        taken.append((time.perf_counter() - begun) * 1000)
        assert len(found.items) == 50
        cursor = found.next
    return statistics.quantiles(taken, n=20)[-1]
