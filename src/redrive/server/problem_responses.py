"""Errors as RFC 9457 problem details, each with a stable code.

`redrive.http_problems` has the status, code and title of every error. A problem never repeats what a client
sent: validation errors name the field and the rule, not the value.
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

from redrive.errors import NotFound, RedriveError
from redrive.http_problems import ERROR_KINDS, HTTP_PROBLEMS
from redrive.reasons import Reason, ReasonCode

log = logging.getLogger("redrive.server")

PROBLEM_MEDIA_TYPE = "application/problem+json"


class Fault(BaseModel):
    """A fault in one field of a request."""

    path: str = Field(description="The path in the request, for example `body.input`.")
    reason: str = Field(description="The rule for this field.")
    reason_code: str | None = Field(default=None, description="A code for the reason, if it has one.")
    reason_params: dict[str, Any] | None = Field(default=None, description="The parameters of the code.")


class Problem(BaseModel):
    """The reason why a request was refused (RFC 9457)."""

    type: str = Field(description="A URI for this kind of problem.")
    title: str = Field(description="The kind of problem as text.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(description="A stable code for programs.")
    detail: str = Field(description="What was wrong, and what to do.")
    reason_code: str | None = Field(default=None, description="A code for the detail, if it has one.")
    reason_params: dict[str, Any] | None = Field(default=None, description="The parameters of the code.")
    errors: list[Fault] | None = Field(default=None, description="The faults by path.")


class ProblemError(Exception):
    """A problem of HTTP itself, which the other interfaces of the engine do not have."""

    def __init__(
        self,
        status: int,
        detail: str | Reason,
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
    detail: str | Reason,
    *,
    faults: Sequence[Fault] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        type=f"urn:redrive:problem:{code}",
        title=title,
        status=status,
        code=code,
        detail=str(detail),
        **_make_reason_fields(detail),
        errors=None if faults is None else list(faults),
    )
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=PROBLEM_MEDIA_TYPE)


def _make_reason_fields(reason: Reason | str) -> dict[str, Any]:
    """Return the code and parameters of a reason as fields; free text has none."""
    if isinstance(reason, str) or reason.code == ReasonCode.TEXT:
        return {}
    data = reason.to_json()
    return {"reason_code": data["code"], "reason_params": data["params"]}


def make_http_problem(error: ProblemError) -> JSONResponse:
    """Return the response to a problem of HTTP itself."""
    code, title = HTTP_PROBLEMS.get(error.status, ("http", "The request was refused"))
    return make_problem_response(
        error.status, error.code or code, error.title or title, error.detail, headers=error.headers
    )


def install_error_handlers(api: FastAPI) -> None:
    """Answer every error of the API with a problem."""
    api.add_exception_handler(RedriveError, _handle_known_error)
    api.add_exception_handler(ProblemError, _handle_problem_error)
    api.add_exception_handler(RequestValidationError, _handle_validation_error)
    api.add_exception_handler(Exception, _handle_unexpected_error)
    # FastAPI's HTTPException has a base class in Starlette, which the router raises.
    kinds: tuple[Any, ...] = (*HTTPException.__mro__[:2], 404, 405)
    for kind in kinds:
        api.add_exception_handler(kind, _handle_http_exception)


async def answer_error(request: Request, error: RedriveError | ProblemError) -> JSONResponse:
    """Return the response to an error of the engine, or to a problem of HTTP."""
    return make_http_problem(error) if isinstance(error, ProblemError) else await _handle_known_error(request, error)


async def _handle_known_error(request: Request, error: Exception) -> JSONResponse:
    kind = next(kind for each, kind in ERROR_KINDS.items() if isinstance(error, each))
    if kind.status == 500:
        return await _handle_unexpected_error(request, error)
    if kind.status == 503:
        log.warning("the store could not be used: %s", error)
        detail = "no data was lost: repeat the request, and see the server log if that does not help"
        return make_problem_response(kind.status, kind.code, kind.title, detail, headers={"Retry-After": "1"})
    headers = {"WWW-Authenticate": 'Bearer realm="redrive"'} if kind.status == 401 else None
    reason = await request.app.state.redact(Reason.of_error(error))
    faults = [Fault(path=path, reason=str(why), **_make_reason_fields(why)) for path, why in reason.faults]
    return make_problem_response(kind.status, kind.code, kind.title, reason, faults=faults or None, headers=headers)


async def _handle_problem_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return make_http_problem(error)


async def _handle_http_exception(request: Request, error: Exception) -> JSONResponse:
    status = getattr(error, "status_code", 404)
    detail = "the body cannot be read" if status == 400 else f"this path does not support {request.method}"
    return make_http_problem(ProblemError(status, detail, headers=getattr(error, "headers", None)))


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["loc"][:1] == ("path",) for each in found):
        kind = ERROR_KINDS[NotFound]
        return make_problem_response(kind.status, kind.code, kind.title, "the path contains an invalid id")
    if any(each["type"] == "json_invalid" for each in found):
        return make_problem_response(400, *HTTP_PROBLEMS[400], "the body is not JSON")
    faults = []
    for each in found[:20]:
        # A client's own names are repeated only if they look like names.
        names = (str(part) if re.fullmatch(r"[\w:-]{1,40}", str(part)) else "?" for part in each["loc"])
        faults.append(Fault(path=".".join(names), reason=_describe_fault(each)))
    detail = "; ".join(f"{fault.path}: {fault.reason}" for fault in faults[:5])
    return make_problem_response(422, *HTTP_PROBLEMS[422], detail, faults=faults)


_TIME_RULE = "must be a time such as 2026-11-19T08:00:00Z"
_RULES = {
    "missing": "is required",
    "extra_forbidden": "is unknown",
    "string_type": "must be a text",
    "string_unicode": "contains half a character",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "list_type": "must be a list",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have at most {max_length} items",
    "enum": "must be {expected}",
    "literal_error": "must be {expected}",
    "datetime_type": _TIME_RULE,
    "datetime_parsing": _TIME_RULE,
    "datetime_from_date_parsing": _TIME_RULE,
}


def _describe_fault(found: Mapping[str, Any]) -> str:
    """Return the violated rule. Pydantic's own message may quote the value, so only its safe parts are used."""
    kind, context = str(found["type"]), found.get("ctx") or {}
    rule = _RULES.get(kind)
    return kind.replace("_", " ") if rule is None else rule.format_map(context)


async def _handle_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = "unexpected error: details are in the server log"
    return make_problem_response(500, "internal", "Internal error", detail)
