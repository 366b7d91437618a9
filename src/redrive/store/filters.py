"""Filters of lists. A field that is left out does not filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from redrive.core.circuit import CircuitStatus
from redrive.core.failure_reason import LetterCode, Stage
from redrive.core.new_run import format_index_value
from redrive.core.outbox import TopicPattern
from redrive.core.questions import QuestionStatus
from redrive.core.roles import parse_role
from redrive.core.states import DeliveryStatus, LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.policy import Category
from redrive.reasons import Reason, ReasonCode

Filter: TypeAlias = "RunFilter | LetterFilter | AuditFilter | GroupFilter | CircuitFilter | TaskFilter | OutboxFilter"
F = TypeVar("F")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MAX_LENGTH = 10_000  # of a text; no database is asked for more
_TIMES = frozenset({"since", "until"})
_NOT_TEXT = frozenset({"status", "index", "workflows", "accounts", "people", "muted", "late"})


def _normalise_filter(filter: Filter) -> None:
    """Convert every field of a filter to a value that a store can be asked for, or refuse it."""
    for field in fields(filter):
        value = getattr(filter, field.name)
        if value is None or field.name in _NOT_TEXT:
            continue
        fit = parse_time if field.name in _TIMES else check_text
        object.__setattr__(filter, field.name, fit(field.name, value))
    if getattr(filter, "workflows", None) is not None:
        names = tuple(check_text("workflows", name) for name in filter.workflows)  # type: ignore[union-attr]
        object.__setattr__(filter, "workflows", names)
    given = getattr(filter, "status", None)
    if given is not None and not isinstance(given, str):  # a single status stays; several become a tuple
        if isinstance(filter, GroupFilter) or not isinstance(given, Iterable) or isinstance(given, Mapping):
            raise make_value_error("status", Reason(ReasonCode.KIND_STATUS), given)
        states = tuple(given)
        for state in states:
            if not isinstance(state, str):
                raise make_value_error("status", Reason(ReasonCode.KIND_STATUS), state)
        object.__setattr__(filter, "status", states)
    if isinstance(filter, RunFilter | LetterFilter):
        _normalise_index(filter)
        if getattr(filter, "text", None) == "":  # a slip: as a filter it would mean nothing, or everything
            raise InputError(Reason(ReasonCode.FILTER_TEXT_EMPTY, field="text"))


def require_filter(given: F | None, kind: type[F]) -> F:
    """Return the filter that a caller gave, or one that matches everything; refuse what is not a filter."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise InputError(Reason(ReasonCode.TYPE_NEEDED, type=kind.__name__, given=type(given).__name__))
    return given


def _check_name(field: str, name: Any, kind: type[StrEnum]) -> None:
    """Refuse a name that is not one of a kind: a misspelt one would find nothing."""
    known = tuple(each.value for each in kind)
    if name is not None and name not in known:
        raise make_value_error(field, Reason(ReasonCode.ONE_OF, options=known, more=None), name)


