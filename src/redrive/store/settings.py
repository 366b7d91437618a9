"""Store calls for what operators set: retry policies and paused workflows; and the secrets of the store."""

from __future__ import annotations

from collections.abc import Callable

from redrive.core.transition import AuditWrite
from redrive.store.records import PolicyRow
from redrive.store.rows import policy_row
from redrive.store.session import Database, Session, Statements, reads, writes

__all__ = ["SettingsCalls"]

SQL = Statements("settings.sql")


class SettingsCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @writes(begin=False)
    async def store_secret(self, session: Session, name: str, make: Callable[[], str]) -> str:
        """Return a secret of the store; the first process that asks makes it."""
        found = await session.value(SQL["secret"], name=name)
        if found is None:
            async with session.transaction():
                await session.rows(SQL["make_secret"], name=name, secret=make())
            found = await session.value(SQL["secret"], name=name)  # another process may have been quicker
        return str(found)

    @reads()
    async def policies(self, session: Session) -> list[PolicyRow]:
        return [policy_row(row) for row in await session.rows(SQL["policies"])]

    @writes()
    async def set_policy(self, session: Session, policy: PolicyRow, audit: AuditWrite) -> None:
        async with session.transaction():
            await session.rows(
                SQL["put_policy"],
                tenant=policy.tenant,
                workflow=policy.workflow,
                step=policy.step,
                policy=policy.policy,
                updated_by=policy.updated_by,
            )
            await session.note([audit])

    @writes()
    async def delete_policy(
        self, session: Session, tenant: str, workflow: str, step: str, audit: AuditWrite
    ) -> bool:
        return await session.change(SQL["drop_policy"], audit, tenant=tenant, workflow=workflow, step=step)

    @writes()
    async def pause(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["pause"], audit, workflow=workflow, by=audit.by)

    @writes()
    async def resume(self, session: Session, workflow: str, audit: AuditWrite) -> None:
        await session.change(SQL["resume"], audit, workflow=workflow)

    @reads()
    async def paused(self, session: Session) -> dict[str, str]:
        return {row[0]: row[1] for row in await session.rows(SQL["paused"])}
