"""Store calls about tenants, users, tokens, sessions and remembered answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from redrive.core.roles import Role
from redrive.core.transitions import AuditWrite
from redrive.errors import RedriveError
from redrive.store.account_records import (
    MemberRow,
    RequestClaim,
    ResponseRow,
    SessionRow,
    TenantRow,
    TokenKind,
    TokenRow,
    UserRow,
)
from redrive.store.session import Database, Session, Statements, read_call, write_call
from redrive.store.sql_files import load_migrations

SQL = Statements("accounts.sql")


class AccountCalls:
    """See `redrive.store.account_records.AccountStore` for what each call promises."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @read_call()
    async def tenants(self, session: Session) -> list[TenantRow]:
        return [_tenant_row(row) for row in await session.rows(SQL["tenants"])]

    @write_call()
    async def put_tenant(self, session: Session, row: TenantRow, audit: AuditWrite) -> bool:
        disabled = row.disabled_at is not None
        return await session.change(
            SQL["put_tenant"], audit, tenant=row.tenant, created_by=row.created_by, disabled=disabled
        )

    @write_call()
    async def erase(self, session: Session, tenant: str, limit: int) -> int:
        async with session.transaction():
            ours = _migrated_tables(f"{__package__}.{session.dialect}")
            tables = await session.rows(SQL["tables_with_tenant"], ours=list(ours))
            runs = [row[0] for row in await session.rows(SQL["runs_to_erase"], tenant=tenant, most=limit)]
            if runs:
                return await _erase_runs(session, tenant, runs, [table for table, of_run in tables if of_run])
            erased = 0
            for table, _ in tables:
                statement = SQL["erase_tenant_rows"].text(session.dialect).format(table=table)
                erased += len(await session.rows(statement, tenant=tenant))
            await session.rows(SQL["erase_users_without_tenant"])
        return erased

    @read_call()
    async def user(self, session: Session, id: str) -> UserRow | None:
        found = await _read_users(session, "user", None, id=id)
        return found[0] if found else None

    @read_call()
    async def users_by_email(self, session: Session, email: str) -> list[UserRow]:
        return await _read_users(session, "users_by_email", None, email=email)

    @read_call()
    async def users(self, session: Session, tenant: str | None) -> list[UserRow]:
        return await _read_users(session, "users", tenant, tenant=tenant)

    async def add_user(self, user: UserRow, audit: AuditWrite) -> bool:
        try:
            await self._add_user(user, audit)
        except _AddressTakenError:
            return False
        return True

    @write_call()
    async def _add_user(self, session: Session, user: UserRow, audit: AuditWrite) -> None:
        async with session.transaction():
            # The memberships come first: row level security shows a tenant the users that are its members.
            for member in user.members:
                await session.rows(SQL["put_member"], **_member_values(member))
            account = {"id": user.id, "email": user.email, "home": user.home, "password": user.password}
            if not await session.rows(SQL["insert_user"], **account):
                raise _AddressTakenError
            await session.note([audit])

    @write_call()
    async def change_user(self, session: Session, user: UserRow, audit: AuditWrite) -> bool:
        account = {"id": user.id, "email": user.email, "password": user.password}
        return await session.change(SQL["change_user"], audit, **account, disabled=user.disabled_at is not None)

    @write_call()
    async def put_member(self, session: Session, member: MemberRow, audit: AuditWrite) -> None:
        async with session.transaction():
            await session.rows(SQL["put_member"], **_member_values(member))
            await session.note([audit])

    @read_call()
    async def token(self, session: Session, id: str) -> TokenRow | None:
        row = await session.row(SQL["token"], id=id)
        return None if row is None else _token_row(row)

    @read_call()
    async def tokens(self, session: Session, tenant: str | None) -> list[TokenRow]:
        return [_token_row(row) for row in await session.rows(SQL["tokens"], tenant=tenant)]

    @write_call()
    async def put_token(self, session: Session, row: TokenRow, lasts: int | None, audit: AuditWrite) -> None:
        await session.change(SQL["put_token"], audit, **_token_values(row), lasts=lasts)

    @write_call()
    async def revoke_token(self, session: Session, id: str, tenant: str | None, audit: AuditWrite) -> bool:
        return await session.change(SQL["revoke_token"], audit, id=id, tenant=tenant)

    @read_call()
    async def session(self, session: Session, hash: str) -> SessionRow | None:
        row = await session.row(SQL["session"], hash=hash)
        return None if row is None else _session_row(row)

    @write_call()
    async def put_session(self, session: Session, row: SessionRow, lasts: int) -> None:
        await session.rows(SQL["delete_old_sessions"])
        values = {"hash": row.hash, "tenant": row.tenant, "user": row.user}
        await session.rows(SQL["put_session"], **values, lasts=lasts)

    @write_call()
    async def end_sessions(self, session: Session, *, hash: str | None = None, user: str | None = None) -> None:
        await session.rows(SQL["end_sessions"], hash=hash, user=user)

    @write_call()
    async def claim_request(self, session: Session, new: RequestClaim) -> ResponseRow | int:
        async with session.transaction():
            await session.rows(SQL["delete_old_answers"], tenant=new.tenant)
            begun = await session.value(
                SQL["claim_request"],
                tenant=new.tenant,
                key=new.key,
                digest=new.digest,
                keeps=new.keeps,
                patience=new.patience,
            )
            if begun is not None:
                return int(begun)
            return _answer_row(await session.row(SQL["answer"], tenant=new.tenant, key=new.key))

    @write_call()
    async def save_response(self, session: Session, row: ResponseRow) -> None:
        answer = {"tenant": row.tenant, "key": row.key, "status": row.status, "body": row.body}
        await session.rows(SQL["save_response"], **answer)

    @read_call()
    async def response_usage(self, session: Session, tenant: str) -> tuple[int, int]:
        count, size = await session.row(SQL["response_usage"], tenant=tenant)
        return int(count), int(size)

    @write_call()
    async def drop_request(self, session: Session, tenant: str, key: str) -> None:
        await session.rows(SQL["drop_request"], tenant=tenant, key=key)


