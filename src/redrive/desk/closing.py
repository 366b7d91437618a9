"""Closing a letter without a replay: the one rule for one letter and for many."""

from __future__ import annotations

from redrive.core.auditing import ENGINE
from redrive.core.outcome import Closed
from redrive.core.states import LetterStatus
from redrive.errors import Conflict
from redrive.settle.view import view_of
from redrive.store.records import LetterState, RunRow

__all__ = ["closed_before", "closing"]


def closing(
    run: RunRow, letter: LetterState, status: LetterStatus, *, by: str, reason: str | None
) -> Closed | None:
    """What closes the letter; None if somebody closed it so before. Conflict if it is not open."""
    if letter.status is status and letter.closed_by != ENGINE:
        return None
    if letter.status is status:
        raise closed_before(letter)
    if letter.status is not LetterStatus.OPEN:
        raise Conflict(f"{letter.public_id} is {letter.status} and cannot be closed as {status}")
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
    how = letter.resolution or "no reason was given"
    return Conflict(f"{letter.public_id} is {letter.status} already ({how}): add a comment to say more")
