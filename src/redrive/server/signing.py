"""Signing in and out over HTTP: how often somebody may try, and the cookie that is set and taken back."""

from __future__ import annotations

from fastapi import Request, Response

from redrive.core.roles import Principal
from redrive.errors import NotSignedIn
from redrive.server.asking import refuse_foreign, service_of
from redrive.server.auth.credentials import COOKIE
from redrive.server.auth.sessions import LASTS, Login

__all__ = ["is_safe", "sign_in", "sign_out"]


async def sign_in(request: Request, response: Response, login: Login) -> Principal:
    """Begin a session, and let the answer set its cookie; tries that fail are counted."""
    service = service_of(request)
    place = request.client.host if request.client else "", login.email.lower()
    service.logins.take(*place)
    try:
        signed_in = await service.sessions.sign_in(login)
    except NotSignedIn:
        raise
    except BaseException:
        service.logins.give_back(*place)
        raise
    service.logins.give_back(*place)
    response.set_cookie(
        COOKIE,
        signed_in.cookie,
        max_age=LASTS,
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_safe(request),
    )
    return signed_in.principal


async def sign_out(request: Request, response: Response) -> None:
    """End the session whose cookie came along, unless another site made the browser send it."""
    if COOKIE not in request.cookies:
        return  # a form on another site comes without it, and shall not take it away
    refuse_foreign(request, service_of(request))
    await service_of(request).sessions.sign_out(request.cookies[COOKIE])
    response.delete_cookie(COOKIE, path="/")


def is_safe(request: Request) -> bool:
    """True if browsers reach this server over TLS only, so that cookies may be kept to it."""
    return request.url.scheme == "https" or service_of(request).app.settings.base_url.startswith("https:")
