"""The context of a request: its principal, its tenant, and a desk that is confined to the tenant.

The tenant is that of the credential. An owner may name another one with `?tenant=`, or all with `?tenant=*`; the
audit log of that tenant, or of all, records it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response

from redrive.app import Redrive
from redrive.clock import Clock, SystemClock
from redrive.core.audit import AuditEvent
from redrive.core.redact import Redactor
from redrive.core.roles import ALL_TENANTS, Permission, Principal
from redrive.desk.actor import Actor
from redrive.desk.models import Caller
from redrive.desk.validation import in_thread_if_large, require_text
from redrive.errors import InputError, NotAllowed, NotSignedIn, RedriveError
from redrive.observability.tracing import set_request_trace
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.server.auth.admin import AccountAdmin
from redrive.server.auth.secrets import is_hashing_busy
from redrive.server.auth.sessions import SESSION_LIFETIME, Credentials, Login, Sessions, WorkerCredentials
from redrive.server.limits import AnswerQuota, Limits, LoginLimiter, RateLimiter
from redrive.server.live_updates import StreamHub
from redrive.server.problem_responses import ProblemError
from redrive.server.remote_workers import RemoteWorkers
from redrive.server.request_guard import BODY_METHODS, Sender, is_open_path, is_worker_path
from redrive.server.step_workers import StepWorkers
from redrive.settings import caller_network, find_client_address, is_forwarded_https, parse_trusted_proxies
from redrive.store.accounts import AccountStore
from redrive.store.port import DeskStore, Store

if TYPE_CHECKING:
    from redrive.app.runtime import Desk, Runtime

SESSION_COOKIE = "redrive_session"
_ALL_WORKFLOWS = "x-all-workflows"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ALL_WORKFLOWS_PERMISSIONS = frozenset(
    {
        Permission.MANAGE_PEOPLE,
        Permission.MANAGE_TENANTS,
        Permission.MANAGE_SINKS,
        Permission.MANAGE_WORKERS,
        Permission.PAUSE,
    }
)


class RequestContext:
    """A request whose principal is known."""

    def __init__(self, service: Service, principal: Principal, tenant: str) -> None:
        self.service = service
        self.principal = principal
        self.tenant = tenant
        self.runtime: Runtime = service.app.runtime
        # A keyed request replaces the clock before its route asks for the desk (`server/idempotency.py`).
        self.clock: Clock = self.runtime.clock

    @property
    def everywhere(self) -> bool:
        """True if an owner names all tenants at once."""
        return self.tenant == ALL_TENANTS

    @property
    def one_tenant(self) -> str | None:
        """The tenant for calls of the desk, None for all."""
        return None if self.everywhere else self.tenant

    @property
    def home(self) -> str:
        """The tenant of a request that cannot be about all tenants."""
        if self.everywhere:
            raise InputError(Reason(ReasonCode.TENANT_NEEDED))
        return self.tenant

    @cached_property
    def view(self) -> DeskStore:
        """The store, confined to the tenant and the workflows of this request."""
        return make_store_view(self.service.app, self.tenant, self.principal.workflows)

    @property
    def whole(self) -> Store:
        """The store of all tenants, for routes that need such a permission."""
        return self.runtime.store

    @cached_property
    def desk(self) -> Desk:
        """The desk, confined like the view."""
        may = self.principal.may
        caller = Caller(
            self.principal.digest,
            sees_payloads=may(Permission.SEE_PAYLOADS),
            sees_stacks=may(Permission.SEE_STACKS),
            role=self.principal.role,
            who=self.by,
        )
        return self.runtime.desk(self.view, self.clock, caller)

    @property
    def accounts(self) -> AccountStore:
        return self.view.accounts

    @property
    def access(self) -> AccountAdmin:
        """The administration of tenants, users and tokens.

        An OWNER acts on the store of all tenants: on PostgreSQL a connection that is confined to a tenant
        cannot write an OWNER. Every other principal has the confined connection.
        """
        owns = self.principal.may(Permission.MANAGE_TENANTS) and self.principal.workflows is None
        accounts = self.whole.accounts if owns else self.accounts
        return AccountAdmin(accounts, self.clock, self.principal, self.service.app.settings.secret_key)

    @property
    def by(self) -> str:
        """The name of the principal in the audit log."""
        return self.principal.who


def get_service(request: Request) -> Service:
    """Return what all requests of the server share."""
    service: Service = request.app.state.service
    return service


async def get_context(request: Request) -> RequestContext:
    """Return the context of a request, made once."""
    known: RequestContext | None = getattr(request.state, "context", None)
    return known if known is not None else await authenticate(request, audit_tenant_entry)


async def authenticate(request: Request, note: Callable[[RequestContext, Request], Awaitable[None]]) -> RequestContext:
    """Authenticate a request; `note` records that an owner works in another tenant."""
    service = get_service(request)
    set_request_trace(request.headers.get("traceparent"))
    principal = await load_principal(request, service)
    if "authorization" not in request.headers and request.method not in ("GET", "HEAD", "OPTIONS"):
        refuse_cross_site(request, service)
    service.rates.take(principal.key)
    named = request.query_params.get("tenant")
    tenant = principal.enter(named if named is None else require_text("tenant", named))
    if tenant == principal.tenant:
        context = RequestContext(service, principal, tenant)
    elif principal.workflows is not None:
        raise NotAllowed(Reason(ReasonCode.TOKEN_TENANT_FIXED))
    else:
        # The other tenant may have a user with the same address: its log has to tell the two apart.
        foreign = replace(principal, who=f"{principal.who} ({principal.tenant})"[:255])
        context = RequestContext(service, foreign, tenant)
        await note(context, request)
    request.state.context = context
    return context


async def identify_sender(service: Service, request: Request) -> Sender:
    """Return the sender of a request from its headers alone, and count anonymous requests by address.

    The route authenticates a request that cannot have a body. For any other request, the principal or the error
    is kept on the request for the route.
    """
    has_credential = "authorization" in request.headers or make_session_cookie_name(request, service) in request.cookies
    if is_open_path(request.scope) or not has_credential:
        _count_anonymous(request, service)
    elif request.method in BODY_METHODS:
        try:
            return Sender((await load_principal(request, service)).key, known=True)
        except RedriveError as error:
            # The route raises it again: asking the store a second time could give another answer.
            request.state.credential_error = error
    return Sender(caller_network(request_address(request, service)), known=False)


async def load_principal(request: Request, service: Service) -> Principal:
    """Return the principal of a request, looked up once."""
    error: RedriveError | None = getattr(request.state, "credential_error", None)
    if error is not None:
        raise error
    known: Principal | None = getattr(request.state, "principal", None)
    if known is None:
        authorization = request.headers.get("authorization")
        try:
            if authorization is not None and is_worker_path(request.scope):
                known = await service.worker_credentials.principal(authorization)
            else:
                cookie = request.cookies.get(make_session_cookie_name(request, service))
                known = await service.credentials.principal(authorization, cookie)
        except NotSignedIn:
            _count_anonymous(request, service)
            raise
        request.state.principal = known
    return known


def _count_anonymous(request: Request, service: Service) -> None:
    """Count a request without a valid credential against its address, once."""
    if not getattr(request.state, "counted", False):
        request.state.counted = True
        service.anonymous.take(caller_network(request_address(request, service)))


def request_address(request: Request, service: Service) -> str:
    """Return the address that a request came from, behind the proxies that are trusted."""
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return find_client_address(_get_peer_address(request), forwarded, service.proxies)


def uses_https(request: Request, service: Service) -> bool:
    """Return True if the browser uses https, here or up to a trusted proxy: cookies are kept to it then."""
    if request.scope.get("scheme") == "https" or service.app.settings.base_url.startswith("https:"):
        return True
    protocol = ",".join(request.headers.getlist("x-forwarded-proto"))
    return is_forwarded_https(_get_peer_address(request), protocol, service.proxies)


def make_session_cookie_name(request: Request, service: Service) -> str:
    """Return the name of the session cookie.

    Browsers accept a `__Host-` cookie over https only, for this host and without a domain. Cookies of one host are
    shared by all of its ports, so the name contains the port that the browser uses, unless it is the default one.
    """
    https = uses_https(request, service)
    origin = _parse_origin(_find_own_url(request, service))
    port = "" if origin is None or origin[2] in _DEFAULT_PORTS.values() else f"_{origin[2]}"
    return f"{'__Host-' if https else ''}{SESSION_COOKIE}{port}"


def _find_own_url(request: Request, service: Service) -> str:
    """Return the URL by which the browser knows this server."""
    scheme = "https" if uses_https(request, service) else "http"
    return service.app.settings.base_url or f"{scheme}://{request.headers.get('host', '')}"


def _get_peer_address(request: Request) -> str:
    return request.client.host if request.client else ""


def refuse_cross_site(request: Request, service: Service, *, browser: bool = True) -> None:
    """Refuse a request that another site made a browser send, with this site's cookies.

    `browser=False` accepts a request without the headers that every browser sends.
    """
    site, sent = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        raise NotAllowed(Reason(ReasonCode.CROSS_SITE_REQUEST))
    if sent is None:
        if site is None and browser:
            raise NotAllowed(Reason(ReasonCode.ORIGIN_NEEDED))
        return
    if _parse_origin(sent) != _parse_origin(_find_own_url(request, service)):
        raise NotAllowed(Reason(ReasonCode.CROSS_SITE_REQUEST))


def _parse_origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL as browsers compare them, None for what has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.scheme not in _DEFAULT_PORTS:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme]


async def audit_tenant_entry(context: RequestContext, request: Request) -> None:
    """Write into the audit log of a tenant that an owner of another one works in it."""
    tenant, subject = context.one_tenant or "", f"{request.method} {request.url.path}"[:255]
    line = Actor(context.by).make_audit(context.clock, AuditEvent.TENANT_ENTERED, tenant, subject)
    await context.view.note([line])


Context = Annotated[RequestContext, Depends(get_context)]
"""The parameter of a route that receives the context of the request."""


def requires(*permissions: Permission, all_workflows: bool = False, **more: Any) -> dict[str, Any]:
    """Return the arguments of a route that needs these permissions. The OpenAPI document and tests show them, too.

    `all_workflows`: the answer covers all workflows, so a token for some workflows is refused.
    """
    names = [permission.value for permission in permissions]
    extensions = {"x-permissions": names, **({_ALL_WORKFLOWS: True} if all_workflows else {}), **more}

    async def check(context: Context) -> None:
        check_permissions(context.principal, extensions)

    return {"dependencies": [Depends(check)], "openapi_extra": extensions}


def check_permissions(principal: Principal, extensions: Mapping[str, Any]) -> None:
    """Refuse a principal that lacks a permission of a route."""
    permissions = [Permission(name) for name in extensions.get("x-permissions", ())]
    for permission in permissions:
        principal.need(permission)
    covers_all = extensions.get(_ALL_WORKFLOWS) or not _ALL_WORKFLOWS_PERMISSIONS.isdisjoint(permissions)
    if covers_all and principal.workflows is not None:
        raise NotAllowed(Reason(ReasonCode.TOKEN_SCOPE_TOO_SMALL))


class Service:
    """A server: its app, its limits, and its open event streams."""

    def __init__(self, app: Redrive, limits: Limits, poll: float) -> None:
        clock = SystemClock()
        self.app = app
        self.limits = limits
        self.rates = RateLimiter(clock, limits.rate, limits.burst)
        self.anonymous = RateLimiter(clock, limits.anonymous_rate, limits.anonymous_burst)
        self.logins = LoginLimiter(clock, limits)
        self.answers = AnswerQuota(clock, limits)
        view = partial(make_store_view, app)
        self.hub = StreamHub(view, every=poll, most=limits.streams, each=limits.streams_each)
        self.redactor = Redactor.parse(app.settings.redact)
        self.proxies = parse_trusted_proxies(app.settings.trusted_proxies)
        self.worker_credentials = WorkerCredentials(lambda: self.credentials, clock)
        self.remote_workers = RemoteWorkers(lambda: app.runtime, clock, app.settings.max_payload)
        self.step_workers = StepWorkers(lambda: app.runtime, clock, self.remote_workers.polls, app.settings.max_payload)

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.app.runtime.store, self.app.settings.secret_key)

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.app.runtime.store, self.app.runtime.clock)

    async def redact(self, reason: Reason) -> Reason:
        """Return a reason without secrets and without lone surrogates; a thread redacts a large one."""

        def clean(text: str) -> str:
            return self.redactor.text(text).encode("utf-8", "replace").decode()

        return await in_thread_if_large(lambda: reason.map_text(clean), len(str(reason)))

    def stop(self) -> None:
        """Close the open event streams, which have no end, and answer the long polls of workers."""
        self.hub.close()
        self.remote_workers.close()


def make_store_view(app: Redrive, tenant: str, workflows: Collection[str] | None) -> DeskStore:
    """Return the store, confined to a tenant and to workflows; ALL_TENANTS is not confined."""
    store = app.runtime.store
    return store if tenant == ALL_TENANTS else store.tenant_view(tenant, workflows)


async def sign_in(request: Request, response: Response, login: Login) -> Principal:
    """Begin a session, and set its cookie in the answer. Failed attempts are counted."""
    service = get_service(request)
    # Another site could sign a browser in as a user of its choice. A program sends none of these headers.
    refuse_cross_site(request, service, browser=False)
    if is_hashing_busy():
        reason = Reason(ReasonCode.SIGN_INS_BUSY)
        raise ProblemError(503, reason, code="busy", title="The server is busy", headers={"Retry-After": "1"})
    client = request_address(request, service)
    attempt = caller_network(client), login.email.lower()
    service.logins.take(*attempt)
    failed = False
    try:
        signed_in = await service.sessions.sign_in(replace(login, address=client))
    except NotSignedIn:
        failed = True  # only such an attempt counts
        raise
    finally:
        if not failed:
            service.logins.give_back(*attempt)
    name, secure = make_session_cookie_name(request, service), uses_https(request, service)
    options: dict[str, Any] = {"path": "/", "httponly": True, "samesite": "lax", "secure": secure}
    response.set_cookie(name, signed_in.cookie, max_age=SESSION_LIFETIME, **options)
    return signed_in.principal


async def sign_out(request: Request, response: Response) -> None:
    """End the session of the cookie, unless another site made the browser send the request."""
    service = get_service(request)
    name = make_session_cookie_name(request, service)
    if name not in request.cookies:
        return  # a form on another site is sent without the cookie, and must not remove it
    refuse_cross_site(request, service)
    await service.sessions.sign_out(request.cookies[name])
    response.delete_cookie(name, path="/", secure=uses_https(request, service), httponly=True, samesite="lax")
