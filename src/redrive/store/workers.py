"""Workers: what they have in their code, what they claim and hold, and whether they are alive."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.frozen import dataclass

__all__ = [
    "Beat",
    "Catalogue",
    "CatalogueItem",
    "Claim",
    "Claimed",
    "Claims",
    "KnownItem",
    "Lane",
    "NewWorker",
    "WorkerRow",
    "living",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueItem:
    """What is known of one registered workflow or step."""

    name: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownItem:
    """A workflow or step as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A worker process that wants to claim runs."""

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker as recorded."""

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int

    def lives_at(self, now: int) -> bool:
        """True while its lease runs: when that is over it counts as dead, declared so or not."""
        return self.state == "LIVE" and self.lease_until > now


def living(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Those that are alive at this moment."""
    return [each for each in workers if each.lives_at(now)]


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of due work that is served in turn with the others: see `core.fair`."""

    tenant: str
    queue: str
    rank: int
    workflow: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's wish for up to `capacity` due runs of these workflows.

    Lanes are visited in turn, starting after `after`; at most one suspect is taken, and only if
    `suspect` says that the worker holds none.
    """

    worker: int
    workflows: tuple[str, ...]
    capacity: int
    suspect: bool
    after: Lane | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that is now this worker's, with all it takes to execute it."""

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
    status: RunStatus = RunStatus.RUNNING
    journal: tuple[EntryRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a claim brought, how long until the next run is due (if any is known), and where to go on."""

    runs: list[Claimed]
    now: int
    next_in: int | None
    after: Lane | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer to a heartbeat: `alive` is False once the worker was declared dead."""

    alive: bool
    held: frozenset[int]
    now: int
