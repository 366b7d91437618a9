"""`app.views`: named filters of lists, private to a user or shared by a tenant."""

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
from redrive.core.roles import ALL_TENANTS, Permission
from redrive.core.transitions import AuditWrite
from redrive.desk.actor import Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import present_row
from redrive.desk.validation import require_long_text, require_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import as_dict
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import DeskStore
from redrive.store.settings import NewView, ViewKey, ViewRow

MAX_VIEWS = 50
"""Views of one list that a user may have, and that a tenant may share."""

_MAX_NAME_LENGTH, _MAX_QUERY_LENGTH = 60, 2000


class ListName(StrEnum):
    """The lists that can be filtered."""

    LETTERS = "letters"
    RUNS = "runs"
    AUDIT = "audit"


FILTER_FIELDS: dict[ListName, tuple[str, ...]] = {
    ListName.LETTERS: (
        *("status", "code", "stage", "category", "workflow", "step", "fingerprint", "owner", "tag", "text"),
        "escalated",
        *("index", "since", "until"),
    ),
    ListName.RUNS: (
        *("kind", "status", "workflow", "correlation_id", "idempotency_key", "queue"),
        *("waits_for", "parent", "index", "since", "until"),
    ),
    ListName.AUDIT: ("event", "by", "subject", "since", "until", "engine"),
}
"""The fields that each list can be filtered by, as in the query of its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedView:
    """A named filter. `query` is the query of an address; user `by` saved it `at` that time.

    `tenant` is the tenant whose list it filters; None is all tenants at once.
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
        """The filter, from field to value."""
        return dict(parse_qsl(self.query))


class SavedViews:
    """Saves, lists and removes views. Changes of shared views are written to the audit log."""

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @operation("GET /views", Permission.LOOK, of="list")
    async def list(
        self, of: str | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> builtins.list[SavedView]:
        """Return the views of a reader in a tenant, private and shared, by list and name."""
        wanted = {*ListName} if of is None else {_parse_list_name(of)}
        rows = await self._store.views.known(_check_tenant(tenant), reader)
        # A view whose query cannot be decrypted here would show the whole list under the name of a filter.
        return [present_view(row) for row in rows if row.list in wanted and not isinstance(row.query, Unreadable)]

    @operation("PUT /views/{list}/{name}", Permission.LOOK, of="list")
    async def save(
        self, of: str, name: str, query: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> SavedView:
        """Save a filter under a name, replacing the one with that name."""
        actor, chosen, plain = Actor(by), _parse_list_name(of), normalize_name(name)
        owner = {"tenant": _check_tenant(tenant), "list": chosen.value, "owner": "" if shared else by}
        if not 1 <= len(plain) <= _MAX_NAME_LENGTH or not plain.isprintable() or "/" in plain:  # it fits on a button
            raise InputError(Reason(ReasonCode.VIEW_NAME_INVALID, longest=_MAX_NAME_LENGTH, given=quote(name)))
        new = NewView(**owner, name=plain, query=_check_query(chosen, query), by=by)
        line = self._make_audit(AuditEvent.VIEW_SHARED, new.key, actor, query=new.query) if shared else None
        if not await self._store.views.put(new, most=MAX_VIEWS, audit=line):
            if shared:
                raise Conflict(Reason(ReasonCode.TOO_MANY_SHARED_VIEWS, tenant=new.tenant, n=MAX_VIEWS))
            raise Conflict(Reason(ReasonCode.TOO_MANY_VIEWS, n=MAX_VIEWS))
        return present_view(ViewRow(**as_dict(new), at=self._store.now()))

    @operation("DELETE /views/{list}/{name}", Permission.LOOK, status=204, of="list")
    async def remove(
        self, of: str, name: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> None:
        """Remove a view."""
        actor, list = Actor(by), _parse_list_name(of).value
        owner, plain = "" if shared else by, normalize_name(name)
        key = ViewKey(tenant=_check_tenant(tenant), list=list, owner=owner, name=plain)
        line = self._make_audit(AuditEvent.VIEW_REMOVED, key, actor) if shared else None
        # PostgreSQL refuses a text with a null byte; no view has such a name.
        if not key.name.isprintable() or not await self._store.views.remove(key, line):
            code = ReasonCode.SHARED_VIEW_NOT_FOUND if shared else ReasonCode.VIEW_NOT_FOUND
            raise NotFound(Reason(code, name=quote(name)))

    def _make_audit(self, event: AuditEvent, key: ViewKey, actor: Actor, **query: str) -> AuditWrite:
        tenant = "" if key.tenant == ALL_TENANTS else key.tenant
        after = json.dumps({"list": key.list, **query}, ensure_ascii=False)
        return actor.make_audit(self._clock, event, tenant, key.name, after=after)


def _parse_list_name(of: str) -> ListName:
    try:
        return ListName(of)
    except ValueError:
        known = tuple(ListName)
        raise InputError(Reason(ReasonCode.VIEW_LIST_UNKNOWN, lists=known, given=quote(of))) from None


def _check_tenant(tenant: str | None) -> str:
    return "default" if tenant is None else require_text("tenant", tenant)


def normalize_name(name: str) -> str:
    """Return a name as it is stored: names that look the same are the same, however they were typed."""
    return " ".join(normalize("NFC", name).split()) if isinstance(name, str) else ""


def _check_query(of: ListName, query: str) -> str:
    """Return the query of an address with its fields in a fixed order and without blank ones."""
    too_long = InputError(Reason(ReasonCode.VIEW_FILTER_TOO_LONG, longest=_MAX_QUERY_LENGTH))
    if not isinstance(query, str) or len(query) > _MAX_QUERY_LENGTH:
        raise too_long
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
        raise too_long
    return kept


def present_view(row: ViewRow) -> SavedView:
    tenant = None if row.tenant == ALL_TENANTS else row.tenant
    return present_row(SavedView, row, list=ListName(row.list), shared=not row.owner, tenant=tenant)
