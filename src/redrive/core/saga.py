"""The effects of a run that must be undone or confirmed, and the progress of that, read from its journal alone.

    effects     every step that took effect, or may have
    ledger      the recorded compensations, in the order of their execution

A compensation is a journal entry, under a key that names the entry it undoes:

    /charge#0           the step, entry 3
    /charge#0/refund#3  its compensation

Steps that are uncertain to have happened come first. The others follow in the reverse order of their completion, over
all branches. A step that a replay executed again stands for its earlier effect; if the replay did not get that far, the
earlier effect is undone. If the replay was a new operation, both effects happened, and both are undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from redrive.core.classify import Category
from redrive.core.failure_reason import FailureReason, Stage
from redrive.core.journal import EntryRow, compute_generations, entry_key
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import AttemptEnd

_UNCERTAIN_CATEGORIES = frozenset({Category.TIMEOUT, Category.NETWORK})
_WAITING_STATUSES = frozenset({StepStatus.CANCELLED, StepStatus.RETRYING, StepStatus.PENDING})


class LastAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of the latest attempt of an entry."""

    attempt: int
    end: AttemptEnd
    category: str | None


class StepEffect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that took effect. `uncertain`: it may have, because its last attempt ended without an answer."""

    entry: EntryRow
    uncertain: bool


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded compensation, with the step that it undoes."""

    entry: EntryRow
    undone: EntryRow

    @property
    def uncertain(self) -> bool:
        """True if it is uncertain that the step happened."""
        return self.undone.status is not StepStatus.SUCCESS

    @property
    def is_done(self) -> bool:
        """True if the compensation is done or skipped."""
        return self.entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED)

    @property
    def is_listed_only(self) -> bool:
        """True if the compensation is only listed for users, because the step is uncertain."""
        return self.uncertain and self.entry.status is StepStatus.SKIPPED and self.entry.attempt == 0


def find_step_effects(
    journal: Iterable[EntryRow], attempts: Mapping[int, LastAttempt], options: Mapping[str, StepOptions]
) -> tuple[StepEffect, ...]:
    """Return the steps that took effect or may have, in the order in which they are undone."""
    rows = sorted(journal, key=lambda entry: entry.index)
    generation = compute_generations(rows)
    calls: dict[tuple[str, int], list[EntryRow]] = {}
    for entry in rows:
        if entry.kind is EntryKind.STEP:
            calls.setdefault((entry.key, generation[entry.index]), []).append(entry)
    found: list[StepEffect] = []
    # Replays may have executed a call several times. In one generation it has one effect at most.
    for repeated in calls.values():
        done = next((row for row in reversed(repeated) if row.status is StepStatus.SUCCESS), None)
        if done is not None:
            found.append(StepEffect(entry=done, uncertain=False))
        last = repeated[-1]
        transactional = options.get(last.name, StepOptions()).transactional
        if last is not done and not transactional and _is_uncertain(last, attempts.get(last.index)):
            found.append(StepEffect(entry=last, uncertain=True))
    return tuple(sorted(found, key=lambda each: _undo_order(each.entry, uncertain=each.uncertain)))


def _is_uncertain(entry: EntryRow, last: LastAttempt | None) -> bool:
    """Return True if the last attempt ended without an answer: interrupted, timed out, lost or disconnected."""
    if entry.status is StepStatus.RUNNING:
        return True
    if entry.status in _WAITING_STATUSES:
        if last is None or last.end is AttemptEnd.PARKED or last.attempt < entry.attempt:
            return entry.status is StepStatus.CANCELLED and entry.attempt > 0
        return last.end is not AttemptEnd.FAILED or last.category in _UNCERTAIN_CATEGORIES
    if entry.failure is None or entry.status not in (StepStatus.FAILED, StepStatus.DLQ):
        return False
    ending = FailureReason.from_json(entry.failure)
    lost = ending.failure.error_type == "redrive.MayHaveHappened"
    # In these stages the function has returned: the step happened, but its result is lost.
    return lost or ending.stage in (Stage.OUTPUT, Stage.COMMIT) or ending.failure.category in _UNCERTAIN_CATEGORIES


def _undo_order(undone: EntryRow, *, uncertain: bool) -> tuple[bool, int, int]:
    return not uncertain, 0 if uncertain else -(undone.done or 0), -undone.index


def find_passed_pivot(
    journal: Iterable[EntryRow], effects: Iterable[StepEffect], options: Mapping[str, StepOptions]
) -> str | None:
    """Return the step after which a rollback is impossible: a pivot that may have happened, or a confirmed step."""
    for entry in journal:
        if entry.kind is EntryKind.CONFIRM:
            return undone_step_name(entry.key)
    for each in effects:
        if options.get(each.entry.name, StepOptions()).pivot:
            return each.entry.name
    return None


def find_steps_to_confirm(
    journal: Iterable[EntryRow], options: Mapping[str, StepOptions]
) -> tuple[tuple[EntryRow, EntryRow | None], ...]:
    """Return the steps to confirm, in order of completion, each with its confirmation if that is recorded."""
    rows = [entry for entry in journal if not entry.superseded]
    known = {_followed_index(row): row for row in rows if row.kind is EntryKind.CONFIRM}
    reserved = [
        row
        for row in rows
        if row.kind is EntryKind.STEP
        and row.status is StepStatus.SUCCESS
        and options.get(row.name, StepOptions()).confirm is not None
    ]
    reserved.sort(key=lambda row: row.done or 0)
    return tuple((row, known.get(row.index)) for row in reserved)


def read_ledger(journal: Sequence[EntryRow]) -> tuple[LedgerRow, ...]:
    """Return the recorded compensations, in the order of their execution."""
    compensations = [entry for entry in journal if entry.kind is EntryKind.UNDO and not entry.superseded]
    if not compensations:
        return ()
    entries = {entry.index: entry for entry in journal}
    followed = [(entry, entries.get(_followed_index(entry))) for entry in compensations]
    rows = [LedgerRow(entry=entry, undone=undone) for entry, undone in followed if undone is not None]
    return tuple(sorted(rows, key=lambda row: _undo_order(row.undone, uncertain=row.uncertain)))


def find_unfinished(rows: Iterable[LedgerRow]) -> LedgerRow | None:
    """Return the next compensation to execute. The later ones wait for it."""
    return next((row for row in rows if not row.is_done), None)


def is_manual(entry: EntryRow) -> bool:
    """Return True if a user has to perform the action."""
    return entry.options is not None and StepOptions.from_json(entry.options).action == "manual"


def follow_up_key(entry: EntryRow, name: str) -> str:
    """Return the key of the action `name` that undoes or confirms an entry."""
    return entry_key(entry.key, name, entry.index)


def undone_step_name(key: str) -> str:
    """Return the name of the step that the action with this key undoes or confirms."""
    return key.rpartition("/")[0].rpartition("/")[2].rpartition("#")[0]


def _followed_index(entry: EntryRow) -> int:
    return int(entry.key.rpartition("#")[2])


def build_undo_input(entry: EntryRow, *, declared: bool, uncertain: bool) -> str:
    """Return the input of a compensation: the arguments of its step and, unless it is uncertain, the result.

    Both are joined as text, so that reading and writing cannot change them. A declared action receives them as `input`
    and `result`, a step as its parameters.
    """
    arguments = (entry.input or "{}").strip()
    result = "null" if uncertain else entry.output or "null"
    if declared:
        return f'{{"input":{arguments},"result":{result}}}'
    return f'{arguments[:-1]}{"" if arguments == "{}" else ","}"result":{result}}}'
