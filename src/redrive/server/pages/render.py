"""Pages as responses: templates, navigation, static files and error pages.

Templates use `t` (texts), `url` (links that stay in the tenant), `page` (a `PageView`) and the macros of
`ui.html`. Values are always escaped; no page contains an inline script or style.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from redrive.clock import MICROS
from redrive.core.failure_reason import FIXABLE_BY_EDIT
from redrive.core.roles import ALL_TENANTS, Permission, find_lowest_role
from redrive.desk.preview import DryRun
from redrive.duration import to_datetime
from redrive.errors import NotAllowed, NotFound, NotSignedIn, RedriveError, StoreError
from redrive.reasons import Reason, ReasonCode, render
from redrive.remote.problems import ERROR_KINDS
from redrive.server.pages import display, translations
from redrive.server.pages.forms import PAGE_FIELD, Form, RefusedForm, show_form_again
from redrive.server.pages.translations import CATALOGUES, LANGUAGES, N, Translator, choose_language
from redrive.server.problems import ProblemError
from redrive.server.request import RequestContext, get_service, refuse_cross_site, uses_https
from redrive.settings import API_PREFIX, PAGES_PREFIX
from redrive.store.stats import Attention

log = logging.getLogger("redrive.server")

static_routes = APIRouter()
_HERE = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_CACHE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


class StaticFile(msgspec.Struct, frozen=True, gc=False):
    """A file that pages load. Its name contains a hash of its content, so that browsers keep it forever."""

    name: str
    media: str
    plain: bytes
    compressed: bytes


@cache
def _load_static_files() -> dict[str, StaticFile]:
    """Return the files by the names in templates and by those in addresses."""
    found: dict[str, StaticFile] = {}
    for path in (_HERE / "static").iterdir():
        plain = path.read_bytes()
        name = f"{path.stem}.{hashlib.sha256(plain).hexdigest()[:12]}{path.suffix}"
        file = StaticFile(name, _MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0))
        found |= {path.name: file, name: file}
    return found


def _accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


@static_routes.get("/static/{name}")
async def send_static_file(request: Request, name: str) -> Response:
    file = _load_static_files().get(name)
    if file is None:
        raise NotFound(Reason(ReasonCode.FILE_NOT_FOUND))
    if _accepts_gzip(request):
        return Response(file.compressed, media_type=file.media, headers={**_CACHE_HEADERS, "Content-Encoding": "gzip"})
    return Response(file.plain, media_type=file.media, headers=_CACHE_HEADERS)


class MenuEntry(msgspec.Struct, frozen=True, gc=False):
    """A page of the navigation, and the permission that it needs."""

    path: str
    label: str
    icon: str
    group: str
    needs: Permission = Permission.LOOK
    hint: str = ""
    counted: str = ""
    """The text of the badge, which says what its number counts."""


_MONITOR, _CONFIGURE = N("Monitor"), N("Configure")
MENU = (
    MenuEntry("/", N("Overview"), "pulse", _MONITOR),
    MenuEntry(
        *("/admin/dlq", N("Failures"), "letter", _MONITOR),
        hint=N("Technical name: dead letters"),
        counted=N("{n} unresolved|{n} unresolved"),
    ),
    MenuEntry("/runs", N("Runs"), "run", _MONITOR),
    MenuEntry("/queues", N("Queues"), "queue", _MONITOR),
    MenuEntry("/circuits", N("Circuits"), "circuit", _MONITOR, counted=N("{n} open|{n} open")),
    MenuEntry("/outbox", N("Outbox"), "outbox", _MONITOR, counted=N("{n} not delivered|{n} not delivered")),
    MenuEntry("/workers", N("Workers"), "worker", _MONITOR, counted=N("{n} crashed|{n} crashed")),
    MenuEntry("/notifications", N("Notifications"), "bell", _MONITOR),
    MenuEntry("/workflows", N("Workflows"), "flow", _CONFIGURE),
    MenuEntry("/schedules", N("Schedules"), "clock", _CONFIGURE),
    MenuEntry("/policies", N("Policies"), "policy", _CONFIGURE),
    MenuEntry("/members", N("Members"), "people", _CONFIGURE, Permission.MANAGE_PEOPLE),
    MenuEntry("/audit", N("Audit log"), "log", _CONFIGURE),
    MenuEntry("/health", N("Health"), "health", _CONFIGURE),
)

PREFERENCES = {
    "language": tuple(LANGUAGES),
    "theme": ("auto", "light", "dark"),
    "clock": ("local", "utc"),
    "density": ("normal", "compact"),
}
"""The display settings and their values. Without a choice the browser's language counts, else the first value."""

