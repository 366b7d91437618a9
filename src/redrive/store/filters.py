"""Which rows a list shows. What is left out does not filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from redrive.core.circuit import CircuitStatus
from redrive.core.new_run import format_index_value
from redrive.core.outbox import TopicPattern
from redrive.core.states import DeliveryStatus, LetterStatus, RunStatus
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

Filter: TypeAlias = "RunFilter | LetterFilter | AuditFilter | GroupFilter | CircuitFilter | OutboxFilter"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MAX_LENGTH = 10_000  # of a text; no database is asked for more
_TIMES = frozenset({"since", "until"})
_NOT_TEXT = frozenset({"status", "index", "workflows", "accounts"})


def _normalise_filter(filter: Filter) -> None:
    """Make every field what a store can be asked for, or say which one is not."""
    for field in fields(filter):
        value = getattr(filter, field.name)
        if value is None or field.name in _NOT_TEXT:
            continue
        fit = _parse_time if field.name in _TIMES else _check_text
        object.__setattr__(filter, field.name, fit(field.name, value))
    _normalise_status(filter)
    if isinstance(filter, RunFilter | LetterFilter):
        _normalise_index(filter)
        _refuse_empty(filter)


def _parse_time(name: str, value: Any) -> int:
    """People give datetimes; rows hold microseconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(f"{name} needs a time zone, for example datetime.now(UTC)")
        return (value - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} takes a datetime or microseconds since 1970, not {value!r:.60}")
    if not _EARLIEST <= value <= _LATEST:
        raise InputError(f"{name} takes microseconds since 1970, and {value!r:.60} is in no year there is")
    return value


def _check_text(name: str, value: Any) -> str:
    """A text that a database can be asked for."""
    if not isinstance(value, str):
        raise InputError(f"{name} takes one text, not {value!r:.60}")
    if len(value) > _MAX_LENGTH:
        raise InputError(f"{name} takes a text of at most {_MAX_LENGTH:,} characters, not {len(value):,}")
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=name))
    return value


def _refuse_empty(filter: RunFilter | LetterFilter) -> None:
    """An empty text is a slip: as a filter it would mean nothing, or everything."""
    if getattr(filter, "text", None) == "":
        raise InputError("text is empty; leave it out to look for everything")


def _normalise_status(filter: Filter) -> None:
    """People give one state, or several in whatever holds them."""
    given = getattr(filter, "status", None)
    if given is None or isinstance(given, str):
        return
    if isinstance(filter, GroupFilter) or not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise InputError(f"status takes the name of a state, not {given!r:.60}")
    states = tuple(given)
    for state in states:
        if not isinstance(state, str):
            raise InputError(f"status takes names of states, not {state!r:.60}")
    object.__setattr__(filter, "status", states)


def _normalise_index(filter: RunFilter | LetterFilter) -> None:
    """People give a value for each field of the index, or several of which any will do; rows hold texts."""
    given = filter.index
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise InputError(f"index takes an object from field to value, not {given!r:.60}")
    texts = {
        _check_text("index", field): tuple(
            map(format_index_value, value if isinstance(value, tuple | list) else [value])
        )
        for field, value in given.items()
    }
    object.__setattr__(filter, "index", texts or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. What is left out does not filter; no tenant means all tenants.

    `index` gives values of fields that the workflow declared to be searched by; `handler_for` is the id of a
    failed run, whose failure handlers are meant.
    """

    tenant: str | None = None
    workflow: str | None = None
    status: RunStatus | str | Sequence[RunStatus | str] | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    handler_for: str | None = None
    index: Mapping[str, Any] | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which dead letters to list. What is left out does not filter; no tenant means all tenants.

    `index` gives values of fields that the workflow declared to be searched by.
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
    since: datetime | int | None = None
    until: datetime | int | None = None
    text: str | None = None
    index: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines of the audit log to list. `event` may end in `.` for all events of a kind.

    `accounts=False` leaves out what was done about users and tokens, sign-ins among it.
    """

    tenant: str | None = None
    event: str | None = None
    by: str | None = None
    subject: str | None = None
    letter: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None
    accounts: bool = True

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitFilter:
    """Which circuits to list. What is left out does not filter; no tenant means all tenants."""

    tenant: str | None = None
    status: CircuitStatus | str | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)
        known = [status.value for status in CircuitStatus]
        if self.status is not None and self.status not in known:
            raise InputError(f"a circuit's status is one of {', '.join(known)}, not {self.status!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Which failure groups to list: those with open letters, or with `status=None` all of them.

    `workflows` limits them to some; None means all.
    """

    tenant: str | None = None
    status: LetterStatus | str | None = LetterStatus.OPEN
    workflows: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _normalise_filter(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFilter:
    """Which messages to list. What is left out does not filter; no tenant means all tenants.

    `topic` may end in `.*` for all that begin alike. `sink` and `status` are about deliveries: both together
    mean messages whose delivery to that sink stands so.
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
        if self.topic is not None:
            TopicPattern.read(self.topic)
