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
from dataclasses import field
from enum import StrEnum
from typing import Any

from redrive.core.classify import Category
from redrive.core.decide_step import CIRCUIT_OPEN
from redrive.core.failure_reason import Ending, LetterCode, Stage
from redrive.core.journal import EntryRow, entry_key
from redrive.core.quick import quick
from redrive.core.run_options import StepOptions
from redrive.core.saga import LedgerRow, is_for_person, ledger, unfinished
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import Conflict, InputError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote

__all__ = ["Mode", "Plan", "ReplayRequest", "Subject", "plan", "skipped_key"]


class Mode(StrEnum):
    """How a run is replayed."""

    FROM_FAILED = "FROM_FAILED"
    STEP_ONLY = "STEP_ONLY"
    FROM_STEP = "FROM_STEP"
    SKIP = "SKIP"
    COMPLETE = "COMPLETE"
    FULL = "FULL"
    ROLLBACK = "ROLLBACK"


_EDITABLE = frozenset({Mode.FROM_FAILED, Mode.FROM_STEP, Mode.FULL})
_OUTPUT = frozenset({Mode.SKIP, Mode.COMPLETE})
_REPLAYABLE = frozenset({RunStatus.DLQ_PENDING, RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.PARTIAL})
_ROLLED_BACK = frozenset({RunStatus.COMPENSATING, RunStatus.COMPENSATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """One decision to replay, as it was sent: `input`, `patch`, `output` and `skip_steps` hold JSON values.

    `undo` names the compensation that is to be skipped, or was done by hand.

    Who asks, why, and under which key is not part of the decision: the same request sent by somebody else
    is the same request.
    """

    mode: Mode = Mode.FROM_FAILED
    from_step: int | None = None
    input: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    output: Any = None
    skip_steps: Mapping[str, Any] = field(default_factory=dict)
    retry: dict[str, Any] | None = None
    new_operation: bool = False
    undo: str | None = None
    _told: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode is Mode.FROM_STEP and self.from_step is None:
            raise InputError(Reason(ReasonCode.FROM_STEP_NEEDED))
        if self.mode is not Mode.FROM_STEP and self.from_step is not None:
            raise InputError(Reason(ReasonCode.FROM_STEP_UNUSED, mode=self.mode))
        if self.input is not None and self.patch is not None:
            raise InputError(Reason(ReasonCode.INPUT_AND_PATCH))
        if self.edits and self.mode not in _EDITABLE:
            raise InputError(Reason(ReasonCode.INPUT_KEPT, mode=self.mode))
        if self.output is not None and self.mode not in _OUTPUT:
            raise InputError(Reason(ReasonCode.OUTPUT_UNUSED))
        if self.undo is not None and self.mode not in _OUTPUT:
            raise InputError(Reason(ReasonCode.UNDO_UNUSED))
        if self.skip_steps and self.mode not in (Mode.FROM_FAILED, Mode.FROM_STEP):
            raise InputError(Reason(ReasonCode.SKIP_STEPS_UNUSED))

    @property
    def edits(self) -> bool:
        """True if the run is to go on with another input."""
        return self.input is not None or self.patch is not None

    @property
    def gives_output(self) -> bool:
        """True if it says what the failed step, or a compensation, shall have given."""
        return self.mode in _OUTPUT

    @property
    def has_values(self) -> bool:
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
        return self._tell()[0]

    @property
    def digest(self) -> str:
        """Equal for equal decisions."""
        return self._tell()[1]

    def _tell(self) -> list[str]:
        """Text and digest. Remembered: a set takes the same decision a hundred thousand times."""
        if not self._told:
            said = self.to_json()
            # Written in pieces, so that a thread that writes a large one lets others run in between.
            text = "".join(json.JSONEncoder().iterencode(said))
            ordered = "".join(json.JSONEncoder(sort_keys=True).iterencode(said))
            self._told[:] = [text, hashlib.sha256(ordered.encode()).hexdigest()]
        return self._told


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The run that is to be replayed, as far as a plan needs to know it.

    For a rollback: `undoes` is what would be done, in order, and `pivot` the step that makes it too late.
    """

    run_id: str
    status: RunStatus
    ended_at: int
    ending: Ending | None
    journal: tuple[EntryRow, ...]
    undoes: tuple[EntryRow, ...] = ()
    pivot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
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


_Plan = quick(Plan)  # a set makes a hundred thousand


def plan(subject: Subject, request: ReplayRequest) -> Plan:
    """Decide what the replay does; a request that makes no sense for this run is refused with the reason."""
    rows = ledger(subject.journal)
    if request.mode is Mode.ROLLBACK:
        return _rollback(subject, rows)
    if subject.status in _ROLLED_BACK or (rows and subject.status in _REPLAYABLE):
        return _undone(subject, rows, request)
    if subject.status not in _REPLAYABLE:
        raise Conflict(Reason(ReasonCode.NOT_REPLAYABLE, run=subject.run_id, status=subject.status))
    standing = tuple([entry for entry in subject.journal if not entry.superseded])
    next_index = _next_index(subject)
    _refuse_confirmed(standing, request)
    failed = _failed_entry(subject, standing) or _lost_entry(subject, standing)
    cause = failed or _reached_limit(subject, standing)
    cut_off = _cut_off(standing, _given_up_since(subject, standing, cause, request))
    match request.mode:
        case Mode.FULL:
            _refuse_all_anew(standing, request)
            return Plan(failed=failed, next_index=next_index, again=standing)
        case Mode.FROM_STEP:
            again = _from_step(standing, cut_off, request)
        case Mode.SKIP | Mode.COMPLETE:
            _need_failed(failed, request.mode)
            again = cut_off
        case Mode.STEP_ONLY:
            failed = _need_failed(failed, request.mode)
            _refuse_second_call(failed)
            again = (failed, *cut_off)
        case Mode.FROM_FAILED:
            again = cut_off
            if cause is not None and not _is_skipped(cause, request):
                _refuse_second_call(cause)
                again = (cause, *again)
    _refuse_uncertain(cut_off, request)
    kept, loose = _divide(standing, cause, again, edited=request.edits)
    _refuse_overwriting((*kept, *loose), request)
    return _Plan(failed=failed, next_index=next_index, again=again, kept=kept, loose=loose)


def _next_index(subject: Subject) -> int:
    return max([entry.index for entry in subject.journal], default=-1) + 1


# -- rollbacks --------------------------------------------------------------------------------------------


def _rollback(subject: Subject, rows: tuple[LedgerRow, ...]) -> Plan:
    """Everything the run did is undone."""
    run, status, stopped = subject.run_id, subject.status, unfinished(rows)
    if status in _ROLLED_BACK:
        raise Conflict(Reason(ReasonCode.ROLLED_BACK_ALREADY, run=run, status=status))
    if status not in _REPLAYABLE:
        raise Conflict(Reason(ReasonCode.NOT_ROLLED_BACK, run=run, status=status))
    if stopped is not None:
        compensation, step = stopped.entry.name, stopped.undone.name
        raise Conflict(Reason(ReasonCode.ROLLBACK_STOPPED, run=run, compensation=compensation, step=step))
    if subject.pivot is not None:
        raise Conflict(Reason(ReasonCode.PIVOT_PASSED, run=run, step=subject.pivot))
    return Plan(failed=None, next_index=_next_index(subject), again=subject.undoes, rolls_back=True)


def _undone(subject: Subject, rows: tuple[LedgerRow, ...], request: ReplayRequest) -> Plan:
    """What may be decided about a run of which something was undone, or is being undone."""
    row = unfinished(rows)
    if request.mode is Mode.FULL:
        return _anew(subject, row, request)
    if subject.status is RunStatus.COMPENSATING:
        _refuse_under_way(subject, row, request)
    if row is None:
        raise Conflict(Reason(ReasonCode.RUN_UNDONE, run=subject.run_id))
    if request.mode in (Mode.STEP_ONLY, Mode.FROM_STEP) or request.edits or request.skip_steps:
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
    _refuse_other(row, request)
    next_index = _next_index(subject)
    again = tuple(each.entry for each in rows if not each.is_done)
    return Plan(failed=row.entry, next_index=next_index, again=again, undo=row.entry)


def _anew(subject: Subject, row: LedgerRow | None, request: ReplayRequest) -> Plan:
    if row is not None or subject.status is RunStatus.COMPENSATING:
        raise Conflict(Reason(ReasonCode.NOT_UNDONE_YET, run=subject.run_id))
    if not request.new_operation:
        raise InputError(Reason(ReasonCode.NEW_OPERATION_NEEDED, run=subject.run_id))
    standing = tuple(e for e in subject.journal if not e.superseded and e.kind is not EntryKind.UNDO)
    return Plan(failed=None, next_index=_next_index(subject), again=standing)


def _refuse_under_way(subject: Subject, row: LedgerRow | None, request: ReplayRequest) -> None:
    """While a run is rolled back, all that a person can do is what it waits for."""
    waits = row is not None and row.entry.status is StepStatus.RUNNING and is_for_person(row.entry)
    if not waits or request.mode not in _OUTPUT:
        raise Conflict(Reason(ReasonCode.ROLLBACK_RUNNING, run=subject.run_id))


def _refuse_other(row: LedgerRow, request: ReplayRequest) -> None:
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


def _refuse_confirmed(standing: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    """What was confirmed is not done again."""
    harmless = request.mode in (Mode.FROM_FAILED, Mode.SKIP, Mode.COMPLETE) and not request.edits
    if harmless or (request.mode is Mode.FULL and request.new_operation):
        return
    confirmed = [e for e in standing if e.kind is EntryKind.CONFIRM and e.status is StepStatus.SUCCESS]
    if confirmed:
        raise InputError(Reason(ReasonCode.STEP_CONFIRMED, confirmation=confirmed[0].name))


# -- the function -----------------------------------------------------------------------------------------


def _failed_entry(subject: Subject, standing: Iterable[EntryRow]) -> EntryRow | None:
    """The step whose failure ended the run, if a step's did."""
    index = None if subject.ending is None else subject.ending.step_index
    for entry in standing:
        if entry.index == index and entry.status in (StepStatus.DLQ, StepStatus.FAILED):
            return entry
    return None


def _lost_entry(subject: Subject, standing: Iterable[EntryRow]) -> EntryRow | None:
    """The step that was under way when the machine under it failed for good.

    One that runs at most once comes first: nothing else tells whether it happened. Of several others nobody
    knows which one it was, so that it is none of them.
    """
    if subject.ending is None or subject.ending.code is not LetterCode.INFRASTRUCTURE_FAILURE:
        return None
    left = [entry for entry in standing if _is_cut_short(entry)]
    once = [entry for entry in left if _at_most_once(entry)]
    return once[0] if once else left[0] if len(left) == 1 else None


def _is_cut_short(entry: EntryRow) -> bool:
    return entry.kind is EntryKind.STEP and entry.status is StepStatus.RUNNING


def _reached_limit(subject: Subject, standing: tuple[EntryRow, ...]) -> EntryRow | None:
    """The time limit (`redrive.timeout`) that ended the run: the last thing on record before it did."""
    ending = subject.ending
    if ending is None or ending.failure.category is not Category.TIMEOUT or ending.stage is not Stage.EXEC:
        return None
    last = max(standing, key=lambda entry: -1 if entry.done is None else entry.done, default=None)
    return last if last is not None and last.kind is EntryKind.TIMER and last.done is not None else None


def skipped_key(name: str) -> str:
    """The key of a step that somebody named by its key, or by its name alone: its first call."""
    return name if "#" in name else entry_key("", name, 0)


def _divide(
    standing: tuple[EntryRow, ...], failed: EntryRow | None, again: tuple[EntryRow, ...], *, edited: bool
) -> tuple[tuple[EntryRow, ...], tuple[EntryRow, ...]]:
    """What is left of the record, kept and loose: with another input the function may go other ways."""
    gone = {entry.index for entry in again}
    kept: list[EntryRow] = []
    loose: list[EntryRow] = []
    for entry in standing:
        if entry.index not in gone:
            is_loose = edited or (failed is not None and _is_later(entry, failed))
            (loose if is_loose else kept).append(entry)
    return tuple(kept), tuple(loose)


def _is_later(entry: EntryRow, failed: EntryRow) -> bool:
    """True if the function may have recorded this because the step failed, or the step itself."""
    if entry.done is None or failed.done is None:  # notes have no completion number
        return entry.index > failed.index
    return entry.done >= failed.done


def _cut_off(standing: tuple[EntryRow, ...], since: int) -> tuple[EntryRow, ...]:
    """What was cancelled from then on; what the function's own code cancelled before stays so."""
    cancelled = [entry for entry in standing if entry.status is StepStatus.CANCELLED]
    return tuple([entry for entry in cancelled if entry.ended_at is not None and entry.ended_at >= since])


def _given_up_since(
    subject: Subject, standing: tuple[EntryRow, ...], cause: EntryRow | None, request: ReplayRequest
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


def _from_step(
    standing: tuple[EntryRow, ...], cut_off: tuple[EntryRow, ...], request: ReplayRequest
) -> tuple[EntryRow, ...]:
    index = request.from_step
    if index not in {entry.index for entry in standing}:
        known = ", ".join(f"{e.index} {e.name}" for e in standing if e.kind is EntryKind.STEP) or "none"
        raise InputError(Reason(ReasonCode.FROM_STEP_UNKNOWN, index=index, steps=known))
    again = tuple(entry for entry in standing if entry.index >= index or entry in cut_off)
    for entry in again:
        if entry.index > index and _at_most_once(entry) and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_WOULD_REPEAT, step=entry.name, index=entry.index))
    return again


def _refuse_uncertain(cut_off: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    """What runs at most once and was cut short with the run is not called again unless named."""
    for entry in cut_off:
        if _at_most_once(entry) and entry.index != request.from_step and not _is_skipped(entry, request):
            raise InputError(Reason(ReasonCode.STEP_UNCERTAIN, step=entry.name, index=entry.index))


def _refuse_all_anew(standing: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    for entry in standing:
        if _at_most_once(entry) and not request.new_operation:
            raise InputError(Reason(ReasonCode.FULL_WOULD_REPEAT, step=entry.name))


def _refuse_overwriting(staying: tuple[EntryRow, ...], request: ReplayRequest) -> None:
    for entry in staying if request.skip_steps else ():
        if _is_skipped(entry, request) and entry.status is StepStatus.SUCCESS:
            raise InputError(Reason(ReasonCode.STEP_SUCCEEDED, step=entry.name, index=entry.index))


def _need_failed(failed: EntryRow | None, mode: Mode) -> EntryRow:
    if failed is None:
        raise InputError(Reason(ReasonCode.NO_STEP_FAILED, mode=mode))
    return failed


def _refuse_second_call(failed: EntryRow) -> None:
    if _at_most_once(failed):
        raise InputError(Reason(ReasonCode.STEP_CALL_UNCERTAIN, step=failed.name, index=failed.index))


def _at_most_once(entry: EntryRow) -> bool:
    """True if the step runs at most once and was called. One that waited for its circuit was not."""
    if entry.options is None or not entry.attempt or not StepOptions.from_json(entry.options).at_most_once:
        return False
    return entry.failure is None or Ending.from_json(entry.failure).failure.error_type != CIRCUIT_OPEN


def _is_skipped(entry: EntryRow, request: ReplayRequest) -> bool:
    return bool(request.skip_steps) and entry.key in {skipped_key(name) for name in request.skip_steps}
