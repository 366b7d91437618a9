"""What a replay does to a run, decided from its journal alone.

    plan(subject, request) -> Plan       which entries are done again, kept, or no longer binding

A plan says the same to a dry run and to the real thing. Entries from the failed step on are divided so:

    again   the failed step, and what was cancelled when it failed: superseded, begun anew if asked for
    loose   recorded after it failed: its result stands if the function asks for it, which it need not
    kept    everything else; the function comes by it as before
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from redrive.core.classify import Category
from redrive.core.decide_step import CIRCUIT_OPEN_ERROR_TYPE
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow, entry_key
from redrive.core.run_options import StepOptions
from redrive.core.saga import LedgerRow, find_unfinished, is_manual, read_ledger
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import Conflict, InputError
from redrive.reasons import Reason, ReasonCode, quote


class ReplayMode(StrEnum):
    """How a run is replayed."""

    FROM_FAILED = "FROM_FAILED"
    STEP_ONLY = "STEP_ONLY"
    FROM_STEP = "FROM_STEP"
    SKIP = "SKIP"
    COMPLETE = "COMPLETE"
    FULL = "FULL"
    ROLLBACK = "ROLLBACK"


_INPUT_MODES = frozenset({ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP, ReplayMode.FULL})
_OUTPUT_MODES = frozenset({ReplayMode.SKIP, ReplayMode.COMPLETE})
_REPLAYABLE_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.PARTIAL})
_ROLLBACK_STATUSES = frozenset({RunStatus.COMPENSATING, RunStatus.COMPENSATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """One decision to replay, as it was sent: `input`, `patch`, `output` and `skip_steps` hold JSON values.

    `undo` names the compensation that is to be skipped, or was done by hand.

    Who asks, why, and under which key is not part of the decision: the same request sent by somebody else
    is the same request.
    """

    mode: ReplayMode = ReplayMode.FROM_FAILED
    from_step: int | None = None
    input: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    output: Any = None
    skip_steps: Mapping[str, Any] = field(default_factory=dict)
    retry: dict[str, Any] | None = None
    new_operation: bool = False
    undo: str | None = None
    _encoded: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

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
        if self.skip_steps and self.mode not in (ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP):
            raise InputError(Reason(ReasonCode.SKIP_STEPS_UNUSED))

    @property
    def edits(self) -> bool:
        """True if the run is to go on with another input."""
        return self.input is not None or self.patch is not None

    @property
    def gives_output(self) -> bool:
        """True if it says what the failed step, or a compensation, shall have given."""
        return self.mode in _OUTPUT_MODES

    @property
    def has_payloads(self) -> bool:
        """True if it says an input, or what steps shall have given."""
        return self.edits or bool(self.skip_steps) or self.output is not None

    def to_json(self) -> dict[str, Any]:
        """The decision as it is stored, and as equal ones are told; what was not said is left out."""
        said = {
            "mode": self.mode.value,
            "from_step": self.from_step,
            "input": self.input,
            "patch": self.patch,
            "skip_steps": dict(self.skip_steps) or None,
            "retry": self.retry,
            "new_operation": self.new_operation or None,
            "undo": self.undo,
        }
        if self.gives_output:
            said["output"] = {"value": self.output}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def text(self) -> str:
        """The decision as it is stored, as text."""
        return self._encode()[0]

    @property
    def digest(self) -> str:
        """Equal for equal decisions."""
        return self._encode()[1]

    def _encode(self) -> list[str]:
        """Text and digest. Remembered: a set takes the same decision a hundred thousand times."""
        if not self._encoded:
            said = self.to_json()
            # Written in pieces, so that a thread that writes a large one lets others run in between.
            text = "".join(json.JSONEncoder().iterencode(said))
            ordered = "".join(json.JSONEncoder(sort_keys=True).iterencode(said))
            self._encoded[:] = [text, hashlib.sha256(ordered.encode()).hexdigest()]
        return self._encoded


class ReplayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is to be replayed, as far as a plan needs to know it.

    For a rollback: `undoes` is what would be done, in order, and `pivot` the step that makes it too late.
    """

    run_id: str
    status: RunStatus
    ended_at: int
    ending: FailureReason | None
    journal: tuple[EntryRow, ...]
    undoes: tuple[EntryRow, ...] = ()
    pivot: str | None = None


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which entries a replay does again, keeps, or leaves to the function to ask for.

    `undo`: it is about this compensation, and the rollback goes on. `rolls_back`: it begins one.
    """

    failed: EntryRow | None
    next_index: int
    again: tuple[EntryRow, ...] = ()
    kept: tuple[EntryRow, ...] = ()
    loose: tuple[EntryRow, ...] = ()
    undo: EntryRow | None = None
    rolls_back: bool = False


def plan_replay(subject: ReplayTarget, request: ReplayRequest) -> ReplayPlan:
    """Decide what the replay does; a request that makes no sense for this run is refused with the reason."""
    rows = read_ledger(subject.journal)
    if request.mode is ReplayMode.ROLLBACK:
        return _plan_rollback(subject, rows)
    if subject.status in _ROLLBACK_STATUSES or (rows and subject.status in _REPLAYABLE_STATUSES):
        return _plan_rollback_decision(subject, rows, request)
    if subject.status not in _REPLAYABLE_STATUSES:
        raise Conflict(Reason(ReasonCode.NOT_REPLAYABLE, run=subject.run_id, status=subject.status))
    standing = tuple([entry for entry in subject.journal if not entry.superseded])
    next_index = _next_index(subject)
    _refuse_confirmed_steps(standing, request)
    failed = _find_failed_entry(subject, standing) or _find_lost_entry(subject, standing)
    cause = failed or _find_expired_timer(subject, standing)
    cut_off = _find_cancelled(standing, _cancellation_cutoff(subject, standing, cause, request))
    match request.mode:
        case ReplayMode.FULL:
            _refuse_full_repeat(standing, request)
            return ReplayPlan(failed=failed, next_index=next_index, again=standing)
        case ReplayMode.FROM_STEP:
            again = _entries_from_step(standing, cut_off, request)
        case ReplayMode.SKIP | ReplayMode.COMPLETE:
            _require_failed_step(failed, request.mode)
            again = cut_off
        case ReplayMode.STEP_ONLY:
            failed = _require_failed_step(failed, request.mode)
            _refuse_second_call(failed)
            again = (failed, *cut_off)
        case ReplayMode.FROM_FAILED:
            again = cut_off
            if cause is not None and not _is_skipped(cause, request):
                _refuse_second_call(cause)
                again = (cause, *again)
    _refuse_uncertain_steps(cut_off, request)
    kept, loose = _split_kept_and_loose(standing, cause, again, edited=request.edits)
    _refuse_overwritten_results((*kept, *loose), request)
    return ReplayPlan(failed=failed, next_index=next_index, again=again, kept=kept, loose=loose)


def _next_index(subject: ReplayTarget) -> int:
    return max([entry.index for entry in subject.journal], default=-1) + 1


# -- rollbacks --------------------------------------------------------------------------------------------


def _plan_rollback(subject: ReplayTarget, rows: tuple[LedgerRow, ...]) -> ReplayPlan:
    """Everything the run did is undone."""
    run, status, stopped = subject.run_id, subject.status, find_unfinished(rows)
    if status in _ROLLBACK_STATUSES:
        raise Conflict(Reason(ReasonCode.ROLLED_BACK_ALREADY, run=run, status=status))
    if status not in _REPLAYABLE_STATUSES:
        raise Conflict(Reason(ReasonCode.NOT_ROLLED_BACK, run=run, status=status))
    if stopped is not None:
        compensation, step = stopped.entry.name, stopped.undone.name
        raise Conflict(Reason(ReasonCode.ROLLBACK_STOPPED, run=run, compensation=compensation, step=step))
    if subject.pivot is not None:
        raise Conflict(Reason(ReasonCode.PIVOT_PASSED, run=run, step=subject.pivot))
    return ReplayPlan(failed=None, next_index=_next_index(subject), again=subject.undoes, rolls_back=True)


def _plan_rollback_decision(subject: ReplayTarget, rows: tuple[LedgerRow, ...], request: ReplayRequest) -> ReplayPlan:
    """What may be decided about a run of which something was undone, or is being undone."""
    row = find_unfinished(rows)
    if request.mode is ReplayMode.FULL:
        return _plan_restart(subject, row, request)
    if subject.status is RunStatus.COMPENSATING:
        _refuse_running_rollback(subject, row, request)
    if row is None:
        raise Conflict(Reason(ReasonCode.RUN_UNDONE, run=subject.run_id))
    if request.mode in (ReplayMode.STEP_ONLY, ReplayMode.FROM_STEP) or request.edits or request.skip_steps:
        raise InputError(
            Reason(
                ReasonCode.ROLLBACK_NEEDS_DECISION,
                run=subject.run_id,
                compensation=row.entry.name,
                step=row.undone.name,
            )
        )
    if request.new_operation:
        raise InputError(Reason(ReasonCode.ROLLBACK_KEEPS_KEYS))
    _refuse_other_compensation(row, request)
    next_index = _next_index(subject)
    again = tuple(each.entry for each in rows if not each.is_done)
    return ReplayPlan(failed=row.entry, next_index=next_index, again=again, undo=row.entry)


def _plan_restart(subject: ReplayTarget, row: LedgerRow | None, request: ReplayRequest) -> ReplayPlan:
    if row is not None or subject.status is RunStatus.COMPENSATING:
        raise Conflict(Reason(ReasonCode.NOT_UNDONE_YET, run=subject.run_id))
    if not request.new_operation:
        raise InputError(Reason(ReasonCode.NEW_OPERATION_NEEDED, run=subject.run_id))
    standing = tuple(e for e in subject.journal if not e.superseded and e.kind is not EntryKind.UNDO)
    return ReplayPlan(failed=None, next_index=_next_index(subject), again=standing)


def _refuse_running_rollback(subject: ReplayTarget, row: LedgerRow | None, request: ReplayRequest) -> None:
    """While a run is rolled back, all that a person can do is what it waits for."""
    waits = row is not None and row.entry.status is StepStatus.RUNNING and is_manual(row.entry)
    if not waits or request.mode not in _OUTPUT_MODES:
        raise Conflict(Reason(ReasonCode.ROLLBACK_RUNNING, run=subject.run_id))


def _refuse_other_compensation(row: LedgerRow, request: ReplayRequest) -> None:
    names = (row.undone.name, row.undone.key, row.entry.name, row.entry.key)
    if request.undo is not None and request.undo not in names:
        raise InputError(
            Reason(
                ReasonCode.OTHER_COMPENSATION_NEXT,
                compensation=row.entry.name,
                step=row.undone.name,
                given=quote(request.undo),
            )
        )


def _refuse_confirmed_steps(standing: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    """What was confirmed is not done again."""
    harmless = request.mode in (ReplayMode.FROM_FAILED, ReplayMode.SKIP, ReplayMode.COMPLETE) and not request.edits
    if harmless or (request.mode is ReplayMode.FULL and request.new_operation):
        return
    confirmed = [e for e in standing if e.kind is EntryKind.CONFIRM and e.status is StepStatus.SUCCESS]
    if confirmed:
        raise InputError(Reason(ReasonCode.STEP_CONFIRMED, confirmation=confirmed[0].name))


# -- the function -----------------------------------------------------------------------------------------


def _find_failed_entry(subject: ReplayTarget, standing: Iterable[EntryRow]) -> EntryRow | None:
    """The step whose failure ended the run, if a step's did."""
    index = None if subject.ending is None else subject.ending.step_index
    for entry in standing:
        if entry.index == index and entry.status in (StepStatus.DLQ, StepStatus.FAILED):
            return entry
    return None


