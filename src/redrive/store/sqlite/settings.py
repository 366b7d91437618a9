"""What people set: retry policies and pauses."""

from __future__ import annotations

import sqlite3

from redrive.store.port import PolicyRow
from redrive.store.rows import policy_row
from redrive.store.statements import load

__all__ = ["delete_policy", "pause", "paused", "policies", "resume", "set_policy"]

SQL = load(__package__, "settings.sql")


def policies(con: sqlite3.Connection) -> list[PolicyRow]:
    """All stored retry policies."""
    return [policy_row(row) for row in con.execute(SQL["policies"])]


def set_policy(con: sqlite3.Connection, now: int, policy: PolicyRow) -> None:
    """Store a policy; the time is the store's, whatever the record says."""
    row = (policy.tenant, policy.workflow, policy.step, policy.policy, now, policy.updated_by)
    con.execute(SQL["put_policy"], row)


def delete_policy(con: sqlite3.Connection, tenant: str, workflow: str, step: str) -> bool:
    """Remove a policy; False if there was none."""
    return con.execute(SQL["drop_policy"], (tenant, workflow, step)).rowcount == 1


def pause(con: sqlite3.Connection, now: int, workflow: str, by: str) -> None:
    """Let nothing of the workflow be claimed."""
    con.execute(SQL["pause"], (workflow, now, by))


def resume(con: sqlite3.Connection, workflow: str) -> None:
    """Undo a pause."""
    con.execute(SQL["resume"], (workflow,))


def paused(con: sqlite3.Connection) -> dict[str, str]:
    """Paused workflows and who paused them."""
    return dict(con.execute(SQL["paused"]).fetchall())
