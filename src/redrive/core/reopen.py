"""A decision to replay as the rows it writes: the run goes on, or a new one starts in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from redrive.core.audit import AuditEvent
from redrive.core.journal import EntryRow, build_generation_note, entry_name
from redrive.core.new_run import extract_index_values
from redrive.core.outcomes import RunView
from redrive.core.replay import ReplayMode, ReplayPlan, ReplayRequest, resolve_step_key
from redrive.core.saga import undone_step_name
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import (
    AuditWrite,
    EntryWrite,
    LetterStatusWrite,
    NewRun,
    ReopenWrite,
    ReplayWrite,
    RunWrite,
    Transition,
)
from redrive.policy import RetryPolicy
from redrive.records import replace

# A set of letters makes a hundred thousand of each.
_REOPENED_RUN = RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=0, diverged=False)


class ReplayDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one run: planned, with its values checked and encoded, and with who asks for it.

    `letter` is the id of the run's letter, written or not; `is_open` says that there is one to be moved.
    """

    request: ReplayRequest
    plan: ReplayPlan
    letter: str
    is_open: bool
    by: str
    reason: str | None = None
    key: str | None = None
    input: str | None = None
    changes: str | None = None
    output: str | None = None
    skipped: Mapping[str, str] = msgspec.field(default_factory=dict)


def reopen_run(run: RunView, status: RunStatus, decision: ReplayDecision) -> Transition:
    """The run itself goes on."""
    request, plan = decision.request, decision.plan
    if plan.undo is not None or plan.rolls_back:
        return _reopen_rollback(run, status, decision)
    given = (*_build_manual_result(decision), *_build_skipped_results(decision))
    if request.new_operation:
        given = (*given, _build_generation_note(plan, given))
    written = {entry.index for entry in given}
    reopening = ReopenWrite(
        letter=decision.letter,
        supersedes=tuple(entry.index for entry in plan.again if entry.index not in written),
        loosens=(*(entry.index for entry in plan.loose), *written),
        sole_step=plan.failed.key if request.mode is ReplayMode.STEP_ONLY and plan.failed is not None else None,
        input=decision.input,
        options=_override_options(run, request),
        new_operation=request.new_operation,
        index=_find_new_index(run, decision),
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=given,
        change=_REOPENED_RUN,
        reopens=reopening,
        move=_build_letter_status(decision),
        replay=_build_replay_write(decision, run.public_id),
        audit=(_build_audit_write(run, status, decision, run.public_id),),
    )


def restart_run(run: RunView, status: RunStatus, decision: ReplayDecision, new: NewRun) -> Transition:
    """A new run takes its place; an open letter goes over to that one."""
    ended = RunStatus.FAILED if status is RunStatus.DLQ_PENDING else status
    options = _override_options(run, decision.request)
    new = replace(
        new,
        input=decision.input or new.input,
        options=options or new.options,
        generation=new.generation + decision.request.new_operation,
        letter=decision.letter if decision.is_open else None,
        index=extract_index_values(decision.input or new.input, run.options.index),
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        change=RunWrite(status=ended, take=True),
        starts=(new,),
        move=_build_letter_status(decision, new.public_id),
        replay=_build_replay_write(decision, new.public_id),
        audit=(_build_audit_write(run, status, decision, new.public_id),),
    )


def _reopen_rollback(run: RunView, status: RunStatus, decision: ReplayDecision) -> Transition:
    """What the run did is undone, from now on or further."""
    entry, rolls_back = decision.plan.undo, decision.plan.rolls_back
    by_hand = _STATUS_BY_MODE.get(decision.request.mode)
    again = entry is not None and by_hand is None and entry.status in (StepStatus.FAILED, StepStatus.DLQ)
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=() if entry is None or by_hand is None else (_build_decided_entry(entry, by_hand),),
        change=RunWrite(
            status=RunStatus.COMPENSATING,
            wake_in=0,
            take=True,
            deaths=0,
            diverged=False,
            ends_as=RunStatus.COMPENSATED if rolls_back else None,
        ),
        reopens=ReopenWrite(
            letter=decision.letter,
            supersedes=(entry.index,) if entry is not None and again else (),
            options=_override_options(run, decision.request),
        ),
        move=_build_letter_status(decision),
        replay=_build_replay_write(decision, run.public_id),
        audit=(_build_audit_write(run, status, decision, run.public_id),),
    )


