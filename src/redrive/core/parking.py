"""What circuits add to decisions: marks of how calls ended, and steps that wait until they may be called."""

from __future__ import annotations

import json
from collections.abc import Iterable

from redrive.core.circuit import COUNTED
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.outcome import Interrupted, Parked, Raised, Returned
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transition import (
    AttemptEnd,
    AttemptWrite,
    CircuitMark,
    EntryWrite,
    RunWrite,
    Transition,
)
from redrive.reasons import Reason, ReasonCode

__all__ = ["CIRCUIT_OPEN", "circuit_open", "marks_of", "parked", "time_parked"]

CIRCUIT_OPEN = "redrive.CircuitOpen"
"""The error type of a step that was not called because its circuit was open."""


def circuit_open(reason: Reason) -> Failure:
    """Return the failure of a step that was not called."""
    return Failure.of(Category.DEPENDENCY_UNAVAILABLE, str(reason), error_type=CIRCUIT_OPEN)


def marks_of(outcome: Returned | Raised | Interrupted) -> tuple[CircuitMark, ...]:
    """What a circuit is to hear: failures that speak about the dependency, and whatever ends a probe."""
    admitted = outcome.admitted
    if admitted is None:
        return ()
    good = _says(outcome)
    if good is not False and not admitted.probe:
        return ()
    return (
        CircuitMark(
            key=admitted.key,
            settings=admitted.settings,
            generation=admitted.generation,
            index=outcome.place.index,
            attempt=outcome.attempt,
            good=good,
            category=outcome.failure.category.value if isinstance(outcome, Raised) else None,
            probe=admitted.probe,
        ),
    )


def _says(outcome: Returned | Raised | Interrupted) -> bool | None:
    """Whether the dependency answered; None if there is no telling."""
    match outcome:
        case Returned():
            return True
        case Raised() if outcome.failure.category in COUNTED:
            return False
        case _:
            return None


def parked(outcome: Parked) -> Transition:
    """The step waits without a try, and so does the run if nothing else goes on in it."""
    run, place = outcome.run, outcome.place
    entry = EntryWrite(
        index=place.index,
        key=place.key,
        kind=place.kind,
        name=place.name,
        status=StepStatus.PENDING,
        attempt=outcome.made,
        input=outcome.input,
        options=outcome.options,
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=(entry,),
        attempts=() if outcome.noted else (_recorded(outcome),),
        change=_change(outcome),
        version=run.new_version,
    )


def time_parked(tries: Iterable[tuple[AttemptEnd, int, int]], until: int) -> int:
    """How long a step waited for its circuit: from each time it was parked to the next time it was called.

    `tries` are ends with when they began and ended, in order of time; `until` ends a wait that goes on.
    """
    total, since = 0, None
    for end, began_at, ended_at in (*tries, (AttemptEnd.LOST, until, until)):
        if end is AttemptEnd.PARKED:
            since = ended_at if since is None else since
        elif since is not None:
            total, since = total + max(0, began_at - since), None
    return total


def _recorded(outcome: Parked) -> AttemptWrite:
    """That it waits, said once."""
    return AttemptWrite(
        index=outcome.place.index,
        attempt=0,
        end=AttemptEnd.PARKED,
        category=Category.DEPENDENCY_UNAVAILABLE.value,
        failure=json.dumps(circuit_open(Reason(ReasonCode.CIRCUIT_OPEN, circuit=outcome.circuit)).to_json()),
    )


def _change(outcome: Parked) -> RunWrite | None:
    if outcome.idle:
        return RunWrite(status=RunStatus.SLEEPING, take=True, diverged=False, parked_on=outcome.circuit)
    if outcome.resumes:
        return RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
    return None
