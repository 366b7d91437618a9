"""What people set: retry policies and pauses."""

from __future__ import annotations

from redrive.store.port import PolicyRow
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.rows import policy_row

__all__ = ["delete_policy", "pause", "paused", "policies", "resume", "set_policy"]

SQL = load("settings.sql")


async def policies(line: Line) -> list[PolicyRow]:
    """All stored retry policies."""
    return [policy_row(row) for row in await line.rows(SQL["policies"])]


async def set_policy(line: Line, clock: DatabaseClock, policy: PolicyRow) -> None:
    """Store a policy; the time is the store's, whatever the record says."""
    await line.rows(
        SQL["put_policy"],
        tenant=policy.tenant,
        workflow=policy.workflow,
        step=policy.step,
        policy=policy.policy,
        updated_by=policy.updated_by,
        now=clock.given(),
    )


async def delete_policy(line: Line, tenant: str, workflow: str, step: str) -> bool:
    """Remove a policy; False if there was none."""
    rows = await line.rows(SQL["drop_policy"], tenant=tenant, workflow=workflow, step=step)
    return len(rows) == 1


async def pause(line: Line, clock: DatabaseClock, workflow: str, by: str) -> None:
    """Let nothing of the workflow be claimed."""
    await line.rows(SQL["pause"], workflow=workflow, by=by, now=clock.given())


async def resume(line: Line, workflow: str) -> None:
    """Undo a pause."""
    await line.rows(SQL["resume"], workflow=workflow)


async def paused(line: Line) -> dict[str, str]:
    """Paused workflows and who paused them."""
    return {row["workflow"]: row["paused_by"] for row in await line.rows(SQL["paused"])}
