"""The pages of members and API keys, sign-in, and display settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from redrive.core.roles import USER_ROLES, Permission, parse_role
from redrive.errors import InputError, NotAllowed, NotFound, NotSignedIn, RedriveError
from redrive.reasons import Reason, ReasonCode
from redrive.server import request_context
from redrive.server.auth.sessions import Login, TenantChoiceNeeded
from redrive.server.idempotency import SECRET_EXTENSION
from redrive.server.pages.forms import (
    KEPT_FIELD,
    Form,
    RefusedForm,
    SentForm,
    make_page_router,
    read_form,
    redirect_to,
    show_form_again,
)
from redrive.server.pages.render import (
    LIST_COLUMNS,
    PREFERENCES,
    make_preference_cookie_name,
    make_view,
    render_login,
    render_page,
)
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, get_service, refuse_cross_site, requires
from redrive.server.routes.common import Id
from redrive.store.accounts import NewToken, NewUser, TokenKind
from redrive.time_values import parse_duration

members_routes = make_page_router()
session_routes = APIRouter()
_MANAGE_RULE = requires(Permission.MANAGE_PEOPLE)
_CREATE_SECRET_RULE = requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True})
_YEAR = 365 * 86_400
FORM_KEPT = N("You are signed in again. Nothing has been sent yet: check the form and send it.")


@members_routes.get("/members", **_MANAGE_RULE)
async def list_members(request: Request, context: Context) -> Response:
    return await _render_members(request, context)


@members_routes.post("/members", **_CREATE_SECRET_RULE)
async def invite_user(request: Request, context: Context, form: SentForm) -> Response:
    """Create a member, and show the invitation code once."""
    try:
        role, payloads = parse_role(form.get("role")), bool(form.get("payloads"))
        new = NewUser(email=form.get("email"), tenant=context.home, role=role, payloads=payloads)
        user, code = await context.access.create_user(new)
    except RedriveError as error:
        return await _render_members(request, context, wrong_member=Reason.of_error(error), typed=form)
    return await _render_members(request, context, invited=user.email, code=code)


@members_routes.post("/members/{id}", **_MANAGE_RULE)
async def change_member(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Change the role of a member, or remove the member from the tenant."""
    tenant = context.home
    user = await context.access.user(tenant, id)
    member = next((each for each in user.members if each.tenant == tenant), None)
    if member is None:
        raise NotFound(Reason(ReasonCode.MEMBER_NOT_FOUND))
    active = form.get("way") != "remove"
    role = parse_role(form.get("role")) if active else member.role
    payloads = bool(form.get("payloads")) if active else member.payloads
    await context.access.set_role(user.id, tenant, role, payloads=payloads, active=active)
    return redirect_to(make_view(request).url("/members"))


@members_routes.post("/keys", **_CREATE_SECRET_RULE)
async def create_key(request: Request, context: Context, form: SentForm) -> Response:
    """Create an API key, and show its secret once."""
    try:
        lasts = form.maybe("lasts")
        new = NewToken(
            tenant=context.home,
            role=parse_role(form.get("role")),
            name=form.get("name"),
            kind=TokenKind(form.get("kind")) if form.get("kind") in ("key", "jwt") else TokenKind.KEY,
            workflows=tuple(form.all("workflows")),
            payloads=bool(form.get("payloads")),
            lasts=None if lasts is None else int(parse_duration(lasts, "lasts")),
        )
        made = await context.access.create_token(new)
    except RedriveError as error:
        return await _render_members(request, context, wrong_key=Reason.of_error(error), typed=form)
    return await _render_members(request, context, key=made.token.name, secret=made.secret)


@members_routes.post("/keys/{id}/revoke", **_MANAGE_RULE)
async def revoke_key(request: Request, context: Context, id: Id) -> Response:
    await context.access.revoke_token(context.one_tenant, id)
    return redirect_to(make_view(request).url("/members") + "#keys-title")


