"""Who works with the demo: two tenants, and somebody of each role."""

from __future__ import annotations

from dataclasses import dataclass

from redrive import Redrive
from redrive.core.roles import Role
from redrive.errors import Conflict

__all__ = ["MARKET", "PASSWORD", "PEOPLE", "SHOP", "Person", "let_in"]

SHOP, MARKET = "corner-shop", "market-hall"
PASSWORD = "redrive-demo"  # nosec B105 - it is printed, and opens nothing but the demo
"""Everybody's. The demo listens on this machine only, and what it shows is made up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who may sign in, and what for."""

    email: str
    role: Role
    tenant: str = SHOP
    payloads: bool = False


PEOPLE = (
    Person(email="owner@shop.example", role=Role.OWNER, payloads=True),
    Person(email="accounts@shop.example", role=Role.ADMIN, payloads=True),
    Person(email="counter@shop.example", role=Role.STAFF),
    Person(email="visitor@market.example", role=Role.VIEWER, tenant=MARKET),
)


async def let_in(app: Redrive) -> None:
    """Make both tenants and everybody known, where they are not yet. Needs the extra `auth`."""
    from redrive.server.auth.access import Access
    from redrive.server.auth.first import operator
    from redrive.server.auth.wanted import NewUser

    access = Access(app.runtime.store.accounts, app.runtime.clock, operator("demo"))
    for tenant in (SHOP, MARKET):
        await access.create_tenant(tenant)
    for each in PEOPLE:
        new = NewUser(
            email=each.email, tenant=each.tenant, role=each.role, password=PASSWORD, payloads=each.payloads
        )
        try:
            await access.create_user(new)
        except Conflict:
            return  # a folder of an earlier demo
