"""Which calls outside services take for the same operation: the generation in their idempotency keys.

A replay as a new operation begins a generation, and leaves a note of that in the journal:

    3  charge                  SUCCESS   superseded    generation 0
    4  ship                    DLQ       superseded    generation 0
    5  redrive.new_operation   keeps entries 0, 1, 2
    6  charge                  SUCCESS                 generation 1

What a generation did stands beside what the next one did. A step that the new operation kept is still of
the old one: called again by a later replay, it is called under the key it had.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from redrive.core.journal import EntryRow, entry_key
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transition import EntryWrite
from redrive.frozen import dataclass

__all__ = ["begin_generation", "generation_of_call", "generations"]

_NAME = "redrive.new_operation"


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a generation began, and which entries were not done again for it."""

    index: int
    keeps: frozenset[int]


def begin_generation(index: int, keeps: Iterable[EntryRow]) -> EntryWrite:
    """The note that a generation begins here; entries that ended and are kept stay in theirs."""
    kept = [entry.index for entry in keeps if entry.ended_at is not None]
    return EntryWrite(
        index=index,
        key=entry_key("", _NAME, index),
        kind=EntryKind.NOTE,
        name=_NAME,
        status=StepStatus.SUCCESS,
        output=json.dumps({"keeps": kept}),
    )


def generations(journal: Iterable[EntryRow], current: int = 0) -> Mapping[int, int]:
    """The generation of each entry by its index, if the run's is `current`."""
    rows = sorted(journal, key=lambda entry: entry.index)
    marks = _marks(rows)
    first = current - len(marks)
    latest: dict[str, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for entry in rows:
        begun = first + _before(marks, entry.index)
        index, generation = latest.get(entry.key, (entry.index, begun))
        found[entry.index] = generation if _is_kept(marks, index, entry.index) else begun
        latest[entry.key] = entry.index, found[entry.index]
    return found


def generation_of_call(journal: Iterable[EntryRow], key: str, current: int) -> int:
    """The generation in which the entry at a key is called, if the run's is `current`."""
    rows = list(journal)
    marks = _marks(rows)
    calls = [entry.index for entry in rows if entry.key == key] if marks else []
    if not calls or not _is_kept(marks, max(calls), None):
        return current
    return generations(rows, current)[max(calls)]


def _marks(rows: Iterable[EntryRow]) -> list[_Mark]:
    return [_Mark(row.index, _keeps(row.output)) for row in rows if row.name == _NAME]


def _keeps(text: str | None) -> frozenset[int]:
    try:
        return frozenset(json.loads(text or "{}")["keeps"])
    except (ValueError, KeyError):  # sealed, and the key is gone: as if everything had been done again
        return frozenset()


def _before(marks: list[_Mark], index: int) -> int:
    return bisect_left(marks, index, key=lambda mark: mark.index)


def _is_kept(marks: list[_Mark], index: int, until: int | None) -> bool:
    """True if every generation that began since an entry left it as it was."""
    since = marks[_before(marks, index) : None if until is None else _before(marks, until)]
    return all(index in mark.keeps for mark in since)
