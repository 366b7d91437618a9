"""The calls about people and credentials of a store that fails on purpose: see `redrive.store.faulty`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

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

__all__ = ["FaultyAccounts"]

Result = TypeVar("Result")


class Ask(Protocol):
    """Makes a call, unless something is to go wrong with it."""

    async def __call__(self, name: str, work: Callable[[], Awaitable[Result]]) -> Result: ...


class FaultyAccounts:
    """The calls of `redrive.store.accounts`, each named `accounts.` and its own name."""

    def __init__(self, inner: Accounts, ask: Ask) -> None:
        self._inner = inner
        self._ask = ask

    async def tenants(self) -> list[TenantRow]:
        return await self._ask("accounts.tenants", self._inner.tenants)

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        return await self._ask("accounts.put_tenant", lambda: self._inner.put_tenant(row, audit))

    async def erase(self, tenant: str, limit: int) -> int:
        return await self._ask("accounts.erase", lambda: self._inner.erase(tenant, limit))

    async def user(self, *, id: str | None = None, email: str | None = None) -> UserRow | None:
        return await self._ask("accounts.user", lambda: self._inner.user(id=id, email=email))

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._ask("accounts.users", lambda: self._inner.users(tenant))

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._ask("accounts.add_user", lambda: self._inner.add_user(user, audit))

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        return await self._ask("accounts.change_user", lambda: self._inner.change_user(user, audit))

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        await self._ask("accounts.put_member", lambda: self._inner.put_member(member, audit))

    async def token(self, id: str) -> TokenRow | None:
        return await self._ask("accounts.token", lambda: self._inner.token(id))

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return await self._ask("accounts.tokens", lambda: self._inner.tokens(tenant))

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        await self._ask("accounts.put_token", lambda: self._inner.put_token(row, lasts, audit))

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await self._ask("accounts.revoke_token", lambda: self._inner.revoke_token(id, tenant, audit))

    async def session(self, hash: str) -> SessionRow | None:
        return await self._ask("accounts.session", lambda: self._inner.session(hash))

    async def put_session(self, row: SessionRow, lasts: int) -> None:
        await self._ask("accounts.put_session", lambda: self._inner.put_session(row, lasts))

    async def end_sessions(self, *, hash: str | None = None, user: str | None = None) -> None:
        await self._ask("accounts.end_sessions", lambda: self._inner.end_sessions(hash=hash, user=user))

    async def claim_answer(self, new: NewAnswer) -> AnswerRow | int:
        return await self._ask("accounts.claim_answer", lambda: self._inner.claim_answer(new))

    async def keep_answer(self, row: AnswerRow) -> None:
        await self._ask("accounts.keep_answer", lambda: self._inner.keep_answer(row))

    async def drop_answer(self, tenant: str, key: str) -> None:
        await self._ask("accounts.drop_answer", lambda: self._inner.drop_answer(tenant, key))
