"""Which parts of the port's records are payloads, and sealing and opening just those.

A part that is not named here is stored in clear: names, states, times, codes, fingerprints, options, and
what people write about a letter. A test goes through the records and fails on a text nobody has placed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

from redrive.core.classify import Category
from redrive.core.delivery import DeliveryMark
from redrive.core.edit import Change
from redrive.core.ending import Ending, LetterCode, Stage
from redrive.core.failure import Failure
from redrive.core.journal import EntryRow
from redrive.core.quick import quick
from redrive.core.transition import (
    AttemptWrite,
    AuditWrite,
    EntryWrite,
    LetterWrite,
    MessageWrite,
    NewRun,
    Reopening,
    ReplayWrite,
    RunWrite,
    Transition,
)
from redrive.core.verdict import Verdict
from redrive.errors import ConfigurationError
from redrive.reasons import Reason, ReasonCode
from redrive.store.accounts import AnswerRow
from redrive.store.notices import NewNotice, NewNotification, NoticeRow, NotificationRow, RuleRow
from redrive.store.outbox import BlockedKey, DeliveryRow, MessageRow
from redrive.store.records import AttemptRow, AuditRow, GroupRow, LetterRow, ReplayRow, RunRow
from redrive.store.seal import SEALED_ERROR, Keyring, is_sealed
from redrive.store.selection import LetterFilter, RunFilter
from redrive.store.sets import ItemMark, NewSet, SetItemRow, SetRow
from redrive.store.views import NewView, ViewRow
from redrive.store.workers import Claimed

__all__ = ["COVERED", "PARTS", "SEALED", "Sealer", "remade"]

Record = TypeVar("Record")
Where = TypeVar("Where", RunFilter, LetterFilter)

SEALED: dict[type[Any], tuple[str, ...]] = {
    NewRun: ("input",),
    EntryWrite: ("input", "output", "failure"),
    AttemptWrite: ("failure", "decision"),
    RunWrite: ("output", "failure"),
    LetterWrite: ("reason", "failure"),
    Reopening: ("input",),
    ReplayWrite: ("request", "changes"),
    AuditWrite: ("before", "after"),
    Claimed: ("input",),
    RunRow: ("input", "output", "failure"),
    EntryRow: ("input", "output", "failure"),
    AttemptRow: ("failure", "decision"),
    LetterRow: ("reason", "failure", "input"),
    GroupRow: ("reason", "failure"),
    NewSet: ("request",),
    SetRow: ("request",),
    ItemMark: ("error",),
    SetItemRow: ("error",),
    ReplayRow: ("request", "changes"),
    AuditRow: ("before", "after"),
    MessageWrite: ("payload",),
    MessageRow: ("payload",),
    DeliveryMark: ("error",),
    DeliveryRow: ("error",),
    BlockedKey: ("error",),
    AnswerRow: ("body",),
    NewNotice: ("notice",),
    NoticeRow: ("notice",),
    NewNotification: ("content",),
    NotificationRow: ("content",),
    RuleRow: ("rule",),
    NewView: ("query",),
    ViewRow: ("query",),
}
"""The payloads of each record."""

COVERED: dict[type[Any], tuple[str, ...]] = {
    NewRun: ("key_hash",),
    LetterWrite: ("payload_hash",),
    ReplayWrite: ("digest",),
    LetterRow: ("payload_hash",),
    ReplayRow: ("digest",),
}
"""The hashes of payloads: whoever can guess a payload could prove the guess with a plain hash."""

INDEXED = frozenset({NewRun, Reopening})
"""Records with values to search by: they are covered, too."""

PARTS = ("entries", "attempts", "change", "letter", "reopens", "starts", "replay", "audit", "messages")
"""The parts of a transition that hold such records."""


class Sealer:
    """Seals records on their way into the store and opens them on their way out."""

    def __init__(self, keys: Keyring) -> None:
        self.keys = keys

    def transition(self, transition: Transition) -> Transition:
        """A transition with all its payloads sealed."""
        changes: dict[str, Any] = {}
        for name in PARTS:
            part = getattr(transition, name)
            if part:
                changes[name] = self._part(part, transition.tenant)
        return remade(transition, changes)

    def _part(self, part: Any, tenant: str) -> Any:
        if isinstance(part, tuple):
            return tuple([self.seal(each, tenant) for each in part])
        return self.seal(part, tenant)

    def seal(self, record: Record, tenant: str) -> Record:
        """A record with its payloads sealed, for its own tenant if it names one."""
        kind, keys = type(record), self.keys
        tenant = getattr(record, "tenant", tenant)
        changes: dict[str, Any] = {}
        for name in SEALED[kind]:
            if (value := getattr(record, name)) is not None:
                changes[name] = keys.seal(value, tenant)
        if kind in COVERED:
            for name in COVERED[kind]:
                if (value := getattr(record, name)) is not None:
                    changes[name] = keys.cover(value, tenant)
        if kind in INDEXED and getattr(record, "index", None):
            changes["index"] = self._index(record)
        return remade(record, changes)

    def _index(self, record: Any) -> tuple[tuple[str, str], ...]:
        """What a run is searched by, covered for no tenant: people may search the runs of all of them."""
        return tuple((field, self.keys.cover(value, "")) for field, value in record.index)

    def where(self, where: Where, *, stored: bool = False) -> Where:
        """A filter that finds a value of an index in whichever form it was written.

        One that is `stored` itself says nothing in clear, and finds only what is covered.
        """
        if where.index is None:
            return where
        forms = {
            field: tuple(form for text in texts for form in self.keys.covers(text, ""))
            for field, texts in where.index.items()
        }
        if stored and self.keys.writes is not None:
            forms = {field: tuple(form for form in each if is_sealed(form)) for field, each in forms.items()}
        return replace(where, index=forms)

    def open(self, record: Record, tenant: str | None, *, strictly: bool = False) -> Record:
        """A record with its payloads opened.

        A payload that cannot be opened stays sealed, so that it can be written back as it is; a failure, or
        what else is only shown, is replaced by one that says so. `strictly`: raises ConfigurationError.
        """
        tenant = getattr(record, "tenant", tenant)
        kind = type(record)
        changes: dict[str, Any] = {}
        for name in SEALED[kind]:
            value = getattr(record, name)
            if value is not None and value.startswith("enc1:"):
                changes[name] = self._opened(kind, name, value, tenant, strictly)
        for name in COVERED.get(kind, ()):
            value = getattr(record, name)
            if value.startswith("det1:"):
                changes[name] = self._uncovered(value, tenant)
        return remade(record, changes)

    def heartbeat(self, entry: EntryRow) -> EntryRow:
        """An entry with its heartbeat opened; that is sealed for no tenant, since a beat names none."""
        text = entry.heartbeat
        if text is None or not text.startswith("enc1:"):
            return entry
        try:
            return remade(entry, {"heartbeat": self.keys.open(text, "")})
        except ConfigurationError:
            return entry

    def _opened(self, kind: type[Any], name: str, text: str, tenant: str | None, strictly: bool) -> str:
        try:
            return self.keys.open(text, tenant)
        except ConfigurationError as error:
            if strictly:
                raise
            stand_in = _STAND_INS.get((kind, name))
            return text if stand_in is None else stand_in(str(error))

    def _uncovered(self, text: str, tenant: str | None) -> str:
        try:
            return self.keys.uncover(text, tenant)
        except ConfigurationError:
            return text


def remade(record: Record, changes: dict[str, Any]) -> Record:
    """The record with other values in some of its fields; several times as fast as `dataclasses.replace`."""
    if not changes:
        return record
    kind: Any = type(record)
    names, values, make = _remaker(kind)
    filled = dict(zip(names, values(record), strict=True))
    filled.update(changes)
    made: Record = make(**filled)
    return made


@cache
def _remaker(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], Callable[..., Any]]:
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names), quick(kind)


# -- what stands for that which cannot be opened, and is taken apart to be shown --------------------------


def _reason(why: str) -> Reason:
    return Reason(ReasonCode.FAILURE_UNREADABLE, why=why)


def _failure(why: str) -> Failure:
    return Failure.of(Category.MISSING_CONFIG, str(_reason(why)), SEALED_ERROR)


def _ending(why: str) -> str:
    code = LetterCode.INFRASTRUCTURE_FAILURE
    return Ending(failure=_failure(why), code=code, reason=_reason(why), stage=Stage.FETCH).to_json()


_STAND_INS: dict[tuple[type[Any], str], Callable[[str], str]] = {
    (RunRow, "failure"): _ending,
    (EntryRow, "failure"): _ending,
    (LetterRow, "failure"): _ending,
    (LetterRow, "reason"): lambda why: _reason(why).to_text(),
    (GroupRow, "reason"): lambda why: _reason(why).to_text(),
    (GroupRow, "failure"): _ending,
    (AttemptRow, "failure"): lambda why: json.dumps(_failure(why).to_json()),
    (AttemptRow, "decision"): lambda why: Verdict(
        retry=False, why=Reason(ReasonCode.TEXT, text=why)
    ).to_json(),
    (DeliveryRow, "error"): lambda why: _failure(why).message,
    (BlockedKey, "error"): lambda why: _failure(why).message,
    (SetItemRow, "error"): lambda why: _reason(why).to_text(),
    (ReplayRow, "changes"): lambda why: json.dumps([Change(path="", kind="changed", after=why).to_json()]),
}
