"""Whose turn it is: due runs are taken from the tenants' queues one by one, round and round.

    acme/default    ● ● ● ● ● ● ● ● ...      ──┐
    zoo/default     ● ● ●                    ──┼──>  acme zoo acme zoo acme zoo acme acme ...
    zoo/reports     (nothing due)            ──┘

A queue with a million due runs therefore delays its neighbours by one run each, not by a million.
Within a queue the most urgent run comes first, and among equals the one that has been due longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from redrive.frozen import dataclass

__all__ = ["Due", "in_turn"]


@dataclass(frozen=True, slots=True)
class Due:
    """A run that could be taken. The lower the rank, the more urgent."""

    tenant: str
    queue: str
    rank: int
    due_at: int
    run: int

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Sorts the runs of one queue into the order in which they are served."""
        return (self.rank, self.due_at, self.run)


def in_turn(due: Iterable[Due], capacity: int) -> list[Due]:
    """Choose up to `capacity` runs, one of each queue in turn; queues come in the order given."""
    queues: dict[tuple[str, str], list[Due]] = {}
    for run in due:
        queues.setdefault((run.tenant, run.queue), []).append(run)
    waiting = deque(deque(sorted(runs, key=lambda run: run.urgency)) for runs in queues.values())
    chosen: list[Due] = []
    while waiting and len(chosen) < capacity:
        served = waiting.popleft()
        chosen.append(served.popleft())
        if served:
            waiting.append(served)
    return chosen
