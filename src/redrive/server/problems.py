"""Errors as RFC 9457 problem details, each with a code that stays.

Every error of `redrive.errors` has its line in one table (`codes`). What a client sent is not sent back:
validation errors name the place and the rule, never the value.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from redrive import errors
from redrive.reasons import Reason, ReasonCode
from redrive.server.contract import ERROR_KINDS, HTTP_PROBLEMS

log = logging.getLogger("redrive.server")

PROBLEM_MEDIA_TYPE = "application/problem+json"


class Fault(BaseModel):
    """One place in a request that is wrong."""

    place: str = Field(description="Where in the request, for example `body.input`.")
    reason: str = Field(description="What is expected there.")
    reason_code: str | None = Field(default=None, description="A code for the reason, if it has one.")
    reason_params: dict[str, Any] | None = Field(default=None, description="What the code is about.")


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = Field(description="A URI for this kind of problem.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="A word for programs, which stays the same.")
    detail: str = Field(description="What was wrong this time, and what to do.")
    reason_code: str | None = Field(default=None, description="A code for what was wrong, if it has one.")
    reason_params: dict[str, Any] | None = Field(default=None, description="What the code is about.")
    errors: list[Fault] | None = Field(default=None, description="The places that are wrong.")


_UNEXPECTED_ERROR = "an unexpected error; the server's log has the details"


class ProblemError(Exception):
    """A problem of HTTP itself, which no other interface has."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str | None = None,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.title = title
        self.headers = dict(headers or {})


def make_problem_response(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    reason: Reason | None = None,
    faults: Sequence[Fault] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """A problem as it is sent."""
    problem = Problem(
        type=f"urn:redrive:problem:{code}",
        title=title,
        status=status,
        code=code,
        detail=detail,
        **_make_reason_fields(reason),
        errors=None if faults is None else list(faults),
    )
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=PROBLEM_MEDIA_TYPE)


def make_http_problem(error: ProblemError) -> JSONResponse:
    """The answer to a problem of HTTP itself."""
    code, title = HTTP_PROBLEMS.get(error.status, ("http", "The request was refused"))
    return make_problem_response(
        error.status, error.code or code, error.title or title, error.detail, headers=error.headers
    )


def install_error_handlers(api: FastAPI) -> None:
    """Let every error of this API be answered with a problem."""
    api.add_exception_handler(errors.RedriveError, _handle_known_error)
    api.add_exception_handler(ProblemError, _handle_problem_error)
    for kind in HTTPException.__mro__[:2]:  # FastAPI's own, and the one of the framework below it
        api.add_exception_handler(kind, _handle_http_exception)
    api.add_exception_handler(404, _handle_http_exception)
    api.add_exception_handler(405, _handle_http_exception)
    api.add_exception_handler(RequestValidationError, _handle_validation_error)
    api.add_exception_handler(Exception, _handle_unexpected_error)


async def _handle_known_error(request: Request, error: Exception) -> JSONResponse:
    kind = next(kind for each, kind in ERROR_KINDS.items() if isinstance(error, each))
    if kind.status == 500:
        return await _handle_unexpected_error(request, error)
    headers = {}
    if kind.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="redrive"'
    reason = await request.app.state.redact(Reason.of_error(error))
    detail = str(reason)
    if kind.status == 503:
        headers["Retry-After"] = "1"
        log.warning("the store could not be used: %s", error)
        detail = "nothing is lost; repeat the request, and see the server's log if that does not help"
        return make_problem_response(kind.status, kind.code, kind.title, detail, headers=headers)
    faults = [Fault(place=place, reason=str(why), **_make_reason_fields(why)) for place, why in reason.faults]
    return make_problem_response(
        kind.status, kind.code, kind.title, detail, reason=reason, faults=faults or None, headers=headers
    )


def _make_reason_fields(reason: Reason | None) -> dict[str, Any]:
    """Return the code and parameters of a reason as fields; free text has none."""
    if reason is None or reason.code == ReasonCode.TEXT:
        return {}
    data = reason.to_json()
    return {"reason_code": data["code"], "reason_params": data["params"]}


async def _handle_problem_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return make_http_problem(error)


async def _handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 404)
    code, title = HTTP_PROBLEMS.get(status, ("http", "The request was refused"))
    detail = "the body cannot be read" if status == 400 else f"{request.method} is not answered at this path"
    return make_problem_response(status, code, title, detail, headers=getattr(error, "headers", None))


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["loc"][:1] == ("path",) for each in found):
        return make_problem_response(
            404, "not_found", "There is no such thing", "the path holds no id that could exist"
        )
    if any(each["type"] == "json_invalid" for each in found):
        code, title = HTTP_PROBLEMS[400]
        return make_problem_response(400, code, title, "the body is not JSON")
    faults = [Fault(place=_format_location(each["loc"]), reason=_describe_fault(each)) for each in found[:20]]
    code, title = HTTP_PROBLEMS[422]
    detail = "; ".join(f"{fault.place}: {fault.reason}" for fault in faults[:5])
    return make_problem_response(422, code, title, detail, faults=faults)


def _format_location(loc: Sequence[Any]) -> str:
    """Where something is wrong; names that a client made up are repeated only if they look like names."""
    return ".".join(str(part) if re.fullmatch(r"[\w:-]{1,40}", str(part)) else "?" for part in loc)


def _describe_fault(found: Mapping[str, Any]) -> str:
    """The rule that was broken. Pydantic's own words may quote what was sent, so only safe ones are kept."""
    kind, context = str(found["type"]), found.get("ctx") or {}
    if kind == "missing":
        return "is needed"
    if kind == "extra_forbidden":
        return "is not known here"
    limits = [f"{name} {value}" for name, value in context.items() if isinstance(value, int | float)]
    if kind in ("enum", "literal_error"):
        limits = [f"expected {context.get('expected', 'another value')}"]
    return " ".join([kind.replace("_", " "), *(f"({limit})" for limit in limits)])


async def _handle_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return make_problem_response(500, "internal", "Something went wrong here", _UNEXPECTED_ERROR)
