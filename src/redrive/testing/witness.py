"""What a worker is about to record, in words: so that a failing test can say where it went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core.delivery import Carrier
from redrive.core.states import EXECUTED, FINAL, StepStatus
from redrive.core.transition import Answer, EntryWrite, Transition
from redrive.store.port import Store
from redrive.store.workers import Claim, Claims

__all__ = ["Witness", "describe"]


class Witness:
    """Stands in front of a store: what is the latest `apply` about, and which claims brought nothing?"""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claims = 0
        self.about = ""
        self.barren_claims: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[Carrier] = (),
    ) -> list[Answer]:
        """Write them, knowing what they are."""
        self.about = describe(transitions)
        return await self._store.apply(transitions, worker=worker, carriers=carriers)

    async def claim(self, claim: Claim) -> Claims:
        """Claim, and note whether that brought anything."""
        self._claims += 1
        number = self._claims
        claims = await self._store.claim(claim)
        if not claims.runs:
            self.barren_claims.add(number)
        return claims


def describe(transitions: Sequence[Transition]) -> str:
    """What these transitions record, the first few of them."""
    said = dict.fromkeys(words for transition in transitions for words in _words(transition))
    return " and ".join(list(said)[:3])


def _words(transition: Transition) -> list[str]:
    change = transition.change
    if change is not None and change.status in FINAL:
        return [f"the run ended as {change.status}"]
    said = [_entry_words(entry) for entry in transition.entries]
    if change is not None and change.release:
        said.append("the run was put down")
    return said or ["the run's state changed"]


def _entry_words(entry: EntryWrite) -> str:
    what = f"step {entry.name!r}" if entry.kind in EXECUTED else f"{entry.name!r}"
    match entry.status:
        case StepStatus.RUNNING:
            return f"{what} began"
        case StepStatus.RETRYING:
            return f"the next attempt of {what} was being scheduled"
        case StepStatus.SUCCESS:
            return f"{what} was being recorded"
        case _:
            return f"{what} was being recorded as {entry.status}"
