"""The chore for runs that depend on each other."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redrive.clock import Clock
from redrive.core.children import cancels_children
from redrive.core.states import RunStatus
from redrive.errors import Conflict, StoreError
from redrive.observability.counters import SettleListener
from redrive.settle.cancellation import cancel_run
from redrive.settle.settler import LocalSettler
from redrive.store.children import OwnedRun, RunWait
from redrive.store.port import Store

log = logging.getLogger("redrive.chores")

_PAGE = 500
_MAX_PAGES = 20


class ChildUpdater:
    """Cancels runs whose owner has ended, and wakes runs that wait for one that has ended.

    The process that records an end wakes the runs that wait for it. This chore does so for a process that died in
    between. Each round reads a limited number of rows, and the next one continues there.
    """

    def __init__(self, store: Store, clock: Clock, *, listeners: Sequence[SettleListener] = ()) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock, listeners=listeners)
        self._last_owned: OwnedRun | None = None
        self._last_wait: RunWait | None = None

    async def run_once(self) -> int:
        """Return the number of runs that were cancelled or woken."""
        return await self._cancel_orphans() + await self._wake_waiting()

    async def _cancel_orphans(self) -> int:
        count = 0
        for _ in range(_MAX_PAGES):
            page = await self._store.owned_runs(self._last_owned, _PAGE)
            ended = {each.run_id: each.owner for each in page if each.status and cancels_children(each.status)}
            for row in await self._store.runs_by_id(list(ended)) if ended else ():
                if row.status is RunStatus.COMPENSATING:
                    continue
                try:
                    count += await cancel_run(self._store, self._settler, row, f"run:{ended[row.public_id]}", "")
                except Conflict as refusal:  # it ended meanwhile, or it is about to
                    log.debug("run %s is not cancelled with its owner: %s", row.public_id, refusal)
                except StoreError:
                    raise
                except Exception:  # of any kind: one run must not hinder the others
                    log.exception("could not cancel run %s, whose owner has ended", row.public_id)
            self._last_owned = page[-1] if len(page) == _PAGE else None
            if self._last_owned is None:
                break
        return count

    async def _wake_waiting(self) -> int:
        count = 0
        for _ in range(_MAX_PAGES):
            page = await self._store.run_waits(self._last_wait, _PAGE)
            count += await self._store.wake_answered(page) if page else 0
            self._last_wait = page[-1] if len(page) == _PAGE else None
            if self._last_wait is None:
                break
        return count
