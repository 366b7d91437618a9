"""A worker process for the kill test: its workflow fails, and it dies at the chosen point."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from redrive import Redrive, RetryPolicy
from redrive.app.runtime import Runtime
from redrive.chores.relay import Relay, RelayForwarder
from redrive.notify.digest import Digest
from redrive.store.notifications import DueLane, LaneNotification

COUNT = 5


def build(url: str, smtp: str) -> tuple[Redrive, object]:
    app = Redrive(url, lease="1s", smtp_url=smtp, smtp_from="redrive@localhost", chores="0.2s")

    @app.step(retry=RetryPolicy(max_retries=0))
    async def charge(cause: str) -> None:
        raise ValueError(f"cause {cause}")

    @app.workflow(notify={"email": "ops@example.org"})
    async def fulfil(cause: str) -> None:
        await charge(cause)

    return app, fulfil


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def set_trap(where: str) -> None:
    """Let the process die at a point: `committed`, after the failure is; `told`, when the mails are to be sent."""
    if where == "committed":
        RelayForwarder.carriers = lambda *_: []  # type: ignore[method-assign]  # or they would be its own for a minute
        Relay.wake = die  # type: ignore[method-assign]
    if where == "told":
        told: set[str] = set()
        make = Digest._make_digest

        def telling(self: Digest, case: DueLane) -> LaneNotification | None:
            told.add(case.lane)
            return make(self, case)

        Digest._make_digest = telling  # type: ignore[method-assign]
        Runtime.wake_all_relays = lambda self: die() if len(told) == COUNT else None  # type: ignore[method-assign]


async def main(url: str, smtp: str, where: str) -> None:
    app, _ = build(url, smtp)
    set_trap(where)
    async with app:
        print("up", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
