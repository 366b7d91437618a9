"""What people set: retry policies and pauses; and the secrets of the store."""

from __future__ import annotations

from collections.abc import Callable

from redrive.core.transition import AuditWrite
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.records import PolicyRow
from redrive.store.rows import policy_row

__all__ = ["delete_policy", "pause", "paused", "policies", "resume", "secret", "set_policy"]

SQL = load("settings.sql")


async def secret(line: Line, name: str, make: Callable[[], str]) -> str:
    """Return a secret of the store; the first process that asks makes it."""
    found = await line.value(SQL["secret"], name=name)
    if found is None:
        await line.rows(SQL["make_secret"], name=name, secret=make())
        found = await line.value(SQL["secret"], name=name)  # another process may have been quicker
    return str(found)


async def policies(line: Line) -> list[PolicyRow]:
    """All stored retry policies."""
    return [policy_row(row) for row in await line.rows(SQL["policies"])]


async def set_policy(line: Line, clock: DatabaseClock, policy: PolicyRow, audit: AuditWrite) -> None:
    """Store a policy; the time is the store's, whatever the record says."""
    async with line.transaction():
        await line.rows(
            SQL["put_policy"],
            tenant=policy.tenant,
            workflow=policy.workflow,
            step=policy.step,
            policy=policy.policy,
            updated_by=policy.updated_by,
            now=clock.given(),
        )
        await note(line, clock, [audit])


async def delete_policy(
    line: Line, clock: DatabaseClock, place: tuple[str, str, str], audit: AuditWrite
) -> bool:
    """Remove a policy; False if there was none."""
    tenant, workflow, step = place
    async with line.transaction():
        gone = await line.rows(SQL["drop_policy"], tenant=tenant, workflow=workflow, step=step)
        return await _noted(line, clock, len(gone), audit)


async def pause(line: Line, clock: DatabaseClock, workflow: str, audit: AuditWrite) -> None:
    """Let nothing of the workflow be claimed."""
    async with line.transaction():
        paused = await line.rows(SQL["pause"], workflow=workflow, by=audit.by, now=clock.given())
        await _noted(line, clock, len(paused), audit)


async def resume(line: Line, clock: DatabaseClock, workflow: str, audit: AuditWrite) -> None:
    """Undo a pause."""
    async with line.transaction():
        await _noted(line, clock, len(await line.rows(SQL["resume"], workflow=workflow)), audit)


async def _noted(line: Line, clock: DatabaseClock, changed: int, audit: AuditWrite) -> bool:
    """Note what somebody did, if it changed anything."""
    if changed:
        await note(line, clock, [audit])
    return changed > 0


async def paused(line: Line) -> dict[str, str]:
    """Paused workflows and who paused them."""
    return {row["workflow"]: row["paused_by"] for row in await line.rows(SQL["paused"])}
