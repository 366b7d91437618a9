"""The effects of a run that must be undone or confirmed, and the progress of that, read from its journal alone.

    effects     every step that took effect, or may have, and every child
    ledger      the recorded compensations, in the order of their execution

A compensation is a journal entry, under a key that names the entry it undoes:

    /charge#0           the step, entry 3
    /charge#0/refund#3  its compensation

Steps that are uncertain to have happened come first. The others follow in the reverse order of their completion, over
all branches. A step that a replay executed again stands for its earlier effect; if the replay did not get that far, the
earlier effect is undone. If the replay was a new operation, both effects happened, and both are undone.

A child that ends with its parent is one effect: the entry of its start, completed when its result was waited for. It is
undone by its own rollback, for which its parent waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from redrive.core.classify import Category
from redrive.core.failure_reason import FailureReason, Stage
from redrive.core.journal import EntryRow, compute_generations, entry_key
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.core.waits_and_events import WaitMode

CHILD_UNDO = "redrive.rollback"
"""The name of ledger entries that undo a child."""

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
        """True if the compensation is only listed for users: the step is uncertain, or the child cannot be undone."""
        return self.entry.status is StepStatus.SKIPPED and self.entry.attempt == 0

    @property
    def child(self) -> str | None:
        """The id of the child that the entry undoes; None if it undoes a step."""
        return _started_run(self.undone)

    @property
    def is_left(self) -> bool:
        """True if the entry is of a child whose effects stay."""
        return self.is_child and self.is_listed_only

    @property
    def is_child(self) -> bool:
        """True if the entry undoes a child run."""
        return self.undone.kind is EntryKind.START


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
    return sort_effects(found, rows)


def find_child_effects(journal: Iterable[EntryRow], owned: Set[str]) -> tuple[StepEffect, ...]:
    """Return the starts of the runs with these ids, each once, however often a replay asked for it."""
    starts = find_started_runs(journal).items()
    return tuple(StepEffect(entry=row, uncertain=False) for run_id, row in starts if run_id in owned)


def find_started_runs(journal: Iterable[EntryRow]) -> dict[str, EntryRow]:
    """Return the starts of other runs by their ids."""
    return {run_id: row for row in journal if (run_id := _started_run(row)) is not None}


def _started_run(row: EntryRow) -> str | None:
    """Return the id of the run that an entry started; None for other entries, and if it is unreadable."""
    readable = row.kind is EntryKind.START and isinstance(row.output, str)
    return str(json.loads(row.output)) if readable else None  # type: ignore[arg-type]


def sort_effects(effects: Iterable[StepEffect], journal: Iterable[EntryRow]) -> tuple[StepEffect, ...]:
    """Return effects in the order in which they are undone."""
    ends = _find_child_ends(journal)
    return tuple(sorted(effects, key=lambda each: _undo_order(each.entry, ends, uncertain=each.uncertain)))


def _find_child_ends(journal: Iterable[EntryRow]) -> dict[int, int]:
    """Return the completion number of each child by the index of its start: that of the last wait for its result."""
    starts: dict[str, int] = {}
    ends: dict[int, int] = {}
    for row in sorted(journal, key=lambda row: row.index):
        if (run_id := _started_run(row)) is not None:
            starts[run_id] = row.index
        elif row.kind is EntryKind.WAIT and row.done is not None and isinstance(row.input, str):
            wait = json.loads(row.input)
            if wait.get("mode") == WaitMode.RUN and wait["names"][0] in starts:
                ends[starts[wait["names"][0]]] = row.done
    return ends


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


def _undo_order(undone: EntryRow, child_ends: Mapping[int, int], *, uncertain: bool) -> tuple[bool, int, int]:
    done = child_ends.get(undone.index, undone.done)
    return not uncertain, 0 if uncertain else -(done or 0), -undone.index


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
    ends = _find_child_ends(journal)
    return tuple(sorted(rows, key=lambda row: _undo_order(row.undone, ends, uncertain=row.uncertain)))


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
