"""Adding lines to the audit log."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.transition import AuditWrite
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load
from redrive.store.postgres.telling import audit_lines

__all__ = ["note"]

WRITES = load("writes.sql")


async def note(line: Line, clock: DatabaseClock, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    await line.rows(WRITES["note"], now=clock.given(), told=audit_lines(lines))
