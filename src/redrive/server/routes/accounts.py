"""Routes for signing in, tenants, users and tokens."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import StreamingResponse
from pydantic import Field

from redrive.core.roles import ALL_TENANTS, Permission, Role, parse_role
from redrive.desk.presenter import present_row
from redrive.errors import Conflict, InputError
from redrive.reasons import Reason, ReasonCode
from redrive.server import request_context
from redrive.server.auth import admin
from redrive.server.auth.sessions import Login
from redrive.server.idempotency import SECRET_EXTENSION
from redrive.server.request_context import Context, RequestContext, get_service, requires
from redrive.server.routes.common import Body, Id, Name, Text, make_router
from redrive.store.accounts import NewToken, NewUser, TenantRow, TokenKind, TokenRow, UserRow

account_routes = make_router("people")
RoleName = Annotated[str, Field(max_length=20, description="OWNER, ADMIN, STAFF or VIEWER, or an alias.")]


class SignIn(Body):
    """Credentials of a user: a password, or a code for one sign-in."""

    email: Annotated[str, Field(max_length=254)]
    password: Annotated[str, Field(max_length=1024)] | None = None
    code: Annotated[str, Field(max_length=100)] | None = None
    tenant: Text | None = None
    new_password: Annotated[str, Field(max_length=1024)] | None = None


class Me(Body):
    """The caller and its permissions."""

    who: str
    tenant: str
    role: Role
    may_see_payloads: bool
    workflows: list[str] | None
    permissions: list[str]


@account_routes.post("/login", openapi_extra={"x-own-key": True, "x-open": True})
async def sign_in(request: Request, response: Response, body: SignIn) -> Me:
    """Sign in with a password or a code; the answer sets a cookie that is valid for twelve hours."""
    principal = await request_context.sign_in(request, response, Login(**body.model_dump()))
    return _present_me(RequestContext(get_service(request), principal, principal.tenant))


@account_routes.post("/logout", status_code=204, openapi_extra={"x-own-key": True, "x-open": True})
async def sign_out(request: Request, response: Response) -> None:
    """End the session of the cookie."""
    await request_context.sign_out(request, response)


@account_routes.get("/me", **requires(Permission.LOOK))
async def show_me(context: Context) -> Me:
    """Return the caller and its permissions."""
    return _present_me(context)


def _present_me(context: RequestContext) -> Me:
    principal = context.principal
    return present_row(
        Me,
        principal,
        tenant=context.tenant,
        may_see_payloads=principal.payloads,
        workflows=None if principal.workflows is None else sorted(principal.workflows),
        permissions=[each.value for each in Permission if principal.may(each)],
    )


class Tenant(Body):
    """A tenant: one organisation."""

    name: str
    created_at: datetime
    created_by: str
    disabled: bool


class TenantName(Body):
    """A tenant to be created."""

    name: Text


class Erased(Body):
    """The number of erased rows."""

    rows: int


@account_routes.get("/tenants", **requires(Permission.LOOK))
async def list_tenants(context: Context) -> list[Tenant]:
    """Return all tenants to an owner, and their own tenant to others."""
    return [_present_tenant(row) for row in await context.access.tenants()]


@account_routes.post("/tenants", status_code=201, **requires(Permission.MANAGE_TENANTS))
async def create_tenant(context: Context, body: TenantName) -> Tenant:
    """Create a tenant; creating it again changes nothing."""
    return _present_tenant(await context.access.create_tenant(body.name))


@account_routes.post("/tenants/{name}/disable", **requires(Permission.MANAGE_TENANTS))
async def disable_tenant(context: Context, name: Name) -> Tenant:
    """Disable all credentials of a tenant. Its data stays, and its runs continue."""
    if name == context.principal.tenant:
        raise Conflict(Reason(ReasonCode.OWN_TENANT))
    return _present_tenant(await context.access.disable_tenant(name, disabled=True))


@account_routes.post("/tenants/{name}/enable", **requires(Permission.MANAGE_TENANTS))
async def enable_tenant(context: Context, name: Name) -> Tenant:
    """Enable the credentials of a tenant again."""
    return _present_tenant(await context.access.disable_tenant(name, disabled=False))


@account_routes.delete("/tenants/{name}", **requires(Permission.MANAGE_TENANTS))
async def erase_tenant(context: Context, name: Name, confirm: Text | None = None) -> Erased:
    """Erase all records of a tenant. `confirm` must repeat its name."""
    access = context.access
    await access.tenant(name)
    if confirm != name:
        raise InputError(Reason(ReasonCode.CONFIRMATION_NEEDED))
    return Erased(rows=await admin.erase_tenant_data(context.whole, access, name))


@account_routes.get(
    "/tenants/{name}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}},
    **requires(Permission.MANAGE_TENANTS, Permission.SEE_PAYLOADS, **{"x-stream": True}),
)
async def export_tenant(context: Context, name: Name) -> StreamingResponse:
    """Export all records of a tenant, one JSON object a line, without redaction; its audit log records it."""
    await context.access.tenant(name)
    things = await admin.export_tenant_data(context.whole, context.access, name)
    lines = (json.dumps({"kind": kind, **jsonable_encoder(value)}).encode() + b"\n" async for kind, value in things)
    return StreamingResponse(lines, media_type="application/x-ndjson")


def _present_tenant(row: TenantRow) -> Tenant:
    return present_row(Tenant, row, name=row.tenant, disabled=row.disabled_at is not None)


class Membership(Body):
    """The role of a user in a tenant."""

    tenant: str
    role: Role
    may_see_payloads: bool
    active: bool


class User(Body):
    """A user."""

    id: str
    email: str
    created_at: datetime
    disabled: bool
    memberships: list[Membership]


class NewPerson(Body):
    """A user to be added to this tenant. Without a password, a code for one sign-in is made."""

    email: Annotated[str, Field(max_length=254)]
    role: RoleName
    password: Annotated[str, Field(max_length=1024)] | None = None
    may_see_payloads: bool = False


class CreatedUser(User):
    """The user, and the code for one sign-in, if a new one was made."""

    code: str | None


class Code(Body):
    """A user, and the code for one sign-in."""

    id: str
    code: str


class Change(Body):
    """Changes of a user's membership; fields that are left out stay."""

    role: RoleName | None = None
    may_see_payloads: bool | None = None
    active: bool | None = None


