"""Managing tenants, people and tokens: who may, what is written, what the audit log says about it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from redrive.clock import MICROS, Clock
from redrive.core.audit import Event
from redrive.core.roles import DEFAULT_TENANT, Permission, Principal, Role, one_tenant
from redrive.core.transitions import AuditWrite
from redrive.desk.audit import export
from redrive.desk.validation import short_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.frozen import dataclass
from redrive.server.auth.secrets import hash_of, hashed, new_code, new_key, new_secret, sign_token
from redrive.server.contract import Made, NewToken, NewUser
from redrive.settings import is_mailbox
from redrive.store.account_records import Accounts, MemberRow, TenantRow, TokenKind, TokenRow, UserRow
from redrive.store.port import Store

__all__ = ["Access", "Part", "code_for", "erased", "exported", "first_owner", "give_part", "operator"]


# -- Managing tenants, people and tokens: who may, what is written, what the audit log says about it -----


CODE_LASTS = 24 * 3600 * MICROS
JWT_LASTS = 30 * 24 * 3600
LONGEST = 10 * 365 * 24 * 3600
_BATCH = 500


class Access:
    """What one principal does about tenants, people and tokens. `secret_key` signs tokens."""

    def __init__(self, accounts: Accounts, clock: Clock, by: Principal, secret_key: str = "") -> None:
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
        row = TenantRow(tenant=_tenant(name), created_by=self._by.who)
        if name not in {each.tenant for each in await self._accounts.tenants()}:
            await self._accounts.put_tenant(row, self._line(Event.TENANT_CREATED, name, name))
        return await self.tenant(name)

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        """Let no credential of a tenant hold, or let them hold again."""
        self._by.need(Permission.MANAGE_TENANTS)
        row = replace(await self.tenant(name), disabled_at=1 if disabled else None)
        line = self._line(Event.TENANT_CHANGED, name, name, after={"disabled": disabled})
        await self._accounts.put_tenant(row, line)
        return await self.tenant(name)

    async def erase_tenant(self, name: str) -> int:
        """Remove everything a tenant has; its credentials end first. Returns how many rows went."""
        self._by.need(Permission.MANAGE_TENANTS)
        if name == self._by.tenant:
            raise Conflict(f"tenant {name!r} is the one you belong to; let an owner of another erase it")
        await self.disable_tenant(name, disabled=True)
        erased = 0
        while went := await self._accounts.erase(name, _BATCH):
            erased += went
        return erased

    def erased(self, name: str, rows: int) -> AuditWrite:
        """The line that stays of a tenant, in the log of all tenants."""
        return self._line(Event.TENANT_ERASED, "", name, after={"rows": rows})

    def exported(self, name: str) -> AuditWrite:
        """The line that says who took a tenant's data along."""
        return self._line(Event.TENANT_EXPORTED, name, name)

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
            found = [row for row in found if _member_of(row, near) is not None] or found
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
        self._by.need_grant(new.tenant, new.role, payloads=new.payloads)
        email = _email(new.email)
        everywhere = self._by.may(Permission.MANAGE_TENANTS)
        if any(row.email == email for row in await self._accounts.users(None if everywhere else new.tenant)):
            raise Conflict(f"{email} has an account already: give it a role in this tenant instead")
        id = self._clock.new_id()
        member = MemberRow(user=id, tenant=new.tenant, role=new.role, payloads=new.payloads)
        password = None if new.password is None else await hashed(new.password)
        row = UserRow(id=id, email=email, home=new.tenant, password=password, members=(member,))
        line = self._line(Event.USER_CREATED, new.tenant, email, after=_about(member))
        if not await self._accounts.add_user(row, line):
            raise Conflict(f"{email} has an account already: give it a role in this tenant instead")
        code = None if password is not None else await self._new_code(row, member)
        return row, code

    async def code(self, user: UserRow, member: MemberRow) -> str:
        """Create a code with which a user can sign in once, within a day, and choose a new password."""
        self._need_all_rights_of(user)
        return await self._new_code(user, member)

    def _need_all_rights_of(self, user: UserRow) -> None:
        """Refuse what would let this principal sign in as a user who has more rights, in whatever tenant."""
        for member in user.members:
            self._by.need_grant(member.tenant, member.role, payloads=member.payloads)

    async def _new_code(self, user: UserRow, member: MemberRow) -> str:
        code = new_code()
        row = TokenRow(
            id=self._clock.new_id(),
            kind=TokenKind.CODE,
            tenant=member.tenant,
            role=member.role,
            name=f"code for {user.email}",
            created_by=self._by.who,
            user=user.id,
            hash=hash_of(code),
            maker_user=self._by.user or None,
            maker_token=self._by.token or None,
        )
        line = self._line(Event.TOKEN_CREATED, member.tenant, row.id, after={"kind": "code"})
        await self._accounts.put_token(row, CODE_LASTS, line)
        return f"{row.id}.{code}"

    async def set_role(self, id: str, tenant: str, role: Role, *, payloads: bool, active: bool) -> UserRow:
        """Change a user's membership in a tenant; neither the old nor the new role may rank above one's own.

        To activate a membership again is to give all of it. Rights that it has and keeps are not given.
        """
        user = await self.user(tenant, id)
        now = _member_of(user, tenant)
        if now is not None:
            self._by.need_grant(tenant, now.role, payloads=False)
        keeps_payloads = now is not None and now.payloads and (now.active or not active)
        self._by.need_grant(tenant, role, payloads=payloads and not keeps_payloads)
        member = MemberRow(user=user.id, tenant=tenant, role=role, payloads=payloads, active=active)
        before = None if now is None else _about(now)
        line = self._line(Event.USER_CHANGED, tenant, user.email, before=before, after=_about(member))
        await self._accounts.put_member(member, line)
        return await self.user(tenant, user.id)

    async def add_role(self, id: str, tenant: str, role: Role, *, payloads: bool) -> tuple[UserRow, str]:
        """Give a user of another tenant a role in this one, which only an OWNER may.

        An admin of the other tenant may know the user's password or a code. So both are made invalid, and the
        returned code lets the user sign in and choose a new password. Because that code opens every tenant of
        the user, the OWNER needs all rights that the user has.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        self._by.need_grant(_tenant(tenant), role, payloads=payloads)
        user = await self.user(None, id)
        self._need_all_rights_of(user)
        if any(row.email == user.email for row in await self.users(tenant)):
            raise Conflict(f"tenant {tenant!r} has its own account for {user.email}: change that one's role")
        member = MemberRow(user=user.id, tenant=tenant, role=role, payloads=payloads)
        await self._forget(user)
        line = self._line(Event.USER_CHANGED, tenant, user.email, after=_about(member))
        await self._accounts.put_member(member, line)
        return await self.user(None, user.id), await self._new_code(user, member)

    async def _forget(self, user: UserRow) -> None:
        """Let nothing hold that a person could sign in with until now, nor what they are signed in to."""
        await self.set_password(user, new_secret())
        for row in await self._accounts.tokens(None):
            if row.kind is TokenKind.CODE and row.user == user.id and row.revoked_at is None:
                line = self._line(Event.TOKEN_REVOKED, row.tenant, row.id)
                await self._accounts.revoke_token(row.id, row.tenant, line)

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        """Disable a user in all tenants, or enable one again, which only an OWNER may.

        To enable a user is to give all that the user's memberships give.
        """
        self._by.need(Permission.MANAGE_TENANTS)
        user = await self.user(None, id)
        if not disabled:
            self._need_all_rights_of(user)
        about = replace(user, password=None, disabled_at=1 if disabled else None)
        line = self._line(Event.USER_CHANGED, self._by.tenant, user.email, after={"disabled": disabled})
        await self._accounts.change_user(about, line)
        if disabled:
            await self._accounts.end_sessions(user=user.id)
        return await self.user(None, user.id)

    async def set_password(self, user: UserRow, password: str) -> None:
        """Another password; who is signed in with the old one no longer is."""
        line = self._line(Event.USER_CHANGED, self._by.tenant, user.email, after={"password": "changed"})
        await self._accounts.change_user(replace(user, password=await hashed(password)), line)
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

    async def create_token(self, new: NewToken) -> Made:
        """Make a token. Its secret is in the answer and nowhere else."""
        self._by.need(Permission.MANAGE_PEOPLE)
        self._by.need_grant(new.tenant, new.role, payloads=new.payloads, workflows=new.workflows or None)
        lasts = _lasts(new)
        row = TokenRow(
            id=self._clock.new_id(),
            kind=new.kind,
            tenant=_tenant(new.tenant),
            role=new.role,
            name=short_text("name", new.name),
            created_by=self._by.who,
            payloads=new.payloads,
            workflows=tuple(dict.fromkeys(short_text("workflow", each) for each in new.workflows)),
            maker_user=self._by.user or None,
            maker_token=self._by.token or None,
        )
        secret, stored = new_key(row.id)
        if new.kind is TokenKind.JWT and not self._secret_key:
            raise Conflict("signed tokens need REDRIVE_SECRET_KEY, which is not set here; make a key instead")
        if new.kind is TokenKind.JWT:
            ends = self._clock.now() // MICROS + (lasts or JWT_LASTS)
            secret, stored = sign_token(row, ends, self._secret_key), ""
        line = self._line(Event.TOKEN_CREATED, new.tenant, row.id, after=_about_token(row))
        await self._accounts.put_token(
            replace(row, hash=stored), None if lasts is None else lasts * MICROS, line
        )
        return Made(await self.token(new.tenant, row.id), secret)

    async def revoke_token(self, tenant: str | None, id: str) -> TokenRow:
        """Let a token hold no longer; revoking it twice changes nothing."""
        row = await self.token(tenant, id)
        self._by.need_grant(row.tenant, row.role, payloads=False)
        line = self._line(Event.TOKEN_REVOKED, row.tenant, row.id)
        await self._accounts.revoke_token(id, tenant, line)
        return await self.token(tenant, id)

    def _line(
        self, event: Event, tenant: str, subject: str, before: Any = None, after: Any = None
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


def _lasts(new: NewToken) -> int | None:
    if new.lasts is not None and not 1 <= new.lasts <= LONGEST:
        raise InputError("a token lasts from a second to ten years")
    return new.lasts or (JWT_LASTS if new.kind is TokenKind.JWT else None)


def _member_of(user: UserRow, tenant: str | None) -> MemberRow | None:
    return next((each for each in user.members if each.tenant == tenant), None)


def _about(member: MemberRow) -> dict[str, Any]:
    return {"role": member.role.value, "payloads": member.payloads, "active": member.active}


def _about_token(row: TokenRow) -> dict[str, Any]:
    return {
        "kind": row.kind.value,
        "role": row.role.value,
        "payloads": row.payloads,
        "workflows": list(row.workflows),
    }


def _tenant(name: str) -> str:
    return one_tenant(short_text("tenant", name))


def _email(text: str) -> str:
    if not is_mailbox(text):
        raise InputError("an e-mail address is needed, such as ann@example.org")
    return text.lower()


# -- What is done about tenants and people in more than one step, on a server as at the keyboard ---------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a person is to be to a tenant; what is left open stays as it is."""

    role: Role | None = None
    payloads: bool | None = None
    active: bool | None = None


