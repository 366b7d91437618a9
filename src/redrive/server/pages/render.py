"""Pages as responses: templates, navigation and static files.

Templates use `t` (texts), `url` (links that stay in the tenant), `page` (a `PageView`) and the macros of
`ui.html`. Values are always escaped; no page contains an inline script or style.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from redrive.clock import MICROS
from redrive.core.failure_reason import FIXABLE_BY_EDIT
from redrive.core.roles import ALL_TENANTS, Permission, find_lowest_role
from redrive.core.secret_and_sealed_text import SEALED_TEXT
from redrive.desk.preview import DryRun
from redrive.errors import NotFound, StoreError
from redrive.reasons import Reason, ReasonCode, render
from redrive.server.pages import charts, texts
from redrive.server.pages.forms import PAGE_FIELD, Form, RefusedForm
from redrive.server.pages.texts import CATALOGUES, LANGUAGES, N, Translator, choose_language, format_number
from redrive.server.request_context import RequestContext, get_service, uses_https
from redrive.settings import API_PREFIX, PAGES_PREFIX
from redrive.store.stats import Attention
from redrive.time_values import to_datetime

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
    whole: bool = False
    """True if the page covers all workflows, so a token for some workflows is refused."""


_MONITOR, _CONFIGURE = N("Monitor"), N("Configure")
MENU = (
    MenuEntry("/", N("Overview"), "pulse", _MONITOR),
    MenuEntry(
        *("/admin/dlq", N("Failures"), "letter", _MONITOR),
        hint=N("Technical name: dead letters"),
        counted=N("{n} unresolved|{n} unresolved"),
    ),
    MenuEntry("/tasks", N("Tasks"), "person", _MONITOR, counted=N("{n} open|{n} open")),
    MenuEntry("/runs", N("Runs"), "run", _MONITOR),
    MenuEntry("/queues", N("Queues"), "queue", _MONITOR),
    MenuEntry("/circuits", N("Circuits"), "circuit", _MONITOR, counted=N("{n} open|{n} open"), whole=True),
    MenuEntry(
        *("/outbox", N("Outbox"), "outbox", _MONITOR), counted=N("{n} not delivered|{n} not delivered"), whole=True
    ),
    MenuEntry("/workers", N("Workers"), "worker", _MONITOR, counted=N("{n} crashed|{n} crashed")),
    MenuEntry("/deployments", N("Deployments"), "tag", _MONITOR, whole=True),
    MenuEntry("/notifications", N("Notifications"), "bell", _MONITOR),
    MenuEntry("/workflows", N("Workflows"), "flow", _CONFIGURE),
    MenuEntry("/schedules", N("Schedules"), "clock", _CONFIGURE),
    MenuEntry("/policies", N("Policies"), "policy", _CONFIGURE),
    MenuEntry("/members", N("Members"), "people", _CONFIGURE, Permission.MANAGE_PEOPLE, whole=True),
    MenuEntry("/audit", N("Audit log"), "log", _CONFIGURE, whole=True),
    MenuEntry("/health", N("Health"), "health", _CONFIGURE),
)

PREFERENCES = {
    "language": tuple(LANGUAGES),
    "theme": ("auto", "light", "dark"),
    "clock": ("local", "utc"),
    "density": ("normal", "compact"),
}
"""The display settings and their values. Without a choice the browser's language counts, else the first value."""

LIST_COLUMNS: dict[str, dict[str, str]] = {}
"""The columns that a user can choose for each list, beside the one that names the row, with their headings.

The page of each list adds its own.
"""

_DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {}

MAX_TENANTS = 200
_MANY_STEPS, _LATEST_STEPS = 60, 40  # of a run; the page of one with more shows the latest first
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
    "charts": charts,
    "LANGUAGES": LANGUAGES,
    "P": Permission,
    "labels": texts,
    "UNFINISHED": ("DLQ", "FAILED", "RETRYING"),  # the states of steps that users look for
    "KINDS": texts.KINDS,
    "FIXABLE_BY_EDIT": FIXABLE_BY_EDIT,
    "ALL_TENANTS": ALL_TENANTS,
    "LIST_COLUMNS": LIST_COLUMNS,
    "MICROS": MICROS,
    "moment": to_datetime,
}
_environment.filters |= {
    "beginning": texts.excerpt_json,
    "fields": texts.list_labelled_texts,
    "utc": texts.format_utc,
    "iso": texts.format_iso,
    "words": texts.name_word_class,
    "whole": pass_context(lambda page, number: format_number(number, page["page"].lang)),
}


def add_list_columns(name: str, default: tuple[str, ...], columns: dict[str, str]) -> None:
    """Add the columns of a list, and those that are shown until a user chooses."""
    LIST_COLUMNS[name], _DEFAULT_COLUMNS[name] = columns, default


def make_preference_cookie_name(preference: str) -> str:
    """Return the name of the cookie that stores a display setting."""
    return f"redrive_{preference}"


