"""The calls about people and credentials of a sealed store, which seals remembered answers."""

from __future__ import annotations

from redrive.core.transition import AuditWrite
from redrive.store.accounts import (
    Accounts,
    AnswerRow,
    MemberRow,
    NewAnswer,
    TenantRow,
    TokenRow,
    UserRow,
)
from redrive.store.passing import passed_on
from redrive.store.sealing import Sealer

__all__ = ["SealedAccounts"]


class SealedAccounts:
    """The calls of `redrive.store.accounts`; what people did is sealed in the log, as everywhere."""

    def __init__(self, inner: Accounts, sealer: Sealer) -> None:
        self._inner = inner
        self._sealer = sealer

    tenants = passed_on(Accounts.tenants)
    erase = passed_on(Accounts.erase)
    user = passed_on(Accounts.user)
    users_at = passed_on(Accounts.users_at)
    users = passed_on(Accounts.users)
    token = passed_on(Accounts.token)
    tokens = passed_on(Accounts.tokens)
    session = passed_on(Accounts.session)
    put_session = passed_on(Accounts.put_session)
    end_sessions = passed_on(Accounts.end_sessions)
    drop_answer = passed_on(Accounts.drop_answer)
    answer_usage = passed_on(Accounts.answer_usage)

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        return await self._inner.put_tenant(row, self._sealer.seal(audit, audit.tenant))

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._inner.add_user(user, self._sealer.seal(audit, audit.tenant))

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._inner.change_user(user, self._sealer.seal(audit, audit.tenant))

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        await self._inner.put_member(member, self._sealer.seal(audit, audit.tenant))

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        await self._inner.put_token(row, lasts, self._sealer.seal(audit, audit.tenant))

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await self._inner.revoke_token(id, tenant, self._sealer.seal(audit, audit.tenant))

    async def claim_answer(self, new: NewAnswer) -> AnswerRow | int:
        found = await self._inner.claim_answer(new)
        return found if isinstance(found, int) else self._sealer.open(found, found.tenant)

    async def keep_answer(self, row: AnswerRow) -> None:
        await self._inner.keep_answer(self._sealer.seal(row, row.tenant))
