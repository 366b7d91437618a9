"""The one place that decides what follows from what happened.

    decide(outcome, policy, draw, now) -> transition

An exception in a worker, a crash found by the reaper and a deadline that passed all come through
here, so they cannot differ. `decide` is pure: the policy in force, the random draw and the time are
arguments, and what it returns is rows to write, with delays instead of times.
"""

from __future__ import annotations

from typing import assert_never

from redrive.core import decide_run as losing
from redrive.core import decide_run as rollback
from redrive.core import decide_run as runs
from redrive.core import decide_step as steps
from redrive.core.decide_step import parked
from redrive.core.failure_handlers import with_handlers
from redrive.core.notifications import with_notices
from redrive.core.notify_rules import NotifyRule
from redrive.core.outcomes import (
    Began,
    Cancelled,
    Closed,
    Diverged,
    Ended,
    Escaped,
    Expired,
    Handed,
    Interrupted,
    Lost,
    Noted,
    Outcome,
    Parked,
    Planned,
    Raised,
    Released,
    Returned,
    RunView,
    Slept,
    Stopped,
    Undone,
    Waits,
    Woke,
)
from redrive.core.transitions import Transition
from redrive.policy import RetryPolicy

__all__ = ["decide"]


def decide(
    outcome: Outcome,
    policy: RetryPolicy,
    draw: float,
    now: int = 0,
    notify: NotifyRule | None = None,
    key: bytes = b"",
) -> Transition:
    """Turn what happened into what is to be written. `now` is only told to those who hear of a failure.

    `key` is the one of the fingerprints of the run's tenant; every outcome that may be a failure needs it.

    Whatever may end a run in failure goes on through `_told`; `notify` says which people hear of it.
    """
    match outcome:
        case Returned():
            return steps.returned(outcome)
        case Began():
            return steps.began(outcome)
        case Ended():
            return runs.ended(outcome)
        case Raised():
            return with_notices(steps.raised(outcome, policy, draw), outcome, notify, now, key)
        case Noted():
            return steps.noted(outcome)
        case Slept():
            return steps.slept(outcome)
        case Woke():
            return steps.woke(outcome)
        case Waits():
            return runs.waits(outcome)
        case Parked():
            return parked(outcome)
        case Interrupted():
            return steps.interrupted(outcome)
        case Escaped():
            return _told(runs.escaped(outcome, key), outcome.run, notify, now, key)
        case Stopped():
            return runs.stopped(outcome)
        case Planned():
            return rollback.planned(outcome)
        case Handed():
            return rollback.handed(outcome)
        case Undone():
            decided = rollback.undone(outcome, key)
            if not outcome.fresh:
                return with_notices(decided, outcome.run, notify, now, key)
            return _told(decided, outcome.run, notify, now, key)
        case Released():
            return losing.released(outcome)
        case Lost():
            return _told(losing.lost(outcome, draw, key), outcome.run, notify, now, key)
        case Expired():
            return _told(runs.expired(outcome, key), outcome.run, notify, now, key)
        case Diverged():
            return _told(losing.diverged(outcome, key), outcome.run, notify, now, key)
        case Cancelled():
            return runs.cancelled(outcome)
        case Closed():
            return runs.closed(outcome)
        case _:
            assert_never(outcome)


def _told(decided: Transition, run: RunView, notify: NotifyRule | None, now: int, key: bytes) -> Transition:
    """With the runs that handle a failure, and what people are told of it."""
    return with_notices(with_handlers(decided, run, now), run, notify, now, key)
