"""What is done about tenants and people in more than one step, on a server as at the keyboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redrive.core.roles import Role
from redrive.desk.exporting import export
from redrive.errors import Conflict
from redrive.frozen import dataclass
from redrive.server.auth.access import Access
from redrive.store.account_records import UserRow
from redrive.store.port import Store

__all__ = ["Part", "code_for", "erased", "exported", "give_part"]


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
