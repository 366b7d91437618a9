"""Drawing a page: a template, what it shows, and whoever looks at it.

Templates know `t` (words), `url` (links that stay in the tenant), `page` (all below), and the macros of
`ui.html`. What they show is escaped, always; no page holds a script or a style of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
from collections.abc import Callable, Mapping
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
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from redrive import errors
from redrive.clock import MICROS
from redrive.core.failure_reason import FIXABLE_BY_EDIT
from redrive.core.roles import ALL_TENANTS, Permission
from redrive.desk.preview import DryRun
from redrive.duration import to_datetime
from redrive.errors import NotFound, StoreError
from redrive.reasons import ENGLISH, Reason, ReasonCode, render
from redrive.reasons.polish import POLISH
from redrive.server.contract import ERROR_KINDS
from redrive.server.pages import display as labels
from redrive.server.pages import display as pictures
from redrive.server.pages import translations as values
from redrive.server.pages.translations import LANGUAGES, N, Translator, choose_language
from redrive.server.problems import ProblemError
from redrive.server.request import RequestContext, get_service, uses_https
from redrive.settings import API_PREFIX, PAGES_PREFIX

# -- The files that browsers load beside pages: named after their content, so that they are kept for -----


static_routes = APIRouter()
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_CACHE_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


class StaticFile(msgspec.Struct, frozen=True, gc=False):
    """A file as it is sent."""

    name: str
    media: str
    plain: bytes
    small: bytes


@cache
def _load_static_files() -> dict[str, StaticFile]:
    """By the names that pages use, and by those that browsers ask for."""
    found: dict[str, StaticFile] = {}
    for path in (Path(__file__).parent / "static").iterdir():
        plain = path.read_bytes()
        name = f"{path.stem}.{hashlib.sha256(plain).hexdigest()[:12]}{path.suffix}"
        file = StaticFile(name, _MEDIA_TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0))
        found |= {path.name: file, name: file}
    return found


def find_static_name(name: str) -> str:
    """The name to ask for; it changes whenever the content does."""
    return _load_static_files()[name].name


def accepts_gzip(request: Request) -> bool:
    """True if the browser takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")


@static_routes.get("/static/{name}")
async def send_static_file(request: Request, name: str) -> Response:
    """One file."""
    file = _load_static_files().get(name)
    if file is None:
        raise NotFound("there is no such file; load the page again")
    if accepts_gzip(request):
        return Response(file.small, media_type=file.media, headers={**_CACHE_HEADERS, "Content-Encoding": "gzip"})
    return Response(file.plain, media_type=file.media, headers=_CACHE_HEADERS)


# -- Where people can go: one table, in the order in which it is shown -----------------------------------


class MenuEntry(msgspec.Struct, frozen=True, gc=False):
    """A page of the navigation, and what it takes to go there."""

    path: str
    label: str
    icon: str
    group: str
    needs: Permission = Permission.LOOK


_WATCH, _SET_UP = N("Watch"), N("Set up")
MENU = (
    MenuEntry("/", N("Overview"), "pulse", _WATCH),
    MenuEntry("/admin/dlq", N("Dead letters"), "letter", _WATCH),
    MenuEntry("/runs", N("Runs"), "run", _WATCH),
    MenuEntry("/circuits", N("Circuits"), "circuit", _WATCH),
    MenuEntry("/workers", N("Workers"), "worker", _WATCH),
    MenuEntry("/notifications", N("Notifications"), "bell", _WATCH),
    MenuEntry("/workflows", N("Workflows"), "flow", _SET_UP),
    MenuEntry("/policies", N("Policies"), "policy", _SET_UP),
    MenuEntry("/members", N("Members"), "people", _SET_UP, Permission.MANAGE_PEOPLE),
    MenuEntry("/audit", N("Audit"), "log", _SET_UP),
    MenuEntry("/health", N("Health"), "health", _SET_UP),
)


