"""One request, carried out once, however often it is sent with the same Idempotency-Key.

    claim the key   the row says who carries the request out; others wait for the answer, or get it
    carry it out    every id that is made on the way follows from the key, so that a store that hears of
                    the same effect again, after a crash here, recognises it and changes nothing more
    keep the answer for whoever sends the request again

`POST /runs` needs none of this: the key becomes the run's own, in the transaction that starts it.
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

from redrive.clock import MICROS, Clock, Timer
from redrive.records import format_id
from redrive.server.body import JsonRequest
from redrive.server.problems import ProblemError, make_problem_response
from redrive.server.request import RequestContext, check_permissions, get_context
from redrive.store.accounts import RequestClaim, ResponseRow

KEY_HEADER = "Idempotency-Key"
FORM_KEY_PREFIX = "page:"
"""Begins the keys of forms."""

SECRET_EXTENSION = "x-secret"
"""Marks a route whose answer holds a secret, which is never kept."""

_MAX_KEY_LENGTH = 255
_CLAIM_TIMEOUT = 60 * MICROS
_KEPT_DAYS = 30
_MAX_WAIT, _POLL_INTERVAL = 5.0, 0.1
_REDIRECT = "elsewhere"


class KeyedClock:
    """A clock whose ids follow from a request, in order: the same request makes the same ones again.

    They begin with the time at which it was first begun, so that they sort like all others.
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

    def now(self) -> int:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def draw(self) -> float:
        return self._clock.draw()

    def new_secret(self) -> str:
        return self._clock.new_secret()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return self._clock.call_later(delay, callback)

    async def sleep(self, delay: float) -> None:
        await self._clock.sleep(delay)


class IdempotentRoute(APIRoute):
    """A route whose POSTs are carried out once for each key.

    An answer is remembered for `days`. Where a tenant has too many of them, `needs_key` says whether the
    request is refused or carried out without one.
    """

    days = _KEPT_DAYS
    needs_key = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        own = self.openapi_extra or {}
        keyed = "POST" in (self.methods or ()) and not own.get("x-own-key")

        async def once(request: Request) -> Response:
            request = JsonRequest(request.scope, request.receive)
            if not keyed:
                return await handle(request)
            key = await self.key_of(request)
            if key is None:
                return await handle(request)
            if not 1 <= len(key) <= _MAX_KEY_LENGTH or not key.isprintable():
                raise ProblemError(422, f"{KEY_HEADER} has 1 to {_MAX_KEY_LENGTH} printable characters")
            asking = await get_context(request)
            check_permissions(asking.principal, own)  # before anything is told of what was answered to others
            digest = await _compute_digest(request, asking)
            keeps = self.days * 86_400 * MICROS
            row = RequestClaim(tenant=asking.tenant, key=key, digest=digest, patience=_CLAIM_TIMEOUT, keeps=keeps)
            found = await _claim_key(asking, row)
            if isinstance(found, Response):
                return found
            # A request that a server gave up halfway is completed: some of its effects may be there already.
            taken_over = asking.runtime.store.now() - found >= _CLAIM_TIMEOUT
            if not taken_over and await asking.service.answers.is_full(asking.tenant, asking.accounts.response_usage):
                await asyncio.shield(asking.accounts.drop_request(row.tenant, row.key))
                if self.needs_key:
                    raise ProblemError(
                        429,
                        f"tenant {asking.tenant!r} has too many remembered answers: send the request without "
                        f"{KEY_HEADER}, or wait until older ones expire ({_KEPT_DAYS} days after their request)",
                        code="too_many_answers",
                        headers={"Retry-After": "3600"},
                    )
                return await handle(request)
            seed = f"{asking.tenant}:{key}:{digest}"
            asking.clock = KeyedClock(asking.clock, hashlib.sha256(seed.encode()).hexdigest(), found)
            secret = bool(own.get(SECRET_EXTENSION))
            return await _handle_once(request, handle, asking, row, keeps=self.keeps, secret=secret)

        return once

    async def key_of(self, request: Request) -> str | None:
        """What tells this request from others that look alike."""
        key = request.headers.get(KEY_HEADER)
        if key is not None and key.startswith(FORM_KEY_PREFIX):
            raise ProblemError(422, f"{KEY_HEADER} begins with {FORM_KEY_PREFIX}, which is reserved: use another one")
        return key

    def keeps(self, response: Response) -> bool:
        """True for an answer that whoever sends the request again shall get again."""
        return True


