"""What a form sends. Each one carries a word of its own: sent twice, it is carried out once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.errors import InputError
from redrive.server.body import INLINE_BYTES, JsonLimits, find_json_excess, parse_form, run_off_loop
from redrive.server.idempotency import FORM_KEY_PREFIX, IdempotentRoute
from redrive.server.request import RequestContext, audit_tenant_entry, authenticate

# -- Who looks at the pages, and into which tenant -------------------------------------------------------


_NOTE_INTERVAL = 900.0  # seconds after which looking is noted again
_MAX_NOTED = 10_000


class TenantEntryLog:
    """Who was noted lately to look into which tenant."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def note(self, asking: RequestContext, request: Request) -> None:
        """Note an entry, unless one was noted lately and this one changes nothing."""
        who, now = (asking.by, asking.tenant), asking.clock.monotonic()
        if request.method == "GET" and now - self._noted.get(who, -_NOTE_INTERVAL) < _NOTE_INTERVAL:
            return
        await audit_tenant_entry(asking, request)
        self._noted[who] = now
        self._noted.move_to_end(who)
        while len(self._noted) > _MAX_NOTED:
            self._noted.popitem(last=False)


async def authenticate_page(request: Request) -> RequestContext:
    """Find out who looks at a page, before anything else asks."""
    entries: TenantEntryLog = request.app.state.entries
    return await authenticate(request, entries.note)


# -- What a form sends. Each one carries a word of its own: sent twice, it is carried out once -----------


ONCE_FIELD = "once"
ACTION_FIELD, CHECK_ACTION = "do", "check"


class Form:
    """The fields of a form, in order. White space around a value is no part of it."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields
        self.size = sum(len(value) for _, value in fields)

    def get(self, name: str, default: str = "") -> str:
        """The value of a field; the default where it is missing or blank."""
        return next((value.strip() for key, value in self._fields if key == name and value.strip()), default)

    def maybe(self, name: str) -> str | None:
        """The value of a field, None where it is missing or blank."""
        return self.get(name) or None

    def all(self, name: str) -> list[str]:
        """All values of a field that can be given several times."""
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def raw(self, name: str) -> str | None:
        """The value just as it was sent; None where the field is missing."""
        return next((value for key, value in self._fields if key == name), None)

    def names(self, prefix: str) -> list[str]:
        """The names that begin so, without the beginning."""
        found = dict.fromkeys(key for key, _ in self._fields if key.startswith(prefix))
        return [name.removeprefix(prefix) for name in found]


async def read_form(request: Request) -> Form:
    """What was sent, read once."""
    known: Form | None = getattr(request.state, "form", None)
    if known is None:
        try:
            body = await request.body()
            fields = await run_off_loop(len(body), _parse_fields, body, request.app.state.service.limits.shape)
        except ValueError:
            raise InputError("the form cannot be read; load the page again and send it anew") from None
        known = request.state.form = Form(fields)
    return known


def _parse_fields(body: bytes, most: JsonLimits) -> list[tuple[str, str]]:
    """Return the fields of a form. A large one may hold JSON, and is measured before that is parsed."""
    fields = [(name, value.replace("\r\n", "\n")) for name, value in parse_form(body)]
    for name, value in fields:
        if len(value) > INLINE_BYTES and (wrong := find_json_excess(value.encode(), most)) is not None:
            raise InputError(f"field {name!r:.60} cannot be read: {wrong}")
    return fields


SentForm = Annotated[Form, Depends(read_form)]
"""What a page takes to know what was sent."""


class PageRoute(IdempotentRoute):
    """A page whose forms are carried out once each. One that is only to be checked changes nothing.

    A browser sends a form again within minutes, so a day is enough to remember it.
    """

    days = 1
    needs_key = False

    def keeps(self, response: Response) -> bool:
        """A form that is shown again was not carried out; what was done leads elsewhere, or names a place."""
        return "location" in response.headers or "content-location" in response.headers

    async def key_of(self, request: Request) -> str | None:
        sent = await read_form(request)
        once = None if sent.get(ACTION_FIELD) == CHECK_ACTION else sent.maybe(ONCE_FIELD)
        if once is not None:
            await authenticate_page(request)  # before anybody else finds out who asks, and notes it each time
        return None if once is None else f"{FORM_KEY_PREFIX}{once}"


def make_page_router() -> APIRouter:
    """Pages for people who have signed in."""
    return APIRouter(route_class=PageRoute, dependencies=[Depends(_require_authentication)])


async def _require_authentication(request: Request) -> None:
    if getattr(request.state, "context", None) is None:
        await authenticate_page(request)


def redirect_to(url: str) -> RedirectResponse:
    """Send the browser on after a change, so that loading the page again repeats nothing."""
    return RedirectResponse(url, 303)