def _find_lost_entry(subject: ReplayTarget, standing: Iterable[EntryRow]) -> EntryRow | None:
    """The step that was under way when the machine under it failed for good.

    One that runs at most once comes first: nothing else tells whether it happened. Of several others nobody
    knows which one it was, so that it is none of them.
    """
    if subject.ending is None or subject.ending.code is not LetterCode.INFRASTRUCTURE_FAILURE:
        return None
    left = [entry for entry in standing if _is_interrupted_step(entry)]
    once = [entry for entry in left if _is_at_most_once(entry)]
    return once[0] if once else left[0] if len(left) == 1 else None


def _is_interrupted_step(entry: EntryRow) -> bool:
    return entry.kind is EntryKind.STEP and entry.status is StepStatus.RUNNING


def _find_expired_timer(subject: ReplayTarget, standing: tuple[EntryRow, ...]) -> EntryRow | None:
    """The time limit (`redrive.timeout`) that ended the run: the last thing on record before it did."""
    ending = subject.ending
    if ending is None or ending.failure.category is not Category.TIMEOUT or ending.stage is not Stage.EXEC:
        return None
    last = max(standing, key=lambda entry: -1 if entry.done is None else entry.done, default=None)
    return last if last is not None and last.kind is EntryKind.TIMER and last.done is not None else None