async def _compute_digest(request: Request, asking: RequestContext) -> str:
    who = asking.principal
    may = [who.role.value, str(who.payloads), *sorted(who.workflows or ())]
    said = [request.method, request.url.path, request.url.query, who.key, *may]
    return hashlib.sha256("\0".join(said).encode() + b"\0" + await request.body()).hexdigest()


async def _claim_key(asking: RequestContext, new: RequestClaim) -> Response | int:
    """When the request was first begun, if it is ours to carry out; else the answer that it got."""
    waited = 0.0
    while True:
        found = await asking.accounts.claim_request(new)
        if isinstance(found, int):
            return found
        if found.digest != new.digest:
            raise ProblemError(422, f"this {KEY_HEADER} was used for another request", code="key_reused")
        if found.status is not None:
            return _replay_answer(found)
        if waited >= _MAX_WAIT:
            raise ProblemError(409, "the same request is under way; ask again", headers={"Retry-After": "1"})
        await asyncio.sleep(_POLL_INTERVAL)
        waited += _POLL_INTERVAL


def _replay_answer(found: ResponseRow) -> Response:
    media, _, body = (found.body or "").partition("\n")
    if media == _REDIRECT:
        return RedirectResponse(body, found.status or 303)
    return Response(body, found.status or 200, media_type=media, headers={"Idempotent-Replayed": "true"})


async def _handle_once(
    request: Request,
    handle: Callable[[Request], Coroutine[Any, Any, Response]],
    asking: RequestContext,
    new: RequestClaim,
    *,
    keeps: Callable[[Response], bool],
    secret: bool,
) -> Response:
    try:
        response = await handle(request)
    except BaseException:
        await asyncio.shield(asking.accounts.drop_request(new.tenant, new.key))
        raise
    if not keeps(response):
        await asyncio.shield(asking.accounts.drop_request(new.tenant, new.key))
        return response
    kept = _omit_secret(response) if secret and _has_secret(response) else response
    row = ResponseRow(
        tenant=new.tenant, key=new.key, digest=new.digest, status=kept.status_code, body=_serialize_answer(kept)
    )
    await asyncio.shield(asking.accounts.save_response(row))
    asking.service.answers.add(row.tenant, len((row.body or "").encode()))
    return response


def _serialize_answer(response: Response) -> str:
    """An answer as it is kept: its kind and its text, or where it sends the browser."""
    if "location" in response.headers:
        return f"{_REDIRECT}\n{response.headers['location']}"
    return f"{response.media_type or 'application/json'}\n{bytes(response.body).decode()}"


def _has_secret(response: Response) -> bool:
    """A page with a secret names a place without it; of an answer in JSON the fields are looked at."""
    if "content-location" in response.headers:
        return True
    said = {} if "location" in response.headers else json.loads(bytes(response.body))
    return any(said.get(name) is not None for name in ("secret", "code"))


def _omit_secret(response: Response) -> Response:
    """What a repeat gets in place of an answer that showed a secret: a page sends it elsewhere."""
    if "content-location" in response.headers:
        return RedirectResponse(response.headers["content-location"], 303)
    id = json.loads(bytes(response.body)).get("id", "")
    detail = f"this was done before, as {id}; its secret was shown then and is kept nowhere"
    return make_problem_response(409, "already_done", "This was done before", detail)