def parse_time(name: str, value: Any) -> int:
    """Return a time as rows hold it: microseconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(Reason(ReasonCode.FILTER_TIME_ZONE_NEEDED, field=name))
        value = (value - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise make_value_error(name, Reason(ReasonCode.KIND_TIME), value)
    if not _EARLIEST <= value <= _LATEST:
        raise InputError(Reason(ReasonCode.FILTER_TIME_OUT_OF_RANGE, field=name, given=f"{value!r:.60}"))
    return value


def make_value_error(name: str, expected: Reason, value: object) -> InputError:
    """Return the error about a field of a filter that has a wrong value."""
    return InputError(Reason(ReasonCode.FILTER_VALUE_INVALID, field=name, expected=expected, given=f"{value!r:.60}"))


def check_text(name: str, value: Any) -> str:
    """Return a text if a database can be asked for it; otherwise refuse it."""
    if not isinstance(value, str):
        raise make_value_error(name, Reason(ReasonCode.KIND_TEXT), value)
    if len(value) > _MAX_LENGTH:
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=name, longest=_MAX_LENGTH, given=f"{len(value):,}"))
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=name))
    return value


def _normalise_index(filter: RunFilter | LetterFilter) -> None:
    """Convert the values of each index field to texts. Of several values of a field, any matches."""
    given = filter.index
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field="index", given=f"{given!r:.60}"))
    texts = {
        check_text("index", field): tuple(
            map(format_index_value, value if isinstance(value, tuple | list) else [value])
        )
        for field, value in given.items()
    }
    object.__setattr__(filter, "index", texts or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Filter of runs. A field that is left out does not filter; no tenant means all tenants.

    `workflows` are several, of which a run has any. `index` gives values of fields that the workflow declared as
    searchable. `handler_for` is the id of a failed run: its failure handlers match. `parent` is the id of a run: the
    runs that it started match.
    `waits_for` is the name of an event, or the id of a run: runs that wait for it now match.
    """

    tenant: str | None = None
    workflow: str | None = None
    status: RunStatus | str | Sequence[RunStatus | str] | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    handler_for: str | None = None
    parent: str | None = None
    waits_for: str | None = None
    index: Mapping[str, Any] | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None
    workflows: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Filter of dead letters. A field that is left out does not filter; no tenant means all tenants.

    `workflows` are several, of which a letter has any. `escalated` is what a letter is escalated to; `*` means any.
    `index` gives values of fields that the workflow declared as searchable. `text` is a part of the error message, the
    reason, the correlation id or such a field, unless the field is encrypted.
    """

    tenant: str | None = None
    status: LetterStatus | str | Sequence[LetterStatus | str] | None = None
    code: str | None = None
    stage: str | None = None
    category: str | None = None
    workflow: str | None = None
    step: str | None = None
    fingerprint: str | None = None
    owner: str | None = None
    tag: str | None = None
    escalated: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None
    text: str | None = None
    index: Mapping[str, Any] | None = None
    workflows: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        _check_name("code", self.code, LetterCode)
        _check_name("stage", self.stage, Stage)
        _check_name("category", self.category, Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Filter of the audit log. An `event` that ends in `.` means all events of a kind.

    `accounts=False` leaves out the lines about users, tokens and sign-ins; `people=True` those by the engine itself.
    """

    tenant: str | None = None
    event: str | None = None
    by: str | None = None
    subject: str | None = None
    letter: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None
    accounts: bool = True
    people: bool = False

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitFilter:
    """Filter of circuits. A field that is left out does not filter; no tenant means all tenants."""

    tenant: str | None = None
    status: CircuitStatus | str | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        _check_name("status", self.status, CircuitStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Filter of failure groups: those with open letters, or with `status=None` all of them.

    `workflows` limits them to some workflows; None means all. `muted` selects muted groups, or those that are not.
    """

    tenant: str | None = None
    status: LetterStatus | str | None = LetterStatus.OPEN
    workflows: tuple[str, ...] | None = None
    fingerprint: str | None = None
    muted: bool | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        if self.muted is not None and not isinstance(self.muted, bool):
            raise InputError(Reason(ReasonCode.FLAG_NEEDED, field="muted", given=f"{self.muted!r:.60}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Filter of tasks. A field that is left out does not filter; no tenant means all tenants.

    `status`: a state, or `CLOSED` for all but the open ones. `person`: assigned to this user, or asked of them by
    name. `role`: tasks that users with this role may answer. `late`: a reminder or an escalation was due.
    `workflows` are several, of which a task has any.
    """

    tenant: str | None = None
    status: QuestionStatus | str | None = None
    workflow: str | None = None
    run_id: str | None = None
    owner: str | None = None
    person: str | None = None
    role: str | None = None
    late: bool = False
    workflows: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        known = (*(each.value for each in QuestionStatus), "CLOSED")
        if self.status is not None and self.status not in known:
            raise make_value_error("status", Reason(ReasonCode.ONE_OF, options=known, more=None), self.status)
        if self.role is not None:
            object.__setattr__(self, "role", parse_role(self.role))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFilter:
    """Filter of messages. A field that is left out does not filter; no tenant means all tenants.

    A `topic` that ends in `.*` means all topics that begin alike. `sink` and `status` are about deliveries: both
    together mean messages whose delivery to that sink has that status.
    """

    tenant: str | None = None
    topic: str | None = None
    key: str | None = None
    run_id: str | None = None
    sink: str | None = None
    status: DeliveryStatus | str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        _check_name("status", self.status, DeliveryStatus)
        if self.topic is not None:
            TopicPattern.read(self.topic)
