"""Administration of tenants, users and tokens, with permission checks and the audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.audit import AuditEvent
from redrive.core.new_run import check_tenant_name
from redrive.core.roles import ALL_TENANTS, DEFAULT_TENANT, USER_ROLES, Permission, Principal, Role
from redrive.core.transitions import AuditWrite
from redrive.desk.audit import export_records
from redrive.desk.validation import require_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.server.auth.secrets import hash_password, hash_secret, new_api_key, new_code, new_secret, sign_token
from redrive.settings import is_mail_address
from redrive.store.accounts import (
    AccountStore,
    IssuedToken,
    MemberRow,
    NewToken,
    NewUser,
    TenantRow,
    TokenKind,
    TokenRow,
    UserRow,
)
from redrive.store.port import Store

CODE_LIFETIME = 24 * 3600 * MICROS
JWT_LIFETIME = 30 * 24 * 3600
MAX_TOKEN_LIFETIME = 10 * 365 * 24 * 3600
_ERASE_BATCH = 500


class AccountAdmin:
    """Manages tenants, users and tokens on behalf of one principal. `secret_key` signs tokens."""

    def __init__(self, accounts: AccountStore, clock: Clock, by: Principal, secret_key: str = "") -> None:
        self._accounts = accounts
        self._clock = clock
        self._by = by
        self._secret_key = secret_key

    async def tenants(self) -> list[TenantRow]:
        """Return all tenants for an owner, only their own for any other principal."""
        rows = await self._accounts.tenants()
        everything = self._by.may(Permission.MANAGE_TENANTS)
        return [row for row in rows if everything or row.tenant == self._by.tenant]

    async def tenant(self, name: str) -> TenantRow:
        for row in await self.tenants():
            if row.tenant == name:
                return row
        raise NotFound(Reason(ReasonCode.TENANT_NOT_FOUND, name=name))

    async def create_tenant(self, name: str) -> TenantRow:
        """Register a tenant; registering it twice changes nothing."""
        self._by.need(Permission.MANAGE_TENANTS)
        row = TenantRow(tenant=_check_tenant(name), created_by=self._by.who)
        if name not in {each.tenant for each in await self._accounts.tenants()}:
            await self._accounts.put_tenant(row, self._make_audit(AuditEvent.TENANT_CREATED, name, name))
        return await self.tenant(name)

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        """Make all credentials of a tenant invalid, or valid again."""
        self._by.need(Permission.MANAGE_TENANTS)
        row = replace(await self.tenant(name), disabled_at=1 if disabled else None)
        line = self._make_audit(AuditEvent.TENANT_CHANGED, name, name, after={"disabled": disabled})
        await self._accounts.put_tenant(row, line)
        return await self.tenant(name)

    async def erase_tenant(self, name: str) -> int:
        """Delete all data of a tenant, after its credentials were made invalid; return the number of rows."""
        self._by.need(Permission.MANAGE_TENANTS)
        if name == self._by.tenant:
            raise Conflict(Reason(ReasonCode.OWN_TENANT_KEPT, name=name))
        await self.disable_tenant(name, disabled=True)
        erased = 0
        while count := await self._accounts.erase(name, _ERASE_BATCH):
            erased += count
        return erased

    def make_erasure_audit(self, name: str, rows: int) -> AuditWrite:
        """Return the audit line about an erased tenant, for the log of all tenants."""
        return self._make_audit(AuditEvent.TENANT_ERASED, "", name, after={"rows": rows})

    def make_export_audit(self, name: str) -> AuditWrite:
        """Return the audit line about the export of a tenant."""
        return self._make_audit(AuditEvent.TENANT_EXPORTED, name, name)

    async def users(self, tenant: str | None) -> list[UserRow]:
        self._by.need(Permission.MANAGE_PEOPLE)
        return await self._accounts.users(tenant)

    async def user(self, tenant: str | None, id: str, near: str | None = None) -> UserRow:
        """Return one user of a tenant, by id or email.

        Several tenants may each have an account for an email; the one of a member of tenant `near` comes first.
        """
        rows = await self.users(tenant)
        found = [row for row in rows if row.id == id] or [row for row in rows if row.email == id]
        if len(found) > 1:
            found = [row for row in found if _find_member(row, near) is not None] or found
        if not found:
            raise NotFound(Reason(ReasonCode.USER_NOT_FOUND, id=id))
        if len(found) > 1:
            raise Conflict(Reason(ReasonCode.USER_AMBIGUOUS, email=id))
        return found[0]

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        """Create a user in a tenant; return an invitation code if no password was given.

        For an email that has an account only in other tenants, a separate account is created, so that the response
        reveals nothing about them. An OWNER, who sees all tenants, must give the existing account a role instead.
        """
        self._by.need(Permission.MANAGE_PEOPLE)
        _require_user_role(new.role)
        self._by.require_grant(new.tenant, new.role, payloads=new.payloads)
        if not is_mail_address(new.email):
            raise InputError(Reason(ReasonCode.EMAIL_INVALID))
        email = new.email.lower()
        everywhere = self._by.may(Permission.MANAGE_TENANTS)
        if any(row.email == email for row in await self._accounts.users(None if everywhere else new.tenant)):
            raise Conflict(Reason(ReasonCode.USER_EXISTS, email=email))
        id = self._clock.new_id()
        member = MemberRow(user=id, tenant=new.tenant, role=new.role, payloads=new.payloads)
        password = None if new.password is None else await hash_password(new.password)
        row = UserRow(id=id, email=email, home=new.tenant, password=password, members=(member,))
        line = self._make_audit(AuditEvent.USER_CREATED, new.tenant, email, after=_describe_member(member))
        if not await self._accounts.add_user(row, line):
            raise Conflict(Reason(ReasonCode.USER_EXISTS, email=email))
        return row, None if password is not None else await self._create_code(row, member)

    async def code(self, user: UserRow, member: MemberRow) -> str:
        """Create a code with which a user signs in once, within a day, and chooses a new password."""
        self._require_rights_of(user)
        return await self._create_code(user, member)

    def _require_rights_of(self, user: UserRow) -> None:
        """Refuse to act for a user who has more rights than this principal, in any tenant."""
        for member in user.members:
            self._by.require_grant(member.tenant, member.role, payloads=member.payloads)

    async def _create_code(self, user: UserRow, member: MemberRow) -> str:
        code = new_code()
        row = TokenRow(
            id=self._clock.new_id(),
            kind=TokenKind.CODE,
            tenant=member.tenant,
            role=member.role,
            name=f"code for {user.email}",
            created_by=self._by.who,
            user=user.id,
            hash=hash_secret(code),
            maker_user=self._by.user or None,
            maker_token=self._by.token or None,
        )
        line = self._make_audit(AuditEvent.TOKEN_CREATED, member.tenant, row.id, after={"kind": "code"})
        await self._accounts.put_token(row, CODE_LIFETIME, line)
        return f"{row.id}.{code}"

    async def set_role(self, id: str, tenant: str, role: Role, *, payloads: bool, active: bool) -> UserRow:
        """Change a membership. Neither the old nor the new role may rank above that of the principal.

        Activating a membership counts as giving all its rights. Rights that it keeps do not count as given.
        """
        _require_user_role(role)
        user = await self.user(tenant, id)
        now = _find_member(user, tenant)
        if now is not None:
            self._by.require_grant(tenant, now.role, payloads=False)
        keeps_payloads = now is not None and now.payloads and (now.active or not active)
        self._by.require_grant(tenant, role, payloads=payloads and not keeps_payloads)
        member = MemberRow(user=user.id, tenant=tenant, role=role, payloads=payloads, active=active)
        before = None if now is None else _describe_member(now)
        line = self._make_audit(
            AuditEvent.USER_CHANGED, tenant, user.email, before=before, after=_describe_member(member)
        )
        await self._accounts.put_member(member, line)
        return await self.user(tenant, user.id)

    async def add_role(self, id: str, tenant: str, role: Role, *, payloads: bool) -> tuple[UserRow, str]:
        """Give a user of another tenant a role in this one. Only an OWNER may do this.

        An administrator of the other tenant may know the user's password or a code. So both are made invalid, and
        the returned code lets the user choose a new password. That code opens every tenant of the user, so the
        OWNER needs all rights of the user.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        self._by.require_grant(_check_tenant(tenant), role, payloads=payloads)
        user = await self.user(None, id)
        self._require_rights_of(user)
        if any(row.email == user.email for row in await self.users(tenant)):
            raise Conflict(Reason(ReasonCode.TENANT_HAS_USER, tenant=tenant, email=user.email))
        member = MemberRow(user=user.id, tenant=tenant, role=role, payloads=payloads)
        await self.set_password(user, new_secret())
        for row in await self._accounts.tokens(None):
            if row.kind is TokenKind.CODE and row.user == user.id and row.revoked_at is None:
                line = self._make_audit(AuditEvent.TOKEN_REVOKED, row.tenant, row.id)
                await self._accounts.revoke_token(row.id, row.tenant, line)
        line = self._make_audit(AuditEvent.USER_CHANGED, tenant, user.email, after=_describe_member(member))
        await self._accounts.put_member(member, line)
        return await self.user(None, user.id), await self._create_code(user, member)

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        """Disable a user in all tenants, or enable one again, which only an OWNER may.

        Enabling a user counts as giving all rights of the memberships.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        user = await self.user(None, id)
        if not disabled:
            self._require_rights_of(user)
        changed = replace(user, password=None, disabled_at=1 if disabled else None)
        line = self._make_audit(AuditEvent.USER_CHANGED, self._by.tenant, user.email, after={"disabled": disabled})
        await self._accounts.change_user(changed, line)
        if disabled:
            await self._accounts.end_sessions(user=user.id)
        return await self.user(None, user.id)

    async def set_password(self, user: UserRow, password: str) -> None:
        """Set another password, and end the sessions that used the old one."""
        line = self._make_audit(AuditEvent.USER_CHANGED, self._by.tenant, user.email, after={"password": "changed"})
        await self._accounts.change_user(replace(user, password=await hash_password(password)), line)
        await self._accounts.end_sessions(user=user.id)

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        """Return the tokens of a tenant without invitation codes, newest first."""
        self._by.need(Permission.MANAGE_PEOPLE)
        return [row for row in await self._accounts.tokens(tenant) if row.kind is not TokenKind.CODE]

    async def token(self, tenant: str | None, id: str) -> TokenRow:
        for row in await self.tokens(tenant):
            if row.id == id:
                return row
        raise NotFound(Reason(ReasonCode.TOKEN_NOT_FOUND, id=id))

    async def create_token(self, new: NewToken) -> IssuedToken:
        """Create a token. Only the return value contains its secret."""
        self._by.need(Permission.MANAGE_PEOPLE)
        self._by.require_grant(new.tenant, new.role, payloads=new.payloads, workflows=new.workflows or None)
        everywhere = new.tenant == ALL_TENANTS and new.role is Role.WORKER  # only an OWNER grants in another tenant
        if new.steps and new.role is not Role.WORKER:
            raise InputError(Reason(ReasonCode.STEPS_NEED_WORKER))
        if new.lasts is not None and not 1 <= new.lasts <= MAX_TOKEN_LIFETIME:
            raise InputError(Reason(ReasonCode.TOKEN_LIFETIME_INVALID))
        lasts = new.lasts or (JWT_LIFETIME if new.kind is TokenKind.JWT else None)
        row = TokenRow(
            id=self._clock.new_id(),
            kind=new.kind,
            tenant=new.tenant if everywhere else _check_tenant(new.tenant),
            role=new.role,
            name=require_text("name", new.name),
            created_by=self._by.who,
            payloads=new.payloads,
            workflows=tuple(dict.fromkeys(require_text("workflow", each) for each in new.workflows)),
            steps=tuple(dict.fromkeys(require_text("step", each) for each in new.steps)),
            maker_user=self._by.user or None,
            maker_token=self._by.token or None,
        )
        secret, stored = new_api_key(row.id)
        if new.kind is TokenKind.JWT:
            if not self._secret_key:
                raise Conflict(Reason(ReasonCode.SECRET_KEY_MISSING))
            ends = self._clock.now() // MICROS + (lasts or JWT_LIFETIME)
            secret, stored = sign_token(row, ends, self._secret_key), ""
        scope = {"role": row.role.value, "payloads": row.payloads, "workflows": list(row.workflows)}
        if row.steps:
            scope["steps"] = list(row.steps)
        after = {"kind": row.kind.value, **scope}
        line = self._make_audit(AuditEvent.TOKEN_CREATED, new.tenant, row.id, after=after)
        await self._accounts.put_token(replace(row, hash=stored), None if lasts is None else lasts * MICROS, line)
        return IssuedToken(await self.token(new.tenant, row.id), secret)

    async def revoke_token(self, tenant: str | None, id: str) -> TokenRow:
        """Revoke a token; revoking it twice changes nothing."""
        row = await self.token(tenant, id)
        self._by.require_grant(row.tenant, row.role, payloads=False)
        line = self._make_audit(AuditEvent.TOKEN_REVOKED, row.tenant, row.id)
        await self._accounts.revoke_token(id, tenant, line)
        return await self.token(tenant, id)

    def _make_audit(
        self, event: AuditEvent, tenant: str, subject: str, before: Any = None, after: Any = None
    ) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=tenant,
            by=self._by.who,
            subject=subject,
            before=None if before is None else json.dumps(before, ensure_ascii=False),
            after=None if after is None else json.dumps(after, ensure_ascii=False),
            token=self._clock.new_id(),
        )


def _require_user_role(role: Role) -> None:
    if role not in USER_ROLES:
        raise InputError(Reason(ReasonCode.ROLE_UNKNOWN, given=role.value, known=USER_ROLES))


def _find_member(user: UserRow, tenant: str | None) -> MemberRow | None:
    return next((each for each in user.members if each.tenant == tenant), None)


def _describe_member(member: MemberRow) -> dict[str, Any]:
    return {"role": member.role.value, "payloads": member.payloads, "active": member.active}


def _check_tenant(name: str) -> str:
    return check_tenant_name(require_text("tenant", name))


class MembershipChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The changes of a membership; None keeps a value."""

    role: Role | None = None
    payloads: bool | None = None
    active: bool | None = None


