"""What of a run has to be undone, or confirmed, and how far that is: read from its journal alone.

    happened    every step that took effect, or may have
    ledger      the compensations on record, in the order in which they are done

A compensation is a journal entry of its own, under a key that names the entry it undoes:

    /charge#0           the step, entry 3
    /charge#0/refund#3  its compensation

Steps of which nobody knows whether they happened come first. The others follow in the reverse order of their
completion, over all branches. A step that a replay did again stands for what it did before; one that was
to be done again and was not, is still undone for what it did the first time. Done again as a new operation,
both happened, and both are undone.
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
_DONE_STATUSES = frozenset({StepStatus.SUCCESS, StepStatus.SKIPPED})
_WAITING_STATUSES = frozenset({StepStatus.CANCELLED, StepStatus.RETRYING, StepStatus.PENDING})


class LastAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the latest try of an entry ended."""

    attempt: int
    end: AttemptEnd
    category: str | None


class StepEffect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that took effect; `uncertain`: or may have, its last try having ended without an answer."""

    entry: EntryRow
    uncertain: bool


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A compensation on record, with the step that it undoes."""

    entry: EntryRow
    undone: EntryRow

    @property
    def uncertain(self) -> bool:
        """True if nobody knows whether the step happened."""
        return self.undone.status is not StepStatus.SUCCESS

    @property
    def is_done(self) -> bool:
        """True if nothing more is to be done about it."""
        return self.entry.status in _DONE_STATUSES

    @property
    def is_listed_only(self) -> bool:
        """True if it is listed and nothing more, because the step is uncertain."""
        return self.uncertain and self.entry.status is StepStatus.SKIPPED and self.entry.attempt == 0


# -- what happened ----------------------------------------------------------------------------------------


def find_step_effects(
    journal: Iterable[EntryRow], tries: Mapping[int, LastAttempt], options: Mapping[str, StepOptions]
) -> tuple[StepEffect, ...]:
    """The steps that took effect or may have, in the order in which they are to be undone."""
    rows = sorted(journal, key=lambda entry: entry.index)
    generation = compute_generations(rows)
    calls: dict[tuple[str, int], list[EntryRow]] = {}
    for entry in rows:
        if entry.kind is EntryKind.STEP:
            calls.setdefault((entry.key, generation[entry.index]), []).append(entry)
    found = [each for again in calls.values() for each in _find_call_effects(again, tries, options)]
    return tuple(sorted(found, key=lambda each: _undo_order(each.entry, uncertain=each.uncertain)))


def _find_call_effects(
    rows: list[EntryRow], tries: Mapping[int, LastAttempt], options: Mapping[str, StepOptions]
) -> Iterable[StepEffect]:
    """What one call of a step left behind, however often replays did it again in one generation."""
    done = next((row for row in reversed(rows) if row.status is StepStatus.SUCCESS), None)
    if done is not None:
        yield StepEffect(entry=done, uncertain=False)
    last = rows[-1]
    transactional = options.get(last.name, StepOptions()).transactional
    if last is not done and not transactional and _is_uncertain(last, tries.get(last.index)):
        yield StepEffect(entry=last, uncertain=True)


def _is_uncertain(entry: EntryRow, last: LastAttempt | None) -> bool:
    """True if the last try ended without an answer: in flight, out of time, lost, or on a broken line."""
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
    # Behind these stages the body has returned: it happened, but what it gave is unknown.
    return lost or ending.stage in (Stage.OUTPUT, Stage.COMMIT) or ending.failure.category in _UNCERTAIN_CATEGORIES


def _undo_order(undone: EntryRow, *, uncertain: bool) -> tuple[bool, int, int]:
    return not uncertain, 0 if uncertain else -(undone.done or 0), -undone.index


def find_passed_pivot(
    journal: Iterable[EntryRow], effects: Iterable[StepEffect], options: Mapping[str, StepOptions]
) -> str | None:
    """What makes it too late to go back: a pivot that happened or may have, or a confirmation. Or None."""
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
    """The steps to confirm, in order of completion, each with its confirmation if that is on record."""
    rows = [entry for entry in journal if not entry.superseded]
    known = {_followed_index(row): row for row in rows if row.kind is EntryKind.CONFIRM}
    tried = [
        row
        for row in rows
        if row.kind is EntryKind.STEP
        and row.status is StepStatus.SUCCESS
        and options.get(row.name, StepOptions()).confirm is not None
    ]
    tried.sort(key=lambda row: row.done or 0)
    return tuple((row, known.get(row.index)) for row in tried)


# -- the ledger -------------------------------------------------------------------------------------------


def read_ledger(journal: Sequence[EntryRow]) -> tuple[LedgerRow, ...]:
    """The compensations on record, in the order in which they are done."""
    undoing = [entry for entry in journal if entry.kind is EntryKind.UNDO and not entry.superseded]
    if not undoing:
        return ()
    entries = {entry.index: entry for entry in journal}
    rows = [
        LedgerRow(entry=entry, undone=entries[_followed_index(entry)])
        for entry in undoing
        if _followed_index(entry) in entries
    ]
    return tuple(sorted(rows, key=lambda row: _undo_order(row.undone, uncertain=row.uncertain)))


def find_unfinished(rows: Iterable[LedgerRow]) -> LedgerRow | None:
    """The compensation that is next; the later ones wait for it."""
    return next((row for row in rows if not row.is_done), None)


def is_manual(entry: EntryRow) -> bool:
    """True if a person has to do it."""
    return entry.options is not None and StepOptions.from_json(entry.options).action == "manual"


def follow_up_key(entry: EntryRow, name: str) -> str:
    """The key of what undoes or confirms an entry."""
    return entry_key(entry.key, name, entry.index)


def undone_step_name(key: str) -> str:
    """The name of the step that an entry with such a key is about."""
    return key.rpartition("/")[0].rpartition("/")[2].rpartition("#")[0]


def _followed_index(entry: EntryRow) -> int:
    return int(entry.key.rpartition("#")[2])


def build_undo_input(entry: EntryRow, *, declared: bool, uncertain: bool) -> str:
    """What a compensation is given: the step's arguments and, unless nobody knows it, its result.

    As texts, so that nothing of them changes on the way. A declared action has both under names of their own.
    """
    given = (entry.input or "{}").strip()
    result = "null" if uncertain else entry.output or "null"
    if declared:
        return f'{{"input":{given},"result":{result}}}'
    return f'{given[:-1]}{"" if given == "{}" else ","}"result":{result}}}'
