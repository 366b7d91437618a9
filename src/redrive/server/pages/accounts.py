"""Members and keys: who may come in, and as what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.core.roles import Permission, Role, parse_role
from redrive.duration import parse_duration
from redrive.errors import InputError, NotFound, NotSignedIn, RedriveError
from redrive.server import request as signing
from redrive.server.auth.sessions import Login, TenantChoiceNeeded
from redrive.server.contract import NewToken, NewUser
from redrive.server.idempotency import SECRET_EXTENSION
from redrive.server.pages.forms import Form, SentForm, make_page_router, read_form, redirect_to
from redrive.server.pages.render import PREFERENCES, make_preference_cookie_name, make_view, render_page
from redrive.server.pages.translations import N
from redrive.server.request import (
    Context,
    RequestContext,
    get_service,
    make_session_cookie_name,
    refuse_cross_site,
    requires,
)
from redrive.server.routes.common import Id
from redrive.store.accounts import TokenKind

# -- Members and keys: who may come in, and as what ------------------------------------------------------


members_routes = make_page_router()
_MANAGE_RULE = requires(Permission.MANAGE_PEOPLE)
_CREATE_SECRET_RULE = requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True})


@members_routes.get("/members", **_MANAGE_RULE)
async def list_members(request: Request, asked: Context) -> Response:
    """The people and keys of this tenant."""
    return await _render_members(request, asked)


@members_routes.post("/members", **_CREATE_SECRET_RULE)
async def invite_user(request: Request, asked: Context, sent: SentForm) -> Response:
    """Make somebody known; the code to sign in with is shown once."""
    try:
        new = NewUser(
            email=sent.get("email"),
            tenant=asked.home,
            role=parse_role(sent.get("role")),
            payloads=bool(sent.get("payloads")),
        )
        user, code = await asked.access.create_user(new)
    except RedriveError as error:
        return await _render_members(request, asked, wrong_person=str(error), typed=sent)
    return await _render_secret_once(request, asked, invited=user.email, code=code)


@members_routes.post("/members/{id}", **_MANAGE_RULE)
async def change_member(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Change what somebody is here, or let them be nothing."""
    tenant = asked.home
    user = await asked.access.user(tenant, id)
    now = next((each for each in user.members if each.tenant == tenant), None)
    if now is None:
        raise NotFound("this person is nothing to this tenant")
    active = sent.get("way") != "remove"
    role = now.role if not active else parse_role(sent.get("role"))
    payloads = now.payloads if not active else bool(sent.get("payloads"))
    await asked.access.set_role(user.id, tenant, role, payloads=payloads, active=active)
    return redirect_to(make_view(request).url("/members"))


@members_routes.post("/keys", **_CREATE_SECRET_RULE)
async def create_key(request: Request, asked: Context, sent: SentForm) -> Response:
    """Make a key; it is shown once."""
    try:
        made = await asked.access.create_token(_read_new_token(asked, sent))
    except RedriveError as error:
        return await _render_members(request, asked, wrong_key=str(error), typed=sent)
    return await _render_secret_once(request, asked, key=made.token.name, secret=made.secret)


@members_routes.post("/keys/{id}/revoke", **_MANAGE_RULE)
async def revoke_key(request: Request, asked: Context, id: Id) -> Response:
    """Let a key hold no longer."""
    await asked.access.revoke_token(asked.one_tenant, id)
    return redirect_to(make_view(request).url("/members") + "#keys-title")


async def _render_members(request: Request, asked: RequestContext, **shown: Any) -> Response:
    wrong = "wrong_person" in shown or "wrong_key" in shown
    everything = {"wrong_person": None, "wrong_key": None, "typed": Form(()), "invited": None, "key": None}
    access, tenant = asked.access, asked.one_tenant
    return await render_page(
        request,
        "members.html",
        status=422 if wrong else 200,
        users=[] if asked.everywhere else await access.users(tenant),
        tokens=[] if asked.everywhere else await access.tokens(tenant),
        roles=[role for role in Role if _may_grant(asked, role)],
        workflows=[item.name for item in await asked.view.workflows()],
        **(everything | shown),
    )


