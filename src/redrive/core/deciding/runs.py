"""What follows for a run as a whole: it waits, its function ended, its time did, or a person said so."""

from __future__ import annotations

from dataclasses import replace

from redrive.core.auditing import letter_closed, run_cancelled
from redrive.core.classify import Category
from redrive.core.deciding.ends import answered, buried, final
from redrive.core.deciding.pieces import cut_short, entry_of, sleep, transition
from redrive.core.deciding.rollback import cut_off, may_have_done_something, rolls_back
from redrive.core.ending import Ending, LetterCode
from redrive.core.failure import Failure
from redrive.core.outcome import Cancelled, Closed, Ended, Escaped, Expired, Stopped, Waits
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transition import AttemptEnd, LetterMove, Transition
from redrive.reasons import Reason, ReasonCode

__all__ = ["cancelled", "closed", "ended", "escaped", "expired", "stopped", "waits"]


def waits(outcome: Waits) -> Transition:
    """Nothing goes on in the run but waits."""
    change = sleep(outcome.run, outcome.delay, outcome.hold, outcome.parked_on)
    return transition(outcome.run, change=change)


def ended(outcome: Ended) -> Transition:
    """The function returned."""
    change = final(RunStatus.SUCCESS, output=outcome.output)
    if outcome.run.letter is None:
        return transition(outcome.run, change=change)
    return answered(outcome.run, change, Reason(ReasonCode.REPLAY_SUCCEEDED))


def stopped(outcome: Stopped) -> Transition:
    """A replay of one step alone is over, and the function is not."""
    reason = Reason(ReasonCode.STEP_REPLAYED_ALONE, step=outcome.step)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.RunPartial")
    ending = Ending(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    change = final(RunStatus.PARTIAL, failure=ending.to_json())
    return answered(outcome.run, change, Reason(ReasonCode.STEP_REPLAY_SUCCEEDED))


def escaped(outcome: Escaped, key: bytes) -> Transition:
    """Something left the function: what it did is undone, or the run has failed."""
    ending, run, place = outcome.ending, outcome.run, outcome.place
    entries = () if place is None else (entry_of(place, StepStatus.DLQ, attempt=outcome.attempt),)
    if outcome.rolls_back:
        ends_as = RunStatus.COMPENSATED if run.options.rollback else RunStatus.DLQ_PENDING
        return transition(run, *entries, change=rolls_back(ending, ends_as))
    return buried(run, ending, RunStatus.DLQ_PENDING, key=key, entries=entries)


def expired(outcome: Expired, key: bytes) -> Transition:
    """The run passed its deadline."""
    reason = Reason(ReasonCode.DEADLINE_PASSED)
    failure = Failure.of(Category.TIMEOUT, str(reason), error_type="redrive.DeadlinePassed")
    ending = Ending(failure=failure, code=LetterCode.TIMEOUT, reason=reason)
    if may_have_done_something(outcome.run):
        return cut_off(outcome, rolls_back(ending, RunStatus.TIMED_OUT))
    return buried(
        outcome.run,
        ending,
        RunStatus.TIMED_OUT,
        key=key,
        attempts=cut_short(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
    )


def cancelled(outcome: Cancelled) -> Transition:
    """A person wants no more of the run."""
    reason = Reason(ReasonCode.RUN_CANCELLED_BY, by=outcome.by, comment=outcome.reason or None)
    failure = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.RunCancelled")
    ending = Ending(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    if may_have_done_something(outcome.run):
        decided = cut_off(outcome, rolls_back(ending, RunStatus.CANCELLED))
        return replace(decided, audit=(run_cancelled(outcome),))
    decided = answered(
        outcome.run,
        final(RunStatus.CANCELLED, failure=ending.to_json(), unparks=True),
        Reason(ReasonCode.RUN_CANCELLED),
    )
    return replace(
        decided,
        attempts=cut_short(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
        audit=(*decided.audit, run_cancelled(outcome)),
    )


def closed(outcome: Closed) -> Transition:
    """A letter is done with: its run, which waited for that, has failed for good."""
    run = outcome.run
    status = RunStatus.FAILED if outcome.ended is RunStatus.DLQ_PENDING else outcome.ended
    resolution = outcome.reason or outcome.status.value.lower()
    return replace(
        transition(run, change=final(status)),
        move=LetterMove(letter=outcome.letter, status=outcome.status, by=outcome.by, resolution=resolution),
        audit=(letter_closed(outcome, status),),
    )
