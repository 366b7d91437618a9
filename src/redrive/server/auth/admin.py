"""Managing tenants, people and tokens: who may, what is written, what the audit log says about it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import DEFAULT_TENANT, Permission, Principal, Role, check_tenant_name
from redrive.core.transitions import AuditWrite
from redrive.desk.audit import export_records
from redrive.desk.validation import require_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.records import replace
from redrive.server.auth.secrets import hash_password, hash_secret, new_api_key, new_code, new_secret, sign_token
from redrive.server.contract import IssuedToken, NewToken, NewUser
from redrive.settings import is_mail_address
from redrive.store.accounts import AccountStore, MemberRow, TenantRow, TokenKind, TokenRow, UserRow
from redrive.store.port import Store

# -- Managing tenants, people and tokens: who may, what is written, what the audit log says about it -----


CODE_LIFETIME = 24 * 3600 * MICROS
JWT_LIFETIME = 30 * 24 * 3600
MAX_TOKEN_LIFETIME = 10 * 365 * 24 * 3600
_ERASE_BATCH = 500


class AccountAdmin:
    """What one principal does about tenants, people and tokens. `secret_key` signs tokens."""

    def __init__(self, accounts: AccountStore, clock: Clock, by: Principal, secret_key: str = "") -> None:
        self._accounts = accounts
        self._clock = clock
        self._by = by
        self._secret_key = secret_key

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantRow]:
        """All tenants for an owner, one's own for everybody else."""
        rows = await self._accounts.tenants()
        everything = self._by.may(Permission.MANAGE_TENANTS)
        return [row for row in rows if everything or row.tenant == self._by.tenant]

    async def tenant(self, name: str) -> TenantRow:
        """One tenant."""
        for row in await self.tenants():
            if row.tenant == name:
                return row
        raise NotFound(f"there is no tenant {name!r}")

    async def create_tenant(self, name: str) -> TenantRow:
        """Register a tenant; registering it twice changes nothing."""
        self._by.need(Permission.MANAGE_TENANTS)
        row = TenantRow(tenant=_check_tenant(name), created_by=self._by.who)
        if name not in {each.tenant for each in await self._accounts.tenants()}:
            await self._accounts.put_tenant(row, self._make_audit(AuditEvent.TENANT_CREATED, name, name))
        return await self.tenant(name)

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        """Let no credential of a tenant hold, or let them hold again."""
        self._by.need(Permission.MANAGE_TENANTS)
        row = replace(await self.tenant(name), disabled_at=1 if disabled else None)
        line = self._make_audit(AuditEvent.TENANT_CHANGED, name, name, after={"disabled": disabled})
        await self._accounts.put_tenant(row, line)
        return await self.tenant(name)

    async def erase_tenant(self, name: str) -> int:
        """Remove everything a tenant has; its credentials end first. Returns how many rows went."""
        self._by.need(Permission.MANAGE_TENANTS)
        if name == self._by.tenant:
            raise Conflict(f"tenant {name!r} is the one you belong to; let an owner of another erase it")
        await self.disable_tenant(name, disabled=True)
        erased = 0
        while went := await self._accounts.erase(name, _ERASE_BATCH):
            erased += went
        return erased

    def erased(self, name: str, rows: int) -> AuditWrite:
        """The line that stays of a tenant, in the log of all tenants."""
        return self._make_audit(AuditEvent.TENANT_ERASED, "", name, after={"rows": rows})

    def exported(self, name: str) -> AuditWrite:
        """The line that says who took a tenant's data along."""
        return self._make_audit(AuditEvent.TENANT_EXPORTED, name, name)

    # -- people ----------------------------------------------------------------------------------------

    async def users(self, tenant: str | None) -> list[UserRow]:
        """The people of a tenant."""
        self._by.need(Permission.MANAGE_PEOPLE)
        return await self._accounts.users(tenant)

    async def user(self, tenant: str | None, id: str, near: str | None = None) -> UserRow:
        """Return one user of a tenant, by id or address.

        Several tenants may each have an account for an address; the one that tenant `near` knows comes first.
        """
        rows = await self.users(tenant)
        found = [row for row in rows if row.id == id] or [row for row in rows if row.email == id]
        if len(found) > 1:
            found = [row for row in found if _find_member(row, near) is not None] or found
        if not found:
            raise NotFound(f"there is no user {id!r}")
        if len(found) > 1:
            raise Conflict(f"{id} has an account in several tenants: name the user by id")
        return found[0]

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        """Create an account in a tenant; returns the code to sign in with where no password was given.

        An address that only other tenants know gets an account of its own here, and the answer is the same as
        for an unknown one. An OWNER, who knows all tenants, is told to give the existing account a role.
        """
        self._by.need(Permission.MANAGE_PEOPLE)
        self._by.require_grant(new.tenant, new.role, payloads=new.payloads)
        email = _check_email(new.email)
        everywhere = self._by.may(Permission.MANAGE_TENANTS)
        if any(row.email == email for row in await self._accounts.users(None if everywhere else new.tenant)):
            raise Conflict(f"{email} has an account already: give it a role in this tenant instead")
        id = self._clock.new_id()
        member = MemberRow(user=id, tenant=new.tenant, role=new.role, payloads=new.payloads)
        password = None if new.password is None else await hash_password(new.password)
        row = UserRow(id=id, email=email, home=new.tenant, password=password, members=(member,))
        line = self._make_audit(AuditEvent.USER_CREATED, new.tenant, email, after=_describe_member(member))
        if not await self._accounts.add_user(row, line):
            raise Conflict(f"{email} has an account already: give it a role in this tenant instead")
        code = None if password is not None else await self._create_code(row, member)
        return row, code

    async def code(self, user: UserRow, member: MemberRow) -> str:
        """Create a code with which a user can sign in once, within a day, and choose a new password."""
        self._require_rights_of(user)
        return await self._create_code(user, member)

    def _require_rights_of(self, user: UserRow) -> None:
        """Refuse what would let this principal sign in as a user who has more rights, in whatever tenant."""
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
        """Change a user's membership in a tenant; neither the old nor the new role may rank above one's own.

        To activate a membership again is to give all of it. Rights that it has and keeps are not given.
        """
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
        """Give a user of another tenant a role in this one, which only an OWNER may.

        An admin of the other tenant may know the user's password or a code. So both are made invalid, and the
        returned code lets the user sign in and choose a new password. Because that code opens every tenant of
        the user, the OWNER needs all rights that the user has.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        self._by.require_grant(_check_tenant(tenant), role, payloads=payloads)
        user = await self.user(None, id)
        self._require_rights_of(user)
        if any(row.email == user.email for row in await self.users(tenant)):
            raise Conflict(f"tenant {tenant!r} has its own account for {user.email}: change that one's role")
        member = MemberRow(user=user.id, tenant=tenant, role=role, payloads=payloads)
        await self._revoke_sign_in(user)
        line = self._make_audit(AuditEvent.USER_CHANGED, tenant, user.email, after=_describe_member(member))
        await self._accounts.put_member(member, line)
        return await self.user(None, user.id), await self._create_code(user, member)

    async def _revoke_sign_in(self, user: UserRow) -> None:
        """Let nothing hold that a person could sign in with until now, nor what they are signed in to."""
        await self.set_password(user, new_secret())
        for row in await self._accounts.tokens(None):
            if row.kind is TokenKind.CODE and row.user == user.id and row.revoked_at is None:
                line = self._make_audit(AuditEvent.TOKEN_REVOKED, row.tenant, row.id)
                await self._accounts.revoke_token(row.id, row.tenant, line)

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        """Disable a user in all tenants, or enable one again, which only an OWNER may.

        To enable a user is to give all that the user's memberships give.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        user = await self.user(None, id)
        if not disabled:
            self._require_rights_of(user)
        about = replace(user, password=None, disabled_at=1 if disabled else None)
        line = self._make_audit(AuditEvent.USER_CHANGED, self._by.tenant, user.email, after={"disabled": disabled})
        await self._accounts.change_user(about, line)
        if disabled:
            await self._accounts.end_sessions(user=user.id)
        return await self.user(None, user.id)

    async def set_password(self, user: UserRow, password: str) -> None:
        """Another password; who is signed in with the old one no longer is."""
        line = self._make_audit(AuditEvent.USER_CHANGED, self._by.tenant, user.email, after={"password": "changed"})
        await self._accounts.change_user(replace(user, password=await hash_password(password)), line)
        await self._accounts.end_sessions(user=user.id)

    # -- tokens ----------------------------------------------------------------------------------------

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        """The tokens of a tenant, newest first; codes are not shown."""
        self._by.need(Permission.MANAGE_PEOPLE)
        return [row for row in await self._accounts.tokens(tenant) if row.kind is not TokenKind.CODE]

    async def token(self, tenant: str | None, id: str) -> TokenRow:
        """One token."""
        for row in await self.tokens(tenant):
            if row.id == id:
                return row
        raise NotFound(f"there is no token {id!r}")

    async def create_token(self, new: NewToken) -> IssuedToken:
        """Make a token. Its secret is in the answer and nowhere else."""
        self._by.need(Permission.MANAGE_PEOPLE)
        self._by.require_grant(new.tenant, new.role, payloads=new.payloads, workflows=new.workflows or None)
        lasts = _check_lifetime(new)
        row = TokenRow(
            id=self._clock.new_id(),
            kind=new.kind,
            tenant=_check_tenant(new.tenant),
            role=new.role,
            name=require_text("name", new.name),
            created_by=self._by.who,
            payloads=new.payloads,
            workflows=tuple(dict.fromkeys(require_text("workflow", each) for each in new.workflows)),
            maker_user=self._by.user or None,
            maker_token=self._by.token or None,
        )
        secret, stored = new_api_key(row.id)
        if new.kind is TokenKind.JWT and not self._secret_key:
            raise Conflict("signed tokens need REDRIVE_SECRET_KEY, which is not set here; make a key instead")
        if new.kind is TokenKind.JWT:
            ends = self._clock.now() // MICROS + (lasts or JWT_LIFETIME)
            secret, stored = sign_token(row, ends, self._secret_key), ""
        line = self._make_audit(AuditEvent.TOKEN_CREATED, new.tenant, row.id, after=_describe_token(row))
        await self._accounts.put_token(replace(row, hash=stored), None if lasts is None else lasts * MICROS, line)
        return IssuedToken(await self.token(new.tenant, row.id), secret)

    async def revoke_token(self, tenant: str | None, id: str) -> TokenRow:
        """Let a token hold no longer; revoking it twice changes nothing."""
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


