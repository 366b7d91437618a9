"""What routes share: ids, pages, reasons, and the parts of a filter."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from redrive.core.roles import Permission
from redrive.duration import parse_duration
from redrive.errors import ConfigurationError, InputError, NotAllowed
from redrive.policy import RetryPolicy
from redrive.server.idempotency import KEY_HEADER, IdempotentRoute
from redrive.server.request import RequestContext

Id = Annotated[str, Path(pattern=r"^[!-~]{1,200}$", description="An id.")]
Name = Annotated[str, Path(pattern=r"^[^/#\x00-\x1f]{1,255}$", description="A name.")]
Key = Annotated[str | None, Header(alias=KEY_HEADER, max_length=255)]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` or `prev` of another page.")]
Since = Annotated[datetime | None, Query(description="At or after this time, with its zone.")]
Until = Annotated[datetime | None, Query(description="Before this time, with its zone.")]
Index = Annotated[
    list[Annotated[str, Field(max_length=500)]] | None,
    Query(max_length=10, description="`field:value`, of a declared field; up to 10."),
]
Span = Annotated[float | str, Field(description="Seconds, or a text such as `10m`.")]
Text = Annotated[str, Field(min_length=1, max_length=255)]
_MAX_UNKNOWN_NAMES = 20


class Body(BaseModel):
    """A request's body: nothing in it is guessed, and nothing unknown is passed over."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        """Refuse many unknown names with one error: one for each costs more than parsing the body."""
        if isinstance(data, dict) and len(data) > len(cls.model_fields) + _MAX_UNKNOWN_NAMES:
            raise PydanticCustomError("too_many_names", "too many unknown names")
        return data


class Reason(Body):
    """Why somebody does something, for the record."""

    reason: str | None = Field(default=None, max_length=10_000)


class SafeJsonResponse(JSONResponse):
    """JSON that can be sent whatever its texts hold: half a character is written as its number."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            import json

            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_router(tag: str) -> APIRouter:
    """Routes under one heading of the document."""
    return APIRouter(route_class=IdempotentRoute, tags=[tag], default_response_class=SafeJsonResponse)


def check_search_text(asked: RequestContext, text: str | None) -> str | None:
    """What is looked for in the texts of errors, for those who may read all of them.

    What is hidden there is searched, too: to others, how many letters match would tell it bit by bit.
    """
    if text is not None and not asked.principal.may(Permission.SEE_PAYLOADS):
        raise NotAllowed(
            "a text is looked for in what is hidden, too: that takes the permission to see payloads; filter "
            "by workflow, step, code, category, fingerprint or tag instead"
        )
    return text


def parse_span(what: str, given: float | str | None) -> float | None:
    """A duration in seconds as it came in a body."""
    try:
        return None if given is None else parse_duration(given, what)
    except ConfigurationError as error:
        raise InputError(str(error)) from None


def parse_policy(given: dict[str, Any] | None) -> RetryPolicy | None:
    """A retry policy as it came in a body."""
    if given is None:
        return None
    try:
        return RetryPolicy.from_json(given)
    except (ConfigurationError, TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(f"this is no retry policy: {error}") from None
