"""Tenants, people, tokens, sessions and remembered answers in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redrive.core.transition import AuditWrite
from redrive.errors import RedriveError
from redrive.store import statements
from redrive.store.access import (
    answer_row,
    member_row,
    ours,
    session_row,
    tenant_row,
    token_row,
    token_values,
    users_with,
)
from redrive.store.accounts import (
    AnswerRow,
    MemberRow,
    NewAnswer,
    SessionRow,
    TenantRow,
    TokenRow,
    UserRow,
)
from redrive.store.postgres.address import Address
from redrive.store.postgres.confined import AnyLines
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load, prepare
from redrive.store.postgres.text import as_given, as_stored

__all__ = ["PostgresAccounts"]

SQL = load("accounts.sql")
PARTS = statements.load(__package__, "accounts.sql")


class PostgresAccounts:
    """See `redrive.store.accounts` for what each call promises."""

    def __init__(self, lines: AnyLines, clock: DatabaseClock, address: Address) -> None:
        self._lines = lines
        self._clock = clock
        self._address = address

    async def tenants(self) -> list[TenantRow]:
        return [tenant_row(as_given(row)) for row in await self._rows("tenants")]

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        values = {
            "tenant": row.tenant,
            "created_by": row.created_by,
            "disabled": row.disabled_at is not None,
        }
        return await self._noted("put_tenant", values, audit)

    async def erase(self, tenant: str, limit: int) -> int:
        return await self._lines.run(lambda line: _erase(line, self._address.schema, tenant, limit))

    async def user(self, id: str) -> UserRow | None:
        found = await self._lines.run(lambda line: _users(line, "user", {"id": id}, None))
        return found[0] if found else None

    async def users_at(self, email: str) -> list[UserRow]:
        return await self._lines.run(lambda line: _users(line, "users_at", {"email": as_stored(email)}, None))

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._lines.run(lambda line: _users(line, "users", {"tenant": tenant}, tenant))

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        try:
            await self._lines.run(lambda line: self._add(line, user, audit))
        except _TakenError:
            return False
        return True

    async def _add(self, line: Line, user: UserRow, audit: AuditWrite) -> None:
        """The memberships come first: a tenant sees a person through them, and so what it has added."""
        async with line.transaction():
            for member in user.members:
                await line.rows(SQL["put_member"], **_member(member))
            added = await line.rows(
                SQL["insert_user"],
                id=user.id,
                email=as_stored(user.email),
                home=user.home,
                password=user.password,
                now=self._clock.given(),
            )
            if not added:
                raise _TakenError
            await note(line, self._clock, [audit])

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        disabled = user.disabled_at is not None
        values = {"id": user.id, "email": user.email, "password": user.password, "disabled": disabled}
        return await self._noted("change_user", values, audit)

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        async def put(line: Line) -> None:
            async with line.transaction():
                await line.rows(SQL["put_member"], **_member(member))
                await note(line, self._clock, [audit])

        await self._lines.run(put)

    async def token(self, id: str) -> TokenRow | None:
        rows = await self._rows("token", id=id)
        return token_row(as_given(rows[0])) if rows else None

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return [token_row(as_given(row)) for row in await self._rows("tokens", tenant=tenant)]

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        values = {name: as_stored(value) for name, value in token_values(row).items()}
        await self._noted("put_token", {**values, "lasts": lasts}, audit)

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await self._noted("revoke_token", {"id": id, "tenant": tenant}, audit)

    async def session(self, hash: str) -> SessionRow | None:
        rows = await self._rows("session", hash=hash)
        return session_row(rows[0]) if rows else None

    async def put_session(self, row: SessionRow, lasts: int) -> None:
        now = self._clock.given()
        await self._rows("old_sessions", now=now)
        await self._rows("put_session", hash=row.hash, tenant=row.tenant, user=row.user, lasts=lasts, now=now)

    async def end_sessions(self, *, hash: str | None = None, user: str | None = None) -> None:
        await self._rows("end_sessions", hash=hash, user=user)

    async def claim_answer(self, new: NewAnswer) -> AnswerRow | int:
        return await self._lines.run(lambda line: _claim(line, self._clock, new))

    async def keep_answer(self, row: AnswerRow) -> None:
        body = as_stored(row.body)
        await self._rows("keep_answer", tenant=row.tenant, key=row.key, status=row.status, body=body)

    async def answer_usage(self, tenant: str) -> tuple[int, int]:
        ((count, size),) = await self._rows("answer_usage", tenant=tenant)
        return count, int(size)

    async def drop_answer(self, tenant: str, key: str) -> None:
        await self._rows("drop_answer", tenant=tenant, key=key)

    async def _rows(self, statement: str, **values: Any) -> list[Any]:
        return await self._lines.run(lambda line: line.rows(SQL[statement], **values))

    async def _noted(self, statement: str, values: dict[str, Any], audit: AuditWrite) -> bool:
        """Write a row, and note it if that changed anything."""

        async def work(line: Line) -> bool:
            async with line.transaction():
                rows = await line.rows(SQL[statement], **values, now=self._clock.given())
                if rows:
                    await note(line, self._clock, [audit])
            return bool(rows)

        return await self._lines.run(work)


class _TakenError(RedriveError):
    """Rolls back a person whose address is another's."""


async def _users(line: Line, statement: str, values: dict[str, Any], tenant: str | None) -> list[UserRow]:
    rows = [as_given(row) for row in await line.rows(SQL[statement], **values)]
    members = await line.rows(SQL["members"], users=[row[0] for row in rows], tenant=tenant)
    return users_with(rows, [member_row(row) for row in members])


def _member(member: MemberRow) -> dict[str, Any]:
    return {
        "user": member.user,
        "tenant": member.tenant,
        "role": member.role.value,
        "payloads": int(member.payloads),
        "active": int(member.active),
    }


async def _claim(line: Line, clock: DatabaseClock, new: NewAnswer) -> AnswerRow | int:
    now = clock.given()
    async with line.transaction():
        await line.rows(SQL["old_answers"], tenant=new.tenant, now=now)
        claimed = await line.rows(
            SQL["put_answer"],
            tenant=new.tenant,
            key=new.key,
            digest=new.digest,
            keeps=new.keeps,
            patience=new.patience,
            now=now,
        )
        if claimed:
            return int(claimed[0][0])
        row = await line.row(SQL["answer"], tenant=new.tenant, key=new.key)
    return answer_row(as_given(row))


async def _erase(line: Line, schema: str, tenant: str, limit: int) -> int:
    async with line.transaction():
        tables = await line.rows(SQL["tables_of_tenants"], schema=schema, ours=list(ours(__package__)))
        runs = [row[0] for row in await line.rows(SQL["some_runs"], tenant=tenant, most=limit)]
        if runs:
            return await _erase_runs(line, tenant, runs, [row["name"] for row in tables if row["of_run"]])
        erased = 0
        for row in tables:
            statement = prepare(PARTS["erase_rows"].format(table=row["name"]))
            erased += len(await line.rows(statement, tenant=tenant))
        await line.rows(SQL["erase_strangers"])
    return erased


async def _erase_runs(line: Line, tenant: str, runs: Sequence[int], tables: Iterable[str]) -> int:
    erased = 0
    for name in tables:
        statement = prepare(PARTS["erase_of_runs"].format(table=name))
        erased += len(await line.rows(statement, tenant=tenant, runs=runs))
    return erased + len(await line.rows(SQL["erase_runs"], tenant=tenant, runs=runs))
