"""Accounts: tenants, users, tokens, sessions and remembered responses.

Every call names the tenant it is about; a view of one tenant knows no other.
No secret is stored: passwords and tokens are hashed before they reach the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec

from redrive.core.roles import Role, ranks_at_least
from redrive.core.transitions import AuditWrite
from redrive.errors import RedriveError
from redrive.record_fields import as_dict, replace
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements, load_migrations

SQL = Statements("accounts.sql")

_LONGEST_CHAIN = 8
_CREATE_TABLE = re.compile(r"^CREATE TABLE (?:\w+\.)?(\w+)", re.MULTILINE)


class TokenKind(StrEnum):
    """Kinds of tokens: a key, a signed token, or a code that signs a user in once."""

    KEY = "key"
    JWT = "jwt"
    CODE = "code"


class TenantRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An organisation. A disabled one keeps its data, and none of its credentials works."""

    tenant: str
    created_at: int = 0
    created_by: str = ""
    disabled_at: int | None = None


class MemberRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's membership of a tenant. With `payloads`, the user may read payloads."""

    user: str
    tenant: str
    role: Role
    payloads: bool = False
    active: bool = True


class UserRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's account. `password` is a hash, or None if none was set or the call does not read it.

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
    """A token. Empty `workflows` or `steps` means all. `hash` is the hash of its secret, and empty in lists.

    `maker_user` or `maker_token` is the id of its creator; both are None for a token that was created on the store
    itself. `user` is the user whom a code signs in.
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
    steps: tuple[str, ...] = ()

    def is_over(self, now: int) -> bool:
        """Return True if the token was revoked or has expired."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


