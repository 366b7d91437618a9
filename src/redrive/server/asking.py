"""One request and whoever sends it: the principal, the tenant it is for, and a desk that knows no other.

The tenant is the credential's. An owner may name another one with `?tenant=`, or all with `?tenant=*`; that
is noted in that tenant's audit log, or in the log of all.
"""

from __future__ import annotations

import hashlib
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
from redrive.desk.starting import Caller
from redrive.errors import InputError, NotAllowed, NotSignedIn, RedriveError
from redrive.server.auth.access import Access
from redrive.server.limits import BODIES, Sender, is_open
from redrive.signals.traces import arrived
from redrive.store.account_records import Accounts
from redrive.store.port import People, Store
from redrive.trusted import forwarded_https, network_of, origin

if TYPE_CHECKING:
    from redrive.app.runtime import Desk, Runtime
    from redrive.server.service import Service

__all__ = [
    "Asked",
    "Asking",
    "allow",
    "asking_of",
    "client_of",
    "cookie_name",
    "find_out",
    "identify_sender",
    "is_safe",
    "needs",
    "note_entry",
    "refuse_foreign",
    "service_of",
]

COOKIE = "redrive_session"
_ALL = "x-all-workflows"
_FOREIGN = "requests with a cookie must come from this site; use a token elsewhere"
_PORTS = {"http": 80, "https": 443}

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
        who = self.principal
        # A digest: the key of a credential names the user or the token.
        name = hashlib.sha256(who.key.encode()).hexdigest()[:32]
        caller = Caller(name, sees_payloads=who.may(Permission.SEE_PAYLOADS))
        return self.runtime.desk(self.view, self.clock, caller)

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
    principal = await _principal(request, service)
    if "authorization" not in request.headers and request.method not in _SAFE_METHODS:
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


async def identify_sender(service: Service, request: Request) -> Sender:
    """Return the sender of a request from its headers alone, and count anonymous requests by address.

    The route authenticates a request that cannot have a body. What the credential of any other one is
    found to be, the route finds on the request.
    """
    anonymous = Sender(network_of(client_of(request, service)), known=False)
    if is_open(request.scope) or not _has_credential(request, service):
        _count_anonymous(request, service)
        return anonymous
    if request.method not in BODIES:
        return anonymous
    try:
        return Sender((await _principal(request, service)).key, known=True)
    except RedriveError as error:
        # The route raises it again: asking the store a second time could give another answer.
        request.state.credential_error = error
        return anonymous


async def _principal(request: Request, service: Service) -> Principal:
    """Return the principal of a request, looked up once."""
    error: RedriveError | None = getattr(request.state, "credential_error", None)
    if error is not None:
        raise error
    known: Principal | None = getattr(request.state, "principal", None)
    if known is None:
        cookie = request.cookies.get(cookie_name(request, service))
        try:
            known = await service.credentials.principal(request.headers.get("authorization"), cookie)
        except NotSignedIn:
            _count_anonymous(request, service)
            raise
        request.state.principal = known
    return known


def _has_credential(request: Request, service: Service) -> bool:
    return "authorization" in request.headers or cookie_name(request, service) in request.cookies


def _count_anonymous(request: Request, service: Service) -> None:
    """Count a request without a valid credential against its address, once."""
    if not getattr(request.state, "counted", False):
        request.state.counted = True
        service.anonymous.take(network_of(client_of(request, service)))


def client_of(request: Request, service: Service) -> str:
    """Return the address that a request came from, behind the proxies that are trusted."""
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return origin(_peer(request), forwarded, service.proxies)


def is_safe(request: Request, service: Service) -> bool:
    """Return True if the browser uses https, here or up to a trusted proxy: cookies are kept to it then."""
    if request.scope.get("scheme") == "https" or service.app.settings.base_url.startswith("https:"):
        return True
    protocol = ",".join(request.headers.getlist("x-forwarded-proto"))
    return forwarded_https(_peer(request), protocol, service.proxies)


def cookie_name(request: Request, service: Service) -> str:
    """Return the name of the session cookie.

    Browsers accept a `__Host-` cookie over https only, for this host and without a domain. Without https
    cookies of one host are shared by all of its ports: the port keeps two servers apart.
    """
    if is_safe(request, service):
        return f"__Host-{COOKIE}"
    server = request.scope.get("server")
    return f"{COOKIE}_{server[1]}" if server and server[1] else COOKIE


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def refuse_foreign(request: Request, service: Service, *, browser: bool = True) -> None:
    """Refuse a request that another site made a browser send, with this site's cookies.

    `browser=False` accepts a request without the headers that every browser sends.
    """
    site, sent = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in _SAME:
        raise NotAllowed(_FOREIGN)
    if sent is None:
        if site is None and browser:
            raise NotAllowed("requests with a cookie need the header Origin or Sec-Fetch-Site")
        return
    scheme = "https" if is_safe(request, service) else "http"
    ours = service.app.settings.base_url or f"{scheme}://{request.headers.get('host', '')}"
    if _origin_of(sent) != _origin_of(ours):
        raise NotAllowed(_FOREIGN)


def _origin_of(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL as browsers compare them, None for what has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.scheme not in _PORTS:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


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
