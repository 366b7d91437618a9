"""Decisions on many letters: a set, its letters, and what became of them."""

from __future__ import annotations

from enum import StrEnum

from redrive.core.rate import Rate
from redrive.frozen import dataclass
from redrive.store.selection import LetterFilter

__all__ = [
    "ItemMark",
    "NewSet",
    "SetChange",
    "SetItemRow",
    "SetItemStatus",
    "SetRow",
    "SetStatus",
    "SetVerb",
]


class SetStatus(StrEnum):
    """Whether letters of a set are still to be decided on; of a paused one, when somebody lets it go on."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    STOPPED = "STOPPED"


class SetItemStatus(StrEnum):
    """What became of a set's decision on one letter."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSet:
    """Letters to decide on together: those that are open now and match `where`, or those that are named.

    `public_id` is made by the caller, so that a repeat is recognised. `action` is REPLAY, RESOLVE or IGNORE,
    `request` what a replay is asked to do. No tenant ("") means letters of all tenants.
    """

    public_id: str
    tenant: str
    action: str
    by: str
    reason: str | None = None
    request: str | None = None
    where: LetterFilter | None = None
    letters: tuple[str, ...] = ()
    rate: Rate | None = None


class SetVerb(StrEnum):
    """What people do with a set that is not over."""

    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RATE = "rate"


@dataclass(frozen=True, slots=True)
class SetChange:
    """One of these verbs; with RATE, how fast the set may be from now on, which None leaves open."""

    verb: SetVerb
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRow:
    """A set as recorded. `total` grows until all its letters are `listed`."""

    id: int
    public_id: str
    tenant: str
    action: str
    status: SetStatus
    by: str
    reason: str | None
    request: str | None
    wanted: str | None
    listed: bool
    total: int
    done: int
    failed: int
    created_at: int
    ended_at: int | None
    closed_by: str | None
    fence: int
    rate: Rate | None
    paused_at: int | None
    paused_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItemRow:
    """One letter of a set: the run that its replay let go on, or why the decision was refused."""

    id: int
    letter: str
    status: SetItemStatus = SetItemStatus.PENDING
    run_id: str | None = None
    error: str | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemMark:
    """What became of the decision on a letter of a set, named by its number there."""

    id: int
    status: SetItemStatus
    run_id: str | None = None
    error: str | None = None
