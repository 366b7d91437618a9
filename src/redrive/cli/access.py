"""Working on tenants, people and tokens: on the store itself, past all roles, or on a server with a token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from redrive.cli.change import user
from redrive.cli.exits import explained
from redrive.cli.output import as_json, say
from redrive.cli.place import Place
from redrive.cli.server import needed

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.roles import Role
    from redrive.server.auth.access import Access
    from redrive.server.auth.wanted import Made, NewToken, NewUser
    from redrive.store.account_records import TenantRow, TokenRow, UserRow

__all__ = ["ROLES", "Managing", "manage", "registered"]

T = TypeVar("T")

ROLES = click.Choice(["OWNER", "ADMIN", "STAFF", "VIEWER", "SUPER_ADMIN", "ORG_ADMIN"], case_sensitive=False)


def manage(place: Place, work: Callable[[Managing], Awaitable[T]], by: str | None = None) -> T:
    """Open the store, which is made if there is none, and work on it as whoever is at the keyboard.

    Where the place is a server, the work is done there, with what the token allows.
    """
    import asyncio

    async def opened() -> T:
        remote = place.server()
        if remote is not None:
            async with remote.client():
                return await work(cast("Managing", remote.people))
        app = place.app()
        async with app.client():
            return await work(Managing(app, by or user()))

    with explained(), needed():
        return asyncio.run(opened())


async def registered(people: Managing, tenant: str) -> str:
    """The tenant, registered now if it was not."""
    if tenant not in {row.tenant for row in await people.tenants()}:
        await people.create_tenant(tenant)
        say(f"tenant {tenant!r} is new: registered")
    return tenant


class Managing:
    """What an operator does about tenants, people and tokens of an open store."""

    def __init__(self, app: Redrive, by: str) -> None:
        from redrive.server.auth.access import Access
        from redrive.server.auth.first import operator

        self._store = app.runtime.store
        clock, secret = app.runtime.clock, app.settings.secret_key
        self._access: Access = Access(self._store.accounts, clock, operator(by), secret)

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantRow]:
        return await self._access.tenants()

    async def tenant(self, name: str) -> TenantRow:
        return await self._access.tenant(name)

    async def create_tenant(self, name: str) -> TenantRow:
        return await self._access.create_tenant(name)

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        return await self._access.disable_tenant(name, disabled=disabled)

    async def erase_tenant(self, name: str) -> int:
        from redrive.server.auth.deeds import erased

        return await erased(self._store, self._access, name)

    async def export_tenant(self, name: str) -> AsyncIterator[dict[str, Any]]:
        from redrive.server.auth.deeds import exported

        async for kind, value in await exported(self._store, self._access, name):
            yield {"kind": kind, **as_json(value)}

    # -- people ----------------------------------------------------------------------------------------

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._access.users(tenant)

    async def user(self, id: str) -> UserRow:
        return await self._access.user(None, id)

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        return await self._access.create_user(new)

    async def give_role(
        self, id: str, tenant: str, role: Role, *, payloads: bool | None
    ) -> tuple[UserRow, str | None]:
        from redrive.server.auth.deeds import Part, give_part

        user = await self._access.user(None, id, near=tenant)
        if tenant not in {each.tenant for each in user.members}:
            await registered(self, tenant)
        part = Part(role=role, payloads=payloads, active=True)
        return await give_part(self._access, user, tenant, part)

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        return await self._access.disable_user(id, disabled=disabled)

    async def code(self, id: str) -> str:
        from redrive.server.auth.deeds import code_for

        return (await code_for(self._access, id))[1]

    # -- tokens ----------------------------------------------------------------------------------------

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return await self._access.tokens(tenant)

    async def token(self, id: str) -> TokenRow:
        return await self._access.token(None, id)

    async def create_token(self, new: NewToken) -> Made:
        return await self._access.create_token(new)

    async def revoke_token(self, id: str) -> TokenRow:
        return await self._access.revoke_token(None, id)
