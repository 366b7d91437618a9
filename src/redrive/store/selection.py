"""Which rows a list shows. What is left out does not filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.core.index import index_text
from redrive.core.states import DeliveryStatus, LetterStatus, RunStatus
from redrive.core.topics import Pattern
from redrive.errors import InputError

__all__ = [
    "AuditFilter",
    "GroupFilter",
    "LetterFilter",
    "OutboxFilter",
    "RunFilter",
]


def _as_micros(filter: RunFilter | LetterFilter | AuditFilter | OutboxFilter, *names: str) -> None:
    """People give datetimes; rows hold microseconds since 1970."""
    for name in names:
        value = getattr(filter, name)
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise InputError(f"{name} needs a time zone, for example datetime.now(UTC)")
            object.__setattr__(filter, name, int(value.timestamp() * 1_000_000))


def _refuse_empty(filter: RunFilter | LetterFilter) -> None:
    """An empty text is a slip: as a filter it would mean nothing, or everything."""
    if getattr(filter, "text", None) == "":
        raise InputError("text is empty; leave it out to look for everything")


def _as_tuple(filter: RunFilter | LetterFilter) -> None:
    """People give one state, or several in whatever holds them."""
    if filter.status is not None and not isinstance(filter.status, str | tuple):
        object.__setattr__(filter, "status", tuple(filter.status))


def _as_texts(filter: RunFilter | LetterFilter) -> None:
    """People give a value for each field of the index, or several of which any will do; rows hold texts."""
    given = filter.index
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise InputError(f"index takes an object from field to value, not {given!r:.60}")
    texts = {
        field: tuple(map(index_text, value if isinstance(value, tuple | list) else [value]))
        for field, value in given.items()
    }
    object.__setattr__(filter, "index", texts or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list. What is left out does not filter; no tenant means all tenants.

    `index` gives values of fields that the workflow declared to be searched by.
    """

    tenant: str | None = None
    workflow: str | None = None
    status: RunStatus | str | Sequence[RunStatus | str] | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    queue: str | None = None
    index: Mapping[str, Any] | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _as_micros(self, "since", "until")
        _as_texts(self)
        _as_tuple(self)
        _refuse_empty(self)


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
        _as_micros(self, "since", "until")
        _as_texts(self)
        _as_tuple(self)
        _refuse_empty(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines of the audit log to list. `event` may end in `.` for all events of a kind."""

    tenant: str | None = None
    event: str | None = None
    by: str | None = None
    subject: str | None = None
    letter: str | None = None
    since: datetime | int | None = None
    until: datetime | int | None = None

    def __post_init__(self) -> None:
        _as_micros(self, "since", "until")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """Which failure groups to list: those with open letters, or with `status=None` all of them."""

    tenant: str | None = None
    status: LetterStatus | str | None = LetterStatus.OPEN


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
        _as_micros(self, "since", "until")
        if self.topic is not None:
            Pattern.read(self.topic)
        if self.status is not None and self.status not in set(DeliveryStatus):
            raise InputError(f"{self.status!r:.60} is no status: there are {', '.join(DeliveryStatus)}")