def resolve_step_key(name: str) -> str:
    """The key of a step that somebody named by its key, or by its name alone: its first call."""
    return name if "#" in name else entry_key("", name, 0)


def _split_kept_and_loose(
    standing: tuple[EntryRow, ...], failed: EntryRow | None, again: tuple[EntryRow, ...], *, edited: bool
) -> tuple[tuple[EntryRow, ...], tuple[EntryRow, ...]]:
    """What is left of the record, kept and loose: with another input the function may go other ways."""
    gone = {entry.index for entry in again}
    kept: list[EntryRow] = []
    loose: list[EntryRow] = []
    for entry in standing:
        if entry.index not in gone:
            is_loose = edited or (failed is not None and _is_recorded_later(entry, failed))
            (loose if is_loose else kept).append(entry)
    return tuple(kept), tuple(loose)


def _is_recorded_later(entry: EntryRow, failed: EntryRow) -> bool:
    """True if the function may have recorded this because the step failed, or the step itself."""
    if entry.done is None or failed.done is None:  # notes have no completion number
        return entry.index > failed.index
    return entry.done >= failed.done


def _find_cancelled(standing: tuple[EntryRow, ...], since: int) -> tuple[EntryRow, ...]:
    """What was cancelled from then on; what the function's own code cancelled before stays so."""
    cancelled = [entry for entry in standing if entry.status is StepStatus.CANCELLED]
    return tuple([entry for entry in cancelled if entry.ended_at is not None and entry.ended_at >= since])