LIST_COLUMNS = {
    "letters": {
        "status": N("State"),
        "code": N("Reason"),
        "failed_at": N("Failed at"),
        "attempts": N("Attempts"),
        "owner": N("Assignee"),
        "correlation_id": N("Reference"),
        "category": N("Category"),
        "stage": N("Stage"),
        "version": N("Code version"),
        "id": N("Id"),
    },
    "runs": {
        "status": N("State"),
        "current": N("Current state"),
        "created_at": N("Started"),
        "duration": N("Duration"),
        "finished_at": N("Finished"),
        "queue": N("Queue"),
        "version": N("Code version"),
        "id": N("Id"),
    },
}
"""The columns that a user can choose for each list, beside the one that names the row."""

DEFAULT_COLUMNS = {
    "letters": ("status", "code", "failed_at", "attempts", "owner"),
    "runs": ("status", "current", "created_at", "duration"),
}

MAX_TENANTS = 200
_MAX_REASON_LENGTH = 2_000
_FREE_TEXT = frozenset({ReasonCode.TEXT, ReasonCode.PYDANTIC_RULE})  # reasons that have only an English text
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # Browsers send the Origin of a form only if this policy lets them name the page that it comes from.
    "Referrer-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_MAIN_TAG = '<main id="main" tabindex="-1">'
_COMPRESS_FROM = 1_000  # bytes of a page that is worth compressing
_environment = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_environment.globals |= {
    "pictures": display,
    "LANGUAGES": LANGUAGES,
    "P": Permission,
    "labels": display,
    "KINDS": display.KINDS,
    "FIXABLE_BY_EDIT": FIXABLE_BY_EDIT,
    "ALL_TENANTS": ALL_TENANTS,
    "LIST_COLUMNS": LIST_COLUMNS,
    "MICROS": MICROS,
    "moment": to_datetime,
}
_environment.filters |= {
    "beginning": translations.excerpt_json,
    "fields": translations.list_labelled_texts,
    "utc": translations.format_utc,
    "iso": translations.format_iso,
    "whole": pass_context(lambda page, number: translations.format_number(number, page["page"].lang)),
}


def make_preference_cookie_name(preference: str) -> str:
    """Return the name of the cookie that stores a display setting."""
    return f"redrive_{preference}"


