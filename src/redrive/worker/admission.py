"""A step call before the circuit of its dependency: it goes through, waits, or fails without a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.core.circuit import Admission, Admitted, in_force
from redrive.core.outcome import Parked, Place
from redrive.errors import PutDown
from redrive.store.circuits import Ask, CircuitPlace, Permit

if TYPE_CHECKING:
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Door"]


class Door:
    """The way of one step call past its circuit. `parked`: the journal shows the step as waiting for it."""

    __slots__ = ("_ask", "_execution", "_input", "_on_record", "_place", "_step", "parked")

    def __init__(
        self, execution: Execution, step: Step[Any, Any], place: Place, input: str, *, parked: bool
    ) -> None:
        claimed = execution.claimed
        self._execution = execution
        self._step = step
        self._place = place
        self._input = input
        self._on_record = False
        self.parked = parked
        self._ask = Ask(
            tenant=claimed.tenant,
            key=step.fresh(claimed.workflow).key,
            settings=step.circuit_text,
            run=claimed.id,
            fence=claimed.fence,
            index=place.index,
        )

    @property
    def key(self) -> str:
        """The circuit's key."""
        return self._ask.key

    async def passes(self, made: int) -> Admitted | None:
        """Wait until the step may be called; None if it is to fail instead. `made` counts its attempts."""
        circuits = self._execution.worker.circuits
        while True:
            permit = await self._permit()
            generation = circuits.lets(self._where)
            if generation is not None:
                return self._through(generation, probe=False)
            if permit is None or permit.admission is Admission.CALL:
                continue  # what was learnt meanwhile says how to go on
            if permit.admission is Admission.PROBE:
                return self._through(permit.row.generation, probe=True)
            if in_force(self._ask.settings, permit.row.override).on_open == "fail":
                return None
            await self._park(made)

    @property
    def _where(self) -> CircuitPlace:
        return self._ask.tenant, self._ask.key

    def _through(self, generation: int, *, probe: bool) -> Admitted:
        self.parked = False
        return Admitted(self._ask.key, self._ask.settings, generation, probe)

    async def _permit(self) -> Permit | None:
        """Ask; the run does not rest meanwhile, and goes on only if it may."""
        execution = self._execution
        execution.kept_waiting += 1
        try:
            permit = await execution.worker.circuits.ask(self._ask)
        finally:
            execution.kept_waiting -= 1
        await execution.ready()
        return permit

    async def _park(self, made: int) -> None:
        """Wait: with the whole run if nothing else goes on in it, otherwise in memory."""
        execution = self._execution
        idle = execution.alone()
        if idle or not self._on_record:
            await self._record(made, idle)
        waiting = execution.worker.circuits.wait(self._where)
        await execution.rest.park(self._place, made, self._ask.key, waiting)
        await execution.ready()

    async def _record(self, made: int, idle: bool) -> None:
        execution = self._execution
        settled = await execution.settle(
            Parked(
                run=execution.view,
                place=self._place,
                made=made,
                input=self._input,
                options=self._step.options_text,
                circuit=self._ask.key,
                noted=self.parked,
                idle=idle,
                resumes=execution.rest.wake_up(),
            )
        )
        self.parked = self._on_record = True
        if settled.transition.change is not None and settled.transition.change.release:
            execution.put_down()
            raise PutDown
