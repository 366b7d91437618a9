"""Tenants, people, tokens, sessions and remembered answers in an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redrive.core.transition import AuditWrite
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
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.writes import note
from redrive.store.statements import load

__all__ = ["SqliteAccounts"]

SQL = load(__package__, "accounts.sql")


class SqliteAccounts:
    """See `redrive.store.accounts` for what each call promises."""

    def __init__(self, lines: Threaded | Inline, now: Callable[[], int]) -> None:
        self._lines = lines
        self._now = now

    async def tenants(self) -> list[TenantRow]:
        return await self._lines.read(lambda con: [tenant_row(row) for row in con.execute(SQL["tenants"])])

    async def put_tenant(self, row: TenantRow, audit: AuditWrite) -> bool:
        values = {
            "tenant": row.tenant,
            "created_by": row.created_by,
            "disabled": row.disabled_at is not None,
        }
        return await self._noted("put_tenant", values, audit)

    async def erase(self, tenant: str, limit: int) -> int:
        return await self._lines.write(lambda con: _erase(con, tenant, limit))

    async def user(self, id: str) -> UserRow | None:
        found = await self._lines.read(lambda con: _users(con, "user", {"id": id}, None))
        return found[0] if found else None

    async def users_at(self, email: str) -> list[UserRow]:
        return await self._lines.read(lambda con: _users(con, "users_at", {"email": email}, None))

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._lines.read(lambda con: _users(con, "users", {"tenant": tenant}, tenant))

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        def add(con: sqlite3.Connection) -> bool:
            values = {
                "id": user.id,
                "email": user.email,
                "home": user.home,
                "password": user.password,
                "now": self._now(),
            }
            if not con.execute(SQL["insert_user"], values).fetchall():
                return False
            con.executemany(SQL["put_member"], [_member(member) for member in user.members])
            note(con, self._now(), [audit])
            return True

        return await self._lines.write(add)

    async def change_user(self, user: UserRow, audit: AuditWrite) -> bool:
        disabled = user.disabled_at is not None
        values = {"id": user.id, "email": user.email, "password": user.password, "disabled": disabled}
        return await self._noted("change_user", values, audit)

    async def put_member(self, member: MemberRow, audit: AuditWrite) -> None:
        def put(con: sqlite3.Connection) -> None:
            con.execute(SQL["put_member"], _member(member))
            note(con, self._now(), [audit])

        await self._lines.write(put)

    async def token(self, id: str) -> TokenRow | None:
        rows = await self._lines.read(lambda con: con.execute(SQL["token"], {"id": id}).fetchall())
        return token_row(rows[0]) if rows else None

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        rows = await self._lines.read(lambda con: con.execute(SQL["tokens"], {"tenant": tenant}).fetchall())
        return [token_row(row) for row in rows]

    async def put_token(self, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        await self._noted("put_token", {**token_values(row), "lasts": lasts}, audit)

    async def revoke_token(self, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await self._noted("revoke_token", {"id": id, "tenant": tenant}, audit)

    async def session(self, hash: str) -> SessionRow | None:
        rows = await self._lines.read(lambda con: con.execute(SQL["session"], {"hash": hash}).fetchall())
        return session_row(rows[0]) if rows else None

    async def put_session(self, row: SessionRow, lasts: int) -> None:
        def put(con: sqlite3.Connection) -> None:
            values = {"hash": row.hash, "tenant": row.tenant, "user": row.user, "lasts": lasts}
            con.execute(SQL["old_sessions"], {"now": self._now()})
            con.execute(SQL["put_session"], {**values, "now": self._now()})

        await self._lines.write(put)

    async def end_sessions(self, *, hash: str | None = None, user: str | None = None) -> None:
        await self._lines.write(lambda con: con.execute(SQL["end_sessions"], {"hash": hash, "user": user}))

    async def claim_answer(self, new: NewAnswer) -> AnswerRow | int:
        return await self._lines.write(lambda con: _claim(con, self._now(), new))

    async def keep_answer(self, row: AnswerRow) -> None:
        values = {"tenant": row.tenant, "key": row.key, "status": row.status, "body": row.body}
        await self._lines.write(lambda con: con.execute(SQL["keep_answer"], values))

    async def answer_usage(self, tenant: str) -> tuple[int, int]:
        found = await self._lines.read(
            lambda con: con.execute(SQL["answer_usage"], {"tenant": tenant}).fetchone()
        )
        return found[0], found[1]

    async def drop_answer(self, tenant: str, key: str) -> None:
        values = {"tenant": tenant, "key": key}
        await self._lines.write(lambda con: con.execute(SQL["drop_answer"], values))

    async def _noted(self, statement: str, values: dict[str, Any], audit: AuditWrite) -> bool:
        """Write a row, and note it if that changed anything."""

        def work(con: sqlite3.Connection) -> bool:
            now = self._now()
            changed = bool(con.execute(SQL[statement], {**values, "now": now}).fetchall())
            if changed:
                note(con, now, [audit])
            return changed

        return await self._lines.write(work)


def _users(
    con: sqlite3.Connection, statement: str, values: dict[str, Any], tenant: str | None
) -> list[UserRow]:
    rows = con.execute(SQL[statement], values).fetchall()
    wanted = {"users": _json(row[0] for row in rows), "tenant": tenant}
    return users_with(rows, [member_row(row) for row in con.execute(SQL["members"], wanted)])


def _member(member: MemberRow) -> dict[str, Any]:
    return {
        "user": member.user,
        "tenant": member.tenant,
        "role": member.role.value,
        "payloads": int(member.payloads),
        "active": int(member.active),
    }


def _claim(con: sqlite3.Connection, now: int, new: NewAnswer) -> AnswerRow | int:
    con.execute(SQL["old_answers"], {"tenant": new.tenant, "now": now})
    values = {
        "tenant": new.tenant,
        "key": new.key,
        "digest": new.digest,
        "now": now,
        "keeps": new.keeps,
        "patience": new.patience,
    }
    for (begun,) in con.execute(SQL["put_answer"], values).fetchall():
        return int(begun)
    row = con.execute(SQL["answer"], {"tenant": new.tenant, "key": new.key}).fetchone()
    return answer_row(row)


def _erase(con: sqlite3.Connection, tenant: str, limit: int) -> int:
    tables = con.execute(SQL["tables_of_tenants"], {"ours": _json(ours(__package__))}).fetchall()
    runs = [row[0] for row in con.execute(SQL["some_runs"], {"tenant": tenant, "most": limit})]
    if runs:
        return _erase_runs(con, tenant, runs, [name for name, of_run in tables if of_run])
    erased = sum(
        con.execute(SQL["erase_rows"].format(table=name), {"tenant": tenant}).rowcount for name, _ in tables
    )
    con.execute(SQL["erase_strangers"])
    return erased


def _erase_runs(con: sqlite3.Connection, tenant: str, runs: Sequence[int], tables: Iterable[str]) -> int:
    values = {"tenant": tenant, "runs": _json(runs)}
    erased = sum(con.execute(SQL["erase_of_runs"].format(table=name), values).rowcount for name in tables)
    return erased + con.execute(SQL["erase_runs"], values).rowcount


def _json(values: Iterable[object]) -> str:
    return json.dumps(list(values), ensure_ascii=False)
