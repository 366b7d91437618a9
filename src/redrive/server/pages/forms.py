"""Forms of the dashboard.

Each form carries an id in the field `once`, so that it is carried out once, and the address of its page in the
field `page`. A form that is refused is shown again on that page, with the refusal and everything that was typed;
`ui.form` fills it in. The sign-in page keeps a form whose session has expired.
"""

from __future__ import annotations

import base64
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from typing import Annotated, Any
from urllib.parse import unquote, urlencode

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup, escape

from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.server.idempotency import FORM_KEY_PREFIX, IdempotentRoute
from redrive.server.request_body import INLINE_BYTES, JsonLimits, find_json_excess, parse_form, run_off_loop
from redrive.server.request_context import RequestContext, audit_tenant_entry, authenticate
from redrive.store.filters import RunFilter

ONCE_FIELD, PAGE_FIELD, KEPT_FIELD = "once", "page", "kept"
_MAX_KEPT = 60_000  # characters of a form that the sign-in page keeps: its own form must stay below 64 KiB
_TYPED_INPUTS = frozenset({"text", "email", "number", "search", "url", "tel", "date", "datetime-local"})
ACTION_FIELD, CHECK_ACTION = "do", "check"
_NOTE_INTERVAL = 900.0  # seconds until another look into the same tenant is written to the audit log
_MAX_NOTED = 10_000


class TenantEntryLog:
    """The owners who looked into other tenants within the last minutes."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def note(self, context: RequestContext, request: Request) -> None:
        """Write an entry to the audit log, unless the request only reads and a recent one was written.

        A page of a tenant that does not exist is not found: it would look like a tenant without problems.
        """
        entry, now = (context.by, context.tenant), context.clock.monotonic()
        if request.method == "GET" and now - self._noted.get(entry, -_NOTE_INTERVAL) < _NOTE_INTERVAL:
            return
        if not context.everywhere and not await _is_tenant(context):
            raise NotFound(Reason(ReasonCode.TENANT_NOT_FOUND, name=context.tenant))
        await audit_tenant_entry(context, request)
        self._noted[entry] = now
        self._noted.move_to_end(entry)
        while len(self._noted) > _MAX_NOTED:
            self._noted.popitem(last=False)


async def _is_tenant(context: RequestContext) -> bool:
    """Return True if a tenant is registered, or if it has runs without being registered."""
    if any(row.tenant == context.tenant for row in await context.whole.accounts.tenants()):
        return True
    return bool((await context.view.runs(RunFilter(), limit=1, cursor=None)).items)


async def authenticate_page(request: Request) -> None:
    """Authenticate the sender of a request for a page, once."""
    if getattr(request.state, "context", None) is None:
        entries: TenantEntryLog = request.app.state.entries
        await authenticate(request, entries.note)


class Form:
    """The fields of a form, in order. White space around a value is stripped."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields
        self.size = sum(len(value) for _, value in fields)

    def get(self, name: str, default: str = "") -> str:
        """Return the value of a field, or the default if it is missing or blank."""
        return next(iter(self.all(name)), default)

    def maybe(self, name: str) -> str | None:
        """Return the value of a field, None if it is missing or blank."""
        return self.get(name) or None

    def all(self, name: str) -> list[str]:
        """Return the values of a field that are not blank."""
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def raw(self, name: str) -> str | None:
        """Return the value as it was sent, None if the field is missing."""
        return next((value for key, value in self._fields if key == name), None)

    def names(self, prefix: str) -> list[str]:
        """Return the field names with this prefix, without the prefix."""
        found = dict.fromkeys(key for key, _ in self._fields if key.startswith(prefix))
        return [name.removeprefix(prefix) for name in found]

    @property
    def fields(self) -> Sequence[tuple[str, str]]:
        """The names and values, in order."""
        return self._fields


