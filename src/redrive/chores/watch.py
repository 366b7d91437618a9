"""Watch: report due runs that nobody can claim. They are never dead-lettered: they wait for a worker."""

from __future__ import annotations

import logging

from redrive.store.port import Store

__all__ = ["Watch"]

log = logging.getLogger("redrive.chores")


class Watch:
    """Says in the log when due runs have no worker that knows their workflow, and when that is over."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: frozenset[str] = frozenset()

    async def run_once(self) -> int:
        """Look once; returns how many workflows nobody serves."""
        waiting = await self._store.unclaimable(())
        for workflow in waiting.keys() - self._reported:
            log.warning(
                "%d due runs of workflow %r wait: no live worker has it registered",
                waiting[workflow],
                workflow,
            )
        for workflow in self._reported - waiting.keys():
            log.info("runs of workflow %r are being served again", workflow)
        self._reported = frozenset(waiting)
        return len(waiting)
