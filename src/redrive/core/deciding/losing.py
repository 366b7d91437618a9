"""What follows when a worker has a run no longer: it gave it back, died, or has other code."""

from __future__ import annotations

from typing import assert_never

from redrive.core.backoff import backoff
from redrive.core.classify import Category
from redrive.core.deciding.ends import buried
from redrive.core.deciding.pieces import cut_short, put_by, to_repeat, transition
from redrive.core.ending import Ending, LetterCode
from redrive.core.failure import Failure
from redrive.core.options import DEFAULT_RETRY
from redrive.core.outcome import Diverged, Lost, Released, Wait
from redrive.core.states import RunStatus
from redrive.core.transition import AttemptEnd, RunWrite, Transition
from redrive.duration import micros
from redrive.reasons import Reason, ReasonCode

__all__ = ["diverged", "lost", "released"]


def released(outcome: Released) -> Transition:
    """The worker gave the run back as it was."""
    status = put_by(outcome.run, outcome.delay)
    return transition(
        outcome.run,
        *to_repeat(outcome.open),
        attempts=cut_short(outcome.open, AttemptEnd.RELEASED),
        change=RunWrite(status=status, wake_in=outcome.delay, take=True, deaths=0),
    )


def lost(outcome: Lost, draw: float, key: bytes) -> Transition:
    """The worker died, or was taken for dead: the run goes on elsewhere, if it killed nobody too often."""
    run = outcome.run
    if outcome.deaths >= run.options.max_crashes and outcome.deaths > run.deaths:
        return _poisonous(outcome, key)
    # One microsecond at least: it waits, whether that is over by now or not.
    change = RunWrite(status=put_by(run, 1), wake_in=outcome.wake_in, take=True)
    if outcome.executing:
        delay = 0.0
        if outcome.deaths:
            delay = backoff(run.options.retry or DEFAULT_RETRY, outcome.deaths, draw).seconds
        change = RunWrite(status=put_by(run), wake_in=micros(delay), take=True, deaths=outcome.deaths)
    return transition(
        run,
        *to_repeat(outcome.open),
        attempts=cut_short(outcome.open, AttemptEnd.LOST),
        change=change,
    )


def _poisonous(outcome: Lost, key: bytes) -> Transition:
    reason = Reason(ReasonCode.WORKERS_DIED, n=outcome.deaths)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.WorkerDied")
    code = LetterCode.COMPENSATION_FAILED if outcome.run.undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = Ending(failure=failure, code=code, reason=reason)
    return buried(
        outcome.run,
        ending,
        RunStatus.DLQ_PENDING,
        key=key,
        entries=to_repeat(outcome.open),
        attempts=cut_short(outcome.open, AttemptEnd.LOST),
        deaths=outcome.deaths,
    )


def diverged(outcome: Diverged, key: bytes) -> Transition:
    """The code does not fit the journal: wait for code that does, or give up."""
    match outcome.wait:
        case Wait.FOR_CODE:
            change = RunWrite(
                status=put_by(outcome.run, 1), wake_in=outcome.delay, take=True, diverged=True, deaths=0
            )
            return transition(outcome.run, change=change)
        case Wait.NO_MORE:
            failure = Failure.of(Category.INTERNAL, str(outcome.difference), error_type="redrive.CodeChanged")
            undoing = outcome.run.undoing
            code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.POLICY_VIOLATION
            ending = Ending(failure=failure, code=code, reason=outcome.difference)
            return buried(outcome.run, ending, RunStatus.DLQ_PENDING, key=key)
        case _:
            assert_never(outcome.wait)
