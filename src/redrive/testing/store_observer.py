"""A proxy of a store that observes the calls of a simulated worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, StepStatus
from redrive.core.transitions import Transition, TransitionResult
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.port import Store, Transaction


class StoreObserver:
    """A proxy of a store that describes the latest `apply` and numbers the claims without a run.

    `in_transactions`: the tasks that wait for an answer within the transaction of a step.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claims = 0
        self.in_transactions: set[asyncio.Future[Any]] = set()
        self.latest_apply = ""
        self.empty_claims: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, transitions: Sequence[Transition], **options: Any) -> list[TransitionResult]:
        """Describe the transitions, then apply them."""
        texts = dict.fromkeys(text for transition in transitions for text in _describe_transition(transition))
        self.latest_apply = " and ".join(list(texts)[:3])
        return await self._store.apply(transitions, **options)

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Claim runs, and note the number of a claim that got none."""
        self._claims += 1
        number = self._claims
        claims = await self._store.claim(claim)
        if not claims.runs:
            self.empty_claims.add(number)
        return claims

    def transaction(self, limit: float) -> Transaction:
        """Return a transaction whose calls are observed: it ends after the body of its step, with real waiting."""
        return cast(Transaction, _ObservedTransaction(self._store.transaction(limit), self.in_transactions))


class _ObservedTransaction:
    """A proxy of a transaction that keeps the tasks of its calls in a set."""

    def __init__(self, inner: Transaction, tasks: set[asyncio.Future[Any]]) -> None:
        self._inner = inner
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                return await found(*args)
            finally:
                self._tasks.discard(task)

        return call


def _describe_transition(transition: Transition) -> list[str]:
    change = transition.change
    if change is not None and change.status in FINAL_RUN_STATUSES:
        return [f"the run ended as {change.status}"]
    texts = []
    for entry in transition.entries:
        what = f"step {entry.name!r}" if entry.kind in EXECUTED_KINDS else f"{entry.name!r}"
        described = {
            StepStatus.RUNNING: f"{what} began",
            StepStatus.RETRYING: f"the next attempt of {what} was being scheduled",
            StepStatus.SUCCESS: f"{what} was being recorded",
        }
        texts.append(described.get(entry.status, f"{what} was being recorded as {entry.status}"))
    if change is not None and change.release:
        texts.append("the run was released")
    return texts or ["the run's state changed"]
