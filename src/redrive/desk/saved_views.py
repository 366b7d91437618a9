"""Saved views: filters of lists that people give a name, for themselves or for their tenant."""

from __future__ import annotations

import builtins
import json
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from unicodedata import normalize
from urllib.parse import parse_qsl, urlencode

from redrive.clock import Clock
from redrive.core.audit import Event
from redrive.core.roles import ALL_TENANTS
from redrive.core.transitions import AuditWrite
from redrive.desk.validation import long_text, person, short_text
from redrive.duration import moment
from redrive.errors import Conflict, InputError, NotFound
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import People
from redrive.store.settings import NewView, ViewPlace, ViewRow

__all__ = ["FIELDS", "ListName", "MOST", "SavedView", "Views", "plain_name", "saved"]


MOST = 50
"""How many views of a list somebody has, and how many a tenant shares."""

_NAME, _QUERY = 60, 2000


class ListName(StrEnum):
    """The lists that can be narrowed."""

    LETTERS = "letters"
    RUNS = "runs"
    AUDIT = "audit"


FIELDS: dict[ListName, tuple[str, ...]] = {
    ListName.LETTERS: (
        *("status", "code", "stage", "category", "workflow", "step", "fingerprint", "owner", "tag", "text"),
        *("index", "since", "until"),
    ),
    ListName.RUNS: (
        *("kind", "status", "workflow", "correlation_id", "idempotency_key", "queue", "index", "since"),
    ),
    ListName.AUDIT: ("event", "by", "subject", "since"),
}
"""What each list can be narrowed by, as an address says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """A filter with a name. `query` is that of an address; `by` saved it `at` that time.

    `tenant` is whose list it narrows; None is all tenants at once.
    """

    list: ListName
    name: str
    query: str
    shared: bool
    by: str
    at: datetime
    tenant: str | None = None

    @property
    def wanted(self) -> dict[str, str]:
        """What it asks for, field by field."""
        return dict(parse_qsl(self.query))


class Views:
    """Saves views, lists them, forgets them. Those that are shared are noted in the audit log."""

    def __init__(self, store: People, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(
        self, of: str | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> builtins.list[SavedView]:
        """The views that somebody has in a tenant, their own and those that are shared, by list and name."""
        wanted = {*ListName} if of is None else {_list(of)}
        rows = await self._store.views.known(_whose(tenant), reader)
        # One whose query cannot be opened here would show everything under a name that promises less.
        return [saved(row) for row in rows if row.list in wanted and not isinstance(row.query, Unreadable)]

    async def save(
        self,
        of: str,
        name: str,
        query: str,
        *,
        by: str = "unknown",
        tenant: str | None = None,
        shared: bool = False,
    ) -> SavedView:
        """Keep a filter under a name, in place of the one that has it."""
        new = NewView(
            tenant=_whose(tenant),
            list=_list(of).value,
            owner="" if shared else person(by),
            name=_named(name),
            query=_asked(_list(of), query),
            by=person(by),
        )
        line = self._line(Event.VIEW_SHARED, new.place, by, after=new.query) if shared else None
        if not await self._store.views.put(new, most=MOST, audit=line):
            if shared:
                raise Conflict(Reason(ReasonCode.TOO_MANY_SHARED_VIEWS, tenant=new.tenant, n=MOST))
            raise Conflict(Reason(ReasonCode.TOO_MANY_VIEWS, n=MOST))
        return saved(ViewRow(**asdict(new), at=self._store.now()))

    async def remove(
        self,
        of: str,
        name: str,
        *,
        by: str = "unknown",
        tenant: str | None = None,
        shared: bool = False,
    ) -> None:
        """Forget a view."""
        owner = "" if shared else person(by)
        place = ViewPlace(tenant=_whose(tenant), list=_list(of).value, owner=owner, name=plain_name(name))
        line = self._line(Event.VIEW_REMOVED, place, by) if shared else None
        sane = place.name.isprintable()
        if not sane or not await self._store.views.remove(place, line):
            code = ReasonCode.SHARED_VIEW_NOT_FOUND if shared else ReasonCode.VIEW_NOT_FOUND
            raise NotFound(Reason(code, name=quote(name)))

    def _line(self, event: Event, place: ViewPlace, by: str, after: str | None = None) -> AuditWrite:
        query = {} if after is None else {"query": after}
        return AuditWrite(
            event=event.value,
            tenant="" if place.tenant == ALL_TENANTS else place.tenant,
            by=by,
            subject=place.name,
            after=json.dumps({"list": place.list, **query}, ensure_ascii=False),
            token=self._clock.new_id(),
        )


def _list(of: str) -> ListName:
    try:
        return ListName(of)
    except ValueError:
        known = tuple(ListName)
        raise InputError(Reason(ReasonCode.VIEW_LIST_UNKNOWN, lists=known, given=quote(of))) from None


def _whose(tenant: str | None) -> str:
    return "default" if tenant is None else short_text("tenant", tenant)


def plain_name(name: str) -> str:
    """A name as it is kept: what looks the same is the same, however it was typed."""
    return " ".join(normalize("NFC", name).split()) if isinstance(name, str) else ""


def _named(name: str) -> str:
    """A name that fits on a button."""
    plain = plain_name(name)
    if not 1 <= len(plain) <= _NAME or not plain.isprintable() or "/" in plain:
        raise InputError(Reason(ReasonCode.VIEW_NAME_INVALID, longest=_NAME, given=quote(name)))
    return plain


def _asked(of: ListName, query: str) -> str:
    """What an address asks a list for, in the order of its fields and without what is blank."""
    if not isinstance(query, str) or len(query) > _QUERY:
        raise _too_long()
    given = {name: value.strip() for name, value in parse_qsl(query.lstrip("?")) if value.strip()}
    unknown = sorted(given.keys() - set(FIELDS[of]))
    if unknown:
        names = ", ".join(unknown)[:70]
        known = FIELDS[of]
        raise InputError(Reason(ReasonCode.VIEW_FIELD_UNKNOWN, list=of.value, names=names, known=known))
    if not given:
        raise InputError(Reason(ReasonCode.VIEW_FILTER_EMPTY))
    kept = urlencode({name: long_text(name, given[name]) for name in FIELDS[of] if name in given})
    if len(kept) > _QUERY:
        raise _too_long()
    return kept


def _too_long() -> InputError:
    return InputError(Reason(ReasonCode.VIEW_FILTER_TOO_LONG, longest=_QUERY))


def saved(row: ViewRow) -> SavedView:
    """A view as it is shown."""
    return SavedView(
        list=ListName(row.list),
        name=row.name,
        query=row.query,
        shared=not row.owner,
        by=row.by,
        at=moment(row.at),
        tenant=None if row.tenant == ALL_TENANTS else row.tenant,
    )
