"""Error pages of the dashboard: the title and help text of each HTTP status, the form again, and the sign-in."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import RedirectResponse, Response

from redrive.errors import NotAllowed, NotSignedIn, RedriveError
from redrive.http_problems import ERROR_KINDS
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import PAGE_FIELD, Form, RefusedForm, show_form_again
from redrive.server.pages.render import SESSION_EXPIRED, render_login, render_page
from redrive.server.pages.texts import N
from redrive.server.problem_responses import ProblemError
from redrive.server.request_context import RequestContext, get_service, load_principal, refuse_cross_site
from redrive.settings import PAGES_PREFIX

log = logging.getLogger("redrive.server")

static_routes = APIRouter()

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


def install_missing_page(api: FastAPI, pages: FastAPI) -> None:
    """Show a browser the page `Not found` at unknown addresses outside the dashboard. Programs still get a problem."""
    answer_program: Any = api.exception_handlers[404]

    async def answer(request: Request, error: Exception) -> Response:
        root = request.scope.get("root_path", "")
        is_page = request.method == "GET" and not request.url.path.removeprefix(root).startswith("/api/")
        if not is_page or "text/html" not in request.headers.get("accept", ""):
            response: Response = await answer_program(request, error)
            return response
        # The links of the page begin with the root path of the dashboard.
        scope = {**request.scope, "app": pages, "root_path": root + PAGES_PREFIX}
        return await _show_error(Request(scope, request.receive), error)

    api.add_exception_handler(404, answer)


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
    if status == 405 and request.method == "GET":
        status = 404  # the address of a form, which has no page
    if status in (403, 404):
        await _load_own_context(request)
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


async def _load_own_context(request: Request) -> None:
    """Let an error page have the navigation of the user's own tenant, if the request ended before it was authenticated.

    Such a request has an address without a page, or it names a tenant that the user cannot open.
    """
    if getattr(request.state, "context", None) is None:
        service = get_service(request)
        with suppress(RedriveError, ProblemError):
            principal = await load_principal(request, service)
            service.rates.take(principal.key)
            request.state.context = RequestContext(service, principal, principal.tenant)


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
