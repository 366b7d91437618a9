"""Encryption of records: the tables of payload fields, and the codec that seals and opens them.

Every store call passes its arguments through `Codec.seal` and its result through `Codec.open`, so a new call
needs nothing here. Payloads are the fields in the tables below. Other fields are stored in clear: names,
states, times, codes, fingerprints, options, and users' notes on a letter. A test goes through the records and
fails on a text field that is in neither list.

The database copies sealed texts like any other: a letter's copy of its run's input needs no key.

A payload that cannot be opened becomes an `Unreadable` value. It is never dropped or overwritten: written
back, it is stored as it was. A claimed run with such a payload gets a journal that raises when it is read, and
its worker then makes the run a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import is_
from typing import Any, TypeVar, cast

from redrive.core import transitions
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow
from redrive.core.json_edit import Change
from redrive.core.outbox import DeliveryResult
from redrive.core.retry import RetryDecision
from redrive.core.run_options import takes_sealed
from redrive.core.secret_and_sealed_text import is_sealed
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import ConfigurationError, InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store import notifications
from redrive.store.accounts import ResponseRow
from redrive.store.audit import AuditRow
from redrive.store.bulk import BulkItemResult, BulkItemRow, BulkRow, NewBulk
from redrive.store.children import AwaitedRun, RunEnd
from redrive.store.chores import HeldRun
from redrive.store.circuits import CircuitUpdate
from redrive.store.claims import ClaimedRun, ClaimResult
from redrive.store.encryption import keyring
from redrive.store.encryption.keyring import SEALED_ERROR, Keyring, Unreadable
from redrive.store.events import EventRow, Mailbox, NewEvent, SendResult
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.groups import GroupChange, GroupPage, GroupRow
from redrive.store.letters import DecisionCase, LetterRow, LetterTexts, ReplayRow, Triage
from redrive.store.outbox import BlockedKey, DeliveryDecision, DeliveryRow, MessageRow
from redrive.store.outbox_claims import ClaimedDeliveries, ClaimedDelivery
from redrive.store.port import LeaseConnection, Store, Transaction
from redrive.store.questions import AskedQuestion, GivenAnswer, QuestionRow, QuestionStep, RecordedAnswer
from redrive.store.result_page import Page
from redrive.store.runs import AttemptRow, RunRow, StatusNoteRow
from redrive.store.settings import NewView, ViewRow
from redrive.store.step_tasks import TaskAnswer, TaskCase, TaskHeartbeat, TaskRow, TaskWrite
from redrive.store.workers import Beats, HeartbeatReply, ReceiptWrite, RemoteWorkerRow

Value = TypeVar("Value")

WRITTEN_PAYLOADS: dict[type[Any], tuple[str, ...]] = {
    transitions.NewRun: ("input",),
    transitions.EntryWrite: ("input", "output", "failure"),
    transitions.AttemptWrite: ("failure", "decision"),
    transitions.RunWrite: ("output", "failure"),
    transitions.LetterWrite: ("reason", "message", "failure"),
    transitions.ReopenWrite: ("input",),
    transitions.ReplayWrite: ("request", "changes"),
    transitions.AuditWrite: ("before", "after"),
    NewBulk: ("request",),
    BulkItemResult: ("error",),
    transitions.MessageWrite: ("payload",),
    transitions.EventUse: ("refused",),
    transitions.StatusNoteWrite: ("text", "data"),
    transitions.QuestionWrite: ("question", "shown", "schema"),
    transitions.QuestionEnd: ("answer", "note"),
    GivenAnswer: ("answer", "note"),
    NewEvent: ("payload",),
    DeliveryResult: ("error",),
    ResponseRow: ("body",),
    notifications.NewNotice: ("notice",),
    notifications.NewNotification: ("content",),
    notifications.RuleRow: ("rule",),
    NewView: ("query",),
    ReceiptWrite: ("answer",),
    TaskWrite: ("output", "failure", "reply"),
    TaskHeartbeat: ("heartbeat",),
}
"""The payloads of records that are written."""

READ_PAYLOADS: dict[type[Any], tuple[str, ...]] = {
    ClaimedRun: ("input",),
    RunRow: ("input", "output", "failure"),
    EntryRow: ("input", "output", "failure"),
    AttemptRow: ("failure", "decision"),
    LetterRow: ("reason", "failure", "input"),
    LetterTexts: ("reason", "message"),
    GroupRow: ("reason", "failure"),
    BulkRow: ("request",),
    BulkItemRow: ("error",),
    ReplayRow: ("request", "changes"),
    AuditRow: ("before", "after"),
    MessageRow: ("payload",),
    EventRow: ("payload", "refused"),
    RunEnd: ("output", "failure"),
    StatusNoteRow: ("text", "data"),
    QuestionRow: ("question", "shown", "schema", "answer", "note"),
    RecordedAnswer: ("answer", "note"),
    DeliveryRow: ("error",),
    BlockedKey: ("error",),
    ResponseRow: ("body",),
    notifications.NoticeRow: ("notice",),
    notifications.NotificationRow: ("content",),
    notifications.RuleRow: ("rule",),
    ViewRow: ("query",),
    RemoteWorkerRow: ("answer",),
    TaskAnswer: ("output", "failure"),
    TaskCase: ("input", "reply"),
    TaskRow: ("heartbeat",),
}
"""The payloads of records that are read."""

HASH_FIELDS: dict[type[Any], tuple[str, ...]] = {
    transitions.NewRun: ("key_hash",),
    transitions.LetterWrite: ("payload_hash",),
    transitions.ReplayWrite: ("digest",),
    LetterRow: ("payload_hash",),
    ReplayRow: ("digest",),
    ReceiptWrite: ("digest",),
    RemoteWorkerRow: ("digest",),
}
"""Hashes of payloads: with a plain hash, a guess of the payload could be proved right."""

INDEXED_RECORDS = frozenset({transitions.NewRun, transitions.ReopenWrite})
"""Records with searchable values: those are covered, too."""

WRITTEN_PARTS: dict[type[Any], tuple[str, ...]] = {
    Transition: (
        "entries", "attempts", "change", "letter", "reopens", "starts", "replay", "audit", "messages", "uses", "note",
        "questions", "question_ends",
    ),
    NewEvent: ("audit",),
    GivenAnswer: ("audit",),
    QuestionStep: ("audit", "messages"),
    Triage: ("audit", "messages"),
    GroupChange: ("audit",),
    CircuitUpdate: ("audit",),
    DeliveryDecision: ("audit",),
    notifications.LaneNotification: ("notification", "messages"),
    TaskWrite: ("decided",),
}  # fmt: skip
"""Fields with further records, of records that are written."""

READ_PARTS: dict[type[Any], tuple[str, ...]] = {
    Page: ("items",),
    GroupPage: ("items",),
    HeldRun: ("run", "open"),
    DecisionCase: ("run", "journal", "replays"),
    MessageRow: ("deliveries",),
    SendResult: ("first",),
    Mailbox: ("events", "tasks"),
    AwaitedRun: ("end",),
    AskedQuestion: ("answer",),
    ClaimedDeliveries: ("items",),
    ClaimedDelivery: ("message",),
    notifications.DueLane: ("notices",),
}
"""Fields with further records, of records that are read."""


_MIXED_FIELDS = frozenset({"input", "failure", "reason", "decision", "error"})
"""Payloads that the engine writes around texts of a worker that encrypts itself, such as the message of an error."""


class Codec:
    """Seals records that are written and opens records that are read. Without keys it only detects sealed texts."""

    def __init__(self, keys: Keyring | None = None) -> None:
        self.keys = keys

    def seal_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments of a store call with their payloads sealed."""
        if self.keys is None:
            return args, kwargs
        tenant = _tenant_of(args[0]) if args else None
        sealed = {name: self.seal(value, tenant) for name, value in kwargs.items()}
        return [self.seal(value, tenant) for value in args], sealed

    def seal(self, value: Value, tenant: str | None = None) -> Value:
        """Return a value with the payloads of all its records sealed, each for its own tenant."""
        if self.keys is None:
            return value
        kind: type[Any] = type(value)
        if kind is list or kind is tuple:
            return kind([self.seal(each, tenant) for each in value])  # type: ignore[attr-defined, no-any-return]
        if kind is LetterFilter or kind is RunFilter:
            filtered: Value = self._seal_filter(value, stored=False)
            return filtered
        tenant = _tenant_of(value, tenant)
        changes = {
            name: self.seal(part, tenant) for name in WRITTEN_PARTS.get(kind, ()) if (part := getattr(value, name))
        }
        for name in WRITTEN_PAYLOADS.get(kind, ()):
            if (text := getattr(value, name)) is not None:
                changes[name] = self.keys.seal(text, tenant or "")
        if kind in WRITTEN_PAYLOADS:
            for name in HASH_FIELDS.get(kind, ()):
                if (text := getattr(value, name)) is not None:
                    changes[name] = self.keys.seal_hash(text, tenant or "")
        if kind in INDEXED_RECORDS and (index := getattr(value, "index", None)):
            # For no tenant: an owner may search the runs of all tenants.
            changes["index"] = tuple((field, self.keys.seal_hash(text, "")) for field, text in index)
        if kind is NewBulk and value.where is not None:  # type: ignore[attr-defined]
            changes["where"] = self._seal_filter(value.where, stored=True)  # type: ignore[attr-defined]
        return replace(value, **changes) if changes else value

    def refuse_text(self, where: LetterFilter) -> None:
        """Refuse a text in a filter that the database itself has to search: sealed texts have to be opened."""
        if where.text is not None and self.keys is not None and self.keys.writes is not None:
            raise InputError(Reason(ReasonCode.TEXT_SEARCH_SEALED, variable=keyring.KEYS_VARIABLE))

    def _seal_filter(self, where: Any, *, stored: bool) -> Any:
        """Return a filter that finds a searchable value in every form in which it may be stored.

        A filter that is itself `stored` must not show the value in clear, so it finds sealed rows only.
        """
        keys = self.keys
        assert keys is not None
        if stored:
            self.refuse_text(where)
        if where.index is None:
            return where
        forms = {
            field: tuple(form for text in texts for form in keys.covers(text, ""))
            for field, texts in where.index.items()
        }
        if stored and keys.writes is not None:
            forms = {field: tuple(form for form in each if is_sealed(form)) for field, each in forms.items()}
        return replace(where, index=forms)

    def open(self, value: Value, tenant: str | None = None) -> Value:
        """Return a value with the payloads of all its records opened.

        A payload that cannot be opened becomes `Unreadable`; a failure, or another text that is only shown, is
        replaced by one with the reason.
        """
        kind: type[Any] = type(value)
        if kind is list or kind is tuple:
            opened = [self.open(each, tenant) for each in value]  # type: ignore[attr-defined]
            return value if all(map(is_, opened, value)) else kind(opened)  # type: ignore[call-overload]
        if kind not in READ_PAYLOADS and kind not in READ_PARTS:
            return value
        tenant = _tenant_of(value, tenant)
        changes: dict[str, Any] = {}
        for name in READ_PARTS.get(kind, ()):
            part = getattr(value, name)
            if (opened_part := self.open(part, tenant)) is not part:
                changes[name] = opened_part
        for name in READ_PAYLOADS.get(kind, ()):
            text = getattr(value, name)
            if text is None or "enc1:" not in text:
                continue
            if text.startswith("enc1:"):
                text = changes[name] = self._open_text(kind, name, text, tenant)
            if name in _MIXED_FIELDS and self.keys is not None and "enc1:" in text and not isinstance(text, Unreadable):
                changes[name] = self.keys.open_within(text, tenant)
        for name in HASH_FIELDS.get(kind, ()):
            text = getattr(value, name)
            if text.startswith("det1:") and self.keys is not None:
                with suppress(ConfigurationError):  # a hash that cannot be compared stays as it is, and equals none
                    changes[name] = self.keys.open_hash(text, tenant)
        if kind is EntryRow and (text := value.heartbeat) is not None and text.startswith("enc1:"):  # type: ignore[attr-defined]
            changes["heartbeat"] = self._open_text(kind, "heartbeat", text, "")  # a beat names no tenant
        return replace(value, **changes) if changes else value

    def open_claims(self, claims: ClaimResult) -> ClaimResult:
        """Return claimed runs opened. One with an unreadable payload gets a journal that raises."""
        runs = [self.open_claimed(run) for run in claims.runs]
        return claims if all(map(is_, runs, claims.runs)) else replace(claims, runs=runs)

    def open_claimed(self, run: ClaimedRun) -> ClaimedRun:
        """Return a claimed run opened; with an unreadable payload, its journal raises when it is read."""
        if not run.journal and "enc1:" not in run.input:
            return run  # nearly every run, and a claim brings many
        opened = self.open(run)
        journal = self.open(run.journal, run.tenant)
        texts = [opened.input, *(text for entry in journal for text in (entry.input, entry.output))]
        whys = [text.why for text in texts if isinstance(text, Unreadable)]
        for stored, entry in zip(run.journal, journal, strict=True):
            # A failure that was stored in clear is the step's own, even if it looks like a placeholder.
            opened_failure = entry.failure if entry.failure is not stored.failure else None
            if opened_failure and SEALED_ERROR in opened_failure:
                failure = FailureReason.from_json(opened_failure).failure
                whys += [failure.message] if failure.error_type == SEALED_ERROR else []
        return replace(opened, journal=UnreadableJournal.of(whys[0], journal) if whys else journal)

    def _open_text(self, kind: type[Any], name: str, text: str, tenant: str | None) -> str:
        if not is_sealed(text):
            return text
        try:
            if self.keys is None:
                raise ConfigurationError(keyring.missing_key_message(text))
            return self.keys.open(text, tenant)
        except ConfigurationError as error:
            stand_in = _PLACEHOLDERS.get((kind, name))
            return Unreadable.of(text, str(error)) if stand_in is None else stand_in(str(error))

    def wrap_lease(self, lease: LeaseConnection) -> LeaseConnection:
        """Return a lease that seals the details of heartbeats and the inputs of attempts."""
        return lease if self.keys is None else _SealedLease(lease, self, self.keys)

    def wrap_transaction(self, transaction: Transaction) -> Transaction:
        """Return a transaction that seals the record of the step. The user's SQL is not changed."""
        return transaction if self.keys is None else cast(Transaction, _SealedTransaction(transaction, self))


