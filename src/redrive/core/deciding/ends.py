"""How a run ends: well, answered for, or buried with a letter."""

from __future__ import annotations

from dataclasses import replace

from redrive.core.auditing import ENGINE, replay_ended, run_failed
from redrive.core.deciding.pieces import transition
from redrive.core.ending import Ending, LetterCode
from redrive.core.fingerprint import fingerprint
from redrive.core.keys import letter_id, payload_hash
from redrive.core.outcome import RunView
from redrive.core.quick import quick
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transition import AttemptWrite, EntryWrite, LetterMove, LetterWrite, RunWrite, Transition
from redrive.reasons import Reason

__all__ = ["answered", "buried", "final", "letter_of"]

_Transition = quick(Transition)


def final(
    status: RunStatus,
    *,
    output: str | None = None,
    failure: str | None = None,
    deaths: int | None = None,
    unparks: bool = False,
) -> RunWrite:
    """The end of a run. The fence rises with it: nothing that was decided before is written after."""
    return RunWrite(
        status=status,
        take=True,
        output=output,
        failure=failure,
        deaths=deaths,
        parked_on="" if unparks else None,
    )


def answered(run: RunView, change: RunWrite, resolution: Reason) -> Transition:
    """A replay ended well: nobody needs the letter any more."""
    if run.letter is None:
        return transition(run, change=change)
    return _Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        change=change,
        move=LetterMove(
            letter=run.letter, status=LetterStatus.RESOLVED, by=ENGINE, resolution=resolution.to_text()
        ),
        ends_replay=run.letter,
        audit=replay_ended(run, change.status),
    )


def buried(
    run: RunView,
    ending: Ending,
    status: RunStatus,
    *,
    key: bytes,
    entries: tuple[EntryWrite, ...] = (),
    attempts: tuple[AttemptWrite, ...] = (),
    deaths: int | None = None,
    closes: bool = False,
) -> Transition:
    """End a run in failure: its letter and its state, in one transition. `key` is that of fingerprints."""
    text = ending.to_json()
    letter = letter_of(run, ending, text, key) if run.options.dead_letter else None
    if letter is None and status is RunStatus.DLQ_PENDING:
        status = RunStatus.FAILED
    # What a run is rolled back for stays on record until that is over; how it got stuck is in the letter.
    keeps = run.undoing and ending.code is LetterCode.COMPENSATION_FAILED and ending.cause is None
    change = final(status, failure=None if keeps else text, deaths=deaths, unparks=closes)
    decided = transition(run, *entries, attempts=attempts, change=change, letter=letter, closes=closes)
    return replace(decided, ends_replay=run.letter, audit=run_failed(run, ending, letter, status))


def letter_of(run: RunView, ending: Ending, text: str, key: bytes) -> LetterWrite:
    """What is put before people about a failed run."""
    return LetterWrite(
        public_id=run.letter or letter_id(run.public_id),
        code=ending.code.value,
        stage=ending.stage.value,
        category=ending.failure.category.value,
        reason=ending.reason.to_text(),
        failure=text,
        fingerprint=fingerprint(ending.failure, workflow=run.workflow, step=ending.step, key=key),
        expires_in=run.options.letter_keeps,
        payload_hash=payload_hash(run.input),
        step=ending.step,
        step_index=ending.step_index,
        attempts=ending.attempts,
    )