@account_routes.get("/users", **requires(Permission.MANAGE_PEOPLE))
async def list_users(context: Context) -> list[User]:
    """Return the users of this tenant."""
    return [_present_user(row) for row in await context.access.users(context.one_tenant)]


@account_routes.post("/users", status_code=201, **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def create_user(context: Context, body: NewPerson) -> CreatedUser:
    """Add a user to this tenant."""
    tenant, role, payloads = context.home, parse_role(body.role), body.may_see_payloads
    new = NewUser(email=body.email, tenant=tenant, role=role, password=body.password, payloads=payloads)
    row, code = await context.access.create_user(new)
    shown = await context.access.user(tenant, row.id)
    return CreatedUser(**_present_user(shown).model_dump(), code=code)


@account_routes.get("/users/{id}", **requires(Permission.MANAGE_PEOPLE))
async def show_user(context: Context, id: Id) -> User:
    """Return one user of this tenant."""
    return _present_user(await context.access.user(context.one_tenant, id))


@account_routes.post("/users/{id}/role", **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def change_user(context: Context, id: Id, body: Change) -> CreatedUser:
    """Change the role of a user in this tenant, or deactivate the membership.

    For a user of another tenant, an owner gets a code: the old password of the user stops working.
    """
    # An owner may add users of other tenants.
    owner = context.principal.may(Permission.MANAGE_TENANTS)
    user = await context.access.user(None if owner else context.home, id, near=context.home)
    role = None if body.role is None else parse_role(body.role)
    part = admin.MembershipChange(role=role, payloads=body.may_see_payloads, active=body.active)
    changed, code = await admin.change_membership(context.access, user, context.home, part)
    return CreatedUser(**_present_user(changed).model_dump(), code=code)


@account_routes.post("/users/{id}/code", **requires(Permission.MANAGE_TENANTS, **{SECRET_EXTENSION: True}))
async def make_code(context: Context, id: Id) -> Code:
    """Make a code with which a user can sign in once, within a day, and choose a new password."""
    user, code = await admin.create_sign_in_code(context.access, id, context.tenant)
    return Code(id=user.id, code=code)


@account_routes.post("/users/{id}/disable", **requires(Permission.MANAGE_TENANTS))
async def disable_user(context: Context, id: Id) -> User:
    """Disable a user in all tenants, and end the sessions of that user."""
    return _present_user(await context.access.disable_user(id, disabled=True))


@account_routes.post("/users/{id}/enable", **requires(Permission.MANAGE_TENANTS))
async def enable_user(context: Context, id: Id) -> User:
    """Enable a user again."""
    return _present_user(await context.access.disable_user(id, disabled=False))


def _present_user(row: UserRow) -> User:
    members = [present_row(Membership, each, may_see_payloads=each.payloads) for each in row.members]
    return present_row(User, row, disabled=row.disabled_at is not None, memberships=members)


class Token(Body):
    """A token, without its secret."""

    id: str
    kind: TokenKind
    name: str
    tenant: str
    role: Role
    may_see_payloads: bool
    workflows: list[str]
    steps: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


class TokenRequest(Body):
    """A token to be created. `lasts` is in seconds; no workflows mean all, and no steps too."""

    name: Text = "unnamed"
    role: RoleName
    kind: Literal["key", "jwt"] = "key"
    workflows: list[Text] = Field(default_factory=list, max_length=100)
    steps: list[Text] = Field(default_factory=list, max_length=100, description="For a WORKER: only these steps.")
    may_see_payloads: bool = False
    all_tenants: bool = Field(default=False, description="For a WORKER: it executes runs of all tenants.")
    lasts: int | None = Field(default=None, strict=True, ge=1, le=315_360_000)


class CreatedToken(Token):
    """A new token with its secret, which is shown only once."""

    secret: str


@account_routes.get("/tokens", **requires(Permission.MANAGE_PEOPLE))
async def list_tokens(context: Context) -> list[Token]:
    """Return the tokens of this tenant, newest first."""
    return [_present_token(row) for row in await context.access.tokens(context.one_tenant)]


@account_routes.post("/tokens", status_code=201, **requires(Permission.MANAGE_PEOPLE, **{SECRET_EXTENSION: True}))
async def create_token(context: Context, body: TokenRequest) -> CreatedToken:
    """Create a token. Only this answer has its secret."""
    new = NewToken(
        tenant=ALL_TENANTS if body.all_tenants else context.home,
        role=parse_role(body.role),
        name=body.name,
        kind=TokenKind(body.kind),
        workflows=tuple(body.workflows),
        steps=tuple(body.steps),
        payloads=body.may_see_payloads,
        lasts=body.lasts,
    )
    made = await context.access.create_token(new)
    return CreatedToken(**_present_token(made.token).model_dump(), secret=made.secret)


@account_routes.get("/tokens/{id}", **requires(Permission.MANAGE_PEOPLE))
async def show_token(context: Context, id: Id) -> Token:
    """Return one token."""
    return _present_token(await context.access.token(context.one_tenant, id))


@account_routes.post("/tokens/{id}/revoke", **requires(Permission.MANAGE_PEOPLE))
async def revoke_token(context: Context, id: Id) -> Token:
    """Revoke a token."""
    return _present_token(await context.access.revoke_token(context.one_tenant, id))


def _present_token(row: TokenRow) -> Token:
    return present_row(Token, row, may_see_payloads=row.payloads, workflows=list(row.workflows), steps=list(row.steps))
