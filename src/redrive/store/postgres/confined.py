"""Connections for one tenant's user: each use is a transaction in which no other tenant exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from redrive.store.postgres.line import Line
from redrive.store.postgres.lines import Lines
from redrive.store.postgres.roles import acting_for

__all__ = ["AnyLines", "TenantLines"]

Result = TypeVar("Result")


class AnyLines(Protocol):
    """Connections, whoever they act for."""

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Do one thing on a connection."""

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Read several things as they were at one moment."""


class TenantLines:
    """The engine's connections, each use one transaction as `redrive_app` for one tenant."""

    def __init__(self, lines: Lines, tenant: str) -> None:
        self._lines = lines
        self._tenant = tenant

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        async with self._lines.line() as line, acting_for(line, self._tenant):
            return await work(line)

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        # The picture comes first: setting the tenant is a query, and after one it would be too late.
        async with self._lines.line() as line, line.picture(), acting_for(line, self._tenant):
            return await work(line)
