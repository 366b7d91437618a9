"""Tenants, people, tokens, sessions and remembered answers: the records, and what is asked of a store.

Whoever asks for a tenant names it in every call; a view that is confined to a tenant knows no other.
No secret is stored: passwords and tokens are hashed before they come here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from redrive.core.roles import Role, ranks_at_least
from redrive.core.transitions import AuditWrite

_LONGEST_CHAIN = 8


class TokenKind(StrEnum):
    """What a token is: a key, a signed token, or a code that lets somebody sign in once."""

    KEY = "key"
    JWT = "jwt"
    CODE = "code"


class TenantRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One organisation. A disabled one keeps its data, and none of its credentials holds."""

    tenant: str
    created_at: int = 0
    created_by: str = ""
    disabled_at: int | None = None


class MemberRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a person is to a tenant. `payloads`: may see what is hidden from others."""

    user: str
    tenant: str
    role: Role
    payloads: bool = False
    active: bool = True


class UserRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One account. `password` is a hash; None where none was set, or where it was not asked for.

    `home` is the tenant that created the account. An address has one account in each home, so that a tenant
    can add a user without learning whether another tenant knows the address.
    """

    id: str
    email: str
    home: str = ""
    password: str | None = None
    created_at: int = 0
    disabled_at: int | None = None
    members: tuple[MemberRow, ...] = ()


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One token; `workflows` is empty for all. `hash` is of its secret, and empty in lists.

    `maker_user` or `maker_token` is the id of what created it; both are None for a token that was created on
    the store itself. `user` is the person whom a code signs in.
    """

    id: str
    kind: TokenKind
    tenant: str
    role: Role
    name: str
    created_by: str
    payloads: bool = False
    workflows: tuple[str, ...] = ()
    hash: str = ""
    user: str | None = None
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None
    maker_user: str | None = None
    maker_token: str | None = None

    def is_over(self, now: int) -> bool:
        """Return True if it was revoked or has expired."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


class SessionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One sign-in of a person for a tenant, known by the hash of what the browser holds."""

    hash: str
    tenant: str
    user: str
    created_at: int = 0
    expires_at: int = 0


class RequestClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that is about to be carried out under a key; `digest` tells it from other requests.

    One that was begun longer than `patience` ago and has no answer was given up by a server that died.
    """

    tenant: str
    key: str
    digest: str
    patience: int
    keeps: int


class ResponseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that was begun under a key, and its answer once there is one."""

    tenant: str
    key: str
    digest: str
    status: int | None
    body: str | None


class AccountStore(Protocol):
    """The calls about people and their credentials, one transaction each, safe to repeat."""

    async def tenants(self) -> list[TenantRow]:
        """All registered tenants, by name."""

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        """Register a tenant, or let it be disabled or not; False if nothing changed, which is not noted."""

    async def erase(self, tenant: str, limit: int) -> int:
        """Remove up to `limit` runs of a tenant and what belongs to them, at last all else it has.

        Returns how many rows went; nothing is left when that is 0.
        """

    async def user(self, id: str) -> UserRow | None:
        """Return one account with its password and all memberships."""

    async def users_by_email(self, email: str) -> list[UserRow]:
        """Return the accounts with an address, each with its password and all memberships."""

    async def users(self, tenant: str | None) -> list[UserRow]:
        """The people of a tenant, or of all, without passwords; of their memberships those asked for."""

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        """Write a new account with its memberships; False if the id is taken, or the address at home."""

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        """Another password, if one is given, and whether the person is disabled; False if there is none."""

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        """Write what a person is to a tenant."""

    async def token(self, id: str) -> TokenRow | None:
        """One token with its hash, expired or revoked or not; none of a disabled tenant."""

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        """The tokens of a tenant, or of all, newest first."""

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        """Keep a new token, which expires after so long."""

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        """Let a token of a tenant, or of any, hold no longer; False if there is none that does."""

    async def session(self, hash: str) -> SessionRow | None:
        """One sign-in, expired or not; none for a disabled tenant."""

    async def put_session(self, row: SessionRow, lasts: int) -> None:
        """Keep a sign-in for so long; those that have expired go."""

    async def end_sessions(self, *, hash: str | None = None, user: str | None = None) -> None:
        """End one sign-in, or all of a person."""

    async def claim_request(self, new: RequestClaim) -> ResponseRow | int:
        """When the request was first begun, if the caller is to carry it out; else who did, or does now."""

    async def save_response(self, row: ResponseRow) -> None:
        """Remember the answer to a request."""

    async def response_usage(self, tenant: str) -> tuple[int, int]:
        """Return how many answers of a tenant are remembered, and their size in bytes."""

    async def drop_request(self, tenant: str, key: str) -> None:
        """Forget a request that came to nothing."""


async def token_invalid_reason(accounts: AccountStore, token: TokenRow, now: int) -> str | None:
    """Return why a token no longer works although it was not revoked; None if it works.

    A token works while its maker could still create it. A token that a token created ends with that one, so
    the chain is followed up to the user, or to the store itself, where it began.
    """
    for _ in range(_LONGEST_CHAIN):
        if token.maker_user is not None:
            return _invalid_by_user(await accounts.user(token.maker_user), token)
        if token.maker_token is None:
            return None
        maker = await accounts.token(token.maker_token)
        if maker is None or maker.is_over(now):
            return f"token {token.maker_token}, which created it, has ended"
        token = maker
    return f"it is more than {_LONGEST_CHAIN} tokens away from the user who began"


def _invalid_by_user(user: UserRow | None, token: TokenRow) -> str | None:
    if user is None:
        return "the user who created it was erased"
    if user.disabled_at is not None:
        return f"{user.email}, who created it, is disabled"
    for member in user.members:
        reaches = member.active and (member.tenant == token.tenant or member.role is Role.OWNER)
        if reaches and ranks_at_least(member.role, token.role) and (member.payloads or not token.payloads):
            return None
    return f"{user.email}, who created it, no longer has the rights that it gives"