def _cancellation_cutoff(
    subject: ReplayTarget, standing: tuple[EntryRow, ...], cause: EntryRow | None, request: ReplayRequest
) -> int:
    """From when on a cancelled entry may be asked for: since the failure, or since the way may part.

    Nobody would ever answer a function that asks for an entry which is recorded as given up.
    """
    if request.edits:
        return 0
    ended_at = cause.ended_at if cause is not None and cause.ended_at is not None else subject.ended_at
    if request.from_step is None:
        return ended_at
    return min([ended_at, *(entry.first_at for entry in standing if entry.index == request.from_step)])


def _entries_from_step(
    standing: tuple[EntryRow, ...], cut_off: tuple[EntryRow, ...], request: ReplayRequest
) -> tuple[EntryRow, ...]:
    index = request.from_step
    if index not in {entry.index for entry in standing}:
        known = ", ".join(f"{e.index} {e.name}" for e in standing if e.kind is EntryKind.STEP) or "none"
        raise InputError(Reason(ReasonCode.FROM_STEP_UNKNOWN, index=index, steps=known))
    again = tuple(entry for entry in standing if entry.index >= index or entry in cut_off)
    for entry in again:
        if entry.index > index and _is_at_most_once(entry) and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_WOULD_REPEAT, step=entry.name, index=entry.index))
    return again


def _refuse_uncertain_steps(cut_off: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    """What runs at most once and was cut short with the run is not called again unless named."""
    for entry in cut_off:
        if _is_at_most_once(entry) and entry.index != request.from_step and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_UNCERTAIN, step=entry.name, index=entry.index))


def _refuse_full_repeat(standing: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    for entry in standing:
        if _is_at_most_once(entry) and not request.new_operation:
            raise InputError(Reason(ReasonCode.FULL_WOULD_REPEAT, step=entry.name))


def _refuse_overwritten_results(staying: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    for entry in staying if request.skip_steps else ():
        if _is_skipped(entry, request) and entry.status is StepStatus.SUCCESS:
            raise InputError(Reason(ReasonCode.STEP_SUCCEEDED, step=entry.name, index=entry.index))


def _require_failed_step(failed: EntryRow | None, mode: ReplayMode) -> EntryRow:
    if failed is None:
        raise InputError(Reason(ReasonCode.NO_STEP_FAILED, mode=mode))
    return failed


def _refuse_second_call(failed: EntryRow) -> None:
    if _is_at_most_once(failed):
        raise InputError(Reason(ReasonCode.STEP_CALL_UNCERTAIN, step=failed.name, index=failed.index))


def _is_at_most_once(entry: EntryRow) -> bool:
    """True if the step runs at most once and was called. One that waited for its circuit was not."""
    if entry.options is None or not entry.attempt or not StepOptions.from_json(entry.options).at_most_once:
        return False
    return entry.failure is None or FailureReason.from_json(entry.failure).failure.error_type != CIRCUIT_OPEN_ERROR_TYPE


def _is_skipped(entry: EntryRow, request: ReplayRequest) -> bool:
    return bool(request.skip_steps) and entry.key in {resolve_step_key(name) for name in request.skip_steps}