async def erased(store: Store, access: Access, name: str) -> int:
    """Remove everything a tenant has, and say so in the log of all; returns how many rows went."""
    rows = await access.erase_tenant(name)
    await store.note([access.erased(name, rows)])
    return rows


async def exported(store: Store, access: Access, name: str) -> AsyncIterator[tuple[str, Any]]:
    """Everything a tenant has, thing by thing under its kind; its log says who took it along."""
    await store.note([access.exported(name)])
    return export(store.confined(name), name)


async def code_for(access: Access, id: str, tenant: str | None = None) -> tuple[UserRow, str]:
    """Create a code for a user to sign in with once: to this tenant, if the user is a member of it."""
    user = await access.user(None, id, near=tenant)
    if not user.members:
        raise Conflict("this user is not a member of any tenant: give them a role first")
    here = [each for each in user.members if each.tenant == tenant]
    return user, await access.code(user, (here or user.members)[0])


async def give_part(access: Access, user: UserRow, tenant: str, part: Part) -> tuple[UserRow, str | None]:
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


def operator(who: str) -> Principal:
    """Whoever works on the store itself, past the server: there is nothing they could not do."""
    return Principal(who=who, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True)


async def first_owner(store: Store, clock: Clock, email: str) -> str | None:
    """Make an owner if nobody is known; returns the code that lets them in once."""
    if await store.accounts.users(None):
        return None
    access = Access(store.accounts, clock, operator("first start"))
    await access.create_tenant(DEFAULT_TENANT)
    try:
        _, code = await access.create_user(
            NewUser(email=email, tenant=DEFAULT_TENANT, role=Role.OWNER, payloads=True)
        )
    except Conflict:
        return None
    return code