class _AddressTakenError(RedriveError):
    """Rolls back a user whose address is taken."""


async def _read_users(session: Session, statement: str, of_tenant: str | None, **values: Any) -> list[UserRow]:
    rows = await session.rows(SQL[statement], **values)
    members = await session.rows(SQL["members"], users=[row[0] for row in rows], tenant=of_tenant)
    return _join_members(rows, [_member_row(row) for row in members])


async def _erase_runs(session: Session, tenant: str, runs: Sequence[int], tables: Iterable[str]) -> int:
    erased = 0
    for table in tables:
        statement = SQL["erase_run_rows"].text(session.dialect).format(table=table)
        erased += len(await session.rows(statement, tenant=tenant, runs=list(runs)))
    return erased + len(await session.rows(SQL["erase_runs"], tenant=tenant, runs=list(runs)))


def _member_values(member: MemberRow) -> dict[str, Any]:
    return {
        "user": member.user,
        "tenant": member.tenant,
        "role": member.role.value,
        "payloads": int(member.payloads),
        "active": int(member.active),
    }


_CREATE_TABLE = re.compile(r"^CREATE TABLE (?:\w+\.)?(\w+)", re.MULTILINE)


@cache
def _migrated_tables(package: str) -> tuple[str, ...]:
    """Return the tables that a store's migrations create. Others in the database are not ours to erase."""
    return tuple(name for migration in load_migrations(package) for name in _CREATE_TABLE.findall(migration.text))


def _tenant_row(row: Sequence[Any]) -> TenantRow:
    """One row of `access_tenants`."""
    tenant, created_at, created_by, disabled_at = row
    return TenantRow(tenant=tenant, created_at=created_at, created_by=created_by, disabled_at=disabled_at)


def _member_row(row: Sequence[Any]) -> MemberRow:
    """One row of `access_members`."""
    user, tenant, role, payloads, active = row
    return MemberRow(user=user, tenant=tenant, role=Role(role), payloads=bool(payloads), active=bool(active))


def _join_members(rows: Iterable[Sequence[Any]], members: Iterable[MemberRow]) -> list[UserRow]:
    """Rows of `access_users`, each with what the person is to tenants."""
    of_user: dict[str, list[MemberRow]] = {}
    for member in members:
        of_user.setdefault(member.user, []).append(member)
    return [
        UserRow(
            id=id,
            email=email,
            home=home,
            password=password,
            created_at=created_at,
            disabled_at=disabled_at,
            members=tuple(of_user.get(id, ())),
        )
        for id, email, home, password, created_at, disabled_at in rows
    ]


def _token_row(row: Sequence[Any]) -> TokenRow:
    """One row of `access_tokens`."""
    id, kind, tenant, role, name, created_by, payloads, workflows, hash, user, *times = row
    created_at, expires_at, revoked_at, maker_user, maker_token = times
    return TokenRow(
        id=id,
        kind=TokenKind(kind),
        tenant=tenant,
        role=Role(role),
        name=name,
        created_by=created_by,
        payloads=bool(payloads),
        workflows=tuple(json.loads(workflows)),
        hash=hash,
        user=user,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        maker_user=maker_user,
        maker_token=maker_token,
    )


def _token_values(row: TokenRow) -> dict[str, Any]:
    """A new token as the parameters of its statement."""
    return {
        "id": row.id,
        "tenant": row.tenant,
        "kind": row.kind.value,
        "role": row.role.value,
        "name": row.name,
        "created_by": row.created_by,
        "payloads": int(row.payloads),
        "workflows": json.dumps(row.workflows, ensure_ascii=False),
        "user": row.user,
        "hash": row.hash,
        "maker_user": row.maker_user,
        "maker_token": row.maker_token,
    }


def _session_row(row: Sequence[Any]) -> SessionRow:
    """One row of `access_sessions`."""
    hash, tenant, user, created_at, expires_at = row
    return SessionRow(hash=hash, tenant=tenant, user=user, created_at=created_at, expires_at=expires_at)


def _answer_row(row: Sequence[Any]) -> ResponseRow:
    """One row of `access_answers`."""
    tenant, key, digest, status, body = row
    return ResponseRow(tenant=tenant, key=key, digest=digest, status=status, body=body)
