"""Saved views: filters of lists that people give a name, for themselves or for their tenant."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from unicodedata import normalize
from urllib.parse import parse_qsl, urlencode

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import ALL_TENANTS
from redrive.core.transitions import AuditWrite
from redrive.desk.validation import require_actor, require_long_text, require_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import as_dict
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import DeskStore
from redrive.store.settings import NewView, ViewKey, ViewRow

MAX_VIEWS = 50
"""How many views of a list somebody has, and how many a tenant shares."""

_MAX_NAME_LENGTH, _MAX_QUERY_LENGTH = 60, 2000


class ListName(StrEnum):
    """The lists that can be narrowed."""

    LETTERS = "letters"
    RUNS = "runs"
    AUDIT = "audit"


FILTER_FIELDS: dict[ListName, tuple[str, ...]] = {
    ListName.LETTERS: (
        *("status", "code", "stage", "category", "workflow", "step", "fingerprint", "owner", "tag", "text"),
        *("index", "since", "until"),
    ),
    ListName.RUNS: (*("kind", "status", "workflow", "correlation_id", "idempotency_key", "queue", "index", "since"),),
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


class SavedViews:
    """Saves views, lists them, forgets them. Those that are shared are noted in the audit log."""

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(
        self, of: str | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> builtins.list[SavedView]:
        """The views that somebody has in a tenant, their own and those that are shared, by list and name."""
        wanted = {*ListName} if of is None else {_parse_list_name(of)}
        rows = await self._store.views.known(_check_tenant(tenant), reader)
        # One whose query cannot be opened here would show everything under a name that promises less.
        return [present_view(row) for row in rows if row.list in wanted and not isinstance(row.query, Unreadable)]

    async def save(
        self, of: str, name: str, query: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> SavedView:
        """Keep a filter under a name, in place of the one that has it."""
        new = NewView(
            tenant=_check_tenant(tenant),
            list=_parse_list_name(of).value,
            owner="" if shared else require_actor(by),
            name=_check_name(name),
            query=_check_query(_parse_list_name(of), query),
            by=require_actor(by),
        )
        line = self._make_audit(AuditEvent.VIEW_SHARED, new.place, by, after=new.query) if shared else None
        if not await self._store.views.put(new, most=MAX_VIEWS, audit=line):
            if shared:
                raise Conflict(Reason(ReasonCode.TOO_MANY_SHARED_VIEWS, tenant=new.tenant, n=MAX_VIEWS))
            raise Conflict(Reason(ReasonCode.TOO_MANY_VIEWS, n=MAX_VIEWS))
        return present_view(ViewRow(**as_dict(new), at=self._store.now()))

    async def remove(
        self, of: str, name: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> None:
        """Forget a view."""
        owner = "" if shared else require_actor(by)
        place = ViewKey(
            tenant=_check_tenant(tenant), list=_parse_list_name(of).value, owner=owner, name=normalize_name(name)
        )
        line = self._make_audit(AuditEvent.VIEW_REMOVED, place, by) if shared else None
        sane = place.name.isprintable()
        if not sane or not await self._store.views.remove(place, line):
            code = ReasonCode.SHARED_VIEW_NOT_FOUND if shared else ReasonCode.VIEW_NOT_FOUND
            raise NotFound(Reason(code, name=quote(name)))

    def _make_audit(self, event: AuditEvent, place: ViewKey, by: str, after: str | None = None) -> AuditWrite:
        query = {} if after is None else {"query": after}
        return AuditWrite(
            event=event.value,
            tenant="" if place.tenant == ALL_TENANTS else place.tenant,
            by=by,
            subject=place.name,
            after=json.dumps({"list": place.list, **query}, ensure_ascii=False),
            token=self._clock.new_id(),
        )


def _parse_list_name(of: str) -> ListName:
    try:
        return ListName(of)
    except ValueError:
        known = tuple(ListName)
        raise InputError(Reason(ReasonCode.VIEW_LIST_UNKNOWN, lists=known, given=quote(of))) from None


def _check_tenant(tenant: str | None) -> str:
    return "default" if tenant is None else require_text("tenant", tenant)


def normalize_name(name: str) -> str:
    """A name as it is kept: what looks the same is the same, however it was typed."""
    return " ".join(normalize("NFC", name).split()) if isinstance(name, str) else ""


def _check_name(name: str) -> str:
    """A name that fits on a button."""
    plain = normalize_name(name)
    if not 1 <= len(plain) <= _MAX_NAME_LENGTH or not plain.isprintable() or "/" in plain:
        raise InputError(Reason(ReasonCode.VIEW_NAME_INVALID, longest=_MAX_NAME_LENGTH, given=quote(name)))
    return plain


def _check_query(of: ListName, query: str) -> str:
    """What an address asks a list for, in the order of its fields and without what is blank."""
    if not isinstance(query, str) or len(query) > _MAX_QUERY_LENGTH:
        raise _make_too_long_error()
    given = {name: value.strip() for name, value in parse_qsl(query.lstrip("?")) if value.strip()}
    unknown = sorted(given.keys() - set(FILTER_FIELDS[of]))
    if unknown:
        names = ", ".join(unknown)[:70]
        known = FILTER_FIELDS[of]
        raise InputError(Reason(ReasonCode.VIEW_FIELD_UNKNOWN, list=of.value, names=names, known=known))
    if not given:
        raise InputError(Reason(ReasonCode.VIEW_FILTER_EMPTY))
    kept = urlencode({name: require_long_text(name, given[name]) for name in FILTER_FIELDS[of] if name in given})
    if len(kept) > _MAX_QUERY_LENGTH:
        raise _make_too_long_error()
    return kept


def _make_too_long_error() -> InputError:
    return InputError(Reason(ReasonCode.VIEW_FILTER_TOO_LONG, longest=_MAX_QUERY_LENGTH))


def present_view(row: ViewRow) -> SavedView:
    """A view as it is shown."""
    return SavedView(
        list=ListName(row.list),
        name=row.name,
        query=row.query,
        shared=not row.owner,
        by=row.by,
        at=to_datetime(row.at),
        tenant=None if row.tenant == ALL_TENANTS else row.tenant,
    )
