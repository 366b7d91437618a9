"""Members and keys: who may come in, and as what."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission, Role, role_of
from redrive.duration import seconds
from redrive.errors import NotFound, RedriveError
from redrive.server.asking import Asked, Asking, needs
from redrive.server.auth.wanted import NewToken, NewUser
from redrive.server.once import SECRET
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Form, Sent, pages, to
from redrive.server.routes.shared import Id
from redrive.store.account_records import TokenKind

__all__ = ["members_routes"]

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
