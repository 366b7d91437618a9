"""Signing in and out, and how pages look: the only pages for whoever is not known yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.errors import InputError, NotSignedIn
from redrive.server import signing
from redrive.server.asking import cookie_name, refuse_foreign, service_of
from redrive.server.auth.sessions import Login, SeveralTenants
from redrive.server.pages.drawing import CHOICES, cookie_of, show, view_of
from redrive.server.pages.forms import Sent, form_of, to
from redrive.server.pages.words import N

__all__ = ["session_routes"]

session_routes = APIRouter()

_YEAR = 365 * 86_400
_WRONG = N("Address and password, or the code, do not fit together, or this person may not sign in.")
_SEVERAL = N("You belong to several tenants. Say below which one you want to work in.")
_EMPTY = N("Type your address, and your password or a code.")


async def from_here(request: Request) -> None:
    """Refuse a form that another site made the browser send."""
    refuse_foreign(request, service_of(request))


Here = Annotated[None, Depends(from_here)]


@session_routes.get("/login")
async def ask(request: Request) -> Response:
    """The page to sign in on."""
    return await _form(request, 200, None)


@session_routes.post("/login")
async def sign_in(request: Request, sent: Sent, here: Here) -> Response:
    """Sign in, and go where one wanted to go."""
    if not sent.get("email") or not (sent.raw("password") or sent.get("code")):
        return await _form(request, 422, _EMPTY)
    answer = RedirectResponse(_back(request, sent.get("next")), 303)
    login = Login(
        email=sent.get("email"),
        password=None if sent.get("code") else sent.raw("password"),
        code=sent.maybe("code"),
        tenant=sent.maybe("tenant"),
        new_password=sent.raw("new_password") or None,
    )
    try:
        await signing.sign_in(request, answer, login)
    except NotSignedIn:
        return await _form(request, 401, _WRONG)
    except SeveralTenants:
        return await _form(request, 422, _SEVERAL, choose=True)
    except InputError as error:
        return await _form(request, 422, str(error))
    return answer


@session_routes.post("/logout")
async def sign_out(request: Request, here: Here) -> Response:
    """End the session."""
    answer = to(f"{view_of(request).root}/login")
    await signing.sign_out(request, answer)
    return answer


@session_routes.post("/look")
async def look(request: Request, sent: Sent, here: Here) -> Response:
    """Choose a language, light or dark, or the clock by which times are shown."""
    answer = to(_back(request, sent.get("next")))
    for what, known in CHOICES.items():
        if (chosen := sent.get(what)) in known:
            safe = view_of(request).safe
            answer.set_cookie(cookie_of(what), chosen, max_age=_YEAR, path="/", samesite="lax", secure=safe)
    return answer


async def _form(request: Request, status: int, wrong: str | None, *, choose: bool = False) -> Response:
    sent = await form_of(request)
    wanted = sent.get("next") or request.query_params.get("next", "")
    return await show(
        request,
        "login.html",
        status=status,
        wrong=wrong,
        email=sent.get("email"),
        with_code=bool(sent.get("code")),
        choose=choose,
        wanted=wanted,
        known=cookie_name(request, service_of(request)) in request.cookies,
    )


def _back(request: Request, wanted: str) -> str:
    """A page of ours to go to; whatever else was asked for becomes the start page."""
    root = view_of(request).root
    ours = wanted.startswith(f"{root}/") and "//" not in wanted.split("?")[0] and "\\" not in wanted
    return wanted if ours and wanted.isprintable() else f"{root}/"