async def _render_secret_once(request: Request, asked: RequestContext, **shown: Any) -> Response:
    """A page with a secret on it. Whoever sends the form again is sent to the list, which has none."""
    answer = await _render_members(request, asked, **shown)
    answer.headers["Content-Location"] = make_view(request).url("/members")
    return answer


def _may_grant(asked: RequestContext, role: Role) -> bool:
    try:
        asked.principal.require_grant(asked.tenant, role, payloads=False)
    except RedriveError:
        return False
    return True


def _read_new_token(asked: RequestContext, sent: Form) -> NewToken:
    lasts = sent.maybe("lasts")
    return NewToken(
        tenant=asked.home,
        role=parse_role(sent.get("role")),
        name=sent.get("name"),
        kind=TokenKind(sent.get("kind")) if sent.get("kind") in ("key", "jwt") else TokenKind.KEY,
        workflows=tuple(sent.all("workflows")),
        payloads=bool(sent.get("payloads")),
        lasts=None if lasts is None else int(parse_duration(lasts, "lasts")),
    )


# -- Signing in and out, and how pages look: the only pages for whoever is not known yet -----------------


session_routes = APIRouter()
_YEAR = 365 * 86_400
_SIGN_IN_REFUSED = N("Address and password, or the code, do not fit together, or this person may not sign in.")
_TENANT_CHOICE_NEEDED = N("You belong to several tenants. Say below which one you want to work in.")
_CREDENTIALS_NEEDED = N("Type your address, and your password or a code.")


async def require_same_site(request: Request) -> None:
    """Refuse a form that another site made the browser send."""
    refuse_cross_site(request, get_service(request))


SameSite = Annotated[None, Depends(require_same_site)]


@session_routes.get("/login")
async def show_login(request: Request) -> Response:
    """The page to sign in on."""
    return await _render_login(request, 200, None)


@session_routes.post("/login")
async def sign_in(request: Request, sent: SentForm, here: SameSite) -> Response:
    """Sign in, and go where one wanted to go."""
    if not sent.get("email") or not (sent.raw("password") or sent.get("code")):
        return await _render_login(request, 422, _CREDENTIALS_NEEDED)
    answer = RedirectResponse(_choose_return_url(request, sent.get("next")), 303)
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
        return await _render_login(request, 401, _SIGN_IN_REFUSED)
    except TenantChoiceNeeded:
        return await _render_login(request, 422, _TENANT_CHOICE_NEEDED, choose=True)
    except InputError as error:
        return await _render_login(request, 422, str(error))
    return answer


@session_routes.post("/logout")
async def sign_out(request: Request, here: SameSite) -> Response:
    """End the session."""
    answer = redirect_to(f"{make_view(request).root}/login")
    await signing.sign_out(request, answer)
    return answer


@session_routes.post("/look")
async def set_preferences(request: Request, sent: SentForm, here: SameSite) -> Response:
    """Choose a language, light or dark, or the clock by which times are shown."""
    answer = redirect_to(_choose_return_url(request, sent.get("next")))
    for what, known in PREFERENCES.items():
        if (chosen := sent.get(what)) in known:
            safe = make_view(request).safe
            answer.set_cookie(
                make_preference_cookie_name(what), chosen, max_age=_YEAR, path="/", samesite="lax", secure=safe
            )
    return answer


async def _render_login(request: Request, status: int, wrong: str | None, *, choose: bool = False) -> Response:
    sent = await read_form(request)
    wanted = sent.get("next") or request.query_params.get("next", "")
    return await render_page(
        request,
        "login.html",
        status=status,
        wrong=wrong,
        email=sent.get("email"),
        with_code=bool(sent.get("code")),
        choose=choose,
        wanted=wanted,
        known=make_session_cookie_name(request, get_service(request)) in request.cookies,
    )


def _choose_return_url(request: Request, wanted: str) -> str:
    """A page of ours to go to; whatever else was asked for becomes the start page."""
    root = make_view(request).root
    ours = wanted.startswith(f"{root}/") and "//" not in wanted.split("?")[0] and "\\" not in wanted
    return wanted if ours and wanted.isprintable() else f"{root}/"
