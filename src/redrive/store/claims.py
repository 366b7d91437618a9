"""Claims of due runs: the records of a claim, and the fair choice among tenants and queues.

Due runs are claimed from the tenants' queues one by one, in turn:

    acme/default    ● ● ● ● ● ● ● ● ...      ──┐
    zoo/default     ● ● ●                    ──┼──>  acme zoo acme zoo acme zoo acme acme ...
    zoo/reports     (nothing due)            ──┘

A queue with a million due runs therefore delays its neighbours by one run each, not by a million.
Within a queue the most urgent run comes first, and among equals the one that has been due longest.
Each database has its own module `runs`, with the SQL in `statements/claims.sql` beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus


class Lane(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Due runs of one tenant, queue, rank, workflow and pin."""

    tenant: str
    queue: str
    rank: int
    workflow: str
    pin: str = ""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's request for up to `capacity` due runs of these workflows, in all queues or in these.

    `versions`: the versions that workflows have for themselves; runs that are pinned to them are claimed, too.
    Lanes are visited in turn, starting after `after`. A claim takes at most one suspect, and only with `suspect`:
    the worker holds none. With `tenant`, only runs of that tenant are claimed.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None
    queues: tuple[str, ...] | None = None
    tenant: str | None = None
    versions: Mapping[str, str] = {}

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each workflow without a pin, and each that has a version with that as the pin."""
        pinned = [(name, self.versions[name]) for name in self.workflows if name in self.versions]
        return [*((name, "") for name in self.workflows), *pinned]

    @property
    def first_lane(self) -> Lane:
        """The place before all lanes of the claim."""
        return LANE_START if self.tenant is None else Lane(self.tenant, "", LANE_START.rank, "")


class ClaimedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that a worker has claimed, with everything needed to execute it."""

    id: int
    public_id: str
    tenant: str
    workflow: str
    fence: int
    version: str
    input: str
    options: str
    deadline: int | None
    deaths: int
    correlation_id: str | None
    root: str | None
    generation: int
    created_at: int
    diverged_at: int | None
    letter: str | None = None
    sole_step: str | None = None
    started_at: int | None = None
    handler_for: str | None = None
    ends_as: str | None = None
    queue: str = "default"
    status: RunStatus = RunStatus.RUNNING
    journal: tuple[EntryRow, ...] = ()


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Claimed runs, the time until the next one is due if known, and the lane to continue after."""

    runs: list[ClaimedRun]
    now: int
    next_in: int | None
    after: Lane | None


class DueRun(msgspec.Struct, frozen=True, gc=False):
    """A due run. A lower rank is more urgent."""

    tenant: str
    queue: str
    rank: int
    due_at: int
    run: int

    @property
    def urgency(self) -> tuple[int, int, int]:
        """Sort key of the runs of one queue, in the order in which they are served."""
        return (self.rank, self.due_at, self.run)


def choose_fairly(due: Iterable[DueRun], capacity: int) -> list[DueRun]:
    """Choose up to `capacity` runs, one of each queue in turn; queues come in the order given."""
    queues: dict[tuple[str, str], list[DueRun]] = {}
    for run in due:
        queues.setdefault((run.tenant, run.queue), []).append(run)
    waiting = deque(deque(sorted(runs, key=lambda run: run.urgency)) for runs in queues.values())
    chosen: list[DueRun] = []
    while waiting and len(chosen) < capacity:
        served = waiting.popleft()
        chosen.append(served.popleft())
        if served:
            waiting.append(served)
    return chosen


MOST_LANES = 1000
"""Lanes that one claim reads; the next claim starts behind them."""


LANE_START = Lane("", "", -(2**63), "")
"""The position before all lanes."""


_LAST_RANK = 2**63 - 1  # a lane of this rank stands for the end of its queue


@dataclass(slots=True, kw_only=True)
class LaneScan:
    """The lanes that a claim found. `known`: lanes the worker may serve; `due`: those with due runs.

    `pairs`: the workflows that are not paused, with the pins that the worker serves.
    """

    pairs: frozenset[tuple[str, str]]
    known: list[Lane] = field(default_factory=list)
    due: list[Lane] = field(default_factory=list)
    after: Lane | None = None
    next_at: int | None = None

    def has_due(self, now: int) -> bool:
        """Return True if a run is due."""
        return self.next_at is not None and self.next_at <= now


def scan_lanes(lanes: Iterable[tuple[Lane, int]], now: int, claim: ClaimRequest, found: LaneScan) -> None:
    """Read lanes, each with the time its first run is due, until enough queues have due runs."""
    wanted = claim.queues
    queues: set[tuple[str, str]] = set()
    for number, (lane, head) in enumerate(lanes, 1):
        if len(queues) >= claim.capacity and (lane.tenant, lane.queue) not in queues:
            return
        if (lane.workflow, lane.pin) in found.pairs and (wanted is None or lane.queue in wanted):
            found.known.append(lane)
            found.next_at = choose_earlier(found.next_at, head)
            if head <= now:
                found.due.append(lane)
                queues.add((lane.tenant, lane.queue))
        if number >= MOST_LANES:
            found.after = lane
            return


def make_sort_key(lane: Lane) -> tuple[str, str, int, str, str]:
    """Return the sort key of a lane among the others."""
    return (lane.tenant, lane.queue, lane.rank, lane.workflow, lane.pin)


def find_queue_end(due: DueRun) -> Lane:
    """Return the position behind all lanes of a run's queue."""
    return Lane(due.tenant, due.queue, _LAST_RANK, "")


def choose_earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two times, either of which may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def count_time_until(now: int, at: int | None) -> int | None:
    """Return the time from now until then, at least 0."""
    return None if at is None else max(0, at - now)
