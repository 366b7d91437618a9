"""A replay of one step alone: everything else is taken from the record, and nothing new is begun or said."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redrive.core.journal import entry_name
from redrive.core.outcome import Escaped, Outcome, Place, Stopped
from redrive.errors import PutDown

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Sole"]


class Sole:
    """How far a run may go that is to do one step only; one that may do everything is not hindered.

    `cut_off`: the function came to a message, and is not called on.
    """

    __slots__ = ("_execution", "_kept_out", "cut_off")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._kept_out = 0  # calls that were not let begin
        self.cut_off = False

    async def keep_out(self, place: Place) -> None:
        """Where one step alone is replayed, nothing else begins; the run stops when only that is left."""
        execution = self._execution
        if execution.claimed.sole_step in (None, place.key):
            return
        self._kept_out += 1
        execution.turnstile.poke()
        await execution.never()

    def say_nothing(self) -> None:
        """Where one step alone is replayed, a new message ends it."""
        if self._execution.claimed.sole_step is not None:
            self.cut_off = True
            raise PutDown

    @property
    def is_over(self) -> bool:
        """True if all that is left to do is kept out."""
        execution = self._execution
        return (
            bool(self._kept_out)
            and not execution.busy
            and not execution.rest.holds(execution.claimed.sole_step)
        )

    async def stop(self) -> None:
        """End the run where it is."""
        with suppress(PutDown):
            await self._execution.settle(self.stopped())

    def stopped(self) -> Outcome:
        """How a replay of one step alone ends that may not go on: as that step did."""
        execution = self._execution
        sole_step = execution.claimed.sole_step or ""
        failed = execution.endings.get(sole_step)
        if failed is None:
            return Stopped(run=execution.view, step=entry_name(sole_step))
        ending, place, attempt = failed
        return Escaped(run=execution.view, ending=ending, place=place, attempt=attempt)