class PageView:
    """The part of a page that does not depend on its content: user, tenant, language and addresses."""

    def __init__(self, request: Request, context: RequestContext | None) -> None:
        self.request = request
        self.context = context
        self.service = get_service(request)
        self.root: str = request.scope.get("root_path", "")
        chosen = request.cookies.get(make_preference_cookie_name("language"))
        self.t = Translator(choose_language(chosen, request.headers.get("accept-language", "")))
        self.lang = self.t.language
        self.theme = self._read_preference("theme")
        self.clock = self._read_preference("clock")
        self.density = self._read_preference("density")
        self.tenants: list[str] = []
        self.attention = Attention()
        self.refused: RefusedForm | None = getattr(request.state, "refused", None)

    def _read_preference(self, name: str) -> str:
        values = PREFERENCES[name]
        chosen = self.request.cookies.get(make_preference_cookie_name(name))
        return chosen if chosen in values else values[0]

    def choose_columns(self, name: str) -> list[str]:
        """Return the columns of a list that the user chose, in their order."""
        chosen = self.request.cookies.get(make_preference_cookie_name(f"columns_{name}"))
        wanted = DEFAULT_COLUMNS[name] if chosen is None else chosen.split(".")
        return [column for column in LIST_COLUMNS[name] if column in wanted]

    @property
    def me(self) -> RequestContext:
        """The context of a signed-in user."""
        assert self.context is not None
        return self.context

    def may(self, permission: Permission) -> bool:
        """Return True if the user has a permission, so that a button for it is shown."""
        return self.context is not None and self.context.principal.may(permission)

    @staticmethod
    def find_role(permission: Permission) -> str:
        """Return the label of the lowest role that has a permission, so that a page can say whom to ask."""
        return display.ROLES[find_lowest_role(permission).value]

    @property
    def tenant(self) -> str:
        """The tenant that the page shows; `*` means all."""
        return self.me.tenant

    @property
    def foreign(self) -> bool:
        """True if the page shows another tenant than the user's own."""
        return self.context is not None and self.context.tenant != self.context.principal.tenant

    def url(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Return the address of a page, in the tenant that this page shows."""
        parameters = {**(query or {}), **more}
        if self.foreign:
            parameters.setdefault("tenant", self.me.tenant)
        pairs = [
            (name, each)
            for name, value in parameters.items()
            for each in (value if isinstance(value, list | tuple) else [value])
            if each not in (None, "")
        ]
        return f"{self.root}{quote(path, safe='/:@!$,~')}{f'?{urlencode(pairs)}' if pairs else ''}"

    def api(self, path: str) -> str:
        """Return an address of the API, in the tenant that this page shows."""
        query = f"?{urlencode({'tenant': self.me.tenant})}" if self.foreign else ""
        return f"{self.root.removesuffix(PAGES_PREFIX)}{API_PREFIX}{path}{query}"

    @property
    def address(self) -> str:
        """The address of this page with its query; after a form was sent, that of the page with the form."""
        form: Form | None = getattr(self.request.state, "form", None)
        if form is not None and form.get(PAGE_FIELD):
            return form.get(PAGE_FIELD)
        query = self.request.url.query
        return self.request.url.path + (f"?{query}" if query else "")

    def make_address(self, **changes: str | None) -> str:
        """Return the address of this page with other values of some query parameters; None removes one."""
        given = [(name, value) for name, value in self.request.query_params.multi_items() if name not in changes]
        given += [(name, value) for name, value in changes.items() if value is not None]
        return f"{self.request.url.path}?{urlencode(given)}"

    def make_tenant_url(self, tenant: str) -> str:
        """Return the address of the overview of another tenant."""
        return f"{self.root}/?{urlencode({'tenant': tenant})}"

    def menu(self) -> list[tuple[str, list[MenuEntry]]]:
        """Return the navigation by group, without pages that the user may not open."""
        groups: dict[str, list[MenuEntry]] = {}
        for entry in MENU:
            if self.may(entry.needs):
                groups.setdefault(entry.group, []).append(entry)
        return list(groups.items())

    def find_entry(self) -> MenuEntry | None:
        """Return the entry of the navigation for this page, None if it has none."""
        return next((entry for entry in MENU if self.is_at(entry.path)), None)

    def count_badge(self, path: str) -> int:
        """Return the number in the badge of a page in the navigation; 0 for none."""
        found = self.attention
        counts = {
            "/admin/dlq": found.letters,
            "/circuits": found.circuits,
            "/outbox": found.deliveries,
            "/workers": found.crashes,
        }
        return counts.get(path, 0)

    def is_at(self, path: str) -> bool:
        """Return True if this page has the path, or one below it."""
        here = self.request.url.path.removeprefix(self.root)
        if path == "/admin/dlq" and here.startswith("/admin/bulk-replays"):  # a tab of the failures
            return True
        return here == path or (path != "/" and here.startswith(f"{path}/"))

    @staticmethod
    def static(name: str) -> str:
        """Return the name in addresses of a static file."""
        return _load_static_files()[name].name

    @property
    def now(self) -> datetime:
        return to_datetime(self.service.app.runtime.store.now())

    def fill_form(self, action: str, inner: str) -> Markup | None:
        """Return the content of a form with what was typed, if it is the one that was refused."""
        return None if self.refused is None else self.refused.fill(action, inner)

    def new_form_id(self) -> str:
        """Return an id for a form, by which the server recognizes a form that is sent twice."""
        return self.service.app.runtime.clock.new_id()

    @property
    def safe(self) -> bool:
        """True if cookies are for https only."""
        return uses_https(self.request, self.service)

    def format_ago(self, when: datetime) -> str:
        """Return how long ago a time was, or how far ahead it is."""
        return display.format_relative_time(self.t, (self.now - when).total_seconds())

    def format_span(self, seconds: float | None) -> str:
        return display.format_span(self.t, seconds)

    def render_reason(self, reason: Reason | str | None) -> Markup:
        """Return a reason in the user's language; free text stays as it is, marked as English."""
        if isinstance(reason, Reason) and reason.code not in _FREE_TEXT:
            # The sentence has a time in UTC; pages show the time of the next attempt in the user's time zone.
            reason = Reason(reason.code, **{**reason.params, "next_at": None}) if "next_at" in reason.params else reason
            return escape(render(reason, CATALOGUES[self.lang])[:_MAX_REASON_LENGTH])
        text = str(reason or "")[:_MAX_REASON_LENGTH]
        return escape(text) if self.lang == "en" else Markup('<span lang="en" dir="auto">{}</span>').format(text)

    def render_reason_of(self, record: Any, text: str | None, name: str = "reason") -> Markup:
        """Return the reason of a record, such as `reason_code` with `reason_params`, or else its text."""
        code = getattr(record, f"{name}_code")
        if code is None:
            return self.render_reason(text)
        return self.render_reason(Reason.from_json({"code": code, "params": getattr(record, f"{name}_params")}))

    def render_comment_of(self, record: Any) -> Markup:
        """Return the reason of a record, which a user may have written in any language."""
        return escape(record.reason) if record.reason_code is None else self.render_reason_of(record, record.reason)

    def render_warnings(self, plan: DryRun) -> list[Markup]:
        return [self.render_reason(Reason.from_json(each)) for each in plan.warning_reasons]


def make_view(request: Request) -> PageView:
    """Return the view of a request, with the context of its user if there is one."""
    return PageView(request, getattr(request.state, "context", None))


async def render_page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a template with its values as a response."""
    view = make_view(request)
    if view.context is not None:
        with suppress(StoreError):  # the page that reports a failed store must be shown without it
            await _load_frame(view, view.context)
    shared = {"page": view, "t": view.t, "url": view.url}
    text = _environment.get_template(template).render(**shared, **values)
    if view.refused is not None and not view.refused.shown:
        # The page no longer has the form, for example because another user decided first.
        note = _environment.get_template("ui.html").make_module(shared).refusal(view.refused)  # type: ignore[attr-defined]
        text = text.replace(_MAIN_TAG, f"{_MAIN_TAG}\n{note}", 1)
    body, headers = text.encode("utf-8", "replace"), dict(_PAGE_HEADERS)
    if len(body) >= _COMPRESS_FROM and _accepts_gzip(request):
        body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return HTMLResponse(body, status, headers=headers)


async def _load_frame(view: PageView, context: RequestContext) -> None:
    """Read what the frame of every page shows: the tenants to switch to, and the badges of the navigation."""
    if view.may(Permission.MANAGE_TENANTS):
        view.tenants = [row.tenant for row in (await context.whole.accounts.tenants())[:MAX_TENANTS]]
    view.attention = await context.view.attention(tenant=context.one_tenant)


_ERRORS = {
    403: (
        N("You don't have permission"),
        N("Ask an administrator: they can do this, or give you the role under Members."),
    ),
    404: (N("Not found"), N("It may have been removed, or it belongs to another tenant.")),
    409: (N("This can't be done now"), N("Check the current state, then decide again.")),
    413: (N("Too large"), None),
    422: (N("That isn't valid"), N("Nothing was changed. Go back, correct it and try again.")),
    429: (N("Too many requests"), N("Wait a moment, then reload the page.")),
    500: (N("Something went wrong"), N("No data was lost. Details are in the server log.")),
    503: (N("The database is not responding"), N("No data was lost. Reload the page in a moment.")),
}
"""The title and the help text of the page for each HTTP status."""

_RECOVERABLE = frozenset({403, 409, 422, 429, 503})
"""The errors after which a form is shown again."""

_CHANGED_TITLE = N("This has changed since you opened it")
_CHANGED = frozenset(
    {
        *(ReasonCode.LETTER_REPLAYING, ReasonCode.LETTER_RESOLVED, ReasonCode.LETTER_CLOSED),
        *(ReasonCode.LETTER_CLOSED_BEFORE, ReasonCode.LETTER_NOT_OPEN, ReasonCode.RUN_ENDED),
        *(ReasonCode.RUN_BEING_UNDONE, ReasonCode.RUN_REPLAYED_AS, ReasonCode.BULK_DONE, ReasonCode.BULK_STOPPED),
        *(ReasonCode.ROLLED_BACK_ALREADY, ReasonCode.ROLLBACK_RUNNING, ReasonCode.OTHER_COMPENSATION_NEXT),
    }
)
"""The conflicts that another user or the engine caused by being first."""

_BACK_LABELS = {
    "/admin/dlq": N("Back to the failure"),
    "/admin/bulk-replays": N("Back to the bulk action"),
    "/runs": N("Back to the run"),
}
_SUBJECT_PATTERN = re.compile(rf"({'|'.join(_BACK_LABELS)})/([^/]+)/.+")


def install_error_pages(pages: FastAPI) -> None:
    """Show every error of the dashboard as a page."""
    # FastAPI's HTTPException has a base class in Starlette, which the router raises.
    framework: tuple[Any, ...] = (*HTTPException.__mro__[:2], 404, 405)
    for kind in (RedriveError, ProblemError, RequestValidationError, Exception, *framework):
        pages.add_exception_handler(kind, _show_error)


async def _show_error(request: Request, error: Exception) -> Response:
    detail: Reason | str = ""
    if isinstance(error, NotSignedIn):
        return await _ask_to_sign_in(request)
    if isinstance(error, RedriveError):
        status = next(kind.status for each, kind in ERROR_KINDS.items() if isinstance(error, each))
        if status < 500:
            detail = await request.app.state.redact(Reason.of_error(error))
    elif isinstance(error, ProblemError):
        status, detail = error.status, error.detail
    elif isinstance(error, RequestValidationError):
        status = 404 if any(each["loc"][:1] == ("path",) for each in error.errors()) else 422
    else:
        status = getattr(error, "status_code", 500)
    if status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    elif status == 503 and isinstance(error, RedriveError):
        log.warning("the store could not be used: %s", error)
    title, help = _ERRORS.get(status, (N("Request refused"), None))
    if isinstance(detail, Reason) and detail.code in _CHANGED:
        title = _CHANGED_TITLE
    refused = _find_refused_form(request, title, detail, invalid=status == 422)
    if refused is not None and status in _RECOVERABLE:
        again = await show_form_again(request, refused, status)
        if again is not None:
            return again
    # After a refused change, the page offers the way back to the failure, run or bulk action.
    path = unquote(request.url.path).removeprefix(request.scope.get("root_path", ""))
    subject = _SUBJECT_PATTERN.fullmatch(path) if status in (409, 422) else None
    response = await render_page(
        request,
        "error.html",
        status=status,
        code=status,
        title=title,
        detail=detail,
        help=help,
        role=getattr(error, "role", None),
        refused=refused,
        back=None if subject is None else (f"{subject[1]}/{subject[2]}", _BACK_LABELS[subject[1]]),
    )
    if isinstance(error, ProblemError):
        response.headers.update(error.headers)
    return response


def _find_refused_form(
    request: Request, title: str, detail: Reason | str = "", *, invalid: bool = False
) -> RefusedForm | None:
    form: Form | None = getattr(request.state, "form", None)
    if request.method != "POST" or form is None or not form.get(PAGE_FIELD):
        return None
    try:
        refuse_cross_site(request, get_service(request), browser=False)
    except NotAllowed:
        return None  # a user would take what another site filled in for their own, and send it
    query = request.url.query
    action = request.url.path + (f"?{query}" if query else "")
    return RefusedForm(action=action, form=form, title=title, detail=detail, invalid=invalid)


async def _ask_to_sign_in(request: Request) -> Response:
    """Redirect to the sign-in page, which leads back to this page; a form is kept, and shown again afterwards."""
    root = request.scope.get("root_path", "")
    refused = _find_refused_form(request, "")
    if refused is not None and (kept := refused.pack()):
        return await render_login(request, 401, SESSION_EXPIRED, wanted=refused.page, kept=kept)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = {"next": wanted} if request.method == "GET" and wanted.rstrip("/") != root else {}
    return RedirectResponse(f"{root}/login" + (f"?{urlencode(query)}" if query else ""), 303)


SESSION_EXPIRED = N("Your session has expired. Sign in again: what you entered is kept.")


async def render_login(request: Request, status: int, wrong: Reason | str | None, **values: Any) -> Response:
    """Return the sign-in page. `wanted`: where it leads. `kept`: a form to show again."""
    defaults = {"email": "", "code": "", "choose": False, "wanted": "", "kept": ""}
    return await render_page(request, "login.html", status=status, wrong=wrong, **(defaults | values))
