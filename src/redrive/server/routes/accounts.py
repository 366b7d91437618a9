"""Signing in, and managing tenants, people and tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import StreamingResponse
from pydantic import Field

from redrive.core.roles import Permission, Role, parse_role
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError
from redrive.server import request as signing
from redrive.server.auth.admin import (
    MembershipChange,
    change_membership,
    create_sign_in_code,
    erase_tenant_data,
    export_tenant_data,
)
from redrive.server.auth.sessions import Login
from redrive.server.contract import NewToken, NewUser
from redrive.server.idempotency import SECRET_EXTENSION
from redrive.server.request import Context, RequestContext, get_service, requires
from redrive.server.routes.common import Body, Id, Name, Text, make_router
from redrive.store.account_records import TenantRow, TokenKind, TokenRow, UserRow

account_routes = make_router("people")
RoleName = Annotated[str, Field(max_length=20, description="OWNER, ADMIN, STAFF or VIEWER, or an alias.")]


class SignIn(Body):
    """What somebody signs in with: a password, or a code that holds once."""

    email: Annotated[str, Field(max_length=254)]
    password: Annotated[str, Field(max_length=1024)] | None = None
    code: Annotated[str, Field(max_length=100)] | None = None
    tenant: Text | None = None
    new_password: Annotated[str, Field(max_length=1024)] | None = None


class Me(Body):
    """Whoever is asking, and what that allows."""

    who: str
    tenant: str
    role: Role
    may_see_payloads: bool
    workflows: list[str] | None
    permissions: list[str]


@account_routes.post("/login", openapi_extra={"x-own-key": True, "x-open": True})
async def sign_in(request: Request, response: Response, body: SignIn) -> Me:
    """Sign in with a password or a code; the answer sets a cookie that holds for twelve hours."""
    principal = await signing.sign_in(request, response, Login(**body.model_dump()))
    return _present_me(RequestContext(get_service(request), principal, principal.tenant))


@account_routes.post("/logout", status_code=204, openapi_extra={"x-own-key": True, "x-open": True})
async def sign_out(request: Request, response: Response) -> None:
    """End the session whose cookie came along."""
    await signing.sign_out(request, response)


@account_routes.get("/me", **requires(Permission.LOOK))
async def show_me(asked: Context) -> Me:
    """Who is asking."""
    return _present_me(asked)


def _present_me(asked: RequestContext) -> Me:
    principal = asked.principal
    return Me(
        who=principal.who,
        tenant=asked.tenant,
        role=principal.role,
        may_see_payloads=principal.payloads,
        workflows=None if principal.workflows is None else sorted(principal.workflows),
        permissions=[each.value for each in Permission if principal.may(each)],
    )


class Tenant(Body):
    """One organisation."""

    name: str
    created_at: datetime
    created_by: str
    disabled: bool


class TenantName(Body):
    """A tenant to be registered."""

    name: Text


class Erased(Body):
    """What went."""

    rows: int


@account_routes.get("/tenants", **requires(Permission.LOOK))
async def list_tenants(asked: Context) -> list[Tenant]:
    """All tenants for an owner, one's own for everybody else."""
    return [_present_tenant(row) for row in await asked.access.tenants()]


@account_routes.post("/tenants", status_code=201, **requires(Permission.MANAGE_TENANTS))
async def create_tenant(asked: Context, body: TenantName) -> Tenant:
    """Register a tenant; registering it again changes nothing."""
    return _present_tenant(await asked.access.create_tenant(body.name))


@account_routes.post("/tenants/{name}/disable", **requires(Permission.MANAGE_TENANTS))
async def disable_tenant(asked: Context, name: Name) -> Tenant:
    """Let no credential of a tenant hold. Its data stays, and its runs go on."""
    if name == asked.principal.tenant:
        raise Conflict("this is the tenant you belong to: disabling it would lock you out")
    return _present_tenant(await asked.access.disable_tenant(name, disabled=True))


