"""Idempotent requests: a request is handled once, however often it is sent with the same Idempotency-Key.

    claim the key       one server handles the request; others wait for its answer, or return it
    handle the request  every new id follows from the key: after a crash, the store recognises an effect
                        that is repeated, and changes nothing more
    keep the answer     for repeats of the request

`POST /runs` does without: the key becomes that of the run, in the transaction that starts it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from redrive.clock import MICROS, Clock
from redrive.id_text import format_id
from redrive.reasons import Reason, ReasonCode
from redrive.server.problem_responses import ProblemError, make_problem_response
from redrive.server.request_body import JsonRequest
from redrive.server.request_context import RequestContext, check_permissions, get_context
from redrive.store.accounts import RequestClaim, ResponseRow

KEY_HEADER = "Idempotency-Key"
FORM_KEY_PREFIX = "page:"
"""The prefix of the keys of forms."""

SECRET_EXTENSION = "x-secret"
"""Marks a route whose answer holds a secret, which is never stored."""

_MAX_KEY_LENGTH = 255
_CLAIM_TIMEOUT = 60 * MICROS
_KEPT_DAYS = 30
_MAX_WAIT, _POLL_INTERVAL = 5.0, 0.1
_REDIRECT = "elsewhere"


class KeyedClock:
    """A clock whose ids follow from a request: a repeat of the request makes the same ids in the same order.

    The ids begin with the time of the first attempt, so that they sort like all others.
    """

    def __init__(self, clock: Clock, seed: str, begun: int) -> None:
        self._clock = clock
        self._seed = seed
        self._begun = begun // 1000
        self._count = 0

    def new_id(self) -> str:
        self._count += 1
        made = hashlib.sha256(f"{self._seed}:{self._count}".encode()).digest()
        return format_id(self._begun, int.from_bytes(made[:10], "big"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


class IdempotentRoute(APIRoute):
    """A route that handles a POST once for each key.

    An answer is stored for `days`. If a tenant has too many stored answers, `needs_key` refuses the request;
    otherwise the request is handled without its key.
    """

    days = _KEPT_DAYS
    needs_key = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        extensions = self.openapi_extra or {}
        keyed = "POST" in (self.methods or ()) and not extensions.get("x-own-key")

        async def once(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive)
            if not keyed:
                return await handle(request)
            key = await self.key_of(request)
            if key is None:
                return await handle(request)
            if not 1 <= len(key) <= _MAX_KEY_LENGTH or not key.isprintable():
                reason = Reason(ReasonCode.REQUEST_KEY_INVALID, header=KEY_HEADER, longest=_MAX_KEY_LENGTH)
                raise ProblemError(422, reason)
            context = await get_context(request)
            check_permissions(context.principal, extensions)  # before a stored answer is returned
            who = context.principal
            rights = [who.role.value, str(who.payloads), *sorted(who.workflows or ())]
            parts = [request.method, request.url.path, request.url.query, who.key, *rights]
            digest = hashlib.sha256("\0".join(parts).encode() + b"\0" + await request.body()).hexdigest()
            keeps = self.days * 86_400 * MICROS
            row = RequestClaim(tenant=context.tenant, key=key, digest=digest, patience=_CLAIM_TIMEOUT, keeps=keeps)
            found = await _claim_key(context, row)
            if isinstance(found, Response):
                return found
            # A request that another server left unfinished is completed: some of its effects may exist already.
            taken_over = context.runtime.store.now() - found >= _CLAIM_TIMEOUT
            if not taken_over and await context.service.answers.is_full(
                context.tenant, context.accounts.response_usage
            ):
                await asyncio.shield(context.accounts.drop_request(row.tenant, row.key))
                if self.needs_key:
                    reason = Reason(
                        ReasonCode.TOO_MANY_ANSWERS, tenant=repr(context.tenant), header=KEY_HEADER, days=_KEPT_DAYS
                    )
                    raise ProblemError(429, reason, code="too_many_answers", headers={"Retry-After": "3600"})
                return await handle(request)
            seed = f"{context.tenant}:{key}:{digest}"
            clock: Any = KeyedClock(context.clock, hashlib.sha256(seed.encode()).hexdigest(), found)
            context.clock = clock
            secret = bool(extensions.get(SECRET_EXTENSION))
            return await _handle_once(request, handle, context, row, keeps=self.keeps, secret=secret)

        return once

    async def key_of(self, request: Request) -> str | None:
        key = request.headers.get(KEY_HEADER)
        if key is not None and key.startswith(FORM_KEY_PREFIX):
            raise ProblemError(422, Reason(ReasonCode.REQUEST_KEY_RESERVED, header=KEY_HEADER, prefix=FORM_KEY_PREFIX))
        return key

    def keeps(self, response: Response) -> bool:
        """Return True for an answer that repeats of the request get, too."""
        return True


async def _claim_key(context: RequestContext, new: RequestClaim) -> Response | int:
    """Return when the request was first begun, if this server is to handle it; else its stored answer."""
    waited = 0.0
    while True:
        found = await context.accounts.claim_request(new)
        if isinstance(found, int):
            return found
        if found.digest != new.digest:
            raise ProblemError(422, Reason(ReasonCode.REQUEST_KEY_USED, header=KEY_HEADER), code="key_reused")
        if found.status is not None:
            media, _, body = (found.body or "").partition("\n")
            if media == _REDIRECT:
                return RedirectResponse(body, found.status)
            return Response(body, found.status, media_type=media, headers={"Idempotent-Replayed": "true"})
        if waited >= _MAX_WAIT:
            raise ProblemError(409, Reason(ReasonCode.REQUEST_UNDER_WAY), headers={"Retry-After": "1"})
        await asyncio.sleep(_POLL_INTERVAL)
        waited += _POLL_INTERVAL


async def _handle_once(
    request: Request,
    handle: Callable[[Request], Coroutine[Any, Any, Response]],
    context: RequestContext,
    new: RequestClaim,
    *,
    keeps: Callable[[Response], bool],
    secret: bool,
) -> Response:
    try:
        response = await handle(request)
    except BaseException:
        await asyncio.shield(context.accounts.drop_request(new.tenant, new.key))
        raise
    if not keeps(response):
        await asyncio.shield(context.accounts.drop_request(new.tenant, new.key))
        return response
    kept = _omit_secret(response) if secret else response
    # An answer is stored with its media type; of a redirect, the target is stored.
    body = f"{kept.media_type or 'application/json'}\n{bytes(kept.body).decode()}"
    if "location" in kept.headers:
        body = f"{_REDIRECT}\n{kept.headers['location']}"
    row = ResponseRow(tenant=new.tenant, key=new.key, digest=new.digest, status=kept.status_code, body=body)
    await asyncio.shield(context.accounts.save_response(row))
    context.service.answers.add(row.tenant, len((row.body or "").encode()))
    return response


def _omit_secret(response: Response) -> Response:
    """Return the answer for repeats of a request; instead of one that holds a secret, a redirect or a problem.

    A page with a secret names another URL without it; JSON has a field for the secret.
    """
    if "content-location" in response.headers:
        return RedirectResponse(response.headers["content-location"], 303)
    fields = {} if "location" in response.headers else json.loads(bytes(response.body))
    if all(fields.get(name) is None for name in ("secret", "code")):
        return response
    detail = f"this was done before, as {fields.get('id', '')}; its secret was shown then and is kept nowhere"
    return make_problem_response(409, "already_done", "This was done before", detail)