class NewUser(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user to be created. Without a password, a code for one sign-in is made."""

    email: str
    tenant: str
    role: Role
    password: str | None = None
    payloads: bool = False


class NewToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token to be created. `lasts` is in seconds; a signed token always expires."""

    tenant: str
    role: Role
    name: str
    kind: TokenKind = TokenKind.KEY
    workflows: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    payloads: bool = False
    lasts: int | None = None


class IssuedToken(msgspec.Struct, frozen=True, gc=False):
    """A new token and its secret, which is shown only once."""

    token: TokenRow
    secret: str


class SessionRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's sign-in for a tenant. `hash` is the hash of the secret in the browser's cookie."""

    hash: str
    tenant: str
    user: str
    created_at: int = 0
    expires_at: int = 0


class RequestClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that a server is about to execute under a key. `digest` identifies its content.

    A request that began more than `patience` ago and has no response belongs to a server that died.
    """

    tenant: str
    key: str
    digest: str
    patience: int
    keeps: int


class ResponseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that began under a key, with its response as soon as there is one."""

    tenant: str
    key: str
    digest: str
    status: int | None
    body: str | None


class AccountStore:
    """Calls about accounts and credentials. Each is one transaction and safe to repeat."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @read_call()
    async def tenants(self, session: Session) -> list[TenantRow]:
        """Return all registered tenants, by name."""
        return [build_record(TenantRow, row) for row in await session.rows(SQL["tenants"])]

    @write_call()
    async def put_tenant(self, session: Session, row: TenantRow, audit: AuditWrite) -> bool:
        """Register, disable or enable a tenant; return False, and write no audit line, if nothing changed."""
        disabled = row.disabled_at is not None
        return await session.change(
            SQL["put_tenant"], audit, tenant=row.tenant, created_by=row.created_by, disabled=disabled
        )

    @write_call()
    async def erase(self, session: Session, tenant: str, limit: int) -> int:
        """Remove up to `limit` runs of a tenant with all their rows; when no runs are left, everything else.

        Return the number of removed rows. Nothing is left when that is 0.
        """
        async with session.transaction():
            ours = _migrated_tables(f"{__package__}.{session.dialect}")
            tables = await session.rows(SQL["tables_with_tenant"], ours=list(ours))
            runs = [row[0] for row in await session.rows(SQL["runs_to_erase"], tenant=tenant, most=limit)]
            erased = 0
            for table, of_run in tables:
                if of_run or not runs:
                    name = "erase_run_rows" if runs else "erase_tenant_rows"
                    statement = SQL[name].text(session.dialect).format(table=table)
                    erased += len(await session.rows(statement, tenant=tenant, runs=runs))
            if runs:
                return erased + len(await session.rows(SQL["erase_runs"], tenant=tenant, runs=runs))
            await session.rows(SQL["erase_users_without_tenant"])
        return erased

    @read_call()
    async def user(self, session: Session, id: str) -> UserRow | None:
        """Return an account with its password and all memberships."""
        found = await _read_users(session, "user", None, id=id)
        return found[0] if found else None

    @read_call()
    async def users_by_email(self, session: Session, email: str) -> list[UserRow]:
        """Return the accounts with an address, each with its password and all memberships."""
        return await _read_users(session, "users_by_email", None, email=email)

    @read_call()
    async def users(self, session: Session, tenant: str | None) -> list[UserRow]:
        """Return the members of a tenant, or all users, by address, without passwords."""
        return await _read_users(session, "users", tenant, tenant=tenant)

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        """Add an account with its memberships; return False if its home has the id or the address already."""
        try:
            await self._add_user(user, audit)
        except _AddressTakenError:
            return False
        return True

    @write_call()
    async def _add_user(self, session: Session, user: UserRow, audit: AuditWrite) -> None:
        async with session.transaction():
            # The memberships come first: row level security shows a tenant the users that are its members.
            for member in user.members:
                await session.rows(SQL["put_member"], **as_dict(member))
            account = {"id": user.id, "email": user.email, "home": user.home, "password": user.password}
            if not await session.rows(SQL["insert_user"], **account):
                raise _AddressTakenError
            await session.note([audit])

    @write_call()
    async def change_user(self, session: Session, user: UserRow, audit: AuditWrite) -> bool:
        """Change the password, if one is given, and disable or enable the user; return False if there is none."""
        account = {"id": user.id, "email": user.email, "password": user.password}
        return await session.change(SQL["change_user"], audit, **account, disabled=user.disabled_at is not None)

    @write_call()
    async def put_member(self, session: Session, member: MemberRow, audit: AuditWrite) -> None:
        """Add or replace a user's membership of a tenant."""
        await session.change(SQL["put_member"], audit, **as_dict(member))

    @read_call()
    async def token(self, session: Session, id: str) -> TokenRow | None:
        """Return a token with its hash, even if it is expired or revoked, unless its tenant is disabled."""
        row = await session.row(SQL["token"], id=id)
        return None if row is None else _token_row(row)

    @read_call()
    async def tokens(self, session: Session, tenant: str | None) -> list[TokenRow]:
        """Return the tokens of a tenant, or of all, newest first."""
        return [_token_row(row) for row in await session.rows(SQL["tokens"], tenant=tenant)]

    @write_call()
    async def put_token(self, session: Session, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        """Add a token that expires after `lasts` microseconds."""
        names = {name: json.dumps(getattr(row, name), ensure_ascii=False) for name in ("workflows", "steps")}
        await session.change(SQL["put_token"], audit, **{**as_dict(row), **names}, lasts=lasts)

    @write_call()
    async def revoke_token(self, session: Session, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        """Revoke a token of a tenant, or of any; return False if there is none that is not revoked."""
        return await session.change(SQL["revoke_token"], audit, id=id, tenant=tenant)

    @read_call()
    async def session(self, session: Session, hash: str) -> SessionRow | None:
        """Return a sign-in, even if it is expired, unless its tenant is disabled."""
        row = await session.row(SQL["session"], hash=hash)
        return None if row is None else build_record(SessionRow, row)

    @write_call()
    async def put_session(self, session: Session, row: SessionRow, lasts: int) -> None:
        """Store a sign-in that expires after `lasts` microseconds, and remove those that have expired."""
        await session.rows(SQL["delete_old_sessions"])
        await session.rows(SQL["put_session"], **as_dict(row), lasts=lasts)

    @write_call()
    async def end_sessions(self, session: Session, *, hash: str | None = None, user: str | None = None) -> None:
        """End one sign-in, or all of a user."""
        await session.rows(SQL["end_sessions"], hash=hash, user=user)

    @write_call()
    async def claim_request(self, session: Session, new: RequestClaim) -> ResponseRow | int:
        """Claim a request for the caller to execute; return the time when it first began.

        If the request was executed, or another server executes it, return its row instead.
        """
        async with session.transaction():
            await session.rows(SQL["delete_old_answers"], tenant=new.tenant)
            begun = await session.value(SQL["claim_request"], **as_dict(new))
            if begun is not None:
                return int(begun)
            return build_record(ResponseRow, await session.row(SQL["answer"], tenant=new.tenant, key=new.key))

    @write_call()
    async def save_response(self, session: Session, row: ResponseRow) -> None:
        """Store the response to a request."""
        await session.rows(SQL["save_response"], **as_dict(row))

    @read_call()
    async def response_usage(self, session: Session, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's stored responses, and their size in bytes."""
        count, size = await session.row(SQL["response_usage"], tenant=tenant)
        return int(count), int(size)

    @write_call()
    async def drop_request(self, session: Session, tenant: str, key: str) -> None:
        """Remove a request that had no effect."""
        await session.rows(SQL["drop_request"], tenant=tenant, key=key)


class _AddressTakenError(RedriveError):
    """Rolls back a user whose address is taken."""


async def _read_users(session: Session, statement: str, of_tenant: str | None, **values: Any) -> list[UserRow]:
    """Return the users that a statement finds, each with the memberships of one tenant, or of all."""
    users = [build_record(UserRow, row) for row in await session.rows(SQL[statement], **values)]
    rows = await session.rows(SQL["members"], users=[user.id for user in users], tenant=of_tenant)
    members: dict[str, list[MemberRow]] = {}
    for row in rows:
        member = build_record(MemberRow, row, role=Role, payloads=bool, active=bool)
        members.setdefault(member.user, []).append(member)
    return [replace(user, members=tuple(members.get(user.id, ()))) for user in users]


def _token_row(row: Sequence[Any]) -> TokenRow:
    def read_names(names: str) -> tuple[str, ...]:
        return tuple(json.loads(names))

    return build_record(TokenRow, row, kind=TokenKind, role=Role, payloads=bool, workflows=read_names, steps=read_names)


@cache
def _migrated_tables(package: str) -> tuple[str, ...]:
    """Return the tables that a store's migrations create. `erase` leaves all other tables alone."""
    return tuple(name for migration in load_migrations(package) for name in _CREATE_TABLE.findall(migration.text))


async def token_invalid_reason(accounts: AccountStore, token: TokenRow, now: int) -> str | None:
    """Return why a token no longer works although it was not revoked; None if it works.

    A token works while its maker could still create it. A token that a token created ends with that one, so
    the chain is followed up to the user, or to the store itself, where it began.
    """
    for _ in range(_LONGEST_CHAIN):
        if token.maker_user is not None:
            user = await accounts.user(token.maker_user)
            if user is None:
                return "the user who created it was erased"
            if user.disabled_at is not None:
                return f"{user.email}, who created it, is disabled"
            for member in user.members:
                reaches = member.active and (member.tenant == token.tenant or member.role is Role.OWNER)
                if reaches and ranks_at_least(member.role, token.role) and (member.payloads or not token.payloads):
                    return None
            return f"{user.email}, who created it, no longer has the rights that it gives"
        if token.maker_token is None:
            return None
        maker = await accounts.token(token.maker_token)
        if maker is None or maker.is_over(now):
            return f"token {token.maker_token}, which created it, has ended"
        token = maker
    return f"it is more than {_LONGEST_CHAIN} tokens away from the user who began"


async def find_people(accounts: AccountStore, who: str) -> set[str]:
    """Return the name of a caller in lower case; of a token also the names of who created it, up to the user."""
    names = {who.lower()}
    id = who.rpartition(":")[2] if who.startswith("token:") else None
    while id is not None and len(names) <= _LONGEST_CHAIN:
        row = await accounts.token(id)
        if row is None or (row.maker_user is None and row.maker_token is None):  # made on the store
            break
        names.add(row.created_by.lower())
        id = row.maker_token
    return names
