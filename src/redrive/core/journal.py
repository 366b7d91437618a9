"""The journal of a run: its ordered record, and the way in which a resumed run reads it.

A run resumes by calling its function again. Each call of the engine requests the entry at its key. Results of completed
entries are delivered one at a time, in the order of their first completion, so that code which takes "the first to
complete" decides as before. New work begins only after the last recorded result was delivered.

    key = branch / name # count          "/charge#0", "1.0/charge#2"

A replay may leave *loose* entries: recorded after the step that is executed again, or before the input was edited. The
function may request them, and then receives the recorded results, or may take another path.

A *generation* is a part of the run that outside services see as one operation: it is in every idempotency key. A replay
as a new operation begins the next one.

A *history* is what a run recorded, as far as its code needs it to take the same path again: one line of JSON.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import msgspec

from redrive.core.states import FOLLOW_UP_KINDS, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import EntryWrite
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

MAX_ENTRIES = 10_000
"""The largest number of entries that a run may record. A loop that needs more should start other runs."""

_KINDS_WITHOUT_DONE = (EntryKind.NOTE, EntryKind.START, EntryKind.PUBLISH)  # they have no completion number
_GENERATION_NOTE = "redrive.new_operation"
_PATCH_TAKEN = "true"


class EntryRow(msgspec.Struct, frozen=True, gc=False):
    """A recorded journal entry."""

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
    """Return the key of the `count`-th entry called `name` in a branch."""
    return f"{branch}/{name}#{count}"


def entry_name(key: str) -> str:
    return key.rpartition("/")[2].rpartition("#")[0]


class Journal:
    """The recorded entries of a run, and those that the resumed function has requested.

    `next_key`: the key of the result to deliver next; None when all were delivered. `superseded_count`: the number of
    entries that replays replaced. `takes_patch`: the run took the new code of a patch. `needs_patches`: code that does
    not ask for these patches must not add to the journal.
    """

    __slots__ = (
        *("_entries", "_order", "_requested", "needs_patches", "next_done", "next_index", "next_key"),
        *("superseded_count", "takes_patch"),
    )

    def __init__(self, entries: Iterable[EntryRow] = ()) -> None:
        self._entries: dict[str, EntryRow] = {}
        self._order: Iterator[str] = iter(())
        self._requested: set[str] = set()
        self.next_key: str | None = None
        self.superseded_count = self.next_index = self.next_done = 0
        self.takes_patch = self.needs_patches = False
        recorded = list(entries)
        if not recorded:  # a new run: every start of a run passes here
            return
        rows = [entry for entry in recorded if not entry.superseded and entry.kind not in FOLLOW_UP_KINDS]
        completed = [(entry.done, entry.key) for entry in rows if entry.done is not None]
        self._entries = {entry.key: entry for entry in rows}
        self.takes_patch = any(_is_taken_patch(entry) for entry in rows)
        self._order = iter([key for _, key in sorted(completed)])
        self.next_key = next(self._order, None)
        # A superseded entry keeps its index and its completion number: a rollback orders all entries by them.
        self.superseded_count = sum(1 for entry in recorded if entry.superseded)
        self.next_index = max(entry.index for entry in recorded) + 1
        self.next_done = max((entry.done for entry in recorded if entry.done is not None), default=-1) + 1

    def new_index(self) -> int:
        """Return the index of a new entry."""
        index = self.next_index
        self.next_index = index + 1
        return index

    def new_done_number(self) -> int:
        """Return the completion number of a new result."""
        number = self.next_done
        self.next_done = number + 1
        return number

    def continue_numbers(self, known: Journal) -> None:
        """Number new entries and results after those of another journal of the same run."""
        self.next_index = max(self.next_index, known.next_index)
        self.next_done = max(self.next_done, known.next_done)

    def request_entry(self, key: str) -> EntryRow | None:
        """Return the recorded entry at a key, and note that the function requested it."""
        entry = self._entries.get(key)
        if entry is not None:
            self._requested.add(key)
        return entry

    def is_optional(self, key: str) -> bool:
        """Return True if the function requested this entry and gave up waiting since, or may never request it."""
        return key in self._requested or bool(self._entries[key].loose)

    def mark_delivered(self, key: str) -> None:
        """Note that the next result was delivered."""
        if key != self.next_key:
            raise ValueError(f"the next result to deliver is {self.next_key!r}, not {key!r}")
        self.next_key = next(self._order, None)

    def list_unrequested(self) -> list[EntryRow]:
        """Return the recorded entries that the function has not requested, in the order in which they began."""
        missing = (
            entry
            for entry in self._entries.values()
            if entry.key not in self._requested
            and not entry.loose
            and (
                entry.done is not None
                or entry.kind in _KINDS_WITHOUT_DONE
                or (self.needs_patches and _is_taken_patch(entry))
            )
        )
        return sorted(missing, key=lambda entry: entry.index)

    def has_unrequested(self) -> bool:
        """Return True if the run recorded something that the function has not requested yet."""
        return any(
            entry.kind is not EntryKind.PATCH and entry.name != _GENERATION_NOTE
            for key, entry in self._entries.items()
            if key not in self._requested
        )

    def has_missed_patch(self, branch: str) -> bool:
        """Return True if a branch, or one above it, took a patch for which this function has not asked."""
        return any(
            _is_taken_patch(entry) and _is_within(branch, key.partition("/")[0])
            for key, entry in self._entries.items()
            if key not in self._requested
        )

    def describe_difference(self, requested: Iterable[str]) -> Reason:
        """Return how the requests of the code differ from the record."""
        recorded = _list_calls([entry.key for entry in self.list_unrequested()])
        return Reason(ReasonCode.CODE_CHANGED, recorded=recorded, asked=_list_calls(list(requested)))


def _is_taken_patch(entry: EntryRow) -> bool:
    return entry.kind is EntryKind.PATCH and entry.output == _PATCH_TAKEN


def _is_within(path: str, branch: str) -> bool:
    return not branch or path == branch or path.startswith(f"{branch}.")


def _list_calls(keys: list[str]) -> Reason:
    calls = []
    for key in keys[:5]:
        branch, _, rest = key.rpartition("/")
        name, _, count = rest.rpartition("#")
        call = None if count == "0" else int(count) + 1
        calls.append(Reason(ReasonCode.JOURNAL_CALL, name=name, call=call, branch=branch or None))
    return Reason(ReasonCode.JOURNAL_CALLS, calls=tuple(calls)) if calls else Reason(ReasonCode.JOURNAL_NOTHING)


class _Generation(msgspec.Struct, frozen=True):
    """The start of a generation. `keeps`: indexes of the entries that it did not execute again."""

    index: int
    keeps: frozenset[int]


def build_generation_note(index: int, keeps: Iterable[EntryRow]) -> EntryWrite:
    """Return the note that a generation begins. Entries that ended and are kept stay in their generation."""
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
    """Return the generation of each entry by its index. `current` is the generation of the run."""
    rows = sorted(journal, key=lambda entry: entry.index)
    generations = _read_generations(rows)
    first = current - len(generations)
    latest: dict[str, tuple[int, int]] = {}
    found: dict[int, int] = {}
    for entry in rows:
        begun = first + _count_before(generations, entry.index)
        index, generation = latest.get(entry.key, (entry.index, begun))
        found[entry.index] = generation if _is_kept(generations, index, entry.index) else begun
        latest[entry.key] = entry.index, found[entry.index]
    return found


def generation_of_call(journal: Iterable[EntryRow], key: str, current: int) -> int:
    """Return the generation in which the entry at a key is called. `current` is the generation of the run."""
    rows = list(journal)
    generations = _read_generations(rows)
    calls = [entry.index for entry in rows if entry.key == key] if generations else []
    if not calls or not _is_kept(generations, max(calls), None):
        return current
    return compute_generations(rows, current)[max(calls)]


def _read_generations(rows: Iterable[EntryRow]) -> list[_Generation]:
    found = []
    for row in rows:
        if row.name == _GENERATION_NOTE:
            try:
                keeps = frozenset(json.loads(row.output or "{}")["keeps"])
            except (ValueError, KeyError):  # encrypted with a lost key: as if everything had been executed again
                keeps = frozenset()
            found.append(_Generation(row.index, keeps))
    return found


def _count_before(generations: list[_Generation], index: int) -> int:
    return bisect_left(generations, index, key=lambda generation: generation.index)


def _is_kept(generations: list[_Generation], index: int, until: int | None) -> bool:
    """Return True if every generation that began since an entry kept it."""
    end = None if until is None else _count_before(generations, until)
    return all(index in generation.keeps for generation in generations[_count_before(generations, index) : end])


_FORMAT = 1
_ENTRY_FIELDS = ("index", "key", "kind", "name", "status", "attempt", "done", "wake_at", "output", "failure", "loose")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """An entry of a journal that no replay replaced. Only waits have their `input`, which says what they are for."""

    index: int
    key: str
    kind: EntryKind
    name: str
    status: StepStatus
    attempt: int
    done: int | None = None
    wake_at: int | None = None
    input: str | None = None
    output: str | None = None
    failure: str | None = None
    loose: int = 0

    def to_row(self) -> EntryRow:
        """Return the entry as a journal has it. Times that no code sees are 0."""
        values = {name: getattr(self, name) for name in (*_ENTRY_FIELDS, "input")}
        return EntryRow(**values, first_at=0, began_at=0, ended_at=None, limit_at=None, options=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The record of a run. Input, results and failures are JSON texts; `at` is the store's time of the reading."""

    run_id: str
    workflow: str
    tenant: str
    version: str
    status: RunStatus
    at: int
    input: str
    options: str
    created_at: int
    started_at: int | None = None
    correlation_id: str | None = None
    root: str | None = None
    generation: int = 0
    entries: tuple[HistoryEntry, ...] = ()

    def to_line(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> History:
        """Read a line that `to_line` wrote; InputError for any other line."""
        try:
            data = json.loads(line)
            if data.pop("format") != _FORMAT:
                raise ValueError("another format")
            return msgspec.convert(data, cls)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(Reason(ReasonCode.HISTORY_INVALID)) from None


def list_history_entries(journal: Iterable[EntryRow]) -> tuple[HistoryEntry, ...]:
    """Return the entries of a journal that code may request."""
    return tuple(
        [
            HistoryEntry(
                **{name: getattr(row, name) for name in _ENTRY_FIELDS},
                input=row.input if row.kind is EntryKind.WAIT else None,
            )
            for row in journal
            if not row.superseded
        ]
    )
