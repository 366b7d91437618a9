"""Child runs: when the end of a run answers those that wait for it, and which ends cancel its children."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from redrive.core.classify import Category
from redrive.core.failure import MESSAGE_LIMIT, Failure, clean_text
from redrive.core.failure_reason import FailureReason, choose_letter_code
from redrive.core.outcomes import EntryRef
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.errors import ChildFailed, InputError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace

MAX_DEPTH = 50
"""The largest number of runs that wait for each other in a chain: a child of a child of a child, and so on."""

CHILD_OPTIONS = frozenset({"on_letter", "on_parent_end"})
"""Options of `run` beside those of `start`. No parameter of a workflow may have one of these names."""

_KEEPS_CHILDREN = frozenset({RunStatus.DLQ_PENDING, RunStatus.PARTIAL})  # the run may still be continued


class OnLetter(StrEnum):
    """The choice for a parent whose child has an open dead letter."""

    WAIT = "wait"
    FAIL = "fail"


class OnParentEnd(StrEnum):
    """The choice for a child that is under way when its parent ends."""

    CANCEL = "cancel"
    LEAVE = "leave"


Choice = TypeVar("Choice", OnLetter, OnParentEnd)


def read_choice(kind: type[Choice], field: str, value: Any, default: Choice) -> Choice:
    """Return an option of a child; raise InputError if it is none of the known words."""
    if value is None:
        return default
    try:
        return kind(value)
    except ValueError:
        known = tuple(each.value for each in kind)
        raise InputError(Reason(ReasonCode.CHOICE_NEEDED, field=field, given=quote(value), known=known)) from None


def is_answer(status: RunStatus, open_letter: bool, letters: bool) -> bool:
    """Return True if the state of a run answers a wait for it.

    A run with an open dead letter, and one that was replayed in part, may still succeed: they end only waits that
    letters end, too.
    """
    if status not in FINAL_RUN_STATUSES:
        return False
    decided = not (open_letter or status in _KEEPS_CHILDREN)
    return decided or letters


def is_undone(status: RunStatus, ends_as: RunStatus | None, executed: bool) -> bool:
    """Return True if an ended run left no effects: it was rolled back, also by its cancellation, or never executed."""
    cancelled = status is RunStatus.CANCELLED and (ends_as is RunStatus.CANCELLED or not executed)
    return cancelled or status is RunStatus.COMPENSATED


def cancels_children(status: RunStatus) -> bool:
    """Return True if a run that ended so will not continue, and its children are cancelled."""
    return status in FINAL_RUN_STATUSES and status not in _KEEPS_CHILDREN


def build_child_failure(place: EntryRef, run_id: str, status: RunStatus, failure: str | None) -> FailureReason:
    """Return the failure of a wait for a run that ended without a result. `failure`: that of the run, as stored."""
    reason = Reason(ReasonCode.CHILD_FAILED, run=run_id, status=status)
    found = None if failure is None else FailureReason.from_json(failure).failure
    if found is None or status is RunStatus.CANCELLED:
        ended = Failure.of(Category.UNKNOWN, str(reason), error_type="redrive.errors.RunFailed")
    else:
        message = clean_text(f"{reason}: {found.short_type}: {found.message}", MESSAGE_LIMIT)
        ended = replace(found, message=message, stack="", frame=None, retry_after=None)
    details = {**ended.details, "run_id": run_id, "status": status.value}
    return _build_ending(place, replace(ended, details=details), reason)


def build_missing_run(place: EntryRef, run_id: str) -> FailureReason:
    """Return the failure of a wait for a run that does not exist."""
    reason = Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id))
    missing = Failure.of(Category.NOT_FOUND, str(reason), error_type="redrive.errors.NotFound")
    return _build_ending(place, replace(missing, details={"run_id": run_id, "status": ""}), reason)


def _build_ending(place: EntryRef, failure: Failure, reason: Reason) -> FailureReason:
    code = choose_letter_code(failure, exhausted=False)
    return FailureReason(failure=failure, code=code, reason=reason, step=place.name, step_index=place.index, attempts=1)


def build_child_failed(ending: FailureReason, *, key: str) -> ChildFailed:
    """Return the exception that workflow code sees, both when a child fails and when the run is resumed."""
    failure = ending.failure
    return ChildFailed(
        run_id=str(failure.details.get("run_id", "")),
        status=str(failure.details.get("status", "")),
        step=ending.step or "",
        category=failure.category.value,
        error_type=failure.error_type,
        message=failure.message,
        details=failure.details,
        bases=failure.bases,
        key=key,
    )
