"""The status of a dead letter: closing and reopening it, and the conflicts with its present status."""

from __future__ import annotations

from redrive.core.audit import ENGINE_ACTOR, read_reason
from redrive.core.outcomes import LetterClosed, LetterReopened
from redrive.core.states import LetterStatus
from redrive.desk.actor import Actor
from redrive.errors import Conflict
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import make_run_view
from redrive.store.letters import DecisionCase, LetterState
from redrive.store.runs import RunRow


def close_letter(run: RunRow, letter: LetterState, status: LetterStatus, actor: Actor) -> LetterClosed | None:
    """Return the outcome that closes a letter; None if a user closed it so before. Conflict if it is not open."""
    if letter.status is status:
        if letter.closed_by == ENGINE_ACTOR:
            raise make_closed_conflict(letter)
        return None
    if letter.status is not LetterStatus.OPEN:
        found = letter.status
        raise Conflict(Reason(ReasonCode.LETTER_NOT_OPEN, id=letter.public_id, status=found, wanted=status))
    view, id = make_run_view(run), letter.public_id
    return LetterClosed(run=view, letter=id, status=status, ended=run.status, by=actor.by, reason=actor.reason)


def reopen_letter(case: DecisionCase, letter: LetterState, actor: Actor) -> LetterReopened | None:
    """Return the outcome that reopens a letter which a user closed; None if it is open. Conflict for any other one."""
    if letter.status is LetterStatus.OPEN:
        return None
    if letter.status is LetterStatus.REPLAYING or letter.closed_by == ENGINE_ACTOR:
        require_open_letter(letter)
    run, id = case.run, letter.public_id
    if run.input is None:
        raise Conflict(Reason(ReasonCode.LETTER_RUN_PURGED, id=id))
    last = case.replays[-1] if case.replays else None
    if last is not None and (last.ended_at is None or last.ended_at > (letter.closed_at or 0)):
        raise Conflict(Reason(ReasonCode.LETTER_RETRIED, id=id, run=last.run_id))
    view, status = make_run_view(run), letter.status
    return LetterReopened(run=view, letter=id, status=status, ended=run.status, by=actor.by, reason=actor.reason)


def make_closed_conflict(letter: LetterState) -> Conflict:
    """Return the conflict with an earlier close, by the engine or for another reason: the new reason would get lost."""
    how = read_resolution(letter)
    return Conflict(Reason(ReasonCode.LETTER_CLOSED_BEFORE, id=letter.public_id, status=letter.status, how=how))


def read_resolution(letter: LetterState) -> Reason:
    """Return how a letter was closed."""
    if not letter.resolution:
        return Reason(ReasonCode.NO_REASON_GIVEN)
    return read_reason(letter.closed_by, letter.resolution)


def require_open_letter(letter: LetterState | None) -> None:
    """Refuse a letter that is being replayed or closed; its run can still be retried by the id of the run."""
    if letter is None or letter.status is LetterStatus.OPEN:
        return
    if letter.status is LetterStatus.REPLAYING:
        raise Conflict(Reason(ReasonCode.LETTER_REPLAYING, id=letter.public_id))
    id, run, how = letter.public_id, letter.run_id, read_resolution(letter)
    if letter.closed_by == ENGINE_ACTOR and letter.status is LetterStatus.RESOLVED:
        raise Conflict(Reason(ReasonCode.LETTER_RESOLVED, id=id, how=how, run=run))
    raise Conflict(Reason(ReasonCode.LETTER_CLOSED, id=id, status=letter.status, how=how, run=run))
