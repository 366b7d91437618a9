"""The circuits that a worker knows, so that a call asks nothing while its circuit is closed.

    admit_now              from memory: the admission of a call that goes out at once
    request_permit         otherwise: wait for an evaluation that is under way, or ask the store for a permit
    evaluate_samples       evaluate the circuits about which something was recorded
    wait                   for a branch that stays in memory: until one more may try
    refresh_if_stale       read changes by other processes: with every claim, and twice a second
    refresh_in_background  do so while something else is done, such as a start

A circuit that never changed is not in memory, and is closed. `CircuitGate` decides about one step call: it is
made, waits, or fails without being made.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS, Clock, Timer
from redrive.core.audit import read_reason
from redrive.core.circuit import (
    Admission,
    AdmittedCall,
    CircuitState,
    CircuitStatus,
    build_rules,
    release_size,
    resolve_circuit,
)
from redrive.core.outcomes import EntryRef, StepParked
from redrive.errors import RunDetached, StoreError
from redrive.record_fields import replace
from redrive.settle.settler import Settled
from redrive.store.circuits import CircuitKey, CircuitRow, Permit, PermitRequest, SuccessCount
from redrive.store.sql_store import repeat_until_answered
from redrive.worker.backend import Backend

if TYPE_CHECKING:
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution

log = logging.getLogger("redrive.worker")

_REFRESH_INTERVAL = 0.5  # how long to trust what is in memory, in seconds: half of what is promised
_FRESH_FOR = 0.01  # how long what was just read counts as new
_VISIBILITY_MARGIN = 5 * MICROS  # changes may become visible this much later than they say they were made
_COUNT_INTERVAL = 5.0  # seconds between two writes of the successes that were counted
_WAVE_INTERVAL = 1.0  # seconds between two waves of branches that wait in memory


class Circuits:
    """The circuits that ever changed, as this worker knows them. `wanted`: some step has one."""

    def __init__(self, backend: Backend, clock: Clock, *, wanted: bool) -> None:
        self.wanted = wanted
        self.asking = 0
        self._backend = backend
        self._clock = clock
        self._rows: dict[CircuitKey, CircuitRow] = {}
        self._evaluating: dict[CircuitKey, asyncio.Task[None]] = {}
        self._again: set[CircuitKey] = set()
        self._queues: dict[CircuitKey, _WaitQueue] = {}
        self._since = 0
        self._refreshed_at = -math.inf
        self._refreshing: asyncio.Task[None] | None = None
        self._successes: dict[CircuitKey, SuccessCount] = {}
        self._report: list[SuccessCount] = []  # is sent under the same number until the store answers
        self._report_number = 0
        self._counted_at = clock.monotonic()

    def count_success(self, tenant: str, call: AdmittedCall) -> None:
        """Count a successful call in memory: a commit for each of them would slow down every step."""
        circuit_key = (tenant, call.key)
        before = self._successes.get(circuit_key)
        calls = 1 if before is None else before.calls + 1
        self._successes[circuit_key] = SuccessCount(tenant, call.key, call.settings, calls, self._backend.now())

    async def write_successes(self) -> None:
        """Write the successes that were counted since the last time; a store that does not answer gets them later."""
        self._counted_at = self._clock.monotonic()
        while self._report or self._successes:
            if not self._report:
                self._report, self._successes = list(self._successes.values()), {}
                self._report_number += 1
            try:
                await self._backend.count_successes(self._report_number, self._report)
            except StoreError as error:
                log.warning("successes behind circuits could not be written: %s", error)
                return
            self._report = []

    def generation_if_closed(self, circuit_key: CircuitKey) -> int | None:
        """Return the generation under which a call may go out; None if the circuit may not be closed."""
        if circuit_key in self._evaluating:
            return None
        row = self._rows.get(circuit_key)
        if row is None:
            return 0
        return row.generation if row.status is CircuitStatus.CLOSED else None

    def admit_now(self, step: Step[Any, Any], tenant: str, workflow: str) -> AdmittedCall | None:
        """Return the admission of a call that may go out at once; None if the circuit may not be closed."""
        first = step.make_first_admission(workflow)
        generation = self.generation_if_closed((tenant, first.key))
        if not generation:
            return None if generation is None else first
        return replace(first, generation=generation)

    async def request_permit(self, ask: PermitRequest) -> Permit | None:
        """Ask whether to call a dependency that may be down; None if the circuit's state must be checked again."""
        circuit_key = (ask.tenant, ask.key)
        evaluating = self._evaluating.get(circuit_key)
        if evaluating is not None:
            await asyncio.wait([evaluating])
            return None
        row = self._rows.get(circuit_key)
        if row is not None and row.is_open:
            return Permit(admission=Admission.STAY_OUT, row=row)
        self.asking += 1
        try:
            permit = await repeat_until_answered(lambda: self._backend.permit(ask), self._clock)
        finally:
            self.asking -= 1
        self.learn(permit.row)
        if permit.stale:
            self.evaluate(circuit_key, ask.settings)
            return None
        return permit

    def evaluate_samples(self, settled: Settled) -> None:
        """Evaluate the circuits about which something was recorded."""
        if settled.kept:
            for sample in settled.transition.samples:
                self.evaluate((settled.transition.tenant, sample.key), sample.settings)

    def evaluate(self, circuit_key: CircuitKey, settings: str) -> None:
        """Begin to evaluate a circuit; it admits no call before that is done."""
        if circuit_key in self._evaluating:
            self._again.add(circuit_key)
        else:
            self._evaluating[circuit_key] = asyncio.create_task(
                self._evaluate(circuit_key, settings), name="redrive circuit"
            )

    async def _evaluate(self, circuit_key: CircuitKey, settings: str) -> None:
        try:
            while True:
                self._again.discard(circuit_key)
                row = await repeat_until_answered(
                    lambda: self._backend.evaluate_circuit(circuit_key, settings), self._clock
                )
                if circuit_key not in self._again:
                    break
        finally:
            del self._evaluating[circuit_key]
        self.learn(row)

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """The evaluations that are under way."""
        return self._evaluating.values()

    def learn(self, row: CircuitRow) -> None:
        """Remember the state of a circuit, unless a newer one is known."""
        known = self._rows.get(row.circuit_key)
        if row.generation == 0 or (known is not None and row.version < known.version):
            return
        self._rows[row.circuit_key] = row
        if known is None or known.generation != row.generation:
            why = f"changed by {row.changed_by}" if row.why is None else read_reason(row.changed_by, row.why)
            log.warning("circuit %r of tenant %r is %s: %s", row.key, row.tenant, row.status.value, why)
            if row.circuit_key in self._queues:
                self._queues[row.circuit_key].on_change(row)

    async def refresh(self) -> None:
        """Read what changed since the last time."""
        rows = await self._backend.circuits_changed_since(self._since)
        for row in rows:
            self.learn(row)
        self._since = max([self._since, *(row.changed_at - _VISIBILITY_MARGIN for row in rows)])

    async def poll(self) -> None:
        """Refresh regularly, for as long as the task lives."""
        while True:
            await self._clock.sleep(_REFRESH_INTERVAL)
            await self.refresh_if_stale()
            if self._clock.monotonic() - self._counted_at >= _COUNT_INTERVAL:
                await self.write_successes()

    async def refresh_if_stale(self) -> None:
        """Refresh, unless that was done a moment ago; a store that does not answer is asked later."""
        now = self._clock.monotonic()
        if now - self._refreshed_at < _FRESH_FOR:
            return
        try:
            await self.refresh()
            self._refreshed_at = now
        except StoreError as error:
            log.warning("circuits could not be refreshed: %s", error)

    def refresh_in_background(self) -> asyncio.Task[None]:
        """Refresh while the caller does something else. The task is never a branch of a calling run."""
        if self._refreshing is None or self._refreshing.done():
            loop, empty = asyncio.get_running_loop(), contextvars.Context()
            self._refreshing = loop.create_task(self.refresh_if_stale(), name="redrive circuits", context=empty)
        return self._refreshing

    async def wait(self, circuit_key: CircuitKey) -> None:
        """Wait until one more waiting branch may try: few at first, more with every second."""
        queue = self._queues.setdefault(circuit_key, _WaitQueue(self._clock))
        try:
            await queue.wait(self._rows.get(circuit_key))
        finally:
            if queue.is_empty:
                queue.close()
                self._queues.pop(circuit_key, None)

    async def close(self) -> None:
        """Leave what is not evaluated yet to other workers."""
        for queue in self._queues.values():
            queue.close()
        tasks = list(self._evaluating.values())
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _WaitQueue:
    """Branches that wait for one circuit in memory, because other branches of their runs continue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._row: CircuitRow | None = None
        self._state = CircuitState()
        self._timer: Timer | None = None

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    async def wait(self, row: CircuitRow | None) -> None:
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(passed)
        if row is not None and (self._row is None or self._row.generation != row.generation):
            self._row, self._state = row, row.state
        self._schedule_wave()
        try:
            await passed
        finally:
            if passed in self._waiting:
                self._waiting.remove(passed)

    def on_change(self, row: CircuitRow) -> None:
        """Handle a change of the circuit: begin with small waves."""
        self._row, self._state = row, replace(row.state, wave=0)
        self.close()
        self._release_wave()

    def _release_wave(self) -> None:
        self._timer = None
        if self._row is None:
            return
        count, self._state = release_size(self._state, build_rules(self._row.in_force), 0)
        for _ in range(min(count, len(self._waiting))):
            passed = self._waiting.popleft()
            if not passed.done():
                passed.set_result(None)
        self._schedule_wave()

    def _schedule_wave(self) -> None:
        if self._waiting and self._timer is None and self._state.status is not CircuitStatus.OPEN:
            self._timer = self._clock.call_later(_WAVE_INTERVAL, self._release_wave)

    def close(self) -> None:
        """Cancel the next wave."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CircuitGate:
    """Admission of one step call by its circuit. `parked`: the journal shows the step as waiting for it."""

    __slots__ = ("_circuit_key", "_execution", "_input", "_on_record", "_place", "_request", "_step", "parked")

    def __init__(
        self, execution: Execution, step: Step[Any, Any], place: EntryRef, input: str, *, parked: bool
    ) -> None:
        claimed = execution.claimed
        self._execution = execution
        self._step = step
        self._place = place
        self._input = input
        self._on_record = False
        self.parked = parked
        self._request = PermitRequest(
            tenant=claimed.tenant,
            key=step.make_first_admission(claimed.workflow).key,
            settings=step.circuit_text,
            run=claimed.id,
            fence=claimed.fence,
            index=place.index,
        )
        self._circuit_key: CircuitKey = (claimed.tenant, self._request.key)

    @property
    def key(self) -> str:
        """The circuit's key."""
        return self._request.key

    async def admit(self, made: int) -> AdmittedCall | None:
        """Wait until the step may be called; None if it is to fail instead. `made` counts its attempts."""
        execution, request = self._execution, self._request
        circuits = execution.worker.circuits
        while True:
            with execution.suspension.keep_awake():  # the run must not be suspended while the store is asked
                permit = await circuits.request_permit(request)
            await execution.ready()
            generation = circuits.generation_if_closed(self._circuit_key)
            probe = False
            if generation is None:
                if permit is None or permit.admission is Admission.CALL:
                    continue  # memory has a newer state now
                if permit.admission is Admission.PROBE:
                    generation, probe = permit.row.generation, True
            if generation is not None:
                self.parked = False
                return AdmittedCall(request.key, request.settings, generation, probe)
            assert permit is not None
            if resolve_circuit(request.settings, permit.row.override).on_open == "fail":
                return None
            await self._park(made)

    async def _park(self, made: int) -> None:
        """Wait: the whole run if it has no other branch, otherwise the branch in memory."""
        execution = self._execution
        idle = execution.is_only_branch()
        if idle or not self._on_record:
            settled = await execution.settle(
                StepParked(
                    run=execution.view,
                    place=self._place,
                    made=made,
                    input=self._input,
                    options=self._step.options_text,
                    circuit=self._request.key,
                    noted=self.parked,
                    idle=idle,
                    resumes=execution.suspension.wake_up(),
                )
            )
            self.parked = self._on_record = True
            if settled.transition.change is not None and settled.transition.change.release:
                execution.detach()
                raise RunDetached
        with execution.suspension.mark_waiting(self._place, made, math.inf, self._request.key):
            execution.order.recheck()
            await execution.worker.circuits.wait(self._circuit_key)
        await execution.ready()
