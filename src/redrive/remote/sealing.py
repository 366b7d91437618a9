"""Encryption at the worker and at the client: what they send to a server is encrypted, what they get is decrypted.

    records    those that cross the store are encrypted by the tables of `store.encryption.codec`
    outcomes   their payloads, and of a failure its message, its stack, its details and the parameters of reasons
    values     in JSON bodies of the API: `{"sealed": "enc1:..."}` stands for the value

The server needs the rest in clear to decide: names, states, times, categories, types of errors, status codes, and the
`shape` of a failure, which stands for its message in the fingerprint. What people are asked is in clear as well, and so
are notifications, since a server without the key has to show them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from redrive.core import outcomes
from redrive.core.failure import Failure, normalise_message_of
from redrive.core.failure_reason import FailureReason
from redrive.core.outcomes import Outcome
from redrive.core.redact import Redactor
from redrive.core.run_options import SEALED_OPTION
from redrive.core.secret_and_sealed_text import SEALED_TEXT, is_sealed, make_sealed_value, read_sealed_value
from redrive.core.states import EntryKind
from redrive.core.transitions import NewRun
from redrive.desk.run_starter import StartRequest
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store.encryption.codec import Codec
from redrive.store.encryption.keyring import KEYS_VARIABLE, Keyring
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.workers import Catalogue, CatalogueItem

T = TypeVar("T")
_Index: TypeAlias = tuple[tuple[str, str], ...]

OUTCOME_PAYLOADS: dict[type[Any], tuple[str, ...]] = {
    outcomes.AttemptStarted: ("input",),
    outcomes.AttemptSucceeded: ("input", "output"),
    outcomes.AttemptFailed: ("input",),
    outcomes.StepParked: ("input",),
    outcomes.ValueRecorded: ("output",),
    outcomes.WaitStarted: ("input",),
    outcomes.WaitAnswered: ("input", "output"),
    outcomes.WaitFailed: ("input",),
    outcomes.WorkflowReturned: ("output",),
    outcomes.PlannedFollowUp: ("input",),
}
"""The payloads of outcomes. The input of a wait says what it waits for, which the server reads."""

OUTCOME_PARTS: dict[type[Any], tuple[str, ...]] = {
    outcomes.AttemptSucceeded: ("messages",),
    outcomes.AttemptFailed: ("failure", "why"),
    outcomes.ValueRecorded: ("messages",),
    outcomes.WaitAnswered: ("uses",),
    outcomes.WaitFailed: ("ending",),
    outcomes.EventsRefused: ("uses",),
    outcomes.StatusNoted: ("note",),
    outcomes.WorkflowFailed: ("ending",),
    outcomes.FollowUpsPlanned: ("plan",),
    outcomes.RollbackEnded: ("ending",),
    FailureReason: ("failure", "reason", "cause"),
}
"""Fields of outcomes with further records."""

_CLEAR_PARAMETERS = frozenset({
    "step", "steps", "workflow", "workflows", "compensation", "circuit", "run", "status", "category", "error_type",
    "names", "variable", "version", "mode",
})  # fmt: skip
"""Parameters of reasons that never quote a payload."""

_REVEALING = frozenset({"reveal", "runs:results", "runs:histories", "result"})
"""The last parts of paths whose answers a server does not redact."""


def read_sealing(encryption_keys: str) -> Sealing | None:
    """Return the encryption with the keys of the settings; None if there are none."""
    keys = Keyring.parse(encryption_keys)
    return None if keys is None else Sealing(keys)


class Sealing:
    """Encrypts what is sent to a server and decrypts what comes back."""

    def __init__(self, keys: Keyring) -> None:
        self._keys = keys
        self._redactor = Redactor()
        self.codec = Codec(keys)

    @property
    def writes(self) -> bool:
        """True if payloads are sent encrypted; False if they are only decrypted."""
        return self._keys.writes is not None

    # -- records of a worker ----------------------------------------------------------------------------

    def seal_outcome(self, outcome: Outcome) -> Outcome:
        """Return an outcome with its payloads encrypted for the tenant of its run."""
        if not self.writes:
            return outcome
        sealed: Outcome = self._seal_part(outcome, outcome.run.tenant)
        return sealed

    def _seal_part(self, value: Any, tenant: str) -> Any:
        kind = type(value)
        if kind is tuple:
            return tuple(self._seal_part(each, tenant) for each in value)
        if kind is Failure:
            return self.seal_failure(value, tenant)
        if kind is Reason:
            return self._seal_reason(value, tenant)
        if kind not in OUTCOME_PAYLOADS and kind not in OUTCOME_PARTS:
            # Topics of the engine are addressed to the server.
            return value if getattr(value, "topic", "").startswith("redrive.") else self.codec.seal(value, tenant)
        changes = {
            name: self._seal_part(part, tenant)
            for name in OUTCOME_PARTS.get(kind, ())
            if (part := getattr(value, name)) is not None
        }
        place = getattr(value, "place", None)
        for name in OUTCOME_PAYLOADS.get(kind, ()):
            if name != "input" or place is None or place.kind is not EntryKind.WAIT:
                changes[name] = self._keys.seal(getattr(value, name), tenant)
        return replace(value, **changes)

    def seal_failure(self, failure: Failure, tenant: str) -> Failure:
        """Return a failure with its texts encrypted, and with its shape."""
        if not failure.message or is_sealed(failure.message):
            return failure
        details = failure.details and make_sealed_value(self._keys.seal(json.dumps(failure.details), tenant))
        return replace(
            failure,
            message=self._keys.seal(failure.message, tenant),
            stack=failure.stack and self._keys.seal(failure.stack, tenant),
            details=details,
            shape=self._keys.derive_hash(normalise_message_of(failure), tenant),
        )

    def _seal_reason(self, reason: Reason, tenant: str) -> Reason:
        return Reason(
            reason.code,
            **{
                name: value if name in _CLEAR_PARAMETERS else self._seal_parameter(value, tenant)
                for name, value in reason.params.items()
            },
        )

    def _seal_parameter(self, value: Any, tenant: str) -> Any:
        if isinstance(value, tuple):
            return tuple(self._seal_parameter(each, tenant) for each in value)
        if isinstance(value, Reason):
            return self._seal_reason(value, tenant)
        # An enumeration is a text of the engine.
        return self._keys.seal(value, tenant) if type(value) is str and not SEALED_TEXT.search(value) else value

    def seal_run(self, run: NewRun) -> NewRun:
        """Return a run to start with its input, the hash of its key and its searchable values encrypted."""
        return self.codec.seal(run)

    def open(self, record: T, tenant: str | None = None) -> T:
        """Return a record from the server decrypted."""
        return self.codec.open(record, tenant)

    def open_text(self, text: str | None, tenant: str | None) -> str | None:
        """Return a text from the server with everything encrypted inside it decrypted."""
        return text if text is None or "enc1:" not in text else self._keys.open_within(text, tenant)

    def mark_catalogue(self, catalogue: Catalogue) -> Catalogue:
        """Return a catalogue whose workflows take encrypted inputs only."""

        def mark(item: CatalogueItem) -> CatalogueItem:
            return replace(item, options=json.dumps({**json.loads(item.options), SEALED_OPTION: True}))

        return replace(catalogue, workflows=tuple(map(mark, catalogue.workflows))) if self.writes else catalogue

    # -- values of a client -----------------------------------------------------------------------------

    def seal_value(self, value: Any, tenant: str) -> Any:
        """Return the JSON value that stands for a value in a request."""
        if not self.writes or read_sealed_value(value) is not None:
            return value
        return make_sealed_value(self._keys.seal(json.dumps(value), tenant))

    def open_value(self, value: Any) -> Any:
        """Return a JSON value with everything encrypted inside it decrypted."""
        return self._keys.open_value(value, None)

    def seal_start(self, request: StartRequest, tenant: str, text: str, hash: str, index: _Index) -> StartRequest:
        """Return a start with its encrypted input, the hash of it and its searchable values."""
        return replace(
            request,
            input=make_sealed_value(self._keys.seal(text, tenant)),
            input_hash=self._keys.seal_hash(hash, tenant),
            # For no tenant, as in the store: an owner may search the runs of all tenants.
            input_index=tuple((field, self._keys.seal_hash(value, "")) for field, value in index),
        )

    def seal_filter(self, where: T) -> T:
        """Return a filter that finds the encrypted forms of searchable values; refuse one that searches texts."""
        if not self.writes or not isinstance(where, LetterFilter | RunFilter):
            return where
        if isinstance(where, LetterFilter) and where.text is not None:
            raise InputError(Reason(ReasonCode.TEXT_SEARCH_AT_CLIENT, variable=KEYS_VARIABLE))
        forms = self.codec.seal(where).index
        if forms is None:
            return where
        found: T = replace(where, index={field: tuple(filter(is_sealed, each)) for field, each in forms.items()})
        return found

    def open_answer(self, answer: Any, path: tuple[str, ...]) -> Any:
        """Return the JSON of an answer with everything encrypted inside it decrypted.

        Secrets are hidden as in the answers of a server with the key, unless the path is for reading them.
        """
        opened = self.open_value(answer)
        return opened if path[-1] in _REVEALING or opened == answer else _redact_changes(answer, opened, self._redactor)


def _redact_changes(answer: Any, opened: Any, redactor: Redactor) -> Any:
    """Redact the decrypted parts of an answer; the server redacted the others."""
    if isinstance(answer, Mapping) and isinstance(opened, Mapping) and answer.keys() == opened.keys():
        return {name: _redact_changes(answer[name], opened[name], redactor) for name in answer}
    if isinstance(answer, list):
        return [_redact_changes(*pair, redactor) for pair in zip(answer, opened, strict=True)]
    return answer if answer == opened else redactor.redact(opened)