def _tenant_of(value: Any, otherwise: str | None = None) -> str | None:
    """Return the tenant of a record, of its run, of its lane or of its audit line; "" means no tenant."""
    for holder in (value, *(getattr(value, name, None) for name in ("run", "case", "audit"))):
        tenant: str | None = getattr(holder, "tenant", None)
        if tenant is not None:
            return tenant
    return otherwise


async def refuse_unreadable(store: Store) -> None:
    """Refuse to start if this process cannot read the newest run with its keys.

    Missing or wrong keys are noticed this way before any run is claimed. Without encryption the check costs next
    to nothing. A run whose remote workers encrypt its payloads is not for this process.
    """
    newest = await store.runs(RunFilter(), limit=1, cursor=None)
    for row in newest.items:
        run = await store.run(row.public_id)
        if run is not None and isinstance(run.input, Unreadable):
            known = await store.known([run.workflow], tenant=run.tenant)
            if any(each.kind == "workflow" and takes_sealed(each.options) for each in known):
                continue
            raise ConfigurationError(
                f"the input of run {run.public_id}, the newest in the store, cannot be read: "
                f"{run.input.why}. Nothing was started, and nothing is lost"
            )


class UnreadableJournal(tuple[EntryRow, ...]):
    """The journal of a run that cannot be opened: reading it raises. `entries` are its rows, some of them sealed."""

    why: str
    entries: list[EntryRow]

    @classmethod
    def of(cls, why: str, entries: Sequence[EntryRow]) -> UnreadableJournal:
        journal = cls()
        journal.why, journal.entries = why, list(entries)
        return journal

    def __iter__(self) -> Iterator[EntryRow]:
        raise ConfigurationError(self.why)


