"""Closing a letter without a replay: the one rule for one letter and for many."""

from __future__ import annotations

from redrive.core.auditing import ENGINE, reason_by
from redrive.core.outcome import Closed
from redrive.core.states import LetterStatus
from redrive.errors import Conflict
from redrive.reasons import Reason, ReasonCode
from redrive.settle.view import view_of
from redrive.store.records import LetterState, RunRow

__all__ = ["closed_before", "closing", "resolution_of"]


def closing(
    run: RunRow, letter: LetterState, status: LetterStatus, *, by: str, reason: str | None
) -> Closed | None:
    """What closes the letter; None if somebody closed it so before. Conflict if it is not open."""
    if letter.status is status and letter.closed_by != ENGINE:
        return None
    if letter.status is status:
        raise closed_before(letter)
    if letter.status is not LetterStatus.OPEN:
        found = letter.status
        raise Conflict(Reason(ReasonCode.LETTER_NOT_OPEN, id=letter.public_id, status=found, wanted=status))
    return Closed(
        run=view_of(run),
        letter=letter.public_id,
        status=status,
        ended=run.status,
        by=by,
        reason=reason,
    )


def closed_before(letter: LetterState) -> Conflict:
    """It was closed so before, by the engine or for another reason: what is said now would get lost."""
    how = resolution_of(letter)
    return Conflict(
        Reason(ReasonCode.LETTER_CLOSED_BEFORE, id=letter.public_id, status=letter.status, how=how)
    )


def resolution_of(letter: LetterState) -> Reason:
    """Return how a letter was closed."""
    if not letter.resolution:
        return Reason(ReasonCode.NO_REASON_GIVEN)
    return reason_by(letter.closed_by, letter.resolution)