@account_routes.post("/tenants/{name}/enable", **requires(Permission.MANAGE_TENANTS))
async def enable_tenant(asked: Context, name: Name) -> Tenant:
    """Let the credentials of a tenant hold again."""
    return _present_tenant(await asked.access.disable_tenant(name, disabled=False))


@account_routes.delete("/tenants/{name}", **requires(Permission.MANAGE_TENANTS))
async def erase_tenant(asked: Context, name: Name, confirm: Text | None = None) -> Erased:
    """Remove everything a tenant has. `confirm` must repeat its name."""
    access = asked.access
    await access.tenant(name)
    if confirm != name:
        raise InputError("nothing was erased: repeat the tenant's name in `confirm`")
    return Erased(rows=await erase_tenant_data(asked.whole, access, name))


@account_routes.get(
    "/tenants/{name}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
    **requires(Permission.MANAGE_TENANTS, Permission.SEE_PAYLOADS, **{"x-stream": True}),
)
async def export_tenant(asked: Context, name: Name) -> StreamingResponse:
    """Everything a tenant has, one JSON object on each line, with nothing hidden; noted in its log."""
    await asked.access.tenant(name)
    things = await export_tenant_data(asked.whole, asked.access, name)
    return StreamingResponse(_encode_lines(things), media_type="application/x-ndjson")


