"""Maintenance: purging, failure groups, circuits, unclaimable runs, children, and the loop that repeats a chore."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.audit import ENGINE_ACTOR
from redrive.core.children import cancels_children
from redrive.core.idempotency import letter_id
from redrive.core.outcomes import LetterClosed
from redrive.core.states import LetterStatus, RunStatus
from redrive.duration import FOREVER
from redrive.errors import Conflict, StoreError
from redrive.observability.counters import SettleListener
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import Settings
from redrive.settle.cancellation import cancel_run
from redrive.settle.circuits import apply_time, update_circuit
from redrive.settle.settler import LocalSettler, make_lenient_run_view, settle_bisecting
from redrive.store.children import OwnedRun, RunWait
from redrive.store.chores import PurgeRequest
from redrive.store.circuits import CircuitRow
from redrive.store.port import Store

log = logging.getLogger("redrive.chores")

_PURGE_BATCH = 500
_MAX_PURGE_BATCHES = 100
_GROUP_BATCH = 2000
_MAX_GROUP_BATCHES = 50
_REPLAY_BATCH = 500
_DAY = 86_400
_CHILD_PAGE = 500
_MAX_CHILD_PAGES = 20
_VISIBILITY_MARGIN = 10 * MICROS  # samples may become visible this much later than they were made


async def run_every(
    interval: float,
    chore: Callable[[], Awaitable[int]],
    clock: Clock,
    *,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Repeat a chore for as long as the task lives.

    `pause` replaces the sleep between two rounds. It may return early, if there is something to do.
    """
    wait = pause or clock.sleep
    while True:
        # A random share of the interval keeps processes that started together from asking at the same moment.
        await wait(interval * (0.75 + clock.draw() / 2))
        try:
            await chore()
        except StoreError as error:
            log.warning("a chore was postponed: %s", error)
        except Exception:  # of any kind: a process must not give up its chores
            log.exception("a chore failed; it is tried again")


class Purger:
    """Expires open letters; removes old runs, letters, messages, idempotency keys, workers and audit entries."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock)
        self._purge = PurgeRequest(
            runs=int(settings.retention * MICROS),
            keep=settings.retention_runs,
            letters=None if settings.dlq_retention >= FOREVER else int(settings.dlq_retention * MICROS),
            workers=_DAY * MICROS,
            audit=int(settings.audit_retention * MICROS),
            messages=int(settings.outbox_retention * MICROS),
            limit=_PURGE_BATCH,
        )

    async def run_once(self) -> int:
        """Remove expired rows, batch by batch, so that other writers get their turn; return their number."""
        # The catalogue also has workflows of other processes, so that all processes purge alike.
        kept = {each.name: json.loads(each.options).get("retention_runs") for each in await self._store.workflows()}
        purge = replace(self._purge, keeps={name: count for name, count in kept.items() if count is not None})
        total = 0
        for _ in range(_MAX_PURGE_BATCHES):
            removed = await self._expire_letters() + await self._store.purge(purge)
            total += removed
            if removed < _PURGE_BATCH:
                break
        return total

    async def _expire_letters(self) -> int:
        """Close letters whose retention is over. A user's decision at the same moment wins by the fence."""
        outcomes = [
            LetterClosed(
                run=make_lenient_run_view(run),
                letter=run.letter or letter_id(run.public_id),
                status=LetterStatus.EXPIRED,
                ended=run.status,
                by=ENGINE_ACTOR,
                reason=Reason(ReasonCode.LETTER_EXPIRED).to_text(),
            )
            for run in await self._store.runs_with_expired_letters(_PURGE_BATCH)
        ]
        settled = await settle_bisecting(self._settler, outcomes) if outcomes else []
        return sum(each.kept for each in settled)


class GroupAggregator:
    """Adds changes of letters to the failure groups. Any number of processes do so; none adds a change twice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Add all changes, batch by batch, so that other writers get their turn; return their number."""
        total = 0
        for _ in range(_MAX_GROUP_BATCHES):
            added = await self._store.fold(_GROUP_BATCH)
            total += added
            if added < _GROUP_BATCH:
                break
        return total


class ReplayCounter:
    """Counts the replays that users decided on, for metrics. Any number of processes do so; none counts one twice.

    The numbers are in the store: the command line may decide on a replay in a process that is never scraped, and a
    process that starts later reports all replays before it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Count all replays that no process has counted yet; return their number."""
        total = 0
        while found := await self._store.count_replays(_REPLAY_BATCH):
            total += found
        return total


class UnclaimableRunMonitor:
    """Logs due runs that no live worker can claim. They are never dead-lettered: they wait for a worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: frozenset[tuple[str, str, str | None]] = frozenset()

    async def run_once(self) -> int:
        """Log what changed; return the number of workflows and queues without a worker."""
        waiting = {(each.workflow, each.queue, each.version): each for each in await self._store.unclaimable(())}
        for lane in waiting.keys() - self._reported:
            each = waiting[lane]
            missing = "takes this queue" if each.registered else "has it registered"
            if each.version is not None and not each.registered:
                missing = f"has version {each.version!r}, to which they are pinned"
            log.warning("%d due runs of workflow %r in queue %r wait: no live worker %s", each.runs, *lane[:2], missing)
        for workflow, queue, _ in self._reported - waiting.keys():
            log.info("runs of workflow %r in queue %r have a worker again", workflow, queue)
        self._reported = frozenset(waiting)
        return len(waiting)


class CircuitUpdater:
    """Updates circuits that are due, and releases parked runs. `seen` gets the state of each of them."""

    def __init__(self, store: Store, seen: Callable[[CircuitRow], None] = lambda row: None) -> None:
        self._store = store
        self._seen = seen
        self._since = 0

    async def run_once(self) -> int:
        """Update all circuits that are due; return the number of runs that were released."""
        now = self._store.now()
        released = 0
        for key in await self._store.circuits_due(self._since):
            row, count = await update_circuit(self._store, key, apply_time)
            self._seen(row)
            released += count
        self._since = now - _VISIBILITY_MARGIN
        return released


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
        for _ in range(_MAX_CHILD_PAGES):
            page = await self._store.owned_runs(self._last_owned, _CHILD_PAGE)
            ended = {each.run_id: each.owner for each in page if each.status and cancels_children(each.status)}
            for row in await self._store.runs_by_id(list(ended)) if ended else ():
                if row.status is RunStatus.COMPENSATING:
                    continue
                try:
                    count += await cancel_run(self._store, self._settler, row, f"run:{ended[row.public_id]}", "")
                except Conflict as refusal:  # it ended meanwhile, or it is about to
                    log.debug("run %s is not cancelled with its parent: %s", row.public_id, refusal)
                except StoreError:
                    raise
                except Exception:  # of any kind: one run must not hinder the others
                    log.exception("could not cancel run %s, whose parent has ended", row.public_id)
            self._last_owned = page[-1] if len(page) == _CHILD_PAGE else None
            if self._last_owned is None:
                break
        return count

    async def _wake_waiting(self) -> int:
        count = 0
        for _ in range(_MAX_CHILD_PAGES):
            page = await self._store.run_waits(self._last_wait, _CHILD_PAGE)
            count += await self._store.wake_answered(page) if page else 0
            self._last_wait = page[-1] if len(page) == _CHILD_PAGE else None
            if self._last_wait is None:
                break
        return count
