"""Heartbeats of remote workers: the leases of many are renewed in one transaction.

With a transaction for each heartbeat, 500 workers that do nothing would keep the database busy. So the heartbeats that
arrive within half a second are written together; with very many workers, those of a longer time.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from redrive.clock import MICROS, Clock
from redrive.errors import StoreUnavailable
from redrive.store.port import LeaseConnection, Store
from redrive.store.workers import Beats, HeartbeatReply

_INTERVAL = 1.0  # seconds between two heartbeats of a worker, unless very many send some
_PER_SECOND = 50  # each is a request; with more workers than that, each sends fewer
_WRITES_PER_INTERVAL = 2
_WRITES_PER_LEASE = 24  # a late answer leaves a worker less time in which it may begin steps
_COUNTED_EVERY = 10.0  # seconds
_FORGOTTEN_AFTER = 300.0  # seconds: the longest lease


class Heartbeats:
    """Renews the leases of the remote workers of a server process."""

    def __init__(self, store: Callable[[], Store], clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lease: LeaseConnection | None = None
        # One thread: the connection for heartbeats belongs to the thread that uses it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="redrive-remote-lease")
        self._beats: dict[int, dict[tuple[int, int], str | None]] = {}
        self._callers: defaultdict[int, list[asyncio.Future[HeartbeatReply]]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None
        self._renewed_at = -math.inf
        self._seen: dict[int, tuple[float, int]] = {}  # by worker: when it sent its last heartbeat here, and its lease
        self._counted_at = 0.0

    async def renew(self, worker: int, lease: int, steps: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        """Renew the lease of a worker and record the heartbeats of its steps, together with those of others."""
        self._seen[worker] = (self._clock.monotonic(), lease)
        self._beats.setdefault(worker, {}).update(steps)
        caller: asyncio.Future[HeartbeatReply] = asyncio.get_running_loop().create_future()
        self._callers[worker].append(caller)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._renew_all(), name="redrive heartbeats")
        return await caller

    def space(self, lease: int) -> int:
        """Return the microseconds until the next heartbeat of a worker: more if very many workers send some here."""
        now = self._clock.monotonic()
        if now - self._counted_at > _COUNTED_EVERY:
            self._seen = {id: seen for id, seen in self._seen.items() if now - seen[0] < _FORGOTTEN_AFTER}
            self._counted_at = now
        return min(int(self._interval * MICROS), lease // 6)

    @property
    def _interval(self) -> float:
        return max(_INTERVAL, len(self._seen) / _PER_SECOND)

    def close(self) -> None:
        """Close the connection, after the write that may be opening it."""
        self._thread.submit(self._close_lease)
        self._thread.shutdown(wait=False)

    def _close_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    async def _renew_all(self) -> None:
        """Write the heartbeats that wait, until none does."""
        while self._beats:
            shortest = min(lease for _, lease in self._seen.values()) / MICROS
            pause = min(self._interval / _WRITES_PER_INTERVAL, shortest / _WRITES_PER_LEASE)
            await self._clock.sleep(max(0.0, self._renewed_at + pause - self._clock.monotonic()))
            self._renewed_at = self._clock.monotonic()
            (beats, self._beats), (callers, self._callers) = (self._beats, {}), (self._callers, defaultdict(list))
            try:
                replies = await self._write_in_thread(beats)
                for worker, waiting in callers.items():
                    for caller in waiting:
                        _answer(caller, replies[worker])
            finally:  # if the task is cancelled, no request waits without end
                for caller in (each for waiting in callers.values() for each in waiting):
                    caller.cancel()

    async def _write_in_thread(self, beats: Beats) -> Mapping[int, HeartbeatReply | Exception]:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, beats)
        except RuntimeError:  # the thread has ended
            return dict.fromkeys(beats, StoreUnavailable("the server stops: repeat the request"))

    def _write(self, beats: Beats) -> dict[int, HeartbeatReply | Exception]:
        """Write heartbeats; return the answer or the error of each worker."""
        try:
            if self._lease is None:
                self._lease = self._store().lease_connection()
            return {**self._lease.beat(beats)}
        except StoreUnavailable as error:
            return dict.fromkeys(beats, error)
        except Exception as error:  # of any kind: what one worker sent must not cost the leases of the others
            if len(beats) == 1:
                return dict.fromkeys(beats, error)
            alone = (self._write({worker: steps}) for worker, steps in beats.items())
            return {worker: reply for replies in alone for worker, reply in replies.items()}


def _answer(caller: asyncio.Future[HeartbeatReply], reply: HeartbeatReply | Exception) -> None:
    if caller.done():  # its connection was closed meanwhile
        return
    if isinstance(reply, Exception):
        caller.set_exception(reply)
    else:
        caller.set_result(reply)
