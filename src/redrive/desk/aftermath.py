"""What became of the work of a dead letter that is closed."""

from __future__ import annotations

from enum import Enum, auto

from redrive.core.states import CLOSED, LetterStatus, RunStatus
from redrive.desk.shapes import DeadLetter, ReplayRecord
from redrive.reasons import ReasonCode

__all__ = ["Aftermath", "aftermath"]


class Aftermath(Enum):
    """How the work stands: a replay decides that, or whoever closed the letter without one."""

    SUCCEEDED = auto()
    IN_PART = auto()
    UNDONE = auto()
    CANCELLED = auto()
    GOES_ON = auto()
    FAILED_AGAIN = auto()
    EXPIRED = auto()
    CLOSED = auto()


_ENDS: dict[str | None, Aftermath] = {
    RunStatus.SUCCESS: Aftermath.SUCCEEDED,
    RunStatus.PARTIAL: Aftermath.IN_PART,
    RunStatus.COMPENSATED: Aftermath.UNDONE,
    RunStatus.CANCELLED: Aftermath.CANCELLED,
    None: Aftermath.GOES_ON,
}

# For when the replays are purged together with the run.
_RESOLUTIONS: dict[str | None, Aftermath] = {
    ReasonCode.REPLAY_SUCCEEDED: Aftermath.SUCCEEDED,
    ReasonCode.STEP_REPLAY_SUCCEEDED: Aftermath.IN_PART,
    ReasonCode.ROLLED_BACK: Aftermath.UNDONE,
    ReasonCode.RUN_CANCELLED: Aftermath.CANCELLED,
}


def aftermath(letter: DeadLetter) -> Aftermath | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    if letter.status not in CLOSED:
        return None
    last = _counts(letter)
    if last is not None:
        return _ENDS.get(last.outcome, Aftermath.FAILED_AGAIN)
    if letter.resolution_code in _RESOLUTIONS:
        return _RESOLUTIONS[letter.resolution_code]
    return Aftermath.EXPIRED if letter.status is LetterStatus.EXPIRED else Aftermath.CLOSED


def _counts(letter: DeadLetter) -> ReplayRecord | None:
    """The last replay, unless the letter was closed after it: by somebody who knew how it had ended."""
    last = letter.replays[-1] if letter.replays else None
    if last is None or letter.closed_at is None or last.ended_at is None:
        return last
    return last if last.ended_at >= letter.closed_at else None
