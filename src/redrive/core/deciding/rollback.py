"""What follows a function that failed after it had done something: a plan, its execution, an end."""

from __future__ import annotations

import json
from dataclasses import replace

from redrive.core.auditing import ENGINE, rolled_back, run_failed
from redrive.core.deciding.ends import answered, buried, final, letter_of
from redrive.core.deciding.pieces import cut_short, entry_of, progress, transition
from redrive.core.ending import Ending
from redrive.core.outcome import Cancelled, Expired, Handed, Planned, RunView, Undone
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transition import AttemptEnd, EntryWrite, LetterMove, RunWrite, Transition
from redrive.duration import MICROS
from redrive.reasons import Reason, ReasonCode

__all__ = ["AHEAD", "cut_off", "handed", "may_have_done_something", "planned", "rolls_back", "undone"]

AHEAD = 3600 * MICROS
"""Microseconds by which a rollback is due before its time: it does not queue behind runs not yet begun."""


def may_have_done_something(run: RunView) -> bool:
    """True if a worker has to look what of this run is to be undone; one nobody ever had, did nothing."""
    return run.options.undoes and run.fence > 0


def rolls_back(ending: Ending, ends_as: RunStatus) -> RunWrite:
    """Any worker may undo what the run did, with the journal in its hands."""
    return RunWrite(
        status=RunStatus.COMPENSATING,
        wake_in=-AHEAD,
        take=True,
        failure=ending.to_json(),
        parked_on="",
        ends_as=ends_as,
    )


def cut_off(outcome: Expired | Cancelled, change: RunWrite) -> Transition:
    """Let go of what is under way, to have what was done undone."""
    attempts = cut_short(outcome.open, AttemptEnd.CANCELLED)
    return transition(outcome.run, attempts=attempts, change=change, closes=True)


def planned(outcome: Planned) -> Transition:
    """The whole plan before anything of it begins: whoever goes on with it finds the same."""
    entries = tuple(
        EntryWrite(
            index=each.place.index,
            key=each.place.key,
            kind=each.place.kind,
            name=each.place.name,
            status=StepStatus.PENDING if each.runs else StepStatus.SKIPPED,
            attempt=0,
            input=each.input,
            options=each.options,
        )
        for each in outcome.plan
    )
    return progress(outcome.run, *entries)


def handed(outcome: Handed) -> Transition:
    """A person has to do what comes next; the run waits until they say that it is done."""
    entry = entry_of(outcome.place, StepStatus.RUNNING, output=json.dumps(outcome.instructions))
    change = RunWrite(status=RunStatus.COMPENSATING, take=True, diverged=False)
    return progress(outcome.run, entry, change=change)


def undone(outcome: Undone, key: bytes) -> Transition:
    """The rollback is over: the run ends as it was to end."""
    run, ending = outcome.run, outcome.ending
    line = rolled_back(outcome)
    if outcome.ends_as is RunStatus.CANCELLED:
        change = final(RunStatus.CANCELLED, failure=ending.to_json())
        decided = answered(run, change, Reason(ReasonCode.RUN_CANCELLED))
    elif outcome.ends_as is not RunStatus.COMPENSATED or outcome.forward:
        back = RunStatus.DLQ_PENDING if outcome.ends_as is RunStatus.COMPENSATED else outcome.ends_as
        decided = buried(run, ending, back, key=key)
    else:
        decided = _resolved(outcome, key)
    return replace(decided, audit=(*decided.audit, *line))


def _resolved(outcome: Undone, key: bytes) -> Transition:
    """Nobody has to do anything about a run that was rolled back; that it failed stays on record."""
    run, text = outcome.run, outcome.ending.to_json()
    resolution = Reason(ReasonCode.ROLLED_BACK)
    decided = answered(run, final(RunStatus.COMPENSATED, failure=text), resolution)
    if not outcome.fresh or not run.options.dead_letter:
        return decided
    letter = letter_of(run, outcome.ending, text, key)
    failed = run_failed(replace(run, undoing=False), outcome.ending, letter, RunStatus.COMPENSATED)
    move = LetterMove(
        letter=letter.public_id, status=LetterStatus.RESOLVED, by=ENGINE, resolution=resolution.to_text()
    )
    return replace(decided, letter=letter, move=move, audit=failed)