class RefusedForm(msgspec.Struct, kw_only=True):
    """A form that was not carried out: its action, its fields, and the refusal.

    `invalid`: a field is wrong. `shown`: a page contains the form.
    """

    action: str
    form: Form
    title: str
    detail: Reason | str = ""
    invalid: bool = False
    shown: bool = False

    @property
    def page(self) -> str:
        """The address of the page that contains the form."""
        return self.form.get(PAGE_FIELD)

    @property
    def typed(self) -> list[tuple[str, str]]:
        """The fields that the user typed, for a page that no longer contains the form."""
        own = (ONCE_FIELD, PAGE_FIELD, "seen", ACTION_FIELD)
        return [(name, value) for name, value in self.form.fields if value.strip() and name not in own]

    def fill(self, action: str, inner: str) -> Markup | None:
        """Return the content of a form with the fields filled in; None if it is another form."""
        if self.shown or action != self.action:
            return None
        filler = _FormFiller(self)
        filler.feed(inner)
        filler.close()
        if not filler.matches:
            return None
        self.shown = True
        return filler.finish()

    def pack(self) -> str:
        """Return the form as text for the sign-in page; empty if it is too large."""
        body = urlencode([(ACTION_FIELD, self.action), *self.form.fields]).encode()
        text = base64.urlsafe_b64encode(zlib.compress(body)).decode()
        return text if len(text) <= _MAX_KEPT else ""

    @classmethod
    def unpack(cls, text: str, title: str) -> RefusedForm | None:
        """Return the form that `pack` wrote; None for any other text."""
        try:
            # The limit stops a small text that would grow without end.
            body = zlib.decompressobj().decompress(base64.urlsafe_b64decode(text), 10 * _MAX_KEPT)
            (_, action), *fields = parse_form(body)
        except (ValueError, zlib.error):
            return None
        return cls(action=action, form=Form(fields), title=title)


class _FormFiller(HTMLParser):
    """Fills the values of a refused form into the HTML of the form, and marks the field that is wrong."""

    def __init__(self, refused: RefusedForm) -> None:
        super().__init__(convert_charrefs=False)
        self._values: dict[str, list[str]] = {}
        for name, value in refused.form.fields:
            self._values.setdefault(name, []).append(value)
        self.matches = True
        self._parts: list[str] = []
        self._typed: list[tuple[str, int]] = []  # names and places of the fields for text
        self._select: str | None = None
        self._option: int | None = None
        self._skips = False
        self._invalid = refused.invalid
        self._field = "" if isinstance(refused.detail, str) else str(refused.detail.params.get("field") or "")

    def finish(self) -> Markup:
        """Return the HTML. The wrong field is the one that the refusal names, or the only one."""
        named = [at for name, at in self._typed if name == self._field]
        found = named or ([self._typed[0][1]] if len(self._typed) == 1 else [])
        for at in found if self._invalid else []:
            self._parts[at] = self._parts[at].replace(" ", ' aria-invalid="true" aria-describedby="refused" ', 1)
        return Markup("".join(self._parts))  # nosec B704 - the parts come from a template, the values are escaped

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, text = given.get("name") or "", self.get_starttag_text() or ""
        values = self._values.get(name)
        if tag == "input":
            kind = given.get("type") or "text"
            if kind == "hidden" and name not in (ONCE_FIELD, PAGE_FIELD, "seen"):
                self.matches = self.matches and (given.get("value") or "") in (values or [""])
            elif kind in ("checkbox", "radio"):
                given.pop("checked", None)
                if (given.get("value") or "on") in (values or ()):
                    given["checked"] = ""
                text = _write_tag(tag, given)
            elif kind in _TYPED_INPUTS:
                self._typed.append((name, len(self._parts)))
                if values:
                    text = _write_tag(tag, {**given, "value": values.pop(0)})
        elif tag == "textarea":
            self._typed.append((name, len(self._parts)))
            if values:
                text, self._skips = f"{text}\n{escape(values.pop(0))}", True
        elif tag == "select" and values:
            self._select = values.pop(0)
        elif tag == "option" and self._select is not None:
            given.pop("selected", None)
            chosen = given.get("value") == self._select
            text = _write_tag(tag, {**given, "selected": ""} if chosen else given)
            self._option = None if "value" in given else len(self._parts)
        self._parts.append(text)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._skips = False
        elif tag == "option" and self._option is not None:
            # An option without a value has that of its text.
            if unescape("".join(self._parts[self._option + 1 :])).strip() == self._select:
                self._parts[self._option] = '<option selected="">'
            self._option = None
        elif tag == "select":
            self._select = None
        self._parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._skips:
            self._parts.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")


