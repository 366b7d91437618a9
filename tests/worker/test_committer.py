"""The committer: two batches may be committed at once, and the outcomes of one run stay in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from file_worker import at_work, make_app
from wrapped_store import replacing

from redrive.core.transitions import Transition
from redrive.store.port import Store
from redrive.worker.committer import MAX_BATCH


class Watched:
    """A wrapper of the store that lets the first full batch wait until another commit has begun beside it."""

    def __init__(self) -> None:
        self.applied: list[Transition] = []
        self.shared: set[int] = set()  # runs that were in two commits at once
        self.most = 0
        self._under_way: list[set[int]] = []
        self._second = asyncio.Event()

    def around(self, store: Store) -> Store:
        return replacing(store, "apply", self._apply)

    def _apply(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(transitions: Sequence[Transition], **options: Any) -> Any:
            runs = {each.run for each in transitions}
            self.shared.update(*(runs & others for others in self._under_way))
            self._under_way.append(runs)
            self.most = max(self.most, len(self._under_way))
            self.applied += transitions
            if len(self._under_way) > 1:
                self._second.set()
            elif len(transitions) == MAX_BATCH:
                async with asyncio.timeout(30):
                    await self._second.wait()
            try:
                return await apply(transitions, **options)
            finally:
                self._under_way.remove(runs)

        return watched


async def test_a_second_batch_is_committed_beside_a_full_one_with_other_runs(tmp_path: Path) -> None:
    runs = MAX_BATCH + MAX_BATCH // 2
    app, watched = make_app(tmp_path, lease=30, concurrency=runs), Watched()

    @app.step
    async def double(number: int) -> int:
        return 2 * number

    @app.workflow
    async def one(number: int) -> int:
        # The first run has one outcome and all others have two, so the batch ends between the two of a run.
        return await double(number) if number else 0

    async with at_work(app, watched.around):
        handles = await one.start_many([(number,) for number in range(runs)])
        results = await asyncio.gather(*(handle.result("60s") for handle in handles))
    assert results == [2 * number for number in range(runs)]
    assert watched.most == 2
    assert watched.shared == set()
    order: dict[int, list[int | None]] = {}
    for each in watched.applied:
        order.setdefault(each.run, []).append(each.entries[0].index if each.entries else None)
    assert set(map(tuple, order.values())) == {(None,), (0, None)}  # the step before the end
