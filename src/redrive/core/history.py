"""Histories: what a run recorded, as far as its code needs it to take the same path again; one line of JSON each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

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
