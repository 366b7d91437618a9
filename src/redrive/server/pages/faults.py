"""Errors as pages: what was wrong, what it would take, where to go. Never a stack."""

from __future__ import annotations

import logging
import re
from urllib.parse import unquote, urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import RedirectResponse, Response

from redrive import errors
from redrive.reasons import Reason
from redrive.server.codes import CODES
from redrive.server.pages.drawing import show
from redrive.server.pages.words import N
from redrive.server.problems import ProblemError

__all__ = ["TITLES", "install"]

log = logging.getLogger("redrive.server")

TITLES = {
    403: N("You may not do that"),
    404: N("There is no such thing here"),
    409: N("It has moved on"),
    413: N("That is too large"),
    422: N("That does not fit"),
    429: N("Too many requests"),
    500: N("Something went wrong here"),
    503: N("The store does not answer"),
}
_BACK = {
    "/admin/dlq": N("Back to the dead letter"),
    "/admin/bulk-replays": N("Back to the decision on many"),
    "/runs": N("Back to the run"),
}
"""Where to go from something that could not be done, by what it was to be done to."""
_ABOUT = re.compile(rf"({'|'.join(_BACK)})/([^/]+)/.+")

_HELP = {
    403: N("Somebody with a higher role can do it, or give you that role under Members."),
    404: N("It may have been removed, or it belongs to another tenant. Nothing was changed."),
    409: N("Somebody else was faster. Look at what it is now, then decide again."),
    422: N("Nothing was changed. Go back, correct it and send it again."),
    429: N("Wait a moment, then load the page again."),
    500: N("Nothing is lost. The server's log has the details."),
    503: N("Nothing is lost. Load the page again in a moment."),
}


def install(pages: FastAPI) -> None:
    """Let every error of these pages be a page."""
    pages.add_exception_handler(errors.NotSignedIn, _sign_in)
    pages.add_exception_handler(errors.RedriveError, _known)
    pages.add_exception_handler(ProblemError, _problem)
    pages.add_exception_handler(RequestValidationError, _invalid)
    for kind in HTTPException.__mro__[:2]:  # FastAPI's own, and the one of the framework below it
        pages.add_exception_handler(kind, _plain)
    pages.add_exception_handler(404, _plain)
    pages.add_exception_handler(405, _plain)
    pages.add_exception_handler(Exception, _unknown)


async def _sign_in(request: Request, error: Exception) -> Response:
    """Whoever is not known signs in, and comes back to where they wanted to go."""
    root = request.scope.get("root_path", "")
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    back = {"next": wanted} if request.method == "GET" and wanted.rstrip("/") != root else {}
    return RedirectResponse(f"{root}/login" + (f"?{urlencode(back)}" if back else ""), 303)


async def _known(request: Request, error: Exception) -> Response:
    status = next(kind.status for each, kind in CODES.items() if isinstance(error, each))
    if status == 500:
        return await _unknown(request, error)
    if status == 503:
        log.warning("the store could not be used: %s", error)
        return await _page(request, status, "")
    role = getattr(error, "role", None)
    reason = await request.app.state.redact(Reason.of_error(error))
    return await _page(request, status, reason, role=role)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    answer = await _page(request, error.status, error.detail)
    answer.headers.update(error.headers)
    return answer


async def _plain(request: Request, error: Exception) -> Response:
    return await _page(request, getattr(error, "status_code", 404), "")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    in_path = any(each["loc"][:1] == ("path",) for each in error.errors())
    return await _page(request, 404 if in_path else 422, "")


async def _unknown(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return await _page(request, 500, "")


async def _page(request: Request, status: int, detail: Reason | str, *, role: str | None = None) -> Response:
    return await show(
        request,
        "fault.html",
        status=status,
        code=status,
        title=TITLES.get(status, N("The request was refused")),
        detail=detail,
        help=_HELP.get(status),
        role=role,
        back=_back(request) if status in (409, 422) else None,
    )


def _back(request: Request) -> tuple[str, str] | None:
    """The letter, run or set that the address is about, and the words that lead to it."""
    path = unquote(request.url.path).removeprefix(request.scope.get("root_path", ""))
    found = _ABOUT.fullmatch(path)
    return None if found is None else (f"{found[1]}/{found[2]}", _BACK[found[1]])