async def erase_tenant_data(store: Store, access: AccountAdmin, name: str) -> int:
    """Delete all data of a tenant, and write that to the log of all tenants; return the number of rows."""
    rows = await access.erase_tenant(name)
    await store.note([access.make_erasure_audit(name, rows)])
    return rows


async def export_tenant_data(store: Store, access: AccountAdmin, name: str) -> AsyncIterator[tuple[str, Any]]:
    """Return all records of a tenant with their kinds, and write the export to its audit log."""
    await store.note([access.make_export_audit(name)])
    return export_records(store.tenant_view(name), name)


async def create_sign_in_code(access: AccountAdmin, id: str, tenant: str | None = None) -> tuple[UserRow, str]:
    """Create a code with which a user signs in once, in this tenant if the user is a member of it."""
    user = await access.user(None, id, near=tenant)
    if not user.members:
        raise Conflict(Reason(ReasonCode.USER_WITHOUT_TENANT))
    return user, await access.code(user, _find_member(user, tenant) or user.members[0])


async def change_membership(
    access: AccountAdmin, user: UserRow, tenant: str, part: MembershipChange
) -> tuple[UserRow, str | None]:
    """Change a membership; a user who was not a member of the tenant gets a code as well."""
    now = _find_member(user, tenant)
    if now is None:
        await access.tenant(tenant)
        return await access.add_role(user.id, tenant, part.role or Role.VIEWER, payloads=bool(part.payloads))
    changed = await access.set_role(
        user.id,
        tenant,
        now.role if part.role is None else part.role,
        payloads=now.payloads if part.payloads is None else part.payloads,
        active=now.active if part.active is None else part.active,
    )
    return changed, None


def make_operator(who: str) -> Principal:
    """Return a principal with all rights, for a command that works on the store directly."""
    return Principal(who=who, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True)


async def create_first_owner(store: Store, clock: Clock, email: str) -> str | None:
    """Create the first owner, unless a user exists; return an invitation code."""
    if await store.accounts.users(None):
        return None
    access = AccountAdmin(store.accounts, clock, make_operator("first start"))
    await access.create_tenant(DEFAULT_TENANT)
    try:
        _, code = await access.create_user(NewUser(email=email, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True))
    except Conflict:
        return None
    return code
