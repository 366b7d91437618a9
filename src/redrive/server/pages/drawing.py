"""Drawing a page: a template, what it shows, and whoever looks at it.

Templates know `t` (words), `url` (links that stay in the tenant), `page` (all below), and the macros of
`ui.html`. What they show is escaped, always; no page holds a script or a style of its own.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from redrive.clock import MICROS
from redrive.core.addresses import API, PAGES
from redrive.core.ending import MENDED_BY_EDIT
from redrive.core.roles import ALL_TENANTS, Permission
from redrive.desk.preview import DryRun
from redrive.duration import moment
from redrive.errors import StoreError
from redrive.reasons import ENGLISH, Reason, ReasonCode, render
from redrive.reasons.polish import POLISH
from redrive.server.asking import Asking, is_safe, service_of
from redrive.server.pages import labels, pictures, values
from redrive.server.pages.files import packed, static
from redrive.server.pages.navigation import Place, places
from redrive.server.pages.words import LANGUAGES, Words, best_language

__all__ = ["CHOICES", "View", "cookie_of", "show", "view_of"]

CHOICES = {"language": tuple(LANGUAGES), "theme": ("auto", "light", "dark"), "clock": ("local", "utc")}
"""What whoever looks may choose. Nobody has to: the browser names a language, else the first is taken."""

MOST_TENANTS = 200
_LONGEST = 2_000  # characters of a reason
_FREE_TEXT = frozenset({ReasonCode.TEXT, ReasonCode.PYDANTIC_RULE})  # what others wrote, in English

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A form's Origin is sent only where the policy lets the browser say where it comes from.
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "same-origin", "Vary": "Accept-Encoding"}
_WORTH_IT = 1_000  # bytes from which on a page is sent compressed

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
    "MENDED_BY_EDIT": MENDED_BY_EDIT,
    "moment": moment,
}
_environment.filters |= {
    "beginning": values.beginning,
    "fields": values.fields,
    "utc": values.utc,
    "iso": values.iso,
    "whole": values.whole,
}


def cookie_of(choice: str) -> str:
    """Where a browser keeps what was chosen."""
    return f"redrive_{choice}"


class View:
    """What every page knows: who looks, in which language, and where things are."""

    def __init__(self, request: Request, asking: Asking | None) -> None:
        self.request = request
        self.asking = asking
        self.service = service_of(request)
        self.root: str = request.scope.get("root_path", "")
        chosen = request.cookies.get(cookie_of("language"))
        self.t = Words(best_language(chosen, request.headers.get("accept-language", "")))
        self.lang = self.t.language
        self.theme = self._chosen("theme")
        self.clock = self._chosen("clock")
        self.tenants: list[str] = []

    def _chosen(self, what: str) -> str:
        known = CHOICES[what]
        chosen = self.request.cookies.get(cookie_of(what))
        return chosen if chosen in known else known[0]

    # -- who looks -------------------------------------------------------------------------------------

    @property
    def me(self) -> Asking:
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
        pairs = [(name, value) for name, value in _pairs(named) if value not in (None, "")]
        asked = f"?{urlencode(pairs)}" if pairs else ""
        return f"{self.root}{quote(path, safe='/:@!$,~')}{asked}"

    def api(self, path: str) -> str:
        """An address of the API, for the same tenant."""
        above = self.root.removesuffix(PAGES)
        asked = f"?{urlencode({'tenant': self.me.tenant})}" if self.foreign else ""
        return f"{above}{API}{path}{asked}"

    @property
    def here(self) -> str:
        """This page with all that its address says."""
        asked = self.request.url.query
        return self.request.url.path + (f"?{asked}" if asked else "")

    def in_tenant(self, tenant: str) -> str:
        """The start page, in another tenant."""
        return f"{self.root}/?{urlencode({'tenant': tenant})}"

    def places(self) -> list[tuple[str, list[Place]]]:
        """The navigation, as far as whoever looks may go."""
        return places(self.may)

    def at(self, path: str) -> bool:
        """True if this page is that place, or lies below it."""
        mine = self.request.url.path.removeprefix(self.root)
        return mine == path if path == "/" else mine == path or mine.startswith(f"{path}/")

    @staticmethod
    def static(name: str) -> str:
        """The name of a file that pages load."""
        return static(name)

    # -- now -------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The store's time."""
        return moment(self.service.app.runtime.store.now())

    def once(self) -> str:
        """A word for a form, by which the server knows it when it is sent twice."""
        return self.service.app.runtime.clock.new_id()

    @property
    def safe(self) -> bool:
        """True if cookies are for TLS only."""
        return is_safe(self.request, self.service)

    def ago(self, when: datetime) -> str:
        """How long ago something was, or how soon it will be, in words."""
        return labels.distance(self.t, (self.now - when).total_seconds())

    def said(self, reason: Reason | str | None) -> Markup:
        """Return a reason in the reader's language; free text stays as it is, marked as English."""
        if isinstance(reason, Reason) and reason.code not in _FREE_TEXT:
            return escape(render(reason, POLISH if self.lang == "pl" else ENGLISH)[:_LONGEST])
        text = str(reason or "")[:_LONGEST]
        return (
            escape(text) if self.lang == "en" else Markup('<span lang="en" dir="auto">{}</span>').format(text)
        )

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
        return labels.span(self.t, seconds)


def _pairs(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names with their values; a list is a name given several times."""
    return [
        (name, each)
        for name, value in named.items()
        for each in (value if isinstance(value, list | tuple) else [value])
    ]


def view_of(request: Request) -> View:
    """The view of a request, whoever sends it."""
    return View(request, getattr(request.state, "asking", None))


async def show(request: Request, template: str, *, status: int = 200, **shown: Any) -> Response:
    """A page as it is sent."""
    view = view_of(request)
    if view.may(Permission.MANAGE_TENANTS):
        with suppress(StoreError):  # a page that says that the store is away is one all the same
            rows = await view.me.whole.accounts.tenants()
            view.tenants = [row.tenant for row in rows[:MOST_TENANTS]]
    text = _environment.get_template(template).render(
        page=view, t=view.t, url=view.url, ALL_TENANTS=ALL_TENANTS, MICROS=MICROS, **shown
    )
    return _answer(request, text, status)


def _answer(request: Request, text: str, status: int) -> Response:
    body, headers = text.encode("utf-8", "replace"), dict(_HEADERS)
    if len(body) >= _WORTH_IT and packed(request):
        body, headers["Content-Encoding"] = gzip.compress(body, 5, mtime=0), "gzip"
    return HTMLResponse(body, status, headers=headers)