class _SealedLease:
    """A lease that seals what it records. A heartbeat names no tenant, so heartbeats are sealed for none."""

    def __init__(self, inner: LeaseConnection, codec: Codec, keys: Keyring) -> None:
        self._inner = inner
        self._codec = codec
        self._keys = keys

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        sealed = {
            worker: {
                entry: None if details is None else self._keys.seal(details, "")
                for entry, details in heartbeats.items()
            }
            for worker, heartbeats in beats.items()
        }
        return self._inner.beat(sealed)

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        self._inner.record(worker, self._codec.seal(list(marks)))

    def close(self) -> None:
        self._inner.close()


class _SealedTransaction:
    """A transaction whose record of the step is sealed."""

    def __init__(self, inner: Transaction, codec: Codec) -> None:
        self._inner = inner
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        return await self._inner.commit(worker, self._codec.seal(transition))


def _unreadable_reason(why: str) -> Reason:
    return Reason(ReasonCode.FAILURE_UNREADABLE, why=why)


def _unreadable_failure(why: str) -> Failure:
    return Failure.of(Category.MISSING_CONFIG, str(_unreadable_reason(why)), SEALED_ERROR)


def _unreadable_ending(why: str) -> str:
    failure, code, reason = _unreadable_failure(why), LetterCode.INFRASTRUCTURE_FAILURE, _unreadable_reason(why)
    return FailureReason(failure=failure, code=code, reason=reason, stage=Stage.FETCH).to_json()


_PLACEHOLDERS: dict[tuple[type[Any], str], Callable[[str], str]] = {
    (RunRow, "failure"): _unreadable_ending,
    (RunEnd, "failure"): _unreadable_ending,
    (EntryRow, "failure"): _unreadable_ending,
    (TaskAnswer, "failure"): _unreadable_ending,
    (LetterRow, "failure"): _unreadable_ending,
    (LetterRow, "reason"): lambda why: _unreadable_reason(why).to_text(),
    (GroupRow, "reason"): lambda why: _unreadable_reason(why).to_text(),
    (GroupRow, "failure"): _unreadable_ending,
    (AttemptRow, "failure"): lambda why: json.dumps(_unreadable_failure(why).to_json()),
    (AttemptRow, "decision"): lambda why: RetryDecision(retry=False, why=Reason(ReasonCode.TEXT, text=why)).to_json(),
    (DeliveryRow, "error"): lambda why: _unreadable_failure(why).message,
    (BlockedKey, "error"): lambda why: _unreadable_failure(why).message,
    (BulkItemRow, "error"): lambda why: _unreadable_reason(why).to_text(),
    (ReplayRow, "changes"): lambda why: json.dumps([Change(path="", kind="changed", after=why).to_json()]),
}
