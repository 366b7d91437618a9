"""Signing in and out over HTTP: how often somebody may try, and the cookie that is set and taken back."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request, Response

from redrive.core.roles import Principal
from redrive.errors import NotSignedIn
from redrive.server.asking import client_of, cookie_name, is_safe, refuse_foreign, service_of
from redrive.server.auth.passwords import is_busy
from redrive.server.auth.sessions import LASTS, Login
from redrive.server.problems import ProblemError
from redrive.trusted import network_of

__all__ = ["sign_in", "sign_out"]


async def sign_in(request: Request, response: Response, login: Login) -> Principal:
    """Begin a session, and let the answer set its cookie; tries that fail are counted."""
    service = service_of(request)
    # Another site could sign a browser in as a user of its choice. A program sends none of these headers.
    refuse_foreign(request, service, browser=False)
    if is_busy():
        raise ProblemError(
            503,
            "too many sign-ins are under way: try again in a moment",
            code="busy",
            title="The server is busy",
            headers={"Retry-After": "1"},
        )
    client = client_of(request, service)
    tried = network_of(client), login.email.lower()
    service.logins.take(*tried)
    try:
        signed_in = await service.sessions.sign_in(replace(login, place=client))
    except NotSignedIn:
        raise
    except BaseException:
        service.logins.give_back(*tried)
        raise
    service.logins.give_back(*tried)
    response.set_cookie(
        cookie_name(request, service),
        signed_in.cookie,
        max_age=LASTS,
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_safe(request, service),
    )
    return signed_in.principal


async def sign_out(request: Request, response: Response) -> None:
    """End the session whose cookie came along, unless another site made the browser send it."""
    service = service_of(request)
    name = cookie_name(request, service)
    if name not in request.cookies:
        return  # a form on another site comes without it, and shall not take it away
    refuse_foreign(request, service)
    await service.sessions.sign_out(request.cookies[name])
    response.delete_cookie(name, path="/", secure=is_safe(request, service), httponly=True, samesite="lax")
