"""What is to be written: a fenced bundle of rows that commit together or not at all.

`decide` makes transitions, people make them through the desk, and the store applies them without
asking what they mean. Times are delays in microseconds, because only the store knows what time it
is: `wake_in=5_000_000` becomes "due five seconds after the store's now", `began_ago` the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redrive.core.states import EntryKind, RunStatus, StepStatus

__all__ = ["Answer", "AttemptEnd", "AttemptWrite", "EntryWrite", "LetterWrite", "RunWrite", "Transition"]


class AttemptEnd(StrEnum):
    """How a try of a step ended, other than by success (which the journal entry itself records)."""

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    LOST = "LOST"
    RELEASED = "RELEASED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWrite:
    """One journal entry as it shall stand. `None` leaves a recorded value as it is.

    `index` (order of first begin) identifies the entry within its run; `done` is its completion
    number; `limit_in` says when the reaper may end the attempt for a worker that does not.
    """

    index: int
    key: str
    kind: EntryKind
    name: str
    status: StepStatus
    attempt: int = 1
    began_ago: int = 0
    done: int | None = None
    wake_in: int | None = None
    limit_in: int | None = None
    input: str | None = None
    output: str | None = None
    failure: str | None = None
    options: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWrite:
    """One try that did not succeed, with the decision that followed (rendered in words when read)."""

    index: int
    attempt: int
    end: AttemptEnd
    began_ago: int = 0
    category: str | None = None
    failure: str | None = None
    decision: str | None = None
    next_in: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWrite:
    """The run's new state.

    `wake_in`: due for a claim after that long; `None`: not claimable. `release`: no worker holds it
    any longer. `take`: raise the fence, so that whoever held it, or read it before, can write nothing
    more about it; whatever releases a run does that.
    `deaths`, `diverged`, `parked_on`: `None` leaves them as they are ("" clears `parked_on`).
    """

    status: RunStatus
    wake_in: int | None = None
    release: bool = True
    take: bool = False
    output: str | None = None
    failure: str | None = None
    deaths: int | None = None
    diverged: bool | None = None
    parked_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterWrite:
    """The dead letter of a run; a second one for the same run reopens the first."""

    public_id: str
    code: str
    stage: str
    category: str
    reason: str
    failure: str
    fingerprint: str
    expires_in: int
    payload_hash: str
    step: str | None = None
    step_index: int | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Everything one decision writes about one run, guarded by the fence it was made under.

    `only_if`: the entry's index and attempt that must still be under way, because the decision is about
    them and was made by somebody who looked before. `closes`: entries that are still open are cancelled.
    `clears_suspicion`: deaths laid to the run are forgotten. `version`: the code that wrote this, where
    it is another than recorded the run so far.
    """

    run: int
    tenant: str
    fence: int
    entries: tuple[EntryWrite, ...] = ()
    attempts: tuple[AttemptWrite, ...] = ()
    change: RunWrite | None = None
    letter: LetterWrite | None = None
    only_if: tuple[int, int] | None = None
    closes: bool = False
    clears_suspicion: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a transition: `kept`, or refused because the run belongs to another by now."""

    kept: bool
    now: int
