"""One request and whoever sends it: the principal, the tenant it is for, and a desk that knows no other.

The tenant is the credential's. An owner may name another one with `?tenant=`, or all with `?tenant=*`; that
is noted in that tenant's audit log, or in the log of all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request

from redrive.clock import Clock
from redrive.core.events import Event
from redrive.core.roles import ALL_TENANTS, Permission, Principal
from redrive.core.transition import AuditWrite
from redrive.desk.checks import short_text
from redrive.errors import InputError, NotAllowed
from redrive.server.auth.access import Access
from redrive.signals.traces import arrived
from redrive.store.accounts import Accounts
from redrive.store.port import People, Store

if TYPE_CHECKING:
    from redrive.app.runtime import Desk, Runtime
    from redrive.server.service import Service

__all__ = [
    "Asked",
    "Asking",
    "allow",
    "asking_of",
    "find_out",
    "needs",
    "note_entry",
    "refuse_foreign",
    "service_of",
]

_ALL = "x-all-workflows"

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME = frozenset({"same-origin", "none"})
_WIDE = frozenset(
    {Permission.MANAGE_PEOPLE, Permission.MANAGE_TENANTS, Permission.MANAGE_SINKS, Permission.PAUSE}
)


class Asking:
    """A request that is known to come from somebody."""

    def __init__(self, service: Service, principal: Principal, tenant: str) -> None:
        self.service = service
        self.principal = principal
        self.tenant = tenant
        self.clock: Clock = self.runtime.clock
        self._view: People | None = None

    @property
    def runtime(self) -> Runtime:
        return self.service.app.runtime

    @property
    def everywhere(self) -> bool:
        """True if an owner asks about all tenants at once."""
        return self.tenant == ALL_TENANTS

    @property
    def one_tenant(self) -> str | None:
        """The tenant to be named in calls, None for all."""
        return None if self.everywhere else self.tenant

    @property
    def home(self) -> str:
        """The tenant that a request is about which cannot be about all of them."""
        if self.everywhere:
            raise InputError("this is about one tenant: name it (on a page: at its top), not all of them")
        return self.tenant

    @property
    def view(self) -> People:
        """The store as far as this request may see it."""
        if self._view is None:
            whole = self.runtime.store
            self._view = whole if self.everywhere else whole.confined(self.tenant, self.principal.workflows)
        return self._view

    @property
    def whole(self) -> Store:
        """The store of all tenants, for those who answer for all."""
        return self.runtime.store

    @property
    def desk(self) -> Desk:
        """What can be done, for this tenant only."""
        return self.runtime.desk(self.view, self.clock)

    @property
    def accounts(self) -> Accounts:
        return self.view.accounts

    @property
    def access(self) -> Access:
        """Manages tenants, users and tokens.

        An OWNER acts on the store of all tenants: on PostgreSQL a connection that is confined to a tenant
        cannot write an OWNER. Every other principal has the confined connection.
        """
        owns = self.principal.may(Permission.MANAGE_TENANTS) and self.principal.workflows is None
        accounts = self.whole.accounts if owns else self.accounts
        return Access(accounts, self.clock, self.principal, self.service.app.settings.secret_key)

    @property
    def by(self) -> str:
        """Who does it, for the record."""
        return self.principal.who


def service_of(request: Request) -> Service:
    """What all requests share."""
    service: Service = request.app.state.service
    return service


async def asking_of(request: Request) -> Asking:
    """Who sends a request, found out once."""
    known: Asking | None = getattr(request.state, "asking", None)
    return known if known is not None else await find_out(request, note_entry)


async def find_out(request: Request, note: Callable[[Asking, Request], Awaitable[None]]) -> Asking:
    """Find out who sends a request; `note` writes down that an owner works in another tenant."""
    service = service_of(request)
    arrived(request.headers.get("traceparent"))
    authorization = request.headers.get("authorization")
    principal = await service.credentials.principal(authorization, request.cookies)
    if authorization is None and request.method not in _SAFE_METHODS:
        refuse_foreign(request, service)
    service.rates.take(principal.key)
    named = request.query_params.get("tenant")
    tenant = principal.enter(named if named is None else short_text("tenant", named))
    if tenant == principal.tenant:
        asking = Asking(service, principal, tenant)
    elif principal.workflows is not None:
        raise NotAllowed("a token for some workflows works in its own tenant only")
    else:
        # The other tenant may have a user with the same address: its log has to tell the two apart.
        foreign = replace(principal, who=f"{principal.who} (tenant {principal.tenant})"[:255])
        asking = Asking(service, foreign, tenant)
        await note(asking, request)
    request.state.asking = asking
    return asking


def refuse_foreign(request: Request, service: Service) -> None:
    """A browser sends its cookie with whatever another site makes it send: look where that came from."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in _SAME:
        raise NotAllowed("requests with a cookie must come from this site; use a token elsewhere")
    if origin is None:
        if site is None:
            raise NotAllowed("requests with a cookie need the header Origin or Sec-Fetch-Site")
        return
    base = service.app.settings.base_url
    allowed = {urlsplit(base).netloc} if base else {request.headers.get("host", "")}
    if urlsplit(origin).netloc not in allowed:
        raise NotAllowed("requests with a cookie must come from this site; use a token elsewhere")


async def note_entry(asking: Asking, request: Request) -> None:
    """Write into the audit log of a tenant that an owner of another one works in it."""
    line = AuditWrite(
        event=Event.TENANT_ENTERED.value,
        tenant="" if asking.everywhere else asking.tenant,
        by=asking.by,
        subject=f"{request.method} {request.url.path}"[:255],
        token=asking.clock.new_id(),
    )
    await asking.view.note([line])


Asked = Annotated[Asking, Depends(asking_of)]
"""What a route takes to know who asks."""


def needs(*permissions: Permission, all_workflows: bool = False, **more: Any) -> dict[str, Any]:
    """What a route says about itself: the permissions it takes. The document and the tests read it, too.

    `all_workflows`: it tells of all of them, so it is not for tokens that are for some.
    """

    named = [permission.value for permission in permissions]
    said = {"x-permissions": named, **({_ALL: True} if all_workflows else {}), **more}

    async def check(asking: Asked) -> None:
        allow(asking.principal, said)

    return {"dependencies": [Depends(check)], "openapi_extra": said}


def allow(principal: Principal, said: Mapping[str, Any]) -> None:
    """Refuse whoever lacks what a route says about itself."""
    permissions = [Permission(name) for name in said.get("x-permissions", ())]
    for permission in permissions:
        principal.need(permission)
    if (said.get(_ALL) or not _WIDE.isdisjoint(permissions)) and principal.workflows is not None:
        raise NotAllowed("a token for some workflows cannot do this")
