"""The ordered record of a run, and how a resumed run finds its way through it.

A run resumes by calling its function again. Each engine call asks the journal for the entry at its
key; entries that completed are handed out in the order in which they completed the first time, one
at a time, so that code which looks at "whichever came first" takes the same way again. Only when all
of them were handed out does new work begin.

    key = branch / name # count          "/charge#0", "1.0/charge#2"

A replay may leave *loose* entries behind: recorded after the step that is done again, or before the
input was edited. The function may come by them, and then gets what they hold, or may take another way.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from redrive.core.states import FOLLOW_UP_KINDS, EntryKind, StepStatus
from redrive.core.transitions import EntryWrite
from redrive.reasons import Reason, ReasonCode

# -- The ordered record of a run, and how a resumed run finds its way through it -------------------------


_KINDS_WITHOUT_DONE = (EntryKind.NOTE, EntryKind.START, EntryKind.PUBLISH)  # they have no completion number
MAX_ENTRIES = 10_000
"""A run may record no more entries than this; a loop that needs more should start other runs."""


class EntryRow(msgspec.Struct, frozen=True, gc=False):
    """One journal entry as recorded."""

    index: int
    key: str
    kind: EntryKind
    name: str
    status: StepStatus
    attempt: int
    done: int | None
    first_at: int
    began_at: int
    ended_at: int | None
    wake_at: int | None
    limit_at: int | None
    input: str | None
    output: str | None
    failure: str | None
    options: str | None
    superseded: int = 0
    loose: int = 0
    heartbeat_at: int | None = None
    heartbeat: str | None = None


def entry_key(branch: str, name: str, count: int) -> str:
    """The key of the `count`-th entry called `name` in a branch."""
    return f"{branch}/{name}#{count}"


def entry_name(key: str) -> str:
    """The name in a key."""
    return key.rpartition("/")[2].rpartition("#")[0]


class Journal:
    """What a run recorded before, and how much of it the resumed function has asked for.

    `turn` is the key whose result is to be handed out next, or None when all were.
    """

    __slots__ = ("_asked", "_entries", "_order", "next_done", "next_index", "set_aside", "turn")

    def __init__(self, entries: Iterable[EntryRow] = ()) -> None:
        self._entries: dict[str, EntryRow] = {}
        self._order: Iterator[str] = iter(())
        self.turn: str | None = None
        self._asked: set[str] = set()
        self.set_aside = self.next_index = self.next_done = 0
        if recorded := list(entries):
            self._load(recorded)

    def _load(self, recorded: list[EntryRow]) -> None:
        rows = [entry for entry in recorded if not entry.superseded and entry.kind not in FOLLOW_UP_KINDS]
        completed = [(entry.done, entry.key) for entry in rows if entry.done is not None]
        self._entries = {entry.key: entry for entry in rows}
        self._order = iter([key for _, key in sorted(completed)])
        self.turn = next(self._order, None)
        # A superseded entry is kept, so its index stays taken; and what is undone one day is undone in the
        # order of all numbers, so its number is not given twice either.
        self.set_aside = sum(1 for entry in recorded if entry.superseded)
        self.next_index = max(entry.index for entry in recorded) + 1
        self.next_done = max((row.done for row in recorded if row.done is not None), default=-1) + 1

    def new_index(self) -> int:
        """Return the number of a new entry."""
        index = self.next_index
        self.next_index = index + 1
        return index

    def new_done_number(self) -> int:
        """Return the number of a new result."""
        number = self.next_done
        self.next_done = number + 1
        return number

    def continue_numbers(self, known: Journal) -> None:
        """Number new entries and results behind those of another journal of the same run."""
        self.next_index = max(self.next_index, known.next_index)
        self.next_done = max(self.next_done, known.next_done)

    def ask(self, key: str) -> EntryRow | None:
        """The recorded entry at this key, which thereby counts as asked for."""
        entry = self._entries.get(key)
        if entry is not None:
            self._asked.add(key)
        return entry

    def is_optional(self, key: str) -> bool:
        """True if the function asked for this entry and gave up waiting since, or may never ask for it."""
        return key in self._asked or bool(self._entries[key].loose)

    def mark_delivered(self, key: str) -> None:
        """Note that the result whose turn it is was handed out."""
        if key != self.turn:
            raise ValueError(f"it is the turn of {self.turn!r}, not of {key!r}")
        self.turn = next(self._order, None)

    def list_unrequested(self) -> list[EntryRow]:
        """Recorded entries that the function has not asked for, in the order they began."""
        missing = (
            entry
            for entry in self._entries.values()
            if entry.key not in self._asked
            and not entry.loose
            and (entry.done is not None or entry.kind in _KINDS_WITHOUT_DONE)
        )
        return sorted(missing, key=lambda entry: entry.index)

    def difference(self, wanted: Iterable[str]) -> Reason:
        """Return how the code's requests differ from the record."""
        recorded = _list_calls([entry.key for entry in self.list_unrequested()])
        return Reason(ReasonCode.CODE_CHANGED, recorded=recorded, asked=_list_calls(list(wanted)))


