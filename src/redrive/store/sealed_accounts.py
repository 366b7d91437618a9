"""The calls about people and credentials of a sealed store, which seals remembered answers."""

from __future__ import annotations

from redrive.core.transition import AuditWrite
from redrive.store.accounts import (
    Accounts,
    AnswerRow,
    MemberRow,
    NewAnswer,
    SessionRow,
    TenantRow,
    TokenRow,
    UserRow,
)
from redrive.store.sealing import Sealer

__all__ = ["SealedAccounts"]


class SealedAccounts:
    """The calls of `redrive.store.accounts`; what people did is sealed in the log, as everywhere."""

    def __init__(self, inner: Accounts, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    async def tenants(self) -> list[TenantRow]:
        return await self._inner.tenants()

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        return await self._inner.put_tenant(row, self._sealer.seal(audit, audit.tenant))

    async def erase(self, tenant: str, limit: int) -> int:
        return await self._inner.erase(tenant, limit)

    async def user(self, *, id: str | None = None, email: str | None = None) -> UserRow | None:
        return await self._inner.user(id=id, email=email)

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._inner.users(tenant)

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._inner.add_user(user, self._sealer.seal(audit, audit.tenant))

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._inner.change_user(user, self._sealer.seal(audit, audit.tenant))

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        await self._inner.put_member(member, self._sealer.seal(audit, audit.tenant))

    async def token(self, id: str) -> TokenRow | None:
        return await self._inner.token(id)

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return await self._inner.tokens(tenant)

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        await self._inner.put_token(row, lasts, self._sealer.seal(audit, audit.tenant))

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await self._inner.revoke_token(id, tenant, self._sealer.seal(audit, audit.tenant))

    async def session(self, hash: str) -> SessionRow | None:
        return await self._inner.session(hash)

    async def put_session(self, row: SessionRow, lasts: int) -> None:
        await self._inner.put_session(row, lasts)

    async def end_sessions(self, *, hash: str | None = None, user: str | None = None) -> None:
        await self._inner.end_sessions(hash=hash, user=user)

    async def claim_answer(self, new: NewAnswer) -> AnswerRow | int:
        found = await self._inner.claim_answer(new)
        return found if isinstance(found, int) else self._sealer.open(found, found.tenant)

    async def keep_answer(self, row: AnswerRow) -> None:
        await self._inner.keep_answer(self._sealer.seal(row, row.tenant))

    async def drop_answer(self, tenant: str, key: str) -> None:
        await self._inner.drop_answer(tenant, key)
