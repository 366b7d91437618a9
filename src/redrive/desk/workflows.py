"""`app.workflows`: which there are; stop one from being claimed, and let it go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from redrive.clock import Clock
from redrive.core.events import Event
from redrive.core.transition import AuditWrite
from redrive.desk.checks import person
from redrive.frozen import dataclass
from redrive.store.port import Store
from redrive.store.workers import living

__all__ = ["KnownWorkflow", "Workflows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWorkflow:
    """A workflow that somebody registered. `unclaimable` counts due runs that no live worker can take.

    Version and schemas are those of the newest code that ran; None if none did.
    """

    name: str
    version: str | None
    workers: int
    paused_by: str | None
    unclaimable: int
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None


class Workflows:
    """Registered workflows, as people handle them."""

    def __init__(
        self, store: Store, clock: Clock, on_change: Callable[[], None], here: Collection[str] = ()
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._here = here

    async def list(self) -> list[KnownWorkflow]:
        """Every workflow that code registered, that is paused or that runs wait for, by name."""
        store = self._store
        alive = living(await store.workers(), store.now())
        items = {item.name: item for item in await store.workflows()}
        paused, waiting = await store.paused(), await store.unclaimable(())
        return [
            KnownWorkflow(
                name=name,
                version=items[name].version if name in items else None,
                workers=sum(name in worker.workflows for worker in alive),
                paused_by=paused.get(name),
                unclaimable=waiting.get(name, 0),
                input_schema=json.loads(items[name].schema_in or "{}") if name in items else None,
                output_schema=json.loads(items[name].schema_out or "{}") if name in items else None,
            )
            for name in sorted(items.keys() | paused.keys() | waiting.keys() | set(self._here))
        ]

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
