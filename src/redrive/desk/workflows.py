"""`app.workflows`: stop a workflow from being claimed, and let it go on."""

from __future__ import annotations

from collections.abc import Callable

from redrive.clock import Clock
from redrive.core.events import Event
from redrive.core.transition import AuditWrite
from redrive.desk.checks import person
from redrive.store.port import Store

__all__ = ["Workflows"]


class Workflows:
    """Registered workflows, as people handle them."""

    def __init__(self, store: Store, clock: Clock, on_change: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change

    async def pause(self, name: str, *, by: str = "unknown") -> None:
        """Let no run of the workflow be claimed. Runs can still be started; those under way go on
        until they wait."""
        await self._store.pause(name, self._line(Event.WORKFLOW_PAUSED, name, by))

    async def resume(self, name: str, *, by: str = "unknown") -> None:
        """Let its runs be claimed again."""
        await self._store.resume(name, self._line(Event.WORKFLOW_RESUMED, name, by))
        self._on_change()

    async def unclaimable(self) -> dict[str, int]:
        """Workflows with due runs that no live worker has registered, and how many (up to 1,000)."""
        return await self._store.unclaimable(())

    async def paused(self) -> dict[str, str]:
        """The paused workflows, and who paused them."""
        return await self._store.paused()

    def _line(self, event: Event, name: str, by: str) -> AuditWrite:
        return AuditWrite(
            event=event.value, tenant="", by=person(by), subject=name, token=self._clock.new_id()
        )