def _check_lifetime(new: NewToken) -> int | None:
    if new.lasts is not None and not 1 <= new.lasts <= MAX_TOKEN_LIFETIME:
        raise InputError("a token lasts from a second to ten years")
    return new.lasts or (JWT_LIFETIME if new.kind is TokenKind.JWT else None)


def _find_member(user: UserRow, tenant: str | None) -> MemberRow | None:
    return next((each for each in user.members if each.tenant == tenant), None)


def _describe_member(member: MemberRow) -> dict[str, Any]:
    return {"role": member.role.value, "payloads": member.payloads, "active": member.active}


def _describe_token(row: TokenRow) -> dict[str, Any]:
    return {"kind": row.kind.value, "role": row.role.value, "payloads": row.payloads, "workflows": list(row.workflows)}


def _check_tenant(name: str) -> str:
    return check_tenant_name(require_text("tenant", name))


def _check_email(text: str) -> str:
    if not is_mail_address(text):
        raise InputError("an e-mail address is needed, such as ann@example.org")
    return text.lower()


# -- What is done about tenants and people in more than one step, on a server as at the keyboard ---------


class MembershipChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a person is to be to a tenant; what is left open stays as it is."""

    role: Role | None = None
    payloads: bool | None = None
    active: bool | None = None


async def erase_tenant_data(store: Store, access: AccountAdmin, name: str) -> int:
    """Remove everything a tenant has, and say so in the log of all; returns how many rows went."""
    rows = await access.erase_tenant(name)
    await store.note([access.erased(name, rows)])
    return rows


async def export_tenant_data(store: Store, access: AccountAdmin, name: str) -> AsyncIterator[tuple[str, Any]]:
    """Everything a tenant has, thing by thing under its kind; its log says who took it along."""
    await store.note([access.exported(name)])
    return export_records(store.tenant_view(name), name)


async def create_sign_in_code(access: AccountAdmin, id: str, tenant: str | None = None) -> tuple[UserRow, str]:
    """Create a code for a user to sign in with once: to this tenant, if the user is a member of it."""
    user = await access.user(None, id, near=tenant)
    if not user.members:
        raise Conflict("this user is not a member of any tenant: give them a role first")
    here = [each for each in user.members if each.tenant == tenant]
    return user, await access.code(user, (here or user.members)[0])


async def change_membership(
    access: AccountAdmin, user: UserRow, tenant: str, part: MembershipChange
) -> tuple[UserRow, str | None]:
    """Change a user's membership in a tenant; a user who had none there gets a code, too."""
    now = next((each for each in user.members if each.tenant == tenant), None)
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


# -- The first owner: where nobody is known yet, somebody must be able to come in ------------------------


def make_operator(who: str) -> Principal:
    """Whoever works on the store itself, past the server: there is nothing they could not do."""
    return Principal(who=who, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True)


async def create_first_owner(store: Store, clock: Clock, email: str) -> str | None:
    """Make an owner if nobody is known; returns the code that lets them in once."""
    if await store.accounts.users(None):
        return None
    access = AccountAdmin(store.accounts, clock, make_operator("first start"))
    await access.create_tenant(DEFAULT_TENANT)
    try:
        _, code = await access.create_user(NewUser(email=email, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True))
    except Conflict:
        return None
    return code