def list_menu(may: Callable[[Permission], bool]) -> list[tuple[str, list[MenuEntry]]]:
    """The places that somebody may go to, by group."""
    groups: dict[str, list[MenuEntry]] = {}
    for place in MENU:
        if may(place.needs):
            groups.setdefault(place.group, []).append(place)
    return list(groups.items())


# -- Drawing a page: a template, what it shows, and whoever looks at it ----------------------------------


PREFERENCES = {"language": tuple(LANGUAGES), "theme": ("auto", "light", "dark"), "clock": ("local", "utc")}
"""What whoever looks may choose. Nobody has to: the browser names a language, else the first is taken."""

MAX_TENANTS = 200
_MAX_REASON_LENGTH = 2_000  # characters of a reason
_FREE_TEXT = frozenset({ReasonCode.TEXT, ReasonCode.PYDANTIC_RULE})  # what others wrote, in English
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A form's Origin is sent only where the policy lets the browser say where it comes from.
_PAGE_HEADERS = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "Referrer-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_COMPRESS_FROM = 1_000  # bytes from which on a page is sent compressed
_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)

_environment.globals |= {
    "pictures": pictures,
    "LANGUAGES": LANGUAGES,
    "P": Permission,
    "labels": labels,
    "KINDS": labels.KINDS,
    "MENDED_BY_EDIT": FIXABLE_BY_EDIT,
    "moment": to_datetime,
}

_environment.filters |= {
    "beginning": values.excerpt_json,
    "fields": values.list_labelled_texts,
    "utc": values.format_utc,
    "iso": values.format_iso,
    "whole": values.format_number,
}


def make_preference_cookie_name(choice: str) -> str:
    """Where a browser keeps what was chosen."""
    return f"redrive_{choice}"


