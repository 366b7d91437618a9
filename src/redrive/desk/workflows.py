"""`app.workflows`: stop a workflow from being claimed, and let it go on."""

from __future__ import annotations

from collections.abc import Callable

from redrive.store.port import Store

__all__ = ["Workflows"]


class Workflows:
    """Registered workflows, as people handle them."""

    def __init__(self, store: Store, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change

    async def pause(self, name: str, *, by: str = "unknown") -> None:
        """Let no run of the workflow be claimed. Runs can still be started; those under way go on
        until they wait."""
        await self._store.pause(name, by=by)

    async def resume(self, name: str) -> None:
        """Let its runs be claimed again."""
        await self._store.resume(name)
        self._on_change()

    async def unclaimable(self) -> dict[str, int]:
        """Workflows with due runs that no live worker has registered, and how many (up to 1,000)."""
        return await self._store.unclaimable(())

    async def paused(self) -> dict[str, str]:
        """The paused workflows, and who paused them."""
        return await self._store.paused()
