"""Hints for pages that are open: something changed, look again.

For each tenant with open streams one task looks once a second and tells all of them which lists have
changed. A hint says nothing about what changed, so a missed one is harmless: the next look shows it.
Streams of tokens for some workflows have tasks of their own, which look at those workflows only: when
something happens elsewhere is not theirs to know.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from redrive.errors import RedriveError
from redrive.server.problems import ProblemError
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.port import DeskStore

_COMPARED_ROWS = 50  # runs that are compared
_WORKFLOWS_PER_INTERVAL = 10  # workflows of a token for some that are looked at within one interval
_KEEPALIVE_AFTER = 15.0  # seconds after which a stream says that it is still there
_MAX_STREAM_SECONDS = 900.0  # seconds until a stream ends, so that whoever holds it proves again who they are
ListSnapshot = dict[str, object]
StreamScope = tuple[str, frozenset[str] | None]
"""A tenant, and the workflows that a stream may know of; None means all."""


class StreamHub:
    """The open streams by tenant and workflows, and the tasks that look for them."""

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
        """How many streams there are."""
        return sum(map(len, self._streams.values()))

    def check(self, who: str) -> None:
        """Refuse another stream if there are too many, in all or of this holder, or if the server stops."""
        if self._closed:
            raise ProblemError(503, "the server is stopping; connect again", headers={"Retry-After": "1"})
        if self.open >= self._most:
            raise ProblemError(429, f"{self._most} streams are open", headers={"Retry-After": "5"})
        if self._held[who] >= self._each:
            raise ProblemError(429, f"you have {self._each} streams open", headers={"Retry-After": "5"})

    async def listen(self, tenant: str, who: str, workflows: frozenset[str] | None = None) -> AsyncIterator[bytes]:
        """The hints for a tenant as server-sent events, until the client goes or the server stops."""
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
            self._remove_stream(scope, stream)
            self._held -= Counter((who,))

    def _remove_stream(self, scope: StreamScope, stream: _Stream) -> None:
        left = self._streams.get(scope, set())
        left.discard(stream)
        if not left:
            self._streams.pop(scope, None)
            task = self._tasks.pop(scope, None)
            if task is not None:
                task.cancel()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    async def _watch_lists(self, scope: StreamScope) -> None:
        before: ListSnapshot | None = None
        tenant, workflows = scope
        while True:
            with suppress(RedriveError):  # a look that fails is made again
                view = self._view(tenant, workflows)
                if workflows is None:
                    now = await _take_snapshot(view, before)
                else:
                    now = await _take_workflow_snapshot(view, sorted(workflows))
                changed = [] if before is None else [name for name in now if now[name] != before[name]]
                before = now
                if changed:
                    for stream in self._streams.get(scope, ()):
                        stream.tell(changed)
            # A look at many workflows asks the store twice for each, so it comes less often.
            await asyncio.sleep(self._every * (1 + len(workflows or ()) // _WORKFLOWS_PER_INTERVAL))


async def _take_snapshot(view: DeskStore, before: ListSnapshot | None) -> ListSnapshot:
    """What the first page of each list looks like. Nothing happens to a letter that the log does not say."""
    runs = await view.runs(RunFilter(), limit=_COMPARED_ROWS, cursor=None)
    audit = [line.id for line in (await view.audit(AuditFilter(), limit=1, cursor=None)).items]
    return {
        "runs": [(run.id, run.status, run.fence) for run in runs.items],
        "letters": before["letters"] if before and before["audit"] == audit else await _find_last_letter_change(view),
        "audit": audit,
    }


async def _take_workflow_snapshot(view: DeskStore, workflows: Sequence[str]) -> ListSnapshot:
    """Describe the first page of the runs and of the letters of each workflow. The log is of all of them."""
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
    return {"runs": runs, "letters": letters}


async def _find_last_letter_change(view: DeskStore) -> object:
    lines = await view.audit(AuditFilter(event="dlq."), limit=1, cursor=None)
    return [line.id for line in lines.items]


class _Stream:
    """One open stream. Hints that are not taken yet are one hint."""

    def __init__(self) -> None:
        self._news: set[str] = set()
        self._bell = asyncio.Event()
        self._ended = False

    def tell(self, changed: list[str]) -> None:
        self._news.update(changed)
        self._bell.set()

    def end(self) -> None:
        self._ended = True
        self._bell.set()

    async def parts(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until = loop.time() + _MAX_STREAM_SECONDS
        while not self._ended and loop.time() < until:
            try:
                async with asyncio.timeout(_KEEPALIVE_AFTER):
                    await self._bell.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._bell.clear()
            if self._news:
                said = json.dumps({"changed": sorted(self._news)})
                self._news.clear()
                yield f"event: hint\ndata: {said}\n\n".encode()
        yield b"event: bye\ndata: {}\n\n"
