"""Rows about people and credentials as records, and back: the same for both stores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from redrive.core.roles import Role
from redrive.store.accounts import (
    AnswerRow,
    MemberRow,
    SessionRow,
    TenantRow,
    TokenKind,
    TokenRow,
    UserRow,
)
from redrive.store.migrate import known

__all__ = [
    "answer_row",
    "member_row",
    "ours",
    "session_row",
    "tenant_row",
    "token_row",
    "token_values",
    "users_with",
]

_CREATED = re.compile(r"^CREATE TABLE (?:\w+\.)?(\w+)", re.MULTILINE)


@cache
def ours(package: str) -> tuple[str, ...]:
    """The tables that a store's migrations make. Others in the same database belong to somebody else."""
    return tuple(name for migration in known(package) for name in _CREATED.findall(migration.text))


def tenant_row(row: Sequence[Any]) -> TenantRow:
    """One row of `access_tenants`."""
    tenant, created_at, created_by, disabled_at = row
    return TenantRow(tenant=tenant, created_at=created_at, created_by=created_by, disabled_at=disabled_at)


def member_row(row: Sequence[Any]) -> MemberRow:
    """One row of `access_members`."""
    user, tenant, role, payloads, active = row
    return MemberRow(user=user, tenant=tenant, role=Role(role), payloads=bool(payloads), active=bool(active))


def users_with(rows: Iterable[Sequence[Any]], members: Iterable[MemberRow]) -> list[UserRow]:
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


def token_row(row: Sequence[Any]) -> TokenRow:
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


def token_values(row: TokenRow) -> dict[str, Any]:
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


def session_row(row: Sequence[Any]) -> SessionRow:
    """One row of `access_sessions`."""
    hash, tenant, user, created_at, expires_at = row
    return SessionRow(hash=hash, tenant=tenant, user=user, created_at=created_at, expires_at=expires_at)


def answer_row(row: Sequence[Any]) -> AnswerRow:
    """One row of `access_answers`."""
    tenant, key, digest, status, body = row
    return AnswerRow(tenant=tenant, key=key, digest=digest, status=status, body=body)