def _write_tag(tag: str, attributes: Mapping[str, str | None]) -> str:
    written = (name if value is None else f'{name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{' '.join([tag, *written])}>"


async def show_form_again(request: Request, refused: RefusedForm, status: int, cookie: str = "") -> Response | None:
    """Return the page of a refused form, with the form filled in; None if that page cannot be shown.

    The page is requested within the application, as the browser would. `cookie` is that of a new session.
    """
    root = request.scope.get("root_path", "")
    path, _, query = refused.page.partition("?")
    if not path.startswith(f"{root}/") or not refused.page.isprintable():
        return None
    skipped = (b"content-length", b"content-type", *([b"cookie"] if cookie else []))
    headers = [pair for pair in request.scope["headers"] if pair[0] not in skipped]
    kept = {name: request.scope[name] for name in ("type", "asgi", "http_version", "scheme", "server", "client")}
    scope = {
        **kept,
        "method": "GET",
        "root_path": root,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [*headers, (b"cookie", cookie.encode())] if cookie else headers,
        "state": {"refused": refused},
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await request.app(scope, receive, send)
    begin, *rest = sent
    if begin["status"] not in (200, 409, 422):  # a page with a preview may be refused as well
        return None
    response = Response(b"".join(part.get("body", b"") for part in rest), status)
    response.raw_headers = begin["headers"]
    return response


async def read_form(request: Request) -> Form:
    """Return the form of a request, parsed once."""
    known: Form | None = getattr(request.state, "form", None)
    if known is None:
        try:
            body = await request.body()
            fields = await run_off_loop(len(body), _parse_fields, body, request.app.state.service.limits.shape)
        except ValueError:
            raise InputError(Reason(ReasonCode.FORM_UNREADABLE)) from None
        known = request.state.form = Form(fields)
    return known


def _parse_fields(body: bytes, limits: JsonLimits) -> list[tuple[str, str]]:
    """Return the fields of a form. A large one may hold JSON, and is measured before that is parsed."""
    fields = [(name, value.replace("\r\n", "\n")) for name, value in parse_form(body)]
    for name, value in fields:
        if len(value) > INLINE_BYTES and (why := find_json_excess(value.encode(), limits)) is not None:
            raise InputError(Reason(ReasonCode.FORM_FIELD_UNREADABLE, field=quote(name), why=why))
    return fields


SentForm = Annotated[Form, Depends(read_form)]


class PageRoute(IdempotentRoute):
    """A page whose forms are carried out once each. A form that is only checked changes nothing.

    A browser sends a form again within minutes, so the response is remembered for one day.
    """

    days = 1
    needs_key = False

    def keeps(self, response: Response) -> bool:
        """Return True if the form was carried out: a form that is shown again names no location."""
        return "location" in response.headers or "content-location" in response.headers

    async def key_of(self, request: Request) -> str | None:
        form = await read_form(request)
        once = None if form.get(ACTION_FIELD) == CHECK_ACTION else form.maybe(ONCE_FIELD)
        if once is not None:
            # Authenticated here first: the API's way would write every look of an owner to the audit log.
            await authenticate_page(request)
        return None if once is None else f"{FORM_KEY_PREFIX}{once}"


def make_page_router() -> APIRouter:
    """Return a router for pages that need a signed-in user."""
    return APIRouter(route_class=PageRoute, dependencies=[Depends(authenticate_page)])


def redirect_to(url: str) -> RedirectResponse:
    """Redirect after a change, so that reloading the page does not repeat the change."""
    return RedirectResponse(url, 303)
