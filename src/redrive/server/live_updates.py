"""Live updates: hints for open pages that a list has changed, and long polls of remote workers.

Hints are server-sent events. For each tenant with open streams, one task compares the lists once a second and sends the
names of those that changed. A hint contains no data, so a missed one is harmless. Streams of tokens for some workflows
have their own tasks, which compare only those workflows: such a token must not learn when other workflows are active.

A long poll is answered when there may be work: a change in the store answers one poll of each kind of worker. One poll
of each kind is answered once a second in any case, because a notification can be lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from redrive.clock import Clock
from redrive.errors import RedriveError, StoreError
from redrive.reasons import Reason, ReasonCode
from redrive.server.problem_responses import ProblemError
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter, RunFilter
from redrive.store.port import DeskStore

_COMPARED_ROWS = 50  # runs that are compared
_WORKFLOWS_PER_INTERVAL = 10  # workflows of a token that are compared within one interval
_KEEPALIVE_AFTER = 15.0  # seconds without a hint after which an event says that the server is still there
_MAX_STREAM_SECONDS = 900.0  # seconds until a stream ends, so that the client authenticates again
ListSnapshot = dict[str, object]
StreamScope = tuple[str, frozenset[str] | None]
"""A tenant, and the workflows that a stream may see; None means all."""


class StreamHub:
    """The open streams by scope, and the tasks that compare the lists for them."""

    def __init__(
        self, view: Callable[[str, frozenset[str] | None], DeskStore], *, every: float, most: int, each: int
    ) -> None:
        self._view = view
        self._every = every
        self._most = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._streams: dict[StreamScope, set[_Stream]] = {}
        self._tasks: dict[StreamScope, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def open(self) -> int:
        return sum(map(len, self._streams.values()))

    def check(self, who: str) -> None:
        """Refuse another stream if there are too many, in total or of this user, or if the server is stopping."""
        if self._closed:
            raise ProblemError(503, Reason(ReasonCode.SERVER_STOPPING), headers={"Retry-After": "1"})
        for count, most in ((self.open, self._most), (self._held[who], self._each)):
            if count >= most:
                raise ProblemError(429, Reason(ReasonCode.TOO_MANY_STREAMS, most=most), headers={"Retry-After": "5"})

    async def listen(self, tenant: str, who: str, workflows: frozenset[str] | None = None) -> AsyncIterator[bytes]:
        """Yield the hints for a tenant as server-sent events, until the client disconnects or the server stops."""
        stream, scope = _Stream(), (tenant, workflows)
        self._held[who] += 1
        self._streams.setdefault(scope, set()).add(stream)
        if scope not in self._tasks:
            self._tasks[scope] = asyncio.create_task(self._watch_lists(scope), name="redrive hints")
        try:
            yield b"retry: 2000\nevent: hello\ndata: {}\n\n"
            async for part in stream.parts():
                yield part
        finally:
            self._held -= Counter((who,))
            self._streams[scope].discard(stream)
            if not self._streams[scope]:
                del self._streams[scope]
                self._tasks.pop(scope).cancel()

    def close(self) -> None:
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    async def _watch_lists(self, scope: StreamScope) -> None:
        before: ListSnapshot | None = None
        tenant, workflows = scope
        while True:
            with suppress(RedriveError):  # the next comparison repeats a failed one
                view = self._view(tenant, workflows)
                if workflows is None:
                    now = await _take_snapshot(view, before)
                else:
                    now = await _take_workflow_snapshot(view, sorted(workflows))
                changed = [] if before is None else [name for name in now if now[name] != before[name]]
                before = now
                if changed:
                    for stream in self._streams.get(scope, ()):
                        stream.send(changed)
            # Comparing many workflows takes two queries for each, so it is done less often.
            await asyncio.sleep(self._every * (1 + len(workflows or ()) // _WORKFLOWS_PER_INTERVAL))


async def _take_snapshot(view: DeskStore, before: ListSnapshot | None) -> ListSnapshot:
    """Return the first page of each list. Every change of a letter is in the audit log."""
    runs = await view.runs(RunFilter(), limit=_COMPARED_ROWS, cursor=None)
    audit = [line.id for line in (await view.audit(AuditFilter(), limit=1, cursor=None)).items]
    if before and before["audit"] == audit:
        letters = before["letters"]
    else:
        page = await view.audit(AuditFilter(event="dlq."), limit=1, cursor=None)
        letters = [line.id for line in page.items]
    return {
        "runs": [(run.id, run.status, run.fence) for run in runs.items],
        "letters": letters,
        "audit": audit,
        "causes": await _take_cause_snapshot(view),
    }


async def _take_cause_snapshot(view: DeskStore) -> object:
    """Return what changes when causes are counted, which is a few seconds after a letter has changed."""
    newest = await view.groups(GroupFilter(), limit=1, cursor=None)
    return [group.id for group in newest.items], await view.group_totals(GroupFilter())


async def _take_workflow_snapshot(view: DeskStore, workflows: Sequence[str]) -> ListSnapshot:
    """Return the first page of the runs and of the letters of each workflow; the audit log is of all workflows."""
    runs: list[object] = []
    letters: list[object] = []
    for workflow in workflows:
        found = await view.runs(RunFilter(workflow=workflow), limit=_COMPARED_ROWS, cursor=None)
        runs += [(run.id, run.status, run.fence) for run in found.items]
        page = await view.letters(LetterFilter(workflow=workflow), limit=_COMPARED_ROWS, cursor=None)
        letters += [
            (letter.id, letter.status, letter.owner, letter.tags, letter.replay_count, letter.failed_at)
            for letter in page.items
        ]
    return {"runs": runs, "letters": letters, "causes": await _take_cause_snapshot(view)}


class _Stream:
    """An open stream. Hints that were not sent yet are merged into one."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._ended = False

    def send(self, changed: list[str]) -> None:
        self._changed.update(changed)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def parts(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until = loop.time() + _MAX_STREAM_SECONDS
        while not self._ended and loop.time() < until:
            try:
                async with asyncio.timeout(_KEEPALIVE_AFTER):
                    await self._wake.wait()
            except TimeoutError:
                yield b"event: alive\ndata: {}\n\n"
                continue
            self._wake.clear()
            if self._changed:
                data = json.dumps({"changed": sorted(self._changed)})
                self._changed.clear()
                yield f"event: hint\ndata: {data}\n\n".encode()
        yield b"event: bye\ndata: {}\n\n"


MAX_POLLS_PER_WORKER = 100
"""Long polls that a worker may have open, one for each queue and slot: each keeps a connection and some memory."""

_POLL_INTERVAL = 1.0  # seconds between two answers to long polls without a notification


class LongPolls:
    """Long polls of remote workers, by the kind of worker: workers of one kind can do the same work."""

    def __init__(self, changed: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._changed = changed
        self._clock = clock
        self._open: Counter[int] = Counter()  # by worker
        self._waiting: defaultdict[tuple[object, ...], deque[asyncio.Future[bool]]] = defaultdict(deque)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def wait(self, worker: int, kind: tuple[object, ...], seconds: float) -> bool:
        """Wait until there may be work for workers of a kind; False if the time is up before."""
        if self._closed:
            return False
        if self._open[worker] >= MAX_POLLS_PER_WORKER:
            reason = Reason(ReasonCode.TOO_MANY_POLLS, most=MAX_POLLS_PER_WORKER)
            raise ProblemError(429, reason, headers={"Retry-After": "1"})
        self._open[worker] += 1
        try:
            return await self._wait(kind, seconds)
        finally:
            self._open[worker] -= 1
            if not self._open[worker]:
                del self._open[worker]

    async def _wait(self, kind: tuple[object, ...], seconds: float) -> bool:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._notify_regularly())]
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        queue = self._waiting[kind]
        queue.append(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return False
        finally:
            with suppress(ValueError):
                queue.remove(future)
            if not queue and self._waiting.get(kind) is queue:  # a later poll may have made another one
                del self._waiting[kind]

    def notify_one(self, kind: tuple[object, ...]) -> None:
        """Answer the oldest long poll of a kind."""
        queue = self._waiting.get(kind)
        while queue:
            future = queue.popleft()
            if not future.done():
                future.set_result(True)
                return

    def notify_all(self) -> None:
        """Answer one long poll of each kind: waking all workers for one run would let all but one claim nothing."""
        for kind in list(self._waiting):
            self.notify_one(kind)

    async def _listen(self) -> None:
        while True:
            try:
                await self._changed()
                self.notify_all()
            except StoreError:
                await self._clock.sleep(_POLL_INTERVAL)

    async def _notify_regularly(self) -> None:
        while True:
            await self._clock.sleep(_POLL_INTERVAL)
            self.notify_all()

    def close(self) -> None:
        """Answer all long polls, because the server stops."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for queue in self._waiting.values():
            for future in queue:
                if not future.done():
                    future.set_result(False)