class PageView:
    """What every page knows: who looks, in which language, and where things are."""

    def __init__(self, request: Request, asking: RequestContext | None) -> None:
        self.request = request
        self.asking = asking
        self.service = get_service(request)
        self.root: str = request.scope.get("root_path", "")
        chosen = request.cookies.get(make_preference_cookie_name("language"))
        self.t = Translator(choose_language(chosen, request.headers.get("accept-language", "")))
        self.lang = self.t.language
        self.theme = self._read_preference("theme")
        self.clock = self._read_preference("clock")
        self.tenants: list[str] = []

    def _read_preference(self, what: str) -> str:
        known = PREFERENCES[what]
        chosen = self.request.cookies.get(make_preference_cookie_name(what))
        return chosen if chosen in known else known[0]

    # -- who looks -------------------------------------------------------------------------------------

    @property
    def me(self) -> RequestContext:
        """Whoever looks; pages of those who have signed in only."""
        assert self.asking is not None
        return self.asking

    def may(self, permission: Permission) -> bool:
        """True if whoever looks may do this, so that the button for it is worth showing."""
        return self.asking is not None and self.asking.principal.may(permission)

    @property
    def tenant(self) -> str:
        """The tenant that is looked at; None-like `*` means all."""
        return self.me.tenant

    @property
    def foreign(self) -> bool:
        """True if this is not the tenant of whoever looks."""
        return self.asking is not None and self.asking.tenant != self.asking.principal.tenant

    # -- where things are ------------------------------------------------------------------------------

    def url(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
        """A page's address; it stays in the tenant that is looked at."""
        named = {**(query or {}), **more}
        if self.foreign:
            named.setdefault("tenant", self.me.tenant)
        pairs = [(name, value) for name, value in _expand_pairs(named) if value not in (None, "")]
        asked = f"?{urlencode(pairs)}" if pairs else ""
        return f"{self.root}{quote(path, safe='/:@!$,~')}{asked}"

    def api(self, path: str) -> str:
        """An address of the API, for the same tenant."""
        above = self.root.removesuffix(PAGES_PREFIX)
        asked = f"?{urlencode({'tenant': self.me.tenant})}" if self.foreign else ""
        return f"{above}{API_PREFIX}{path}{asked}"

    @property
    def here(self) -> str:
        """This page with all that its address says."""
        asked = self.request.url.query
        return self.request.url.path + (f"?{asked}" if asked else "")

    def make_tenant_url(self, tenant: str) -> str:
        """The start page, in another tenant."""
        return f"{self.root}/?{urlencode({'tenant': tenant})}"

    def places(self) -> list[tuple[str, list[MenuEntry]]]:
        """The navigation, as far as whoever looks may go."""
        return list_menu(self.may)

    def at(self, path: str) -> bool:
        """True if this page is that place, or lies below it."""
        mine = self.request.url.path.removeprefix(self.root)
        return mine == path if path == "/" else mine == path or mine.startswith(f"{path}/")

    @staticmethod
    def static(name: str) -> str:
        """The name of a file that pages load."""
        return find_static_name(name)

    # -- now -------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The store's time."""
        return to_datetime(self.service.app.runtime.store.now())

    def once(self) -> str:
        """A word for a form, by which the server knows it when it is sent twice."""
        return self.service.app.runtime.clock.new_id()

    @property
    def safe(self) -> bool:
        """True if cookies are for TLS only."""
        return uses_https(self.request, self.service)

    def ago(self, when: datetime) -> str:
        """How long ago something was, or how soon it will be, in words."""
        return labels.format_relative_time(self.t, (self.now - when).total_seconds())

    def said(self, reason: Reason | str | None) -> Markup:
        """Return a reason in the reader's language; free text stays as it is, marked as English."""
        if isinstance(reason, Reason) and reason.code not in _FREE_TEXT:
            return escape(render(reason, POLISH if self.lang == "pl" else ENGLISH)[:_MAX_REASON_LENGTH])
        text = str(reason or "")[:_MAX_REASON_LENGTH]
        return escape(text) if self.lang == "en" else Markup('<span lang="en" dir="auto">{}</span>').format(text)

    def say(self, text: str | None, record: Any, name: str = "reason") -> Markup:
        """Return the reason of a record, such as `reason_code` with `reason_params`, or else its text."""
        code = getattr(record, f"{name}_code")
        if code is None:
            return self.said(text)
        return self.said(Reason.from_json({"code": code, "params": getattr(record, f"{name}_params")}))

    def warned(self, plan: DryRun) -> list[Markup]:
        """Return the warnings of a dry run."""
        return [self.said(Reason.from_json(each)) for each in plan.warning_reasons]

    def span(self, seconds: float | None) -> str:
        """A length of time in words."""
        return labels.format_span(self.t, seconds)


def _expand_pairs(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names with their values; a list is a name given several times."""
    return [
        (name, each)
        for name, value in named.items()
        for each in (value if isinstance(value, list | tuple) else [value])
    ]


def make_view(request: Request) -> PageView:
    """The view of a request, whoever sends it."""
    return PageView(request, getattr(request.state, "context", None))


async def render_page(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """A page as it is sent."""
    view = make_view(request)
    if view.may(Permission.MANAGE_TENANTS):
        with suppress(StoreError):  # a page that says that the store is away is one all the same
            rows = await view.me.whole.accounts.tenants()
            view.tenants = [row.tenant for row in rows[:MAX_TENANTS]]
    text = _environment.get_template(template).render(
        page=view, t=view.t, url=view.url, ALL_TENANTS=ALL_TENANTS, MICROS=MICROS, **shown
    )
    return _make_response(request, text, status)


def _make_response(request: Request, text: str, status: int) -> Response:
    body, headers = text.encode("utf-8", "replace"), dict(_PAGE_HEADERS)
    if len(body) >= _COMPRESS_FROM and accepts_gzip(request):
        body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return HTMLResponse(body, status, headers=headers)


# -- Errors as pages: what was wrong, what it would take, where to go. Never a stack ---------------------


log = logging.getLogger("redrive.server")
ERROR_TITLES = {
    403: N("You may not do that"),
    404: N("There is no such thing here"),
    409: N("It has moved on"),
    413: N("That is too large"),
    422: N("That does not fit"),
    429: N("Too many requests"),
    500: N("Something went wrong here"),
    503: N("The store does not answer"),
}
_BACK_LABELS = {
    "/admin/dlq": N("Back to the dead letter"),
    "/admin/bulk-replays": N("Back to the decision on many"),
    "/runs": N("Back to the run"),
}
"""Where to go from something that could not be done, by what it was to be done to."""

_SUBJECT_PATTERN = re.compile(rf"({'|'.join(_BACK_LABELS)})/([^/]+)/.+")
_ERROR_HELP = {
    403: N("Somebody with a higher role can do it, or give you that role under Members."),
    404: N("It may have been removed, or it belongs to another tenant. Nothing was changed."),
    409: N("Somebody else was faster. Look at what it is now, then decide again."),
    422: N("Nothing was changed. Go back, correct it and send it again."),
    429: N("Wait a moment, then load the page again."),
    500: N("Nothing is lost. The server's log has the details."),
    503: N("Nothing is lost. Load the page again in a moment."),
}


def install_error_pages(pages: FastAPI) -> None:
    """Let every error of these pages be a page."""
    pages.add_exception_handler(errors.NotSignedIn, _redirect_to_login)
    pages.add_exception_handler(errors.RedriveError, _show_known_error)
    pages.add_exception_handler(ProblemError, _show_problem)
    pages.add_exception_handler(RequestValidationError, _show_validation_error)
    for kind in HTTPException.__mro__[:2]:  # FastAPI's own, and the one of the framework below it
        pages.add_exception_handler(kind, _show_http_error)
    pages.add_exception_handler(404, _show_http_error)
    pages.add_exception_handler(405, _show_http_error)
    pages.add_exception_handler(Exception, _show_unexpected_error)


async def _redirect_to_login(request: Request, error: Exception) -> Response:
    """Whoever is not known signs in, and comes back to where they wanted to go."""
    root = request.scope.get("root_path", "")
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = {"next": wanted} if request.method == "GET" and wanted.rstrip("/") != root else {}
    return RedirectResponse(f"{root}/login" + (f"?{urlencode(back)}" if back else ""), 303)


async def _show_known_error(request: Request, error: Exception) -> Response:
    status = next(kind.status for each, kind in ERROR_KINDS.items() if isinstance(error, each))
    if status == 500:
        return await _show_unexpected_error(request, error)
    if status == 503:
        log.warning("the store could not be used: %s", error)
        return await _render_error(request, status, "")
    role = getattr(error, "role", None)
    reason = await request.app.state.redact(Reason.of_error(error))
    return await _render_error(request, status, reason, role=role)


async def _show_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    answer = await _render_error(request, error.status, error.detail)
    answer.headers.update(error.headers)
    return answer


async def _show_http_error(request: Request, error: Exception) -> Response:
    return await _render_error(request, getattr(error, "status_code", 404), "")


async def _show_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    in_path = any(each["loc"][:1] == ("path",) for each in error.errors())
    return await _render_error(request, 404 if in_path else 422, "")


async def _show_unexpected_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _render_error(request, 500, "")


async def _render_error(request: Request, status: int, detail: Reason | str, *, role: str | None = None) -> Response:
    return await render_page(
        request,
        "fault.html",
        status=status,
        code=status,
        title=ERROR_TITLES.get(status, N("The request was refused")),
        detail=detail,
        help=_ERROR_HELP.get(status),
        role=role,
        back=_find_back_link(request) if status in (409, 422) else None,
    )


def _find_back_link(request: Request) -> tuple[str, str] | None:
    """The letter, run or set that the address is about, and the words that lead to it."""
    path = unquote(request.url.path).removeprefix(request.scope.get("root_path", ""))
    found = _SUBJECT_PATTERN.fullmatch(path)
    return None if found is None else (f"{found[1]}/{found[2]}", _BACK_LABELS[found[1]])
