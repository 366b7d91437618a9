"""What people set: retry policies and pauses; and the secrets of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from redrive.core.transition import AuditWrite
from redrive.store.records import PolicyRow
from redrive.store.rows import policy_row
from redrive.store.sqlite.connection import writing
from redrive.store.sqlite.writes import note
from redrive.store.statements import load

__all__ = ["delete_policy", "pause", "paused", "policies", "resume", "secret", "set_policy"]

SQL = load(__package__, "settings.sql")


def secret(con: sqlite3.Connection, name: str, make: Callable[[], str]) -> str:
    """Return a secret of the store; the first process that asks makes it."""
    found = con.execute(SQL["secret"], (name,)).fetchone()
    if found is None:
        with writing(con):
            con.execute(SQL["make_secret"], (name, make()))
        found = con.execute(SQL["secret"], (name,)).fetchone()  # another process may have been quicker
    return str(found[0])


def policies(con: sqlite3.Connection) -> list[PolicyRow]:
    """All stored retry policies."""
    return [policy_row(row) for row in con.execute(SQL["policies"])]


def set_policy(con: sqlite3.Connection, now: int, policy: PolicyRow, audit: AuditWrite) -> None:
    """Store a policy; the time is the store's, whatever the record says."""
    row = (policy.tenant, policy.workflow, policy.step, policy.policy, now, policy.updated_by)
    con.execute(SQL["put_policy"], row)
    note(con, now, [audit])


def delete_policy(con: sqlite3.Connection, now: int, place: tuple[str, str, str], audit: AuditWrite) -> bool:
    """Remove a policy; False if there was none."""
    return _noted(con, now, con.execute(SQL["drop_policy"], place).rowcount, audit)


def pause(con: sqlite3.Connection, now: int, workflow: str, audit: AuditWrite) -> None:
    """Let nothing of the workflow be claimed."""
    _noted(con, now, con.execute(SQL["pause"], (workflow, now, audit.by)).rowcount, audit)


def resume(con: sqlite3.Connection, now: int, workflow: str, audit: AuditWrite) -> None:
    """Undo a pause."""
    _noted(con, now, con.execute(SQL["resume"], (workflow,)).rowcount, audit)


def _noted(con: sqlite3.Connection, now: int, changed: int, audit: AuditWrite) -> bool:
    """Note what somebody did, if it changed anything."""
    if changed:
        note(con, now, [audit])
    return changed > 0


def paused(con: sqlite3.Connection) -> dict[str, str]:
    """Paused workflows and who paused them."""
    return dict(con.execute(SQL["paused"]).fetchall())
