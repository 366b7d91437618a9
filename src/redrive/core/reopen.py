"""A decision to replay as the rows it writes: the run goes on, or a new one starts in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache
from typing import Any

from redrive.core.audit import Event
from redrive.core.journal import EntryRow, begin_generation, entry_name
from redrive.core.new_run import index_values
from redrive.core.outcomes import RunView
from redrive.core.quick import quick
from redrive.core.replay import Mode, Plan, ReplayRequest, skipped_key
from redrive.core.saga import undone_step
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import (
    AuditWrite,
    EntryWrite,
    LetterMove,
    NewRun,
    Reopening,
    ReplayWrite,
    RunWrite,
    Transition,
)
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy

__all__ = ["Decision", "reopened", "restarted"]

# A set of letters makes a hundred thousand of each.
_Transition, _Reopening = quick(Transition), quick(Reopening)
_LetterMove, _ReplayWrite, _AuditWrite = quick(LetterMove), quick(ReplayWrite), quick(AuditWrite)
_GOES_ON = RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=0, diverged=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A request for one run: planned, with its values checked and encoded, and with who asks for it.

    `letter` is the id of the run's letter, written or not; `is_open` says that there is one to be moved.
    """

    request: ReplayRequest
    plan: Plan
    letter: str
    is_open: bool
    by: str
    reason: str | None = None
    key: str | None = None
    input: str | None = None
    changes: str | None = None
    output: str | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)


def reopened(run: RunView, status: RunStatus, decision: Decision) -> Transition:
    """The run itself goes on."""
    request, plan = decision.request, decision.plan
    if plan.undo is not None or plan.rolls_back:
        return _undone(run, status, decision)
    given = (*_given_by_hand(decision), *_given_ahead(decision))
    if request.new_operation:
        given = (*given, _new_generation(plan, given))
    written = {entry.index for entry in given}
    reopening = _Reopening(
        letter=decision.letter,
        supersedes=tuple(entry.index for entry in plan.again if entry.index not in written),
        loosens=(*(entry.index for entry in plan.loose), *written),
        sole_step=plan.failed.key if request.mode is Mode.STEP_ONLY and plan.failed is not None else None,
        input=decision.input,
        options=_with_override(run, request),
        new_operation=request.new_operation,
        index=_indexed(run, decision),
    )
    return _Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=given,
        change=_GOES_ON,
        reopens=reopening,
        move=_move(decision),
        replay=_replay(decision, run.public_id),
        audit=(_audit(run, status, decision, run.public_id),),
    )


def restarted(run: RunView, status: RunStatus, decision: Decision, new: NewRun) -> Transition:
    """A new run takes its place; an open letter goes over to that one."""
    ended = RunStatus.FAILED if status is RunStatus.DLQ_PENDING else status
    options = _with_override(run, decision.request)
    new = replace(
        new,
        input=decision.input or new.input,
        options=options or new.options,
        generation=new.generation + decision.request.new_operation,
        letter=decision.letter if decision.is_open else None,
        index=index_values(decision.input or new.input, run.options.index),
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        change=RunWrite(status=ended, take=True),
        starts=(new,),
        move=_move(decision, new.public_id),
        replay=_replay(decision, new.public_id),
        audit=(_audit(run, status, decision, new.public_id),),
    )


def _undone(run: RunView, status: RunStatus, decision: Decision) -> Transition:
    """What the run did is undone, from now on or further."""
    entry, rolls_back = decision.plan.undo, decision.plan.rolls_back
    by_hand = _DECIDED.get(decision.request.mode)
    again = entry is not None and by_hand is None and entry.status in (StepStatus.FAILED, StepStatus.DLQ)
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=() if entry is None or by_hand is None else (_decided(entry, by_hand),),
        change=RunWrite(
            status=RunStatus.COMPENSATING,
            wake_in=0,
            take=True,
            deaths=0,
            diverged=False,
            ends_as=RunStatus.COMPENSATED if rolls_back else None,
        ),
        reopens=Reopening(
            letter=decision.letter,
            supersedes=(entry.index,) if entry is not None and again else (),
            options=_with_override(run, decision.request),
        ),
        move=_move(decision),
        replay=_replay(decision, run.public_id),
        audit=(_audit(run, status, decision, run.public_id),),
    )


_DECIDED = {Mode.SKIP: StepStatus.SKIPPED, Mode.COMPLETE: StepStatus.SUCCESS}
_EVENTS = {
    Mode.FROM_FAILED: Event.SAGA_RESUMED,
    Mode.SKIP: Event.SAGA_SKIPPED,
    Mode.COMPLETE: Event.SAGA_MARKED_DONE,
}


def _decided(entry: EntryRow, status: StepStatus) -> EntryWrite:
    """A compensation that a person decided on; it counts as tried."""
    return EntryWrite(
        index=entry.index,
        key=entry.key,
        kind=entry.kind,
        name=entry.name,
        status=status,
        attempt=max(1, entry.attempt),
        done=entry.done,
    )


