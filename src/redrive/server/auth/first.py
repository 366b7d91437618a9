"""The first owner: where nobody is known yet, somebody must be able to come in."""

from __future__ import annotations

from redrive.clock import Clock
from redrive.core.roles import DEFAULT_TENANT, Principal, Role
from redrive.errors import Conflict
from redrive.server.auth.access import Access
from redrive.server.auth.wanted import NewUser
from redrive.store.port import Store

__all__ = ["first_owner", "operator"]


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
