"""What is done about tenants and people in more than one step, on a server as at the keyboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from redrive.core.roles import Role
from redrive.desk.exporting import export
from redrive.errors import Conflict
from redrive.frozen import dataclass
from redrive.server.auth.access import Access
from redrive.store.accounts import UserRow
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
    """A code for a person to sign in with once: to this tenant, if they are anything to it."""
    user = await access.user(None, id)
    if not user.members:
        raise Conflict("this person is nothing to any tenant; give them a role first")
    here = [each for each in user.members if each.tenant == tenant]
    return user, await access.code(user, (here or user.members)[0])


async def give_part(
    access: Access, owner: Access, user: UserRow, tenant: str, part: Part
) -> tuple[UserRow, str | None]:
    """Change what a person is to a tenant; for somebody whom it does not know yet there is a code, too."""
    now = next((each for each in user.members if each.tenant == tenant), None)
    if now is None:
        await owner.tenant(tenant)
        return await owner.add_role(user.id, tenant, part.role or Role.VIEWER, payloads=bool(part.payloads))
    changed = await access.set_role(
        user.id,
        tenant,
        now.role if part.role is None else part.role,
        payloads=now.payloads if part.payloads is None else part.payloads,
        active=now.active if part.active is None else part.active,
    )
    return changed, None
