"""Tenants, people and tokens of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.core.roles import Role
from redrive.errors import NotFound
from redrive.remote.client import Client
from redrive.remote.reading import said
from redrive.server.auth.wanted import Made, NewToken, NewUser
from redrive.store.account_records import MemberRow, TenantRow, TokenKind, TokenRow, UserRow

__all__ = ["RemotePeople"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RemotePeople:
    """What an operator does about tenants, people and tokens, with the rights of the token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantRow]:
        return [_tenant(one) for one in await self._client.get("tenants")]

    async def tenant(self, name: str) -> TenantRow:
        for row in await self.tenants():
            if row.tenant == name:
                return row
        raise NotFound(f"there is no tenant {name!r}")

    async def create_tenant(self, name: str) -> TenantRow:
        return _tenant(await self._client.post("tenants", body={"name": name}))

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        return _tenant(await self._client.post("tenants", name, "disable" if disabled else "enable"))

    async def erase_tenant(self, name: str) -> int:
        return int((await self._client.delete("tenants", name, query={"confirm": name}))["rows"])

    async def export_tenant(self, name: str) -> AsyncIterator[dict[str, Any]]:
        async for one in self._client.lines("tenants", name, "export"):
            yield one

    # -- people ----------------------------------------------------------------------------------------

    async def users(self, tenant: str | None) -> list[UserRow]:
        return [_user(one) for one in await self._client.get("users", tenant=tenant)]

    async def user(self, id: str) -> UserRow:
        return _user(await self._client.get("users", id))

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        body = {
            "email": new.email,
            "role": new.role.value,
            "may_see_payloads": new.payloads,
            **said(password=new.password),
        }
        made = await self._client.post("users", body=body, tenant=new.tenant)
        return _user(made), made["code"]

    async def give_role(
        self, id: str, tenant: str, role: Role, *, payloads: bool | None
    ) -> tuple[UserRow, str | None]:
        body = {"role": role.value, "active": True, **said(may_see_payloads=payloads)}
        made = await self._client.post("users", id, "role", body=body, tenant=tenant)
        return _user(made), made["code"]

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        return _user(await self._client.post("users", id, "disable" if disabled else "enable"))

    async def code(self, id: str) -> str:
        return str((await self._client.post("users", id, "code"))["code"])

    # -- tokens ----------------------------------------------------------------------------------------

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return [_token(one) for one in await self._client.get("tokens", tenant=tenant)]

    async def token(self, id: str) -> TokenRow:
        return _token(await self._client.get("tokens", id))

    async def create_token(self, new: NewToken) -> Made:
        body = {
            "name": new.name,
            "role": new.role.value,
            "kind": new.kind.value,
            "workflows": list(new.workflows),
            "may_see_payloads": new.payloads,
            **said(lasts=new.lasts),
        }
        made = await self._client.post("tokens", body=body, tenant=new.tenant)
        return Made(_token(made), made["secret"])

    async def revoke_token(self, id: str) -> TokenRow:
        return _token(await self._client.post("tokens", id, "revoke"))


def _tenant(found: Any) -> TenantRow:
    return TenantRow(
        tenant=found["name"],
        created_at=_micros(found["created_at"]),
        created_by=found["created_by"],
        disabled_at=1 if found["disabled"] else None,
    )


def _user(found: Any) -> UserRow:
    return UserRow(
        id=found["id"],
        email=found["email"],
        created_at=_micros(found["created_at"]),
        disabled_at=1 if found["disabled"] else None,
        members=tuple(
            MemberRow(
                user=found["id"],
                tenant=each["tenant"],
                role=Role(each["role"]),
                payloads=each["may_see_payloads"],
                active=each["active"],
            )
            for each in found["memberships"]
        ),
    )


def _token(found: Any) -> TokenRow:
    return TokenRow(
        id=found["id"],
        kind=TokenKind(found["kind"]),
        tenant=found["tenant"],
        role=Role(found["role"]),
        name=found["name"],
        created_by=found["created_by"],
        payloads=found["may_see_payloads"],
        workflows=tuple(found["workflows"]),
        created_at=_micros(found["created_at"]),
        expires_at=None if found["expires_at"] is None else _micros(found["expires_at"]),
        revoked_at=None if found["revoked_at"] is None else _micros(found["revoked_at"]),
    )


def _micros(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
