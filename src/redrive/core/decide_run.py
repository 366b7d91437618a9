"""What follows for a run as a whole: it waits, its function ended, its time did, or a person said so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import assert_never

from redrive.core.audit import ENGINE, letter_closed, replay_ended, rolled_back, run_cancelled, run_failed
from redrive.core.classify import Category
from redrive.core.failure import Failure, fingerprint
from redrive.core.failure_reason import Ending, LetterCode, Stage
from redrive.core.idempotency import letter_id, payload_hash
from redrive.core.outcomes import (
    Began,
    Cancelled,
    Closed,
    Diverged,
    Ended,
    Escaped,
    Expired,
    Handed,
    Lost,
    Noted,
    Outcome,
    Parked,
    Planned,
    Raised,
    Released,
    Returned,
    RunView,
    Stopped,
    Undone,
    Wait,
    Waits,
)
from redrive.core.quick import quick
from redrive.core.retry import backoff
from redrive.core.run_options import DEFAULT_RETRY, StepOptions
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transition_build import cut_short, entry_of, progress, put_by, sleep, to_repeat, transition
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    EntryWrite,
    LetterMove,
    LetterWrite,
    RunWrite,
    Transition,
)
from redrive.duration import MICROS, micros
from redrive.reasons import Reason, ReasonCode

__all__ = [
    "AHEAD",
    "answered",
    "buried",
    "cancelled",
    "closed",
    "cut_off",
    "diverged",
    "ended",
    "escaped",
    "expired",
    "final",
    "handed",
    "instead_of",
    "letter_of",
    "lost",
    "may_have_done_something",
    "planned",
    "released",
    "rolls_back",
    "stopped",
    "undone",
    "waits",
]


# -- How a run ends: well, answered for, or buried with a letter -----------------------------------------


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


# -- What follows a function that failed after it had done something: a plan, its execution, an end ------


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


# -- What follows for a run as a whole: it waits, its function ended, its time did, or a person said -----


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


# -- What follows when a worker has a run no longer: it gave it back, died, or has other code ------------


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


# -- What to record instead of an outcome whose rows the store refused for what they contain -------------


def instead_of(outcome: Outcome, refusal: str) -> Outcome:
    """The nearest outcome that carries none of the refused data: the failure it amounts to.

    A result that cannot be stored fails its step, a failure that cannot be stored is replaced by a
    plain one, and so is what belongs to the run as a whole.
    """
    reason = Reason(ReasonCode.STORE_REFUSED_DATA, why=refusal)
    failure = Failure.of(Category.INTERNAL, str(reason), error_type=_TYPE)
    match outcome:
        case Returned():
            return Raised(
                run=outcome.run,
                place=outcome.place,
                attempt=outcome.attempt,
                began_ago=outcome.began_ago,
                first_ago=outcome.began_ago,
                done=outcome.done,
                input="null",
                failure=failure,
                step=StepOptions(),
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
                resumes=outcome.resumes,
                admitted=outcome.admitted,
            )
        case Raised():
            return replace(
                outcome,
                input="null",
                failure=failure,
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
            )
        case Began() | Parked():
            return replace(outcome, input="null")
        case Noted():
            return _escaped(outcome, failure, reason)
        case Handed():
            return replace(outcome, instructions="what is to be done cannot be shown; see the step's input")
        case Ended() | Escaped() | Planned() | Undone():
            return _escaped(outcome, failure, reason)
        case _:
            return outcome


_TYPE = "redrive.errors.DataRefused"


def _escaped(
    outcome: Noted | Ended | Escaped | Planned | Undone, failure: Failure, reason: Reason
) -> Escaped:
    undoing = outcome.run.undoing
    code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = Ending(failure=failure, code=code, reason=reason, stage=Stage.COMMIT)
    rolls_back = isinstance(outcome, Escaped) and outcome.rolls_back
    return Escaped(run=outcome.run, ending=ending, rolls_back=rolls_back)
