"""An event that is sent before any worker exists is there for its run."""

from __future__ import annotations

import kit
import work

from redrive.core.states import RunStatus


async def check(workers: kit.Workers) -> str:
    workers.stop()
    handle = await work.approve.start("early")
    sent = await handle.send("approved", "ann")
    assert sent.status is RunStatus.PENDING
    workers.start()
    assert await handle.result(timeout=kit.PATIENCE) == "ann"
    return "the run took the event that came first"


check.starts_workers = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    kit.main(check)
