"""Members and keys: who may come in, and as what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.core.roles import Permission, Role, role_of
from redrive.duration import seconds
from redrive.errors import InputError, NotFound, NotSignedIn, RedriveError
from redrive.server import request as signing
from redrive.server.auth.sessions import Login, SeveralTenants
from redrive.server.contract import NewToken, NewUser
from redrive.server.idempotency import SECRET
from redrive.server.pages.forms import Form, Sent, form_of, pages, to
from redrive.server.pages.render import CHOICES, cookie_of, show, view_of
from redrive.server.pages.translations import N
from redrive.server.request import Asked, Asking, cookie_name, needs, refuse_foreign, service_of
from redrive.server.routes.common import Id
from redrive.store.account_records import TokenKind

__all__ = ["members_routes", "session_routes"]


# -- Members and keys: who may come in, and as what ------------------------------------------------------


members_routes = pages()
_MANAGE = needs(Permission.MANAGE_PEOPLE)
_MAKE = needs(Permission.MANAGE_PEOPLE, **{SECRET: True})


@members_routes.get("/members", **_MANAGE)
async def list_members(request: Request, asked: Asked) -> Response:
    """The people and keys of this tenant."""
    return await _page(request, asked)


@members_routes.post("/members", **_MAKE)
async def invite(request: Request, asked: Asked, sent: Sent) -> Response:
    """Make somebody known; the code to sign in with is shown once."""
    try:
        new = NewUser(
            email=sent.get("email"),
            tenant=asked.home,
            role=role_of(sent.get("role")),
            payloads=bool(sent.get("payloads")),
        )
        user, code = await asked.access.create_user(new)
    except RedriveError as error:
        return await _page(request, asked, wrong_person=str(error), typed=sent)
    return await _shown_once(request, asked, invited=user.email, code=code)


@members_routes.post("/members/{id}", **_MANAGE)
async def change(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Change what somebody is here, or let them be nothing."""
    tenant = asked.home
    user = await asked.access.user(tenant, id)
    now = next((each for each in user.members if each.tenant == tenant), None)
    if now is None:
        raise NotFound("this person is nothing to this tenant")
    active = sent.get("way") != "remove"
    role = now.role if not active else role_of(sent.get("role"))
    payloads = now.payloads if not active else bool(sent.get("payloads"))
    await asked.access.set_role(user.id, tenant, role, payloads=payloads, active=active)
    return to(view_of(request).url("/members"))


@members_routes.post("/keys", **_MAKE)
async def make_key(request: Request, asked: Asked, sent: Sent) -> Response:
    """Make a key; it is shown once."""
    try:
        made = await asked.access.create_token(_wanted(asked, sent))
    except RedriveError as error:
        return await _page(request, asked, wrong_key=str(error), typed=sent)
    return await _shown_once(request, asked, key=made.token.name, secret=made.secret)


@members_routes.post("/keys/{id}/revoke", **_MANAGE)
async def revoke(request: Request, asked: Asked, id: Id) -> Response:
    """Let a key hold no longer."""
    await asked.access.revoke_token(asked.one_tenant, id)
    return to(view_of(request).url("/members") + "#keys-title")


async def _page(request: Request, asked: Asking, **shown: Any) -> Response:
    wrong = "wrong_person" in shown or "wrong_key" in shown
    everything = {"wrong_person": None, "wrong_key": None, "typed": Form(()), "invited": None, "key": None}
    access, tenant = asked.access, asked.one_tenant
    return await show(
        request,
        "members.html",
        status=422 if wrong else 200,
        users=[] if asked.everywhere else await access.users(tenant),
        tokens=[] if asked.everywhere else await access.tokens(tenant),
        roles=[role for role in Role if _may_grant(asked, role)],
        workflows=[item.name for item in await asked.view.workflows()],
        **(everything | shown),
    )


async def _shown_once(request: Request, asked: Asking, **shown: Any) -> Response:
    """A page with a secret on it. Whoever sends the form again is sent to the list, which has none."""
    answer = await _page(request, asked, **shown)
    answer.headers["Content-Location"] = view_of(request).url("/members")
    return answer


def _may_grant(asked: Asking, role: Role) -> bool:
    try:
        asked.principal.need_grant(asked.tenant, role, payloads=False)
    except RedriveError:
        return False
    return True


def _wanted(asked: Asking, sent: Form) -> NewToken:
    lasts = sent.maybe("lasts")
    return NewToken(
        tenant=asked.home,
        role=role_of(sent.get("role")),
        name=sent.get("name"),
        kind=TokenKind(sent.get("kind")) if sent.get("kind") in ("key", "jwt") else TokenKind.KEY,
        workflows=tuple(sent.all("workflows")),
        payloads=bool(sent.get("payloads")),
        lasts=None if lasts is None else int(seconds(lasts, "lasts")),
    )


# -- Signing in and out, and how pages look: the only pages for whoever is not known yet -----------------


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