def _list_calls(keys: list[str]) -> Reason:
    if not keys:
        return Reason(ReasonCode.JOURNAL_NOTHING)
    return Reason(ReasonCode.JOURNAL_CALLS, calls=tuple(map(_describe_call, keys[:5])))


def _describe_call(key: str) -> Reason:
    branch, _, rest = key.rpartition("/")
    name, _, count = rest.rpartition("#")
    call = None if count == "0" else int(count) + 1
    return Reason(ReasonCode.JOURNAL_CALL, name=name, call=call, branch=branch or None)


# -- Which calls outside services take for the same operation: the generation in their idempotency k -----


_GENERATION_NOTE = "redrive.new_operation"


class _Generation(msgspec.Struct, frozen=True):
    """Where a generation began, and which entries were not done again for it."""

    index: int
    keeps: frozenset[int]


def build_generation_note(index: int, keeps: Iterable[EntryRow]) -> EntryWrite:
    """The note that a generation begins here; entries that ended and are kept stay in theirs."""
    kept = [entry.index for entry in keeps if entry.ended_at is not None]
    return EntryWrite(
        index=index,
        key=entry_key("", _GENERATION_NOTE, index),
        kind=EntryKind.NOTE,
        name=_GENERATION_NOTE,
        status=StepStatus.SUCCESS,
        output=json.dumps({"keeps": kept}),
    )


def compute_generations(journal: Iterable[EntryRow], current: int = 0) -> Mapping[int, int]:
    """The generation of each entry by its index, if the run's is `current`."""
    rows = sorted(journal, key=lambda entry: entry.index)
    marks = _read_generations(rows)
    first = current - len(marks)
    latest: dict[str, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for entry in rows:
        begun = first + _count_before(marks, entry.index)
        index, generation = latest.get(entry.key, (entry.index, begun))
        found[entry.index] = generation if _is_kept(marks, index, entry.index) else begun
        latest[entry.key] = entry.index, found[entry.index]
    return found


def generation_of_call(journal: Iterable[EntryRow], key: str, current: int) -> int:
    """The generation in which the entry at a key is called, if the run's is `current`."""
    rows = list(journal)
    marks = _read_generations(rows)
    calls = [entry.index for entry in rows if entry.key == key] if marks else []
    if not calls or not _is_kept(marks, max(calls), None):
        return current
    return compute_generations(rows, current)[max(calls)]


def _read_generations(rows: Iterable[EntryRow]) -> list[_Generation]:
    return [_Generation(row.index, _read_kept(row.output)) for row in rows if row.name == _GENERATION_NOTE]


def _read_kept(text: str | None) -> frozenset[int]:
    try:
        return frozenset(json.loads(text or "{}")["keeps"])
    except (ValueError, KeyError):  # sealed, and the key is gone: as if everything had been done again
        return frozenset()


def _count_before(marks: list[_Generation], index: int) -> int:
    return bisect_left(marks, index, key=lambda mark: mark.index)


def _is_kept(marks: list[_Generation], index: int, until: int | None) -> bool:
    """True if every generation that began since an entry left it as it was."""
    since = marks[_count_before(marks, index) : None if until is None else _count_before(marks, until)]
    return all(index in mark.keeps for mark in since)