async def _encode_lines(things: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[bytes]:
    async for kind, value in things:
        yield json.dumps({"kind": kind, **jsonable_encoder(value)}, ensure_ascii=True).encode() + b"\n"


def _present_tenant(row: TenantRow) -> Tenant:
    return Tenant(
        name=row.tenant,
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        disabled=row.disabled_at is not None,
    )


class Membership(Body):
    """What a person is to a tenant."""

    tenant: str
    role: Role
    may_see_payloads: bool
    active: bool


class User(Body):
    """One person."""

    id: str
    email: str
    created_at: datetime
    disabled: bool
    memberships: list[Membership]


class NewPerson(Body):
    """A person to be known to this tenant. Without a password a code to sign in once is made."""

    email: Annotated[str, Field(max_length=254)]
    role: RoleName
    password: Annotated[str, Field(max_length=1024)] | None = None
    may_see_payloads: bool = False


class CreatedUser(User):
    """The person, and the code to sign in with once, where there is a new one."""

    code: str | None


class Code(Body):
    """A person, and the code to sign in with once."""

    id: str
    code: str


class Change(Body):
    """What a person is to be to this tenant; what is left out stays."""

    role: RoleName | None = None
    may_see_payloads: bool | None = None
    active: bool | None = None


@account_routes.get("/users", **requires(Permission.MANAGE_PEOPLE))
async def list_users(asked: Context) -> list[User]:
    """The people of this tenant."""
    return [_present_user(row) for row in await asked.access.users(asked.one_tenant)]


@account_routes.post("/users", status_code=201, **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def create_user(asked: Context, body: NewPerson) -> CreatedUser:
    """Make a person known to this tenant."""
    new = NewUser(
        email=body.email,
        tenant=asked.home,
        role=parse_role(body.role),
        password=body.password,
        payloads=body.may_see_payloads,
    )
    row, code = await asked.access.create_user(new)
    shown = await asked.access.user(new.tenant, row.id)
    return CreatedUser(**_present_user(shown).model_dump(), code=code)


@account_routes.get("/users/{id}", **requires(Permission.MANAGE_PEOPLE))
async def show_user(asked: Context, id: Id) -> User:
    """One of the people of this tenant."""
    return _present_user(await asked.access.user(asked.one_tenant, id))


@account_routes.post("/users/{id}/role", **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def change_user(asked: Context, id: Id, body: Change) -> CreatedUser:
    """Change what a person is to this tenant, or let them be nothing to it any more.

    For somebody whom another tenant knows already an owner gets a code: their old password holds no longer.
    """
    tenant, user = asked.home, await _find_user(asked, id)
    role = None if body.role is None else parse_role(body.role)
    part = MembershipChange(role=role, payloads=body.may_see_payloads, active=body.active)
    changed, code = await change_membership(asked.access, user, tenant, part)
    return CreatedUser(**_present_user(changed).model_dump(), code=code)


async def _find_user(asked: RequestContext, id: str) -> UserRow:
    """Somebody of this tenant; an owner, who may give a role to people of others, finds those as well."""
    if asked.principal.may(Permission.MANAGE_TENANTS):
        return await asked.access.user(None, id, near=asked.home)
    return await asked.access.user(asked.home, id)


@account_routes.post("/users/{id}/code", **requires(Permission.MANAGE_TENANTS, **{SECRET_EXTENSION: True}))
async def make_code(asked: Context, id: Id) -> Code:
    """A code with which a person can sign in once, within a day, and choose a new password."""
    user, code = await create_sign_in_code(asked.access, id, asked.tenant)
    return Code(id=user.id, code=code)


@account_routes.post("/users/{id}/disable", **requires(Permission.MANAGE_TENANTS))
async def disable_user(asked: Context, id: Id) -> User:
    """Let a person sign in nowhere; whoever is signed in no longer is."""
    return _present_user(await asked.access.disable_user(id, disabled=True))


@account_routes.post("/users/{id}/enable", **requires(Permission.MANAGE_TENANTS))
async def enable_user(asked: Context, id: Id) -> User:
    """Let a person sign in again."""
    return _present_user(await asked.access.disable_user(id, disabled=False))


def _present_user(row: UserRow) -> User:
    return User(
        id=row.id,
        email=row.email,
        created_at=to_datetime(row.created_at),
        disabled=row.disabled_at is not None,
        memberships=[
            Membership(tenant=each.tenant, role=each.role, may_see_payloads=each.payloads, active=each.active)
            for each in row.members
        ],
    )


class Token(Body):
    """One token, without its secret."""

    id: str
    kind: TokenKind
    name: str
    tenant: str
    role: Role
    may_see_payloads: bool
    workflows: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


class WantedToken(Body):
    """A token to be made. `lasts` is in seconds; no workflows mean all."""

    name: Text = "unnamed"
    role: RoleName
    kind: Literal["key", "jwt"] = "key"
    workflows: list[Text] = Field(default_factory=list, max_length=100)
    may_see_payloads: bool = False
    lasts: int | None = Field(default=None, ge=1, le=315_360_000)


class CreatedToken(Token):
    """The token with its secret, which is shown now and never again."""

    secret: str


@account_routes.get("/tokens", **requires(Permission.MANAGE_PEOPLE))
async def list_tokens(asked: Context) -> list[Token]:
    """The tokens of this tenant, newest first."""
    return [_present_token(row) for row in await asked.access.tokens(asked.one_tenant)]


@account_routes.post("/tokens", status_code=201, **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def create_token(asked: Context, body: WantedToken) -> CreatedToken:
    """Make a token. Its secret is in this answer and nowhere else."""
    new = NewToken(
        tenant=asked.home,
        role=parse_role(body.role),
        name=body.name,
        kind=TokenKind(body.kind),
        workflows=tuple(body.workflows),
        payloads=body.may_see_payloads,
        lasts=body.lasts,
    )
    made = await asked.access.create_token(new)
    return CreatedToken(**_present_token(made.token).model_dump(), secret=made.secret)


@account_routes.get("/tokens/{id}", **requires(Permission.MANAGE_PEOPLE))
async def show_token(asked: Context, id: Id) -> Token:
    """One token."""
    return _present_token(await asked.access.token(asked.one_tenant, id))


@account_routes.post("/tokens/{id}/revoke", **requires(Permission.MANAGE_PEOPLE))
async def revoke_token(asked: Context, id: Id) -> Token:
    """Let a token hold no longer."""
    return _present_token(await asked.access.revoke_token(asked.one_tenant, id))


def _present_token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        kind=row.kind,
        name=row.name,
        tenant=row.tenant,
        role=row.role,
        may_see_payloads=row.payloads,
        workflows=list(row.workflows),
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        expires_at=to_datetime(row.expires_at),
        revoked_at=to_datetime(row.revoked_at),
    )
