"""The walk over the lanes of due work, and where it goes on next time. See `core.fair` for what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from redrive.core.fair import Due
from redrive.store.workers import Claim, Lane

__all__ = ["MOST_LANES", "START", "Look", "delay", "earlier", "end_of_queue", "place", "visit"]

MOST_LANES = 1000
"""A claim looks at no more lanes than this; the next one goes on behind them."""

START = Lane("", "", -(2**63), "")
"""The place before all lanes."""

_LAST_RANK = 2**63 - 1  # a lane of this rank stands for the end of its queue


@dataclass(slots=True, kw_only=True)
class Look:
    """What a look at the lanes found. `known` are lanes the worker may serve, `due` those with due runs."""

    workflows: tuple[str, ...]
    known: list[Lane] = field(default_factory=list)
    due: list[Lane] = field(default_factory=list)
    after: Lane | None = None
    next_at: int | None = None

    def has_due(self, now: int) -> bool:
        """True if there is something to take."""
        return self.next_at is not None and self.next_at <= now


def visit(lanes: Iterable[tuple[Lane, int]], now: int, claim: Claim, found: Look) -> None:
    """Go over the lanes, each with the time its first run is due, until enough queues have something due."""
    workflows = frozenset(found.workflows)
    queues: set[tuple[str, str]] = set()
    for number, (lane, head) in enumerate(lanes, 1):
        if len(queues) >= claim.capacity and (lane.tenant, lane.queue) not in queues:
            return
        if lane.workflow in workflows:
            found.known.append(lane)
            found.next_at = earlier(found.next_at, head)
            if head <= now:
                found.due.append(lane)
                queues.add((lane.tenant, lane.queue))
        if number >= MOST_LANES:
            found.after = lane
            return


def place(lane: Lane) -> tuple[str, str, int, str]:
    """Where a lane stands among the others."""
    return (lane.tenant, lane.queue, lane.rank, lane.workflow)


def end_of_queue(due: Due) -> Lane:
    """The place behind all lanes of a run's queue."""
    return Lane(due.tenant, due.queue, _LAST_RANK, "")


def earlier(one: int | None, other: int | None) -> int | None:
    """The earlier of two times, either of which may not be known."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def delay(now: int, at: int | None) -> int | None:
    """How long from now until then; nothing that is past is before now."""
    return None if at is None else max(0, at - now)
