"""A store that checks the promise about fences (P4) at each write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core.transitions import Transition, TransitionResult
from redrive.store.filters import RunFilter
from redrive.store.port import Store
from redrive.store.runs import RunRow

__all__ = ["CheckedStore"]


class CheckedStore:
    """Checks the holders before each `apply` and records a violation if a stale write was accepted."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.refused = 0
        self.violations: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, **options: Any
    ) -> list[TransitionResult]:
        live = {row.id for row in await self._inner.workers() if row.state == "LIVE"}
        before = {row.id: row for row in await self._all_runs()}
        answers = await self._inner.apply(transitions, worker=worker, **options)
        for transition, answer in zip(transitions, answers, strict=True):
            self.refused += not answer.kept
            run = before.get(transition.run)
            if answer.kept and worker is not None and worker not in live:
                self.violations.append(f"worker {worker} is not alive, yet its write was kept: {transition}")
            if answer.kept and (run is None or run.fence != transition.fence):
                self.violations.append(f"a write under another fence was kept: {transition}; {run}")
            if answer.kept and worker is not None and run is not None and run.worker != worker:
                self.violations.append(f"worker {worker} wrote to a run of {run.worker}: {transition}")
        return answers

    async def _all_runs(self) -> list[RunRow]:
        return (await self._inner.runs(RunFilter(), limit=500, cursor=None)).items