async def _render_members(request: Request, context: RequestContext, **values: Any) -> Response:
    roles = []
    for role in USER_ROLES:
        try:
            context.principal.require_grant(context.tenant, role, payloads=False)
        except NotAllowed:
            continue
        roles.append(role)
    defaults = {"wrong_member": None, "wrong_key": None, "typed": Form(()), "invited": None, "key": None}
    access, tenant = context.access, context.one_tenant
    response = await render_page(
        request,
        "members.html",
        status=422 if "wrong_member" in values or "wrong_key" in values else 200,
        users=[] if context.everywhere else await access.users(tenant),
        tokens=[] if context.everywhere else await access.tokens(tenant),
        roles=roles,
        workflows=[item.name for item in await context.view.workflows()],
        **(defaults | values),
    )
    if "code" in values or "secret" in values:
        # A secret is shown once: a form that is sent again leads to the list, which does not contain it.
        response.headers["Content-Location"] = make_view(request).url("/members")
    return response


async def require_same_site(request: Request) -> None:
    """Refuse a form that another site made the browser send."""
    refuse_cross_site(request, get_service(request))


SameSite = Annotated[None, Depends(require_same_site)]


@session_routes.get("/login")
async def show_login(request: Request) -> Response:
    return await _render_login(request, 200, None)


@session_routes.post("/login")
async def sign_in(request: Request, form: SentForm, here: SameSite) -> Response:
    """Sign in, and redirect to the page that the user came for."""
    if not form.get("email") or not (form.raw("password") or form.get("code")):
        return await _render_login(request, 422, N("Enter your email and your password or code."))
    response = RedirectResponse(_choose_return_url(request, form.get("next")), 303)
    login = Login(
        email=form.get("email"),
        password=None if form.get("code") else form.raw("password"),
        code=form.maybe("code"),
        tenant=form.maybe("tenant"),
        new_password=form.raw("new_password") or None,
    )
    try:
        await request_context.sign_in(request, response, login)
    except NotSignedIn:
        return await _render_login(request, 401, N("Wrong email, password or code."))
    except TenantChoiceNeeded:
        text = N("You belong to several tenants. Enter the one to open.")
        return await _render_login(request, 422, text, choose=True)
    except InputError as error:
        return await _render_login(request, 422, Reason.of_error(error))
    kept = RefusedForm.unpack(form.get(KEPT_FIELD), FORM_KEPT) if form.get(KEPT_FIELD) else None
    if kept is not None:
        cookie = response.headers["set-cookie"].partition(";")[0]
        again = await show_form_again(request, kept, 200, cookie)
        if again is not None:
            again.headers.append("set-cookie", response.headers["set-cookie"])
            return again
    return response


@session_routes.post("/logout")
async def sign_out(request: Request, here: SameSite) -> Response:
    response = redirect_to(f"{make_view(request).root}/login")
    await request_context.sign_out(request, response)
    return response


@session_routes.post("/look")
async def set_preferences(request: Request, form: SentForm, here: SameSite) -> Response:
    """Store display settings in cookies: language, theme, time zone, or the density and columns of a list."""
    response = redirect_to(_choose_return_url(request, form.get("next")))
    secure = make_view(request).safe
    for name, values in PREFERENCES.items():
        if (chosen := form.get(name)) in values:
            cookie = make_preference_cookie_name(name)
            response.set_cookie(cookie, chosen, max_age=_YEAR, path="/", samesite="lax", secure=secure)
    if (name := form.get("list")) in LIST_COLUMNS:
        chosen = ".".join(column for column in LIST_COLUMNS[name] if column in form.all("column"))
        cookie = make_preference_cookie_name(f"columns_{name}")
        response.set_cookie(cookie, chosen, max_age=_YEAR, path="/", samesite="lax", secure=secure)
    return response


async def _render_login(request: Request, status: int, wrong: Reason | str | None, *, choose: bool = False) -> Response:
    form = await read_form(request)
    return await render_login(
        request,
        status,
        wrong,
        email=form.get("email"),
        code=form.get("code"),
        choose=choose,
        wanted=form.get("next") or request.query_params.get("next", ""),
        kept=form.get(KEPT_FIELD),
    )


def _choose_return_url(request: Request, wanted: str) -> str:
    """Return the address if it is one of this site; any other becomes the overview."""
    root = make_view(request).root
    ours = wanted.startswith(f"{root}/") and "//" not in wanted.split("?")[0] and "\\" not in wanted
    return wanted if ours and wanted.isprintable() else f"{root}/"
