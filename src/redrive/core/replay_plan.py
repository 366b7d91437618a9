"""Replay plans: the effect of a replay on a run, decided from its journal alone.

    plan_replay(target, request) -> ReplayPlan

A dry run and the real replay use the same plan. It divides the recorded entries:

    again   the failed step, and entries that were cancelled when it failed: superseded, executed again if requested
    loose   recorded after the failure: their results stand, but the function need not request them
    kept    everything else: the function requests it as before
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from redrive.core.classify import Category
from redrive.core.decide_entry import CIRCUIT_OPEN_ERROR_TYPE
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow, entry_key
from redrive.core.run_options import StepOptions
from redrive.core.saga import LedgerRow, find_unfinished, is_manual, read_ledger
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.waits_and_events import Wait, WaitMode
from redrive.errors import Conflict, InputError
from redrive.reasons import Reason, ReasonCode, quote


class ReplayMode(StrEnum):
    """The mode of a replay."""

    FROM_FAILED = "FROM_FAILED"
    STEP_ONLY = "STEP_ONLY"
    FROM_STEP = "FROM_STEP"
    SKIP = "SKIP"
    COMPLETE = "COMPLETE"
    FULL = "FULL"
    ROLLBACK = "ROLLBACK"


_INPUT_MODES = frozenset({ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP, ReplayMode.FULL})
_OUTPUT_MODES = frozenset({ReplayMode.SKIP, ReplayMode.COMPLETE})
REPLAYABLE_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.PARTIAL})
_ROLLBACK_STATUSES = frozenset({RunStatus.COMPENSATING, RunStatus.COMPENSATED})


@dataclass(frozen=True, kw_only=True)  # without slots, which leave no room for the cached text
class ReplayRequest:
    """A user's decision to replay. `input`, `patch`, `output` and `skip_steps` hold JSON values.

    `ask_again`: questions that people answered for the original input are asked again. `undo` names the compensation to
    skip, or to mark as done. The user, the reason and the key are not part of it: the
    same decision of two users is equal.
    """

    mode: ReplayMode = ReplayMode.FROM_FAILED
    from_step: int | None = None
    input: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    output: Any = None
    skip_steps: Mapping[str, Any] = field(default_factory=dict)
    retry: dict[str, Any] | None = None
    new_operation: bool = False
    ask_again: bool = False
    undo: str | None = None

    def __post_init__(self) -> None:
        if self.mode is ReplayMode.FROM_STEP and self.from_step is None:
            raise InputError(Reason(ReasonCode.FROM_STEP_NEEDED))
        if self.mode is not ReplayMode.FROM_STEP and self.from_step is not None:
            raise InputError(Reason(ReasonCode.FROM_STEP_UNUSED, mode=self.mode))
        if self.input is not None and self.patch is not None:
            raise InputError(Reason(ReasonCode.INPUT_AND_PATCH))
        if self.edits and self.mode not in _INPUT_MODES:
            raise InputError(Reason(ReasonCode.INPUT_KEPT, mode=self.mode))
        if self.output is not None and self.mode not in _OUTPUT_MODES:
            raise InputError(Reason(ReasonCode.OUTPUT_UNUSED))
        if self.undo is not None and self.mode not in _OUTPUT_MODES:
            raise InputError(Reason(ReasonCode.UNDO_UNUSED))
        if self.ask_again and (not self.edits or self.mode is ReplayMode.FULL):
            raise InputError(Reason(ReasonCode.ASK_AGAIN_UNUSED))
        if self.skip_steps and self.mode not in (ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP):
            raise InputError(Reason(ReasonCode.SKIP_STEPS_UNUSED))

    @property
    def edits(self) -> bool:
        """True if the request changes the input."""
        return self.input is not None or self.patch is not None

    @property
    def gives_output(self) -> bool:
        """True if the request gives the result of the failed step or compensation."""
        return self.mode in _OUTPUT_MODES

    @property
    def has_payloads(self) -> bool:
        """True if the request contains an input or results of steps."""
        return self.edits or bool(self.skip_steps) or self.output is not None

    def to_json(self) -> dict[str, Any]:
        """Return the decision as it is stored and compared, without empty fields."""
        data = {
            "mode": self.mode.value,
            "from_step": self.from_step,
            "input": self.input,
            "patch": self.patch,
            "skip_steps": dict(self.skip_steps) or None,
            "retry": self.retry,
            "new_operation": self.new_operation or None,
            "ask_again": self.ask_again or None,
            "undo": self.undo,
        }
        if self.gives_output:
            data["output"] = {"value": self.output}
        return {name: value for name, value in data.items() if value is not None}

    @property
    def text(self) -> str:
        """The decision as JSON text, as it is stored."""
        return self._encoded[0]

    @property
    def digest(self) -> str:
        """A hash that is equal for equal decisions."""
        return self._encoded[1]

    @cached_property
    def _encoded(self) -> tuple[str, str]:
        """Text and digest. Both are cached: a bulk replay uses one request for up to 100,000 letters."""
        data = self.to_json()
        # Encoded in pieces, so that a thread that encodes a large request does not block the others.
        text = "".join(json.JSONEncoder().iterencode(data))
        ordered = "".join(json.JSONEncoder(sort_keys=True).iterencode(data))
        return text, hashlib.sha256(ordered.encode()).hexdigest()


class ReplayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The run to replay, as far as a plan needs it.

    For a rollback: `undoes` are the entries that it would undo, in order, and `pivot` is the step that forbids it.
    """

    run_id: str
    status: RunStatus
    ended_at: int
    ending: FailureReason | None
    journal: tuple[EntryRow, ...]
    undoes: tuple[EntryRow, ...] = ()
    pivot: str | None = None

    @property
    def next_index(self) -> int:
        """The index of the next new entry."""
        return max([entry.index for entry in self.journal], default=-1) + 1


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The entries that a replay executes again, keeps, or leaves to the function to request.

    `undo`: the compensation at which a stopped rollback continues. `rolls_back`: the replay starts a rollback.
    """

    failed: EntryRow | None
    next_index: int
    again: tuple[EntryRow, ...] = ()
    kept: tuple[EntryRow, ...] = ()
    loose: tuple[EntryRow, ...] = ()
    undo: EntryRow | None = None
    rolls_back: bool = False


def plan_replay(target: ReplayTarget, request: ReplayRequest) -> ReplayPlan:
    """Return the plan of a replay. A request that does not fit the run is refused with its reason."""
    ledger = read_ledger(target.journal)
    if request.mode is ReplayMode.ROLLBACK:
        return _plan_rollback(target, ledger)
    if target.status in _ROLLBACK_STATUSES or (ledger and target.status in REPLAYABLE_STATUSES):
        return _plan_rollback_decision(target, ledger, request)
    if target.status not in REPLAYABLE_STATUSES:
        raise Conflict(Reason(ReasonCode.NOT_REPLAYABLE, run=target.run_id, status=target.status))
    standing = tuple(entry for entry in target.journal if not entry.superseded)
    _refuse_confirmed_steps(standing, request)
    failed = _find_failed_step(target, standing)
    if failed is None and request.mode in (ReplayMode.SKIP, ReplayMode.COMPLETE, ReplayMode.STEP_ONLY):
        raise InputError(Reason(ReasonCode.NO_STEP_FAILED, mode=request.mode))
    if request.mode is ReplayMode.FULL:
        for entry in standing:
            if _is_at_most_once(entry) and not request.new_operation:
                raise InputError(Reason(ReasonCode.FULL_WOULD_REPEAT, step=entry.name))
        return ReplayPlan(failed=failed, next_index=target.next_index, again=standing)
    cause = failed or _find_expired_timer(target, standing)
    cancelled = again = _find_cancelled(target, standing, cause, request)
    if request.mode is ReplayMode.FROM_STEP:
        again = _find_entries_from_step(standing, cancelled, request)
    elif request.mode in (ReplayMode.FROM_FAILED, ReplayMode.STEP_ONLY) and cause is not None:
        if request.mode is ReplayMode.STEP_ONLY or not _is_skipped(cause, request):
            if _is_at_most_once(cause):
                raise InputError(Reason(ReasonCode.STEP_CALL_UNCERTAIN, step=cause.name, index=cause.index))
            again = (cause, *cancelled)
    if request.ask_again:
        chosen = {entry.index for entry in again}
        again = (*again, *(each for each in standing if each.index not in chosen and find_answer(each) is not None))
    for entry in cancelled:
        # The step may have happened, so it is executed again only if the user names it.
        if _is_at_most_once(entry) and entry.index != request.from_step and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_UNCERTAIN, step=entry.name, index=entry.index))
    replaced = {entry.index for entry in again}
    kept: list[EntryRow] = []
    loose: list[EntryRow] = []
    for entry in standing:
        if entry.index in replaced:
            continue
        if _is_skipped(entry, request) and entry.status is StepStatus.SUCCESS:
            raise InputError(Reason(ReasonCode.STEP_SUCCEEDED, step=entry.name, index=entry.index))
        # With another input the function may take another path from its start.
        is_loose = request.edits or (cause is not None and _may_depend_on(entry, cause))
        (loose if is_loose else kept).append(entry)
    return ReplayPlan(failed=failed, next_index=target.next_index, again=again, kept=tuple(kept), loose=tuple(loose))


def find_answer(entry: EntryRow) -> dict[str, Any] | None:
    """Return the recorded answer of a person to a question, with `by` and `at`; None if an entry has none."""
    if entry.kind is not EntryKind.WAIT or entry.status is not StepStatus.SUCCESS or entry.output is None:
        return None
    is_task = Wait.from_json(entry.input or "").mode is WaitMode.TASK
    found: dict[str, Any] | None = json.loads(entry.output) if is_task else None
    return found


def resolve_step_key(name: str) -> str:
    """Return the key of a step that is given by its key, or by its name alone: its first call."""
    return name if "#" in name else entry_key("", name, 0)


def _plan_rollback(target: ReplayTarget, ledger: tuple[LedgerRow, ...]) -> ReplayPlan:
    """Return the plan that undoes everything the run did."""
    run, status, stopped = target.run_id, target.status, find_unfinished(ledger)
    if status in _ROLLBACK_STATUSES:
        raise Conflict(Reason(ReasonCode.ROLLED_BACK_ALREADY, run=run, status=status))
    if status not in REPLAYABLE_STATUSES:
        raise Conflict(Reason(ReasonCode.NOT_ROLLED_BACK, run=run, status=status))
    if stopped is not None:
        compensation, step = stopped.entry.name, stopped.undone.name
        raise Conflict(Reason(ReasonCode.ROLLBACK_STOPPED, run=run, compensation=compensation, step=step))
    if target.pivot is not None:
        raise Conflict(Reason(ReasonCode.PIVOT_PASSED, run=run, step=target.pivot))
    return ReplayPlan(failed=None, next_index=target.next_index, again=target.undoes, rolls_back=True)


def _plan_rollback_decision(target: ReplayTarget, ledger: tuple[LedgerRow, ...], request: ReplayRequest) -> ReplayPlan:
    """Return the plan for a run that was rolled back, in whole or in part, or is being rolled back."""
    run, row, running = target.run_id, find_unfinished(ledger), target.status is RunStatus.COMPENSATING
    if request.mode is ReplayMode.FULL:
        if row is not None or running:
            raise Conflict(Reason(ReasonCode.NOT_UNDONE_YET, run=run))
        if not request.new_operation:
            raise InputError(Reason(ReasonCode.NEW_OPERATION_NEEDED, run=run))
        standing = tuple(e for e in target.journal if not e.superseded and e.kind is not EntryKind.UNDO)
        return ReplayPlan(failed=None, next_index=target.next_index, again=standing)
    # While a rollback runs, the only decision is about the manual action that it waits for.
    waits = row is not None and row.entry.status is StepStatus.RUNNING and is_manual(row.entry)
    if running and (not waits or request.mode not in _OUTPUT_MODES):
        raise Conflict(Reason(ReasonCode.ROLLBACK_RUNNING, run=run))
    if row is None:
        raise Conflict(Reason(ReasonCode.RUN_UNDONE, run=run))
    compensation, step = row.entry.name, row.undone.name
    if request.mode in (ReplayMode.STEP_ONLY, ReplayMode.FROM_STEP) or request.edits or request.skip_steps:
        raise InputError(Reason(ReasonCode.ROLLBACK_NEEDS_DECISION, run=run, compensation=compensation, step=step))
    if request.new_operation:
        raise InputError(Reason(ReasonCode.ROLLBACK_KEEPS_KEYS))
    if request.undo is not None and request.undo not in (step, row.undone.key, compensation, row.entry.key):
        given = quote(request.undo)
        raise InputError(Reason(ReasonCode.OTHER_COMPENSATION_NEXT, compensation=compensation, step=step, given=given))
    again = tuple(each.entry for each in ledger if not each.is_done)
    return ReplayPlan(failed=row.entry, next_index=target.next_index, again=again, undo=row.entry)


def _refuse_confirmed_steps(standing: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    """Refuse a request that would execute confirmed steps again."""
    harmless = request.mode in (ReplayMode.FROM_FAILED, ReplayMode.SKIP, ReplayMode.COMPLETE) and not request.edits
    if harmless or (request.mode is ReplayMode.FULL and request.new_operation):
        return
    confirmed = [e for e in standing if e.kind is EntryKind.CONFIRM and e.status is StepStatus.SUCCESS]
    if confirmed:
        raise InputError(Reason(ReasonCode.STEP_CONFIRMED, confirmation=confirmed[0].name))


def _find_failed_step(target: ReplayTarget, standing: Iterable[EntryRow]) -> EntryRow | None:
    """Return the step that ended the run: by its failure, or because it was executing when the workers died."""
    if target.ending is None:
        return None
    for entry in standing:
        if entry.index == target.ending.step_index and entry.status in (StepStatus.DLQ, StepStatus.FAILED):
            return entry
    if target.ending.code is not LetterCode.INFRASTRUCTURE_FAILURE:
        return None
    lost = [entry for entry in standing if entry.kind is EntryKind.STEP and entry.status is StepStatus.RUNNING]
    # A step that runs at most once takes precedence: only a user can find out whether it happened.
    once = [entry for entry in lost if _is_at_most_once(entry)]
    # Any of several other steps may have killed the workers, so none of them counts as failed.
    return once[0] if once else lost[0] if len(lost) == 1 else None


def _find_expired_timer(target: ReplayTarget, standing: tuple[EntryRow, ...]) -> EntryRow | None:
    """Return the time limit (`redrive.timeout`) that ended the run: its last completed entry."""
    ending = target.ending
    if ending is None or ending.failure.category is not Category.TIMEOUT or ending.stage is not Stage.EXEC:
        return None
    last = max(standing, key=lambda entry: -1 if entry.done is None else entry.done, default=None)
    return last if last is not None and last.kind is EntryKind.TIMER and last.done is not None else None


def _find_cancelled(
    target: ReplayTarget, standing: tuple[EntryRow, ...], cause: EntryRow | None, request: ReplayRequest
) -> tuple[EntryRow, ...]:
    """Return the cancelled entries that the function may request again: those since the paths may differ.

    A function that requests an entry which is recorded as cancelled would wait for it without end. Entries that
    the function itself cancelled before stay cancelled.
    """
    since = cause.ended_at if cause is not None and cause.ended_at is not None else target.ended_at
    if request.edits:
        since = 0
    elif request.from_step is not None:
        since = min([since, *(entry.first_at for entry in standing if entry.index == request.from_step)])
    cancelled = [entry for entry in standing if entry.status is StepStatus.CANCELLED]
    return tuple([entry for entry in cancelled if entry.ended_at is not None and entry.ended_at >= since])


def _find_entries_from_step(
    standing: tuple[EntryRow, ...], cancelled: tuple[EntryRow, ...], request: ReplayRequest
) -> tuple[EntryRow, ...]:
    index = request.from_step
    if index is None or index not in {entry.index for entry in standing}:
        known = ", ".join(f"{e.index} {e.name}" for e in standing if e.kind is EntryKind.STEP) or "none"
        raise InputError(Reason(ReasonCode.FROM_STEP_UNKNOWN, index=index, steps=known))
    cut_off = {entry.index for entry in cancelled}
    again = tuple(entry for entry in standing if entry.index >= index or entry.index in cut_off)
    for entry in again:
        if entry.index > index and _is_at_most_once(entry) and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_WOULD_REPEAT, step=entry.name, index=entry.index))
    return again


def _may_depend_on(entry: EntryRow, failed: EntryRow) -> bool:
    """Return True for the failed step, and for entries that may exist only because it failed."""
    if entry.done is None or failed.done is None:  # notes have no completion number
        return entry.index > failed.index
    return entry.done >= failed.done


def _is_at_most_once(entry: EntryRow) -> bool:
    """Return True if the step runs at most once and was called. A step that waited for its circuit was not."""
    if entry.options is None or not entry.attempt or not StepOptions.from_json(entry.options).at_most_once:
        return False
    return entry.failure is None or FailureReason.from_json(entry.failure).failure.error_type != CIRCUIT_OPEN_ERROR_TYPE


def _is_skipped(entry: EntryRow, request: ReplayRequest) -> bool:
    return bool(request.skip_steps) and entry.key in {resolve_step_key(name) for name in request.skip_steps}
