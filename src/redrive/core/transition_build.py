"""The pieces that decisions are made of: transitions, entries, and how a run stands while nobody ends it."""

from __future__ import annotations

from redrive.core.outcomes import OpenStep, Place, RunView
from redrive.core.quick import quick
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    AuditWrite,
    CircuitMark,
    EntryWrite,
    LetterWrite,
    MessageWrite,
    RunWrite,
    Transition,
)

__all__ = ["awake", "cut_short", "entry_of", "progress", "put_by", "sleep", "to_repeat", "transition"]


_Transition, _EntryWrite, _RunWrite = quick(Transition), quick(EntryWrite), quick(RunWrite)
_RUNNING = RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
_UNDOING = RunWrite(status=RunStatus.COMPENSATING, release=False, diverged=False)


def transition(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    letter: LetterWrite | None = None,
    closes: bool = False,
    messages: tuple[MessageWrite, ...] = (),
) -> Transition:
    """What is written for a run under its fence."""
    return _Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=entries,
        attempts=attempts,
        change=change,
        letter=letter,
        closes=closes,
        messages=messages,
    )


def progress(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    messages: tuple[MessageWrite, ...] = (),
    only_if: tuple[int, int] | None = None,
    audit: tuple[AuditWrite, ...] = (),
    marks: tuple[CircuitMark, ...] = (),
) -> Transition:
    """A transition that shows the run is no poison: whatever it was suspected of is forgotten."""
    return _Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=entries,
        attempts=attempts,
        change=change,
        messages=messages,
        only_if=only_if,
        audit=audit,
        marks=marks,
        clears_suspicion=run.deaths > 0,
        version=run.new_version,
    )


def entry_of(
    place: Place,
    status: StepStatus,
    *,
    attempt: int = 1,
    began_ago: int = 0,
    done: int | None = None,
    wake_in: int | None = None,
    input: str | None = None,
    output: str | None = None,
) -> EntryWrite:
    """An entry at its place."""
    return _EntryWrite(
        index=place.index,
        key=place.key,
        kind=place.kind,
        name=place.name,
        status=status,
        attempt=attempt,
        began_ago=began_ago,
        done=done,
        wake_in=wake_in,
        input=input,
        output=output,
    )


def to_repeat(steps: tuple[OpenStep, ...]) -> tuple[EntryWrite, ...]:
    """Attempts cut short stay open, to be repeated under their number; nobody limits them meanwhile."""
    return tuple(
        entry_of(step.place, StepStatus.RUNNING, attempt=step.attempt) for step in steps if step.executing
    )


def cut_short(steps: tuple[OpenStep, ...], end: AttemptEnd) -> tuple[AttemptWrite, ...]:
    """Attempts that end because the run goes elsewhere, or nowhere."""
    return tuple(
        AttemptWrite(index=step.place.index, attempt=step.attempt, end=end, began_ago=step.began_ago)
        for step in steps
        if step.executing
    )


def awake(run: RunView) -> RunWrite:
    """The run goes on where it is: with its function, or undoing what that did."""
    return _UNDOING if run.undoing else _RUNNING


def put_by(run: RunView, delay: int = 0) -> RunStatus:
    """How a run stands that no worker has: one that is being rolled back stays so, whatever it waits for."""
    if run.undoing:
        return RunStatus.COMPENSATING
    return RunStatus.SLEEPING if delay else RunStatus.PENDING


def sleep(run: RunView, delay: int | None, hold: int, parked_on: str | None = None) -> RunWrite:
    """Wait: in its worker's memory if that is short, otherwise put down for any worker to pick up.

    Code that got as far as waiting found its way through the journal: if the code changes once more, it
    is waited for anew.
    """
    put_down = delay is None or delay > hold
    return _RunWrite(
        status=put_by(run, 1),
        wake_in=delay,
        release=put_down,
        take=put_down,
        diverged=False,
        parked_on=parked_on if put_down else None,
    )
