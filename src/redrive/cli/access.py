"""Working on tenants, people and tokens from the command line: past the server, on the store itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from redrive.cli.change import user
from redrive.cli.exits import explained
from redrive.cli.output import say
from redrive.cli.place import Place
from redrive.cli.server import needed

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.server.auth.access import Access

__all__ = ["ROLES", "manage", "registered"]

T = TypeVar("T")

ROLES = click.Choice(["OWNER", "ADMIN", "STAFF", "VIEWER", "SUPER_ADMIN", "ORG_ADMIN"], case_sensitive=False)


def manage(place: Place, work: Callable[[Access, Redrive], Awaitable[T]], by: str | None = None) -> T:
    """Open the store, which is made if there is none, and work on it as whoever is at the keyboard."""
    import asyncio

    async def opened() -> T:
        from redrive.server.auth.access import Access
        from redrive.server.auth.first import operator

        app = place.app()
        async with app.client():
            runtime = app.runtime
            access = Access(
                runtime.store.accounts, runtime.clock, operator(by or user()), app.settings.secret_key
            )
            return await work(access, app)

    with explained(), needed():
        return asyncio.run(opened())


async def registered(access: Access, tenant: str) -> str:
    """The tenant, registered now if it was not."""
    if tenant not in {row.tenant for row in await access.tenants()}:
        await access.create_tenant(tenant)
        say(f"tenant {tenant!r} is new: registered")
    return tenant
