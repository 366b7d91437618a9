"""Signing in and out over HTTP: how often somebody may try, and the cookie that is set and taken back."""

from __future__ import annotations

from dataclasses import replace

from fastapi import Request, Response

from redrive.core.roles import Principal
from redrive.errors import NotSignedIn
from redrive.server.asking import refuse_foreign, service_of
from redrive.server.auth.credentials import COOKIE
from redrive.server.auth.sessions import LASTS, Login
from redrive.trusted import origin

__all__ = ["client_of", "is_safe", "sign_in", "sign_out"]


async def sign_in(request: Request, response: Response, login: Login) -> Principal:
    """Begin a session, and let the answer set its cookie; tries that fail are counted."""
    service = service_of(request)
    client = client_of(request)
    tried = client, login.email.lower()
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


def client_of(request: Request) -> str:
    """The address that a request came from, behind the proxies that are trusted."""
    peer = request.client.host if request.client else ""
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return origin(peer, forwarded, service_of(request).proxies)


def is_safe(request: Request) -> bool:
    """True if browsers reach this server over TLS only, so that cookies may be kept to it."""
    return request.url.scheme == "https" or service_of(request).app.settings.base_url.startswith("https:")
