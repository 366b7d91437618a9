"""The pieces that decisions are made of: transitions, entries, and how a run stands while nobody ends it."""

from __future__ import annotations

from redrive.core.outcomes import EntryRef, OpenEntry, RunView
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    AuditWrite,
    CircuitSampleWrite,
    EntryWrite,
    LetterWrite,
    MessageWrite,
    RunWrite,
    Transition,
)

_RUNNING = RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
_COMPENSATING = RunWrite(status=RunStatus.COMPENSATING, release=False, diverged=False)


def build_transition(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    letter: LetterWrite | None = None,
    closes: bool = False,
    messages: tuple[MessageWrite, ...] = (),
) -> Transition:
    """What is written for a run under its fence."""
    return Transition(
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


def build_progress(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    messages: tuple[MessageWrite, ...] = (),
    only_if: tuple[int, int] | None = None,
    audit: tuple[AuditWrite, ...] = (),
    marks: tuple[CircuitSampleWrite, ...] = (),
) -> Transition:
    """A transition that shows the run is no poison: whatever it was suspected of is forgotten."""
    return Transition(
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


def build_entry(
    place: EntryRef,
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
    return EntryWrite(
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


def keep_attempts_open(steps: tuple[OpenEntry, ...]) -> tuple[EntryWrite, ...]:
    """Attempts cut short stay open, to be repeated under their number; nobody limits them meanwhile."""
    return tuple(build_entry(step.place, StepStatus.RUNNING, attempt=step.attempt) for step in steps if step.executing)


def end_attempts(steps: tuple[OpenEntry, ...], end: AttemptEnd) -> tuple[AttemptWrite, ...]:
    """Attempts that end because the run goes elsewhere, or nowhere."""
    return tuple(
        AttemptWrite(index=step.place.index, attempt=step.attempt, end=end, began_ago=step.began_ago)
        for step in steps
        if step.executing
    )


def resume_run(run: RunView) -> RunWrite:
    """The run goes on where it is: with its function, or undoing what that did."""
    return _COMPENSATING if run.undoing else _RUNNING


def idle_status(run: RunView, delay: int = 0) -> RunStatus:
    """How a run stands that no worker has: one that is being rolled back stays so, whatever it waits for."""
    if run.undoing:
        return RunStatus.COMPENSATING
    return RunStatus.SLEEPING if delay else RunStatus.PENDING


def suspend_run(run: RunView, delay: int | None, hold: int, parked_on: str | None = None) -> RunWrite:
    """Wait: in its worker's memory if that is short, otherwise put down for any worker to pick up.

    Code that got as far as waiting found its way through the journal: if the code changes once more, it
    is waited for anew.
    """
    put_down = delay is None or delay > hold
    return RunWrite(
        status=idle_status(run, 1),
        wake_in=delay,
        release=put_down,
        take=put_down,
        diverged=False,
        parked_on=parked_on if put_down else None,
    )
