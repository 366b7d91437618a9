"""The one place that decides what follows from what happened.

    decide(outcome, policy, draw, now) -> transition

An exception in a worker, a crash found by the reaper and a deadline that passed all come through
here, so they cannot differ. `decide` is pure: the policy in force, the random draw and the time are
arguments, and what it returns is rows to write, with delays instead of times.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import assert_never

from redrive.core.auditing import (
    ENGINE,
    failed_attempt,
    letter_closed,
    replay_ended,
    rolled_back,
    run_cancelled,
    run_failed,
)
from redrive.core.backoff import backoff
from redrive.core.classify import Category
from redrive.core.ending import Ending, LetterCode, code_for
from redrive.core.failure import Failure
from redrive.core.fingerprint import fingerprint
from redrive.core.handlers import with_handlers
from redrive.core.keys import letter_id, payload_hash
from redrive.core.options import DEFAULT_RETRY
from redrive.core.outcome import (
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
    OpenStep,
    Outcome,
    Parked,
    Place,
    Planned,
    Raised,
    Released,
    Returned,
    RunView,
    Slept,
    Stopped,
    Undone,
    Wait,
    Waits,
    Woke,
)
from redrive.core.parking import marks_of, parked
from redrive.core.quick import quick
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transition import (
    AttemptEnd,
    AttemptWrite,
    EntryWrite,
    LetterMove,
    LetterWrite,
    MessageWrite,
    RunWrite,
    Transition,
)
from redrive.core.verdict import Verdict, judge
from redrive.policy import RetryPolicy

__all__ = ["decide"]

_EntryWrite, _Transition = quick(EntryWrite), quick(Transition)
_RUNNING = RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
_UNDOING = RunWrite(status=RunStatus.COMPENSATING, release=False, diverged=False)
_AHEAD = -3600 * 1_000_000  # a rollback does not queue behind runs that have not begun


def decide(outcome: Outcome, policy: RetryPolicy, draw: float, now: int = 0) -> Transition:
    """Turn what happened into what is to be written. `now` is only told to those who hear of a failure.

    Whatever may end a run in failure goes on through `with_handlers`.
    """
    match outcome:
        case Returned():
            return _returned(outcome)
        case Began():
            return _began(outcome)
        case Ended():
            return _ended(outcome)
        case Raised():
            return _raised(outcome, policy, draw)
        case Noted():
            return _noted(outcome)
        case Slept():
            return _slept(outcome)
        case Woke():
            return _woke(outcome)
        case Waits():
            return _transition(
                outcome.run, change=_sleep(outcome.run, outcome.delay, outcome.hold, outcome.parked_on)
            )
        case Parked():
            return parked(outcome)
        case Interrupted():
            return _interrupted(outcome)
        case Escaped():
            return with_handlers(_escaped(outcome), outcome.run, now)
        case Stopped():
            return _stopped(outcome)
        case Planned():
            return _planned(outcome)
        case Handed():
            return _handed(outcome)
        case Undone():
            decided = _undone(outcome)
            return with_handlers(decided, outcome.run, now) if outcome.fresh else decided
        case Released():
            return _released(outcome)
        case Lost():
            return with_handlers(_lost(outcome, draw), outcome.run, now)
        case Expired():
            return with_handlers(_expired(outcome), outcome.run, now)
        case Diverged():
            return with_handlers(_diverged(outcome), outcome.run, now)
        case Cancelled():
            return _cancelled(outcome)
        case Closed():
            return _closed(outcome)
        case _:
            assert_never(outcome)


# -- steps ------------------------------------------------------------------------------------------


def _returned(outcome: Returned) -> Transition:
    entry = _EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.SUCCESS,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        output=outcome.output,
    )
    change = _awake(outcome.run) if outcome.resumes else None
    decided = _progress(outcome.run, entry, change=change, messages=outcome.messages)
    return decided if outcome.admitted is None else replace(decided, marks=marks_of(outcome))


def _began(outcome: Began) -> Transition:
    entry = EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.RUNNING,
        attempt=outcome.attempt,
        limit_in=outcome.limit,
        input=outcome.input,
        options=outcome.options,
    )
    return _transition(outcome.run, entry, change=_awake(outcome.run) if outcome.resumes else None)


def _raised(outcome: Raised, policy: RetryPolicy, draw: float) -> Transition:
    verdict = _judge(outcome, policy, draw)
    if verdict.retry:
        return _retried(outcome, verdict)
    return _failed(outcome, verdict)


def _judge(outcome: Raised, policy: RetryPolicy, draw: float) -> Verdict:
    if outcome.cause is not None:
        return Verdict(retry=False, why=outcome.failure.message)
    if outcome.last:
        return Verdict(retry=False, why="the run is ending")
    return judge(
        outcome.failure,
        policy,
        outcome.step,
        attempt=outcome.attempt,
        first_ago=outcome.first_ago / 1e6,
        draw=draw,
    )


def _retried(outcome: Raised, verdict: Verdict) -> Transition:
    delay = _micros(verdict.delay)
    entry = _entry(
        outcome.place,
        StepStatus.RETRYING,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        wake_in=delay,
        input=outcome.input,
    )
    change = _awake(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=_put_by(outcome.run, delay), wake_in=delay, take=True)
    elif outcome.idle:
        change = _sleep(outcome.run, delay, outcome.hold)
    return _settled(outcome, entry, change, _attempt(outcome, verdict, delay), verdict)


def _failed(outcome: Raised, verdict: Verdict) -> Transition:
    ending = Ending(
        failure=outcome.failure,
        code=outcome.cause or code_for(outcome.failure, exhausted=verdict.exhausted),
        reason=_why_step(outcome, verdict),
        stage=outcome.stage,
        step=outcome.place.name,
        step_index=outcome.place.index,
        attempts=outcome.attempt,
    )
    entry = EntryWrite(
        index=outcome.place.index,
        key=outcome.place.key,
        kind=outcome.place.kind,
        name=outcome.place.name,
        status=StepStatus.FAILED,
        attempt=outcome.attempt,
        began_ago=outcome.began_ago,
        done=outcome.done,
        input=outcome.input,
        failure=ending.to_json(),
    )
    change = _awake(outcome.run) if outcome.resumes else None
    if outcome.taken:
        change = RunWrite(status=_put_by(outcome.run), wake_in=0, take=True)
    return _settled(outcome, entry, change, _attempt(outcome, verdict, None), verdict)


def _settled(
    outcome: Raised, entry: EntryWrite, change: RunWrite | None, attempt: AttemptWrite, verdict: Verdict
) -> Transition:
    lost = _cut_short(outcome.others, AttemptEnd.LOST)
    decided = _progress(
        outcome.run, entry, *_to_repeat(outcome.others), change=change, attempts=(attempt, *lost)
    )
    only_if = (entry.index, entry.attempt) if outcome.taken else None
    return replace(decided, only_if=only_if, audit=failed_attempt(outcome, verdict), marks=marks_of(outcome))


def _why_step(outcome: Raised, verdict: Verdict) -> str:
    tries = "once" if outcome.attempt == 1 else f"{outcome.attempt} times"
    failure = outcome.failure
    return f"step {outcome.place.name!r} failed {tries} ({failure.category.value}): {verdict.why}"


def _attempt(outcome: Raised, verdict: Verdict, next_in: int | None) -> AttemptWrite:
    return AttemptWrite(
        index=outcome.place.index,
        attempt=outcome.attempt,
        end=outcome.end,
        began_ago=outcome.began_ago,
        category=outcome.failure.category.value,
        failure=_failure_json(outcome.failure),
        decision=verdict.to_json(),
        next_in=next_in,
    )


def _interrupted(outcome: Interrupted) -> Transition:
    entry = _entry(outcome.place, StepStatus.CANCELLED, attempt=outcome.attempt, began_ago=outcome.began_ago)
    decided = _progress(outcome.run, entry, change=_awake(outcome.run) if outcome.resumes else None)
    return decided if outcome.admitted is None else replace(decided, marks=marks_of(outcome))


def _noted(outcome: Noted) -> Transition:
    entry = _entry(outcome.place, StepStatus.SUCCESS, done=outcome.done, output=outcome.output)
    return _transition(outcome.run, entry, messages=outcome.messages)


def _slept(outcome: Slept) -> Transition:
    entry = _entry(outcome.place, StepStatus.RUNNING, wake_in=outcome.delay)
    change = _sleep(outcome.run, outcome.delay, outcome.hold) if outcome.idle else None
    return _progress(outcome.run, entry, change=change)


def _woke(outcome: Woke) -> Transition:
    entry = _entry(outcome.place, StepStatus.SUCCESS, done=outcome.done)
    return _progress(outcome.run, entry, change=_awake(outcome.run) if outcome.resumes else None)


# -- runs -------------------------------------------------------------------------------------------


def _ended(outcome: Ended) -> Transition:
    change = _final(RunStatus.SUCCESS, output=outcome.output)
    if outcome.run.letter is None:
        return _transition(outcome.run, change=change)
    return _answered(outcome.run, change, "replayed")


def _answered(run: RunView, change: RunWrite, resolution: str) -> Transition:
    """A replay ended well: nobody needs the letter any more."""
    if run.letter is None:
        return _transition(run, change=change)
    return _Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        change=change,
        move=LetterMove(letter=run.letter, status=LetterStatus.RESOLVED, by=ENGINE, resolution=resolution),
        ends_replay=run.letter,
        audit=replay_ended(run, change.status),
    )


def _stopped(outcome: Stopped) -> Transition:
    reason = f"only step {outcome.step!r} was replayed; retrying the run from_failed goes on with it"
    failure = Failure.of(Category.UNKNOWN, reason, error_type="redrive.RunPartial")
    ending = Ending(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    change = _final(RunStatus.PARTIAL, failure=ending.to_json())
    return _answered(outcome.run, change, "replayed in part")


def _escaped(outcome: Escaped) -> Transition:
    ending, run, place = outcome.ending, outcome.run, outcome.place
    entries = () if place is None else (_entry(place, StepStatus.DLQ, attempt=outcome.attempt),)
    if outcome.rolls_back:
        ends_as = RunStatus.COMPENSATED if run.options.rollback else RunStatus.DLQ_PENDING
        return _transition(run, *entries, change=_rolls_back(ending, ends_as))
    return _buried(run, ending, RunStatus.DLQ_PENDING, entries=entries)


def _expired(outcome: Expired) -> Transition:
    failure = Failure.of(Category.TIMEOUT, "the run passed its deadline", error_type="redrive.DeadlinePassed")
    ending = Ending(failure=failure, code=LetterCode.TIMEOUT, reason="the run passed its deadline")
    if _may_have_done_something(outcome.run):
        return _cut_off(outcome, _rolls_back(ending, RunStatus.TIMED_OUT))
    return _buried(
        outcome.run,
        ending,
        RunStatus.TIMED_OUT,
        attempts=_cut_short(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
    )


def _cancelled(outcome: Cancelled) -> Transition:
    reason = f"cancelled by {outcome.by}" + (f": {outcome.reason}" if outcome.reason else "")
    failure = Failure.of(Category.UNKNOWN, reason, error_type="redrive.RunCancelled")
    ending = Ending(failure=failure, code=LetterCode.NON_RETRYABLE, reason=reason)
    if _may_have_done_something(outcome.run):
        decided = _cut_off(outcome, _rolls_back(ending, RunStatus.CANCELLED))
        return replace(decided, audit=(run_cancelled(outcome),))
    decided = _answered(
        outcome.run,
        _final(RunStatus.CANCELLED, failure=ending.to_json(), unparks=True),
        "its run was cancelled",
    )
    return replace(
        decided,
        attempts=_cut_short(outcome.open, AttemptEnd.CANCELLED),
        closes=True,
        audit=(*decided.audit, run_cancelled(outcome)),
    )


# -- what follows a function ------------------------------------------------------------------------


def _may_have_done_something(run: RunView) -> bool:
    """True if a worker has to look what of this run is to be undone; one nobody ever had, did nothing."""
    return run.options.undoes and run.fence > 0


def _rolls_back(ending: Ending, ends_as: RunStatus) -> RunWrite:
    """Any worker may undo what the run did, with the journal in its hands."""
    return RunWrite(
        status=RunStatus.COMPENSATING,
        wake_in=_AHEAD,
        take=True,
        failure=ending.to_json(),
        parked_on="",
        ends_as=ends_as,
    )


def _cut_off(outcome: Expired | Cancelled, change: RunWrite) -> Transition:
    attempts = _cut_short(outcome.open, AttemptEnd.CANCELLED)
    return _transition(outcome.run, attempts=attempts, change=change, closes=True)


def _planned(outcome: Planned) -> Transition:
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
    return _progress(outcome.run, *entries)


def _handed(outcome: Handed) -> Transition:
    entry = _entry(outcome.place, StepStatus.RUNNING, output=json.dumps(outcome.instructions))
    change = RunWrite(status=RunStatus.COMPENSATING, take=True, diverged=False)
    return _progress(outcome.run, entry, change=change)


def _undone(outcome: Undone) -> Transition:
    run, ending = outcome.run, outcome.ending
    line = rolled_back(outcome)
    if outcome.ends_as is RunStatus.CANCELLED:
        decided = _answered(
            run, _final(RunStatus.CANCELLED, failure=ending.to_json()), "its run was cancelled"
        )
    elif outcome.ends_as is not RunStatus.COMPENSATED or outcome.forward:
        back = RunStatus.DLQ_PENDING if outcome.ends_as is RunStatus.COMPENSATED else outcome.ends_as
        decided = _buried(run, ending, back)
    else:
        decided = _resolved(outcome)
    return replace(decided, audit=(*decided.audit, *line))


def _resolved(outcome: Undone) -> Transition:
    """Nobody has to do anything about a run that was rolled back; that it failed stays on record."""
    run, text = outcome.run, outcome.ending.to_json()
    decided = _answered(run, _final(RunStatus.COMPENSATED, failure=text), "rolled_back")
    if not outcome.fresh or not run.options.dead_letter:
        return decided
    letter = _letter(run, outcome.ending, text)
    failed = run_failed(replace(run, undoing=False), outcome.ending, letter, RunStatus.COMPENSATED)
    move = LetterMove(
        letter=letter.public_id, status=LetterStatus.RESOLVED, by=ENGINE, resolution="rolled_back"
    )
    return replace(decided, letter=letter, move=move, audit=failed)


def _closed(outcome: Closed) -> Transition:
    """A letter is done with: its run, which waited for that, has failed for good."""
    run = outcome.run
    status = RunStatus.FAILED if outcome.ended is RunStatus.DLQ_PENDING else outcome.ended
    resolution = outcome.reason or outcome.status.value.lower()
    return replace(
        _transition(run, change=_final(status)),
        move=LetterMove(letter=outcome.letter, status=outcome.status, by=outcome.by, resolution=resolution),
        audit=(letter_closed(outcome, status),),
    )


def _released(outcome: Released) -> Transition:
    status = _put_by(outcome.run, outcome.delay)
    return _transition(
        outcome.run,
        *_to_repeat(outcome.open),
        attempts=_cut_short(outcome.open, AttemptEnd.RELEASED),
        change=RunWrite(status=status, wake_in=outcome.delay, take=True, deaths=0),
    )


def _lost(outcome: Lost, draw: float) -> Transition:
    run = outcome.run
    if outcome.deaths >= run.options.max_crashes and outcome.deaths > run.deaths:
        return _poisonous(outcome)
    # One microsecond at least: it waits, whether that is over by now or not.
    change = RunWrite(status=_put_by(run, 1), wake_in=outcome.wake_in, take=True)
    if outcome.executing:
        delay = 0.0
        if outcome.deaths:
            delay = backoff(run.options.retry or DEFAULT_RETRY, outcome.deaths, draw).seconds
        change = RunWrite(status=_put_by(run), wake_in=_micros(delay), take=True, deaths=outcome.deaths)
    return _transition(
        run,
        *_to_repeat(outcome.open),
        attempts=_cut_short(outcome.open, AttemptEnd.LOST),
        change=change,
    )


def _poisonous(outcome: Lost) -> Transition:
    what = f"{outcome.deaths} workers died while they executed this run"
    failure = Failure.of(Category.UNKNOWN, what, error_type="redrive.WorkerDied")
    code = LetterCode.COMPENSATION_FAILED if outcome.run.undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = Ending(failure=failure, code=code, reason=what)
    return _buried(
        outcome.run,
        ending,
        RunStatus.DLQ_PENDING,
        entries=_to_repeat(outcome.open),
        attempts=_cut_short(outcome.open, AttemptEnd.LOST),
        deaths=outcome.deaths,
    )


def _diverged(outcome: Diverged) -> Transition:
    match outcome.wait:
        case Wait.FOR_CODE:
            change = RunWrite(
                status=_put_by(outcome.run, 1), wake_in=outcome.delay, take=True, diverged=True, deaths=0
            )
            return _transition(outcome.run, change=change)
        case Wait.NO_MORE:
            failure = Failure.of(Category.INTERNAL, outcome.difference, error_type="redrive.CodeChanged")
            undoing = outcome.run.undoing
            code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.POLICY_VIOLATION
            ending = Ending(failure=failure, code=code, reason=outcome.difference)
            return _buried(outcome.run, ending, RunStatus.DLQ_PENDING)
        case _:
            assert_never(outcome.wait)


def _buried(
    run: RunView,
    ending: Ending,
    status: RunStatus,
    *,
    entries: tuple[EntryWrite, ...] = (),
    attempts: tuple[AttemptWrite, ...] = (),
    deaths: int | None = None,
    closes: bool = False,
) -> Transition:
    """End a run in failure: its letter and its state, in one transition."""
    text = ending.to_json()
    letter = _letter(run, ending, text) if run.options.dead_letter else None
    if letter is None and status is RunStatus.DLQ_PENDING:
        status = RunStatus.FAILED
    # What a run is rolled back for stays on record until that is over; how it got stuck is in the letter.
    keeps = run.undoing and ending.code is LetterCode.COMPENSATION_FAILED and ending.cause is None
    change = _final(status, failure=None if keeps else text, deaths=deaths, unparks=closes)
    decided = _transition(run, *entries, attempts=attempts, change=change, letter=letter, closes=closes)
    return replace(decided, ends_replay=run.letter, audit=run_failed(run, ending, letter, status))


def _letter(run: RunView, ending: Ending, text: str) -> LetterWrite:
    return LetterWrite(
        public_id=run.letter or letter_id(run.public_id),
        code=ending.code.value,
        stage=ending.stage.value,
        category=ending.failure.category.value,
        reason=ending.reason,
        failure=text,
        fingerprint=fingerprint(ending.failure, workflow=run.workflow, step=ending.step),
        expires_in=run.options.letter_keeps,
        payload_hash=payload_hash(run.input),
        step=ending.step,
        step_index=ending.step_index,
        attempts=ending.attempts,
    )


# -- pieces -----------------------------------------------------------------------------------------


def _transition(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    letter: LetterWrite | None = None,
    closes: bool = False,
    messages: tuple[MessageWrite, ...] = (),
) -> Transition:
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


def _progress(
    run: RunView,
    *entries: EntryWrite,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    messages: tuple[MessageWrite, ...] = (),
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
        clears_suspicion=run.deaths > 0,
        version=run.new_version,
    )


def _entry(
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


def _to_repeat(steps: tuple[OpenStep, ...]) -> tuple[EntryWrite, ...]:
    """Attempts cut short stay open, to be repeated under their number; nobody limits them meanwhile."""
    return tuple(
        _entry(step.place, StepStatus.RUNNING, attempt=step.attempt) for step in steps if step.executing
    )


def _cut_short(steps: tuple[OpenStep, ...], end: AttemptEnd) -> tuple[AttemptWrite, ...]:
    return tuple(
        AttemptWrite(index=step.place.index, attempt=step.attempt, end=end, began_ago=step.began_ago)
        for step in steps
        if step.executing
    )


def _awake(run: RunView) -> RunWrite:
    """The run goes on where it is: with its function, or undoing what that did."""
    return _UNDOING if run.undoing else _RUNNING


def _put_by(run: RunView, delay: int = 0) -> RunStatus:
    """How a run stands that no worker has: one that is being rolled back stays so, whatever it waits for."""
    if run.undoing:
        return RunStatus.COMPENSATING
    return RunStatus.SLEEPING if delay else RunStatus.PENDING


def _sleep(run: RunView, delay: int | None, hold: int, parked_on: str | None = None) -> RunWrite:
    """Wait: in its worker's memory if that is short, otherwise put down for any worker to pick up.

    Code that got as far as waiting found its way through the journal: if the code changes once more, it
    is waited for anew.
    """
    put_down = delay is None or delay > hold
    return RunWrite(
        status=_put_by(run, 1),
        wake_in=delay,
        release=put_down,
        take=put_down,
        diverged=False,
        parked_on=parked_on if put_down else None,
    )


def _final(
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


def _failure_json(failure: Failure) -> str:
    return json.dumps(failure.to_json())


def _micros(seconds: float) -> int:
    """Seconds as microseconds, rounded up: a retry is never early."""
    return math.ceil(seconds * 1_000_000)