_PAGE_SENTENCES: dict[str, str] = {
    ReasonCode.SAME_IDEMPOTENCY_KEY: N(
        "{names}: the old idempotency key is kept, so the other service may repeat its old answer. "
        "To avoid this, turn on “Use new idempotency keys”."
    ),
    ReasonCode.NEW_OPERATION_NEEDED: N(
        "This run was rolled back. Other services would treat the same calls as repeats: "
        "turn on “Use new idempotency keys”."
    ),
    ReasonCode.FULL_WOULD_REPEAT: N(
        "Step {step} may run only once, and starting over would run it again. "
        "Resume from a later step, or turn on “Use new idempotency keys”."
    ),
    ReasonCode.LETTER_NOT_OPEN: N("Another decision came first. State of this failure: {status}."),
    ReasonCode.NOT_REPLAYABLE: N("Only a failed run can be retried. State of this run: {status}."),
    ReasonCode.NOT_ROLLED_BACK: N("Only a failed run can be rolled back. State of this run: {status}."),
    ReasonCode.ROLLED_BACK_ALREADY: N("This run was already rolled back."),
}
"""Reasons that pages express with the labels of their fields and states, instead of those of the API."""


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
        self.open_tasks = 0
        self.refused: RefusedForm | None = getattr(request.state, "refused", None)

    def _read_preference(self, name: str) -> str:
        values = PREFERENCES[name]
        chosen = self.request.cookies.get(make_preference_cookie_name(name))
        return chosen if chosen in values else values[0]

    def choose_columns(self, name: str) -> list[str]:
        """Return the columns of a list that the user chose, in their order."""
        chosen = self.request.cookies.get(make_preference_cookie_name(f"columns_{name}"))
        wanted = _DEFAULT_COLUMNS[name] if chosen is None else chosen.split(".")
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
        return texts.ROLES[find_lowest_role(permission).value]

    @property
    def tenant(self) -> str:
        """The tenant that the page shows; `*` means all."""
        return self.me.tenant

    @property
    def foreign(self) -> bool:
        """True if the page shows another tenant than the user's own."""
        return self.context is not None and self.context.tenant != self.context.principal.tenant

    @property
    def confined(self) -> bool:
        """True if the user may see only some workflows of the tenant."""
        return self.me.principal.workflows is not None

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

    def count_early(self, steps: int) -> int:
        """Return how many of the first steps of a long run a page leaves out until the user asks for all."""
        return 0 if steps <= _MANY_STEPS or "steps" in self.request.query_params else steps - _LATEST_STEPS

    def menu(self) -> list[tuple[str, list[MenuEntry]]]:
        """Return the navigation by group, without pages that the user may not open."""
        groups: dict[str, list[MenuEntry]] = {}
        for entry in MENU:
            if self.may(entry.needs) and not (entry.whole and self.confined):
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
            "/tasks": self.open_tasks,
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
        return texts.format_relative_time(self.t, (self.now - when).total_seconds())

    def format_span(self, seconds: float | None) -> str:
        return texts.format_span(self.t, seconds)

    def render_reason(self, reason: Reason | str | None) -> Markup:
        """Return a reason in the user's language; free text stays as it is, marked as English."""
        if isinstance(reason, Reason) and reason.code is ReasonCode.PYDANTIC_RULE:
            if text := texts.FIELD_RULES.get(str(reason.params["rule"])):
                return self.t(text)
        if isinstance(reason, Reason) and reason.code in _PAGE_SENTENCES:
            return self._render_page_sentence(reason)
        if isinstance(reason, Reason) and reason.code not in _FREE_TEXT:
            # The sentence has a time in UTC; pages show the time of the next attempt in the user's time zone.
            reason = Reason(reason.code, **{**reason.params, "next_at": None}) if "next_at" in reason.params else reason
            return escape(self._render_sentence(reason)[:_MAX_REASON_LENGTH])
        text = str(reason or "")[:_MAX_REASON_LENGTH]
        return escape(text) if self.lang == "en" else Markup('<span lang="en" dir="auto">{}</span>').format(text)

    def _render_sentence(self, reason: Reason) -> str:
        """Return a reason with a capital letter, unless it begins with a parameter or the name of a field."""
        catalogue = CATALOGUES[self.lang]
        text, first = render(reason, catalogue), catalogue.texts[reason.code].partition(" ")[0]
        return text[:1].upper() + text[1:] if first.isalpha() else text

    def _render_page_sentence(self, reason: Reason) -> Markup:
        values: dict[str, Any] = dict(reason.params)
        if "names" in values:
            values["names"] = ", ".join(map(str, values["names"]))
        if "status" in values:
            values["status"] = self.t(texts.find_state_label(values["status"]).text)
        return self.t(_PAGE_SENTENCES[reason.code], **values)

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
    if "enc1:" in text:
        text = SEALED_TEXT.sub(str(escape(view.t("Encrypted by its workers"))), text)
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
    view.open_tasks = (await context.view.open_questions(tenant=context.one_tenant)).count


SESSION_EXPIRED = N("Your session has expired. Sign in again: what you entered is kept.")


async def render_login(request: Request, status: int, wrong: Reason | str | None, **values: Any) -> Response:
    """Return the sign-in page. `wanted`: where it leads. `kept`: a form to show again."""
    defaults = {"email": "", "code": "", "choose": False, "wanted": "", "kept": ""}
    return await render_page(request, "login.html", status=status, wrong=wrong, **(defaults | values))
