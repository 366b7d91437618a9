"""A parent that is rolled back undoes its child between its own steps, last first. The result of the child stays."""

from __future__ import annotations

from contextlib import suppress

import kit
import work

from redrive import RunFailed, RunFilter
from redrive.core.states import RunStatus


async def check(workers: kit.Workers) -> str:
    handle = await work.travel.start("T-1")
    with suppress(RunFailed):
        await handle.result(timeout=kit.PATIENCE)
    assert await handle.status() is RunStatus.COMPENSATED
    calls = ["flight", "room", "car", "visa", "undo car", "undo room", "undo flight"]
    assert work.list_calls("T-1") == calls
    (child,) = (await work.app.runs.list(RunFilter(parent=handle.id))).items
    assert child.status is RunStatus.COMPENSATED
    assert await work.app.handle(child.id).result() == "room and car"
    return ", ".join(calls[4:])


if __name__ == "__main__":
    kit.main(check)
