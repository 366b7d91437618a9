"""An event that is sent 100 times at once with one key arrives once, and each sender gets the same answer."""

from __future__ import annotations

import asyncio

import kit
import work

from redrive.errors import Conflict


async def check(workers: kit.Workers) -> str:
    handle = await work.approve.start("often", delay="1s")
    sent = await asyncio.gather(*(handle.send("approved", "ann", key="click-1") for _ in range(100)))
    assert len({each.seq for each in sent}) == 1
    try:
        await handle.send("approved", "bob", key="click-1")
    except Conflict:
        pass
    else:
        raise AssertionError("another payload was accepted under the same key")
    assert len(await work.app.runs.events(handle.id)) == 1
    assert await handle.result(timeout=kit.PATIENCE) == "ann"
    return "1 event, 100 equal answers, another payload is a conflict"


if __name__ == "__main__":
    kit.main(check)
