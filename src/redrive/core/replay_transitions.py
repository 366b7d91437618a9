"""Transitions of replays: the run continues, or a new run takes its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.core import transitions
from redrive.core.audit import AuditEvent, status_json
from redrive.core.journal import build_generation_note, entry_name
from redrive.core.new_run import extract_index_values
from redrive.core.outcomes import EntryRef, RunView
from redrive.core.questions import ManualAnswer, QuestionStatus
from redrive.core.replay_plan import ReplayMode, ReplayPlan, ReplayRequest, resolve_step_key
from redrive.core.saga import undone_step_name
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transition_build import build_entry
from redrive.core.transitions import EntryWrite, QuestionEnd, ReopenWrite, RunWrite, Transition
from redrive.policy import RetryPolicy
from redrive.record_fields import replace

# Shared, because a bulk replay needs it for up to 100,000 runs.
_REOPENED_RUN = RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=0, diverged=False)

_STATUS_BY_MODE = {ReplayMode.SKIP: StepStatus.SKIPPED, ReplayMode.COMPLETE: StepStatus.SUCCESS}
_ROLLBACK_EVENTS = {
    ReplayMode.FROM_FAILED: AuditEvent.SAGA_RESUMED,
    ReplayMode.SKIP: AuditEvent.SAGA_SKIPPED,
    ReplayMode.COMPLETE: AuditEvent.SAGA_MARKED_DONE,
}


class ReplayDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A planned replay of one run, with its values checked and encoded, and the user who decided it.

    `letter`: the id of the run's dead letter, written or not. `is_open`: the letter exists and its status changes.
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
    """Return the transition with which the run itself continues."""
    request, plan = decision.request, decision.plan
    if plan.undo is not None or plan.rolls_back:
        return _reopen_rollback(run, status, decision)
    entries = _build_given_results(decision)
    if request.new_operation:
        index = max(plan.next_index, *(entry.index + 1 for entry in entries), 0)
        entries = (*entries, build_generation_note(index, (*plan.kept, *plan.loose)))
    written = {entry.index for entry in entries}
    new_input, fields = decision.input, run.options.index
    reopens = ReopenWrite(
        letter=decision.letter,
        supersedes=tuple(entry.index for entry in plan.again if entry.index not in written),
        loosens=(*(entry.index for entry in plan.loose), *written),
        sole_step=plan.failed.key if request.mode is ReplayMode.STEP_ONLY and plan.failed is not None else None,
        input=new_input,
        options=_override_options(run, request),
        new_operation=request.new_operation,
        index=None if new_input is None or not fields else extract_index_values(new_input, fields),
    )
    return _build_transition(run, status, decision, _REOPENED_RUN, entries=entries, reopens=reopens)


def restart_run(run: RunView, status: RunStatus, decision: ReplayDecision, new: transitions.NewRun) -> Transition:
    """Return the transition with which a new run takes the place of this one, and its open letter."""
    ended = RunStatus.FAILED if status is RunStatus.DLQ_PENDING else status
    new = replace(
        new,
        input=decision.input or new.input,
        options=_override_options(run, decision.request) or new.options,
        generation=new.generation + decision.request.new_operation,
        letter=decision.letter if decision.is_open else None,
        index=extract_index_values(decision.input or new.input, run.options.index),
    )
    return _build_transition(run, status, decision, RunWrite(status=ended, take=True), new=new)


def _reopen_rollback(run: RunView, status: RunStatus, decision: ReplayDecision) -> Transition:
    """Return the transition that starts a rollback, or continues one at its unfinished compensation."""
    entries: tuple[EntryWrite, ...] = ()
    supersedes: tuple[int, ...] = ()
    entry, given_status = decision.plan.undo, _STATUS_BY_MODE.get(decision.request.mode)
    if entry is not None and given_status is not None:
        # The compensation counts as called, although a user decided on it.
        entries = (build_entry(entry, given_status, attempt=max(1, entry.attempt), done=entry.done),)
    elif entry is not None and entry.status in (StepStatus.FAILED, StepStatus.DLQ):
        supersedes = (entry.index,)
    change = RunWrite(
        status=RunStatus.COMPENSATING,
        wake_in=0,
        take=True,
        deaths=0,
        diverged=False,
        ends_as=RunStatus.COMPENSATED if decision.plan.rolls_back else None,
    )
    options = _override_options(run, decision.request)
    reopens = ReopenWrite(letter=decision.letter, supersedes=supersedes, options=options)
    decided = _build_transition(run, status, decision, change, entries=entries, reopens=reopens)
    if entry is None or given_status is None:
        return decided
    answer = ManualAnswer.SKIP if given_status is StepStatus.SKIPPED else ManualAnswer.DONE
    answered = QuestionEnd(
        index=entry.index,
        status=QuestionStatus.ANSWERED,
        by=decision.by,
        answer=json.dumps(answer),
        note=decision.reason,
    )
    return replace(decided, question_ends=(answered,))


def _build_transition(
    run: RunView,
    status: RunStatus,
    decision: ReplayDecision,
    change: RunWrite,
    *,
    entries: tuple[EntryWrite, ...] = (),
    reopens: ReopenWrite | None = None,
    new: transitions.NewRun | None = None,
) -> Transition:
    """Return the transition of a replay, with its audit entry. `new` is the run that replaces `run`."""
    request, run_id = decision.request, run.public_id if new is None else new.public_id
    move = None
    if decision.is_open:
        new_id = None if new is None else new.public_id
        move = transitions.LetterStatusWrite(letter=decision.letter, status=LetterStatus.REPLAYING, run=new_id)
    replay = transitions.ReplayWrite(
        letter=decision.letter,
        mode=request.mode.value,
        digest=request.digest,
        request=request.text,
        run_id=run_id,
        by=decision.by,
        reason=decision.reason,
        key=decision.key,
        changes=decision.changes,
    )
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=entries,
        change=change,
        reopens=reopens,
        starts=() if new is None else (new,),
        move=move,
        replay=replay,
        audit=(_build_audit_write(run, status, decision, run_id),),
    )


def _build_given_results(decision: ReplayDecision) -> tuple[EntryWrite, ...]:
    """Return the entries whose results the user gives: the failed step, and steps that are not to be called."""
    plan, mode = decision.plan, decision.request.mode
    if decision.output is None and not decision.skipped:
        return ()
    standing = (*plan.again, *plan.kept, *plan.loose)
    last_done = max((entry.done for entry in standing if entry.done is not None), default=-1)
    given = []
    if plan.failed is not None and decision.output is not None:
        status = StepStatus.SKIPPED if mode is ReplayMode.SKIP else StepStatus.SUCCESS
        # An interrupted step has no completion number yet.
        done = last_done + 1 if plan.failed.done is None else plan.failed.done
        given.append(build_entry(plan.failed, status, attempt=plan.failed.attempt, done=done, output=decision.output))
    # A recorded result is superseded as usual; only an entry without one is given a result in its place.
    without = {entry.key: entry for entry in standing if entry.status is not StepStatus.SUCCESS}
    index = plan.next_index
    for done, (name, output) in enumerate(decision.skipped.items(), last_done + 1):
        key = resolve_step_key(name)
        found = without.get(key)
        if found is not None:
            done = done if found.done is None else found.done
            given.append(build_entry(found, StepStatus.SKIPPED, attempt=found.attempt, done=done, output=output))
            continue
        new = EntryRef(index, key, EntryKind.STEP, entry_name(key))
        given.append(build_entry(new, StepStatus.SKIPPED, done=done, input="null", output=output))
        index += 1
    return tuple(given)


def _build_audit_write(
    run: RunView, status: RunStatus, decision: ReplayDecision, run_id: str
) -> transitions.AuditWrite:
    request, undo = decision.request, decision.plan.undo
    event = AuditEvent.LETTER_RETRIED if decision.is_open else AuditEvent.RUN_RETRIED
    after: dict[str, Any] = {"mode": request.mode.value, "run": run_id}
    if undo is not None:
        event = _ROLLBACK_EVENTS[request.mode]
        after |= {"step": undone_step_name(undo.key), "action": undo.name}
    elif decision.plan.rolls_back:
        event = AuditEvent.ROLLED_BACK
    elif request.mode is ReplayMode.COMPLETE:
        event = AuditEvent.LETTER_COMPLETED
    # Payloads are left out: the audit log outlives them, and more users may read it.
    details = {
        "from_step": request.from_step,
        "new_operation": request.new_operation or None,
        "ask_again": request.ask_again or None,
        "input": "edited" if request.edits else None,
        "retry": request.retry,
        "skipped": sorted(request.skip_steps) or None,
    }
    after |= {name: value for name, value in details.items() if value is not None}
    return transitions.AuditWrite(
        event=event.value,
        tenant=run.tenant,
        by=decision.by,
        subject=run.public_id,
        letter=decision.letter,
        before=status_json(status),
        after=json.dumps(after),
        reason=decision.reason,
    )


def _override_options(run: RunView, request: ReplayRequest) -> str | None:
    if request.retry is None:
        return None
    return replace(run.options, override=RetryPolicy.from_stored(request.retry)).to_json()