# -- pieces ---------------------------------------------------------------------------------------------


def _indexed(run: RunView, decision: Decision) -> tuple[tuple[str, str], ...] | None:
    """What the run is found by once its input is edited."""
    if decision.input is None or not run.options.index:
        return None
    return index_values(decision.input, run.options.index)


def _given_by_hand(decision: Decision) -> tuple[EntryWrite, ...]:
    """The failed step's result, where a person gives it."""
    failed, output = decision.plan.failed, decision.output
    if failed is None or output is None:
        return ()
    status = StepStatus.SKIPPED if decision.request.mode is Mode.SKIP else StepStatus.SUCCESS
    done = _last_done(decision.plan) + 1 if failed.done is None else failed.done  # cut short, it has none
    return (_entry(failed, status, done, output),)


def _given_ahead(decision: Decision) -> tuple[EntryWrite, ...]:
    """Steps that are not to be called: they have their results before they are asked for."""
    if not decision.skipped:
        return ()
    plan = decision.plan
    standing = (*plan.again, *plan.kept, *plan.loose)
    # A result that was there is superseded like any other; only what has none is given one in its place.
    without = {entry.key: entry for entry in standing if entry.status is not StepStatus.SUCCESS}
    index = plan.next_index
    done = _last_done(plan)
    given = []
    for name, output in decision.skipped.items():
        found = without.get(skipped_key(name))
        done += 1
        if found is not None:
            given.append(
                _entry(found, StepStatus.SKIPPED, found.done if found.done is not None else done, output)
            )
        else:
            given.append(_new_entry(index, skipped_key(name), done, output))
            index += 1
    return tuple(given)


def _new_generation(plan: Plan, given: tuple[EntryWrite, ...]) -> EntryWrite:
    """The note behind everything on record that what follows is another operation."""
    index = max(plan.next_index, *(entry.index + 1 for entry in given), 0)
    return begin_generation(index, (*plan.kept, *plan.loose))


def _last_done(plan: Plan) -> int:
    standing = (*plan.again, *plan.kept, *plan.loose)
    return max((entry.done for entry in standing if entry.done is not None), default=-1)


def _entry(entry: EntryRow, status: StepStatus, done: int | None, output: str) -> EntryWrite:
    return EntryWrite(
        index=entry.index,
        key=entry.key,
        kind=entry.kind,
        name=entry.name,
        status=status,
        attempt=entry.attempt,
        done=done,
        output=output,
    )


def _new_entry(index: int, key: str, done: int, output: str) -> EntryWrite:
    return EntryWrite(
        index=index,
        key=key,
        kind=EntryKind.STEP,
        name=entry_name(key),
        status=StepStatus.SKIPPED,
        done=done,
        input="null",
        output=output,
    )


def _move(decision: Decision, run: str | None = None) -> LetterMove | None:
    if not decision.is_open:
        return None
    return _LetterMove(letter=decision.letter, status=LetterStatus.REPLAYING, run=run)


def _replay(decision: Decision, run_id: str) -> ReplayWrite:
    return _ReplayWrite(
        letter=decision.letter,
        mode=decision.request.mode.value,
        digest=decision.request.digest,
        request=decision.request.text,
        run_id=run_id,
        by=decision.by,
        reason=decision.reason,
        key=decision.key,
        changes=decision.changes,
    )


def _audit(run: RunView, status: RunStatus, decision: Decision, run_id: str) -> AuditWrite:
    event = Event.LETTER_RETRIED if decision.is_open else Event.RUN_RETRIED
    if decision.request.mode is Mode.COMPLETE:
        event = Event.LETTER_COMPLETED
    after: dict[str, Any] = {"mode": decision.request.mode.value, "run": run_id}
    if decision.plan.undo is not None:
        event = _EVENTS[decision.request.mode]
        after |= {"step": undone_step(decision.plan.undo.key), "action": decision.plan.undo.name}
    elif decision.plan.rolls_back:
        event = Event.ROLLED_BACK
    after |= _told(decision.request)
    return _AuditWrite(
        event=event.value,
        tenant=run.tenant,
        by=decision.by,
        subject=run.public_id,
        letter=decision.letter,
        before=_state(status),
        after=json.dumps(after),
        reason=decision.reason,
    )


def _told(request: ReplayRequest) -> dict[str, Any]:
    """What else was asked for. Payloads are not told: the audit log outlives them, and everybody reads it."""
    said: dict[str, Any] = {}
    if request.from_step is not None:
        said["from_step"] = request.from_step
    if request.new_operation:
        said["new_operation"] = True
    if request.edits:
        said["input"] = "edited"
    if request.retry is not None:
        said["retry"] = request.retry
    if request.skip_steps:
        said["skipped"] = sorted(request.skip_steps)
    return said


@cache
def _state(status: RunStatus) -> str:
    return json.dumps({"run": status.value})


def _with_override(run: RunView, request: ReplayRequest) -> str | None:
    if request.retry is None:
        return None
    return replace(run.options, override=RetryPolicy.from_json(request.retry)).to_json()
