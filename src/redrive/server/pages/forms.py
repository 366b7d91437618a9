"""Forms of the dashboard. Each carries an id in the field `once`, so that it is carried out once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.server.body import INLINE_BYTES, JsonLimits, find_json_excess, parse_form, run_off_loop
from redrive.server.idempotency import FORM_KEY_PREFIX, IdempotentRoute
from redrive.server.request import RequestContext, audit_tenant_entry, authenticate
from redrive.store.filters import RunFilter

ONCE_FIELD = "once"
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