_STATUS_BY_MODE = {ReplayMode.SKIP: StepStatus.SKIPPED, ReplayMode.COMPLETE: StepStatus.SUCCESS}
_EVENT_BY_MODE = {
    ReplayMode.FROM_FAILED: AuditEvent.SAGA_RESUMED,
    ReplayMode.SKIP: AuditEvent.SAGA_SKIPPED,
    ReplayMode.COMPLETE: AuditEvent.SAGA_MARKED_DONE,
}


def _build_decided_entry(entry: EntryRow, status: StepStatus) -> EntryWrite:
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


def _find_new_index(run: RunView, decision: ReplayDecision) -> tuple[tuple[str, str], ...] | None:
    """What the run is found by once its input is edited."""
    if decision.input is None or not run.options.index:
        return None
    return extract_index_values(decision.input, run.options.index)


def _build_manual_result(decision: ReplayDecision) -> tuple[EntryWrite, ...]:
    """The failed step's result, where a person gives it."""
    failed, output = decision.plan.failed, decision.output
    if failed is None or output is None:
        return ()
    status = StepStatus.SKIPPED if decision.request.mode is ReplayMode.SKIP else StepStatus.SUCCESS
    done = _last_done_number(decision.plan) + 1 if failed.done is None else failed.done  # cut short, it has none
    return (_build_result_entry(failed, status, done, output),)


def _build_skipped_results(decision: ReplayDecision) -> tuple[EntryWrite, ...]:
    """Steps that are not to be called: they have their results before they are asked for."""
    if not decision.skipped:
        return ()
    plan = decision.plan
    standing = (*plan.again, *plan.kept, *plan.loose)
    # A result that was there is superseded like any other; only what has none is given one in its place.
    without = {entry.key: entry for entry in standing if entry.status is not StepStatus.SUCCESS}
    index = plan.next_index
    done = _last_done_number(plan)
    given = []
    for name, output in decision.skipped.items():
        found = without.get(resolve_step_key(name))
        done += 1
        if found is not None:
            given.append(
                _build_result_entry(found, StepStatus.SKIPPED, found.done if found.done is not None else done, output)
            )
        else:
            given.append(_build_new_entry(index, resolve_step_key(name), done, output))
            index += 1
    return tuple(given)


def _build_generation_note(plan: ReplayPlan, given: tuple[EntryWrite, ...]) -> EntryWrite:
    """The note behind everything on record that what follows is another operation."""
    index = max(plan.next_index, *(entry.index + 1 for entry in given), 0)
    return build_generation_note(index, (*plan.kept, *plan.loose))


def _last_done_number(plan: ReplayPlan) -> int:
    standing = (*plan.again, *plan.kept, *plan.loose)
    return max((entry.done for entry in standing if entry.done is not None), default=-1)


def _build_result_entry(entry: EntryRow, status: StepStatus, done: int | None, output: str) -> EntryWrite:
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


def _build_new_entry(index: int, key: str, done: int, output: str) -> EntryWrite:
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


def _build_letter_status(decision: ReplayDecision, run: str | None = None) -> LetterStatusWrite | None:
    if not decision.is_open:
        return None
    return LetterStatusWrite(letter=decision.letter, status=LetterStatus.REPLAYING, run=run)


def _build_replay_write(decision: ReplayDecision, run_id: str) -> ReplayWrite:
    return ReplayWrite(
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


def _build_audit_write(run: RunView, status: RunStatus, decision: ReplayDecision, run_id: str) -> AuditWrite:
    event = AuditEvent.LETTER_RETRIED if decision.is_open else AuditEvent.RUN_RETRIED
    if decision.request.mode is ReplayMode.COMPLETE:
        event = AuditEvent.LETTER_COMPLETED
    after: dict[str, Any] = {"mode": decision.request.mode.value, "run": run_id}
    if decision.plan.undo is not None:
        event = _EVENT_BY_MODE[decision.request.mode]
        after |= {"step": undone_step_name(decision.plan.undo.key), "action": decision.plan.undo.name}
    elif decision.plan.rolls_back:
        event = AuditEvent.ROLLED_BACK
    after |= _audit_details(decision.request)
    return AuditWrite(
        event=event.value,
        tenant=run.tenant,
        by=decision.by,
        subject=run.public_id,
        letter=decision.letter,
        before=_status_json(status),
        after=json.dumps(after),
        reason=decision.reason,
    )


def _audit_details(request: ReplayRequest) -> dict[str, Any]:
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
def _status_json(status: RunStatus) -> str:
    return json.dumps({"run": status.value})


def _override_options(run: RunView, request: ReplayRequest) -> str | None:
    if request.retry is None:
        return None
    return replace(run.options, override=RetryPolicy.from_json(request.retry)).to_json()
