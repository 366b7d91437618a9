"""The loop around a chore."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from redrive.clock import Clock
from redrive.errors import StoreError

log = logging.getLogger("redrive.chores")


async def run_every(
    interval: float,
    chore: Callable[[], Awaitable[int]],
    clock: Clock,
    *,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Do the chore again and again; a store that does not answer is asked again next time.

    Nodes that started together drift apart, so that they do not all ask at the same moment. `pause` waits for
    so many seconds at the most, where somebody may know that there is something to do.
    """
    wait = pause or clock.sleep
    while True:
        await wait(interval * (0.75 + clock.draw() / 2))
        try:
            await chore()
        except StoreError as error:
            log.warning("a chore was put off: %s", error)
        except Exception:  # whatever it is, a node that gives up its chores for ever would make it worse
            log.exception("a chore failed; it is tried again")
