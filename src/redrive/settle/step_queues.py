"""Queues of remote steps: tasks that are handed out to those who execute them, and the answers that come back.

A server does this for step workers over HTTP, and a bridge for processors of another system. Both only say what
happened: circuits are asked, outputs are checked and attempts are decided on here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from redrive.clock import MICROS, Clock
from redrive.core.circuit import Admission, AdmittedCall, resolve_circuit
from redrive.core.classify import Category
from redrive.core.decide_step import build_circuit_failure
from redrive.core.failure import Failure
from redrive.core.failure_reason import LetterCode, Stage
from redrive.core.idempotency import flow_key
from redrive.core.journal import generation_of_call
from redrive.core.json_schema import find_faults, find_json_fault
from redrive.core.payload import check_size
from redrive.core.secret_text import is_sealed, sealed_limit
from redrive.errors import PayloadTooLarge
from redrive.observability.counters import SettleListener
from redrive.reasons import Reason, ReasonCode
from redrive.settle.step_tasks import TaskReply, TaskReport, TaskSettler, build_return, read_step_options
from redrive.store.circuits import PermitRequest
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import DeskStore, Store
from redrive.store.step_tasks import TaskCase, TaskClaim

_SCHEMA_LIFETIME = 2.0  # seconds for which the declared type of a step is trusted
_CIRCUIT_PAUSE = 1 * MICROS


class StepQueues:
    """The queues of remote steps in a store."""

    def __init__(
        self,
        store: Callable[[], Store],
        clock: Clock,
        max_payload: int,
        listeners: Callable[[], Sequence[SettleListener]],
    ) -> None:
        self._find_store = store
        self._clock = clock
        self._max_payload = max_payload
        self._listeners = listeners
        self._schemas: dict[tuple[str, str], tuple[float, Any]] = {}

    @property
    def _store(self) -> Store:
        return self._find_store()

    # -- handing out ----------------------------------------------------------------------------------

    async def take(self, claim: TaskClaim, *, keys: bool = False) -> list[TaskCase]:
        """Give a worker due tasks whose circuits admit a call. The others are due later, or fail.

        `keys`: the worker decrypts inputs itself. On another one, a task whose input is unreadable here fails.
        """
        ready: list[TaskCase] = []
        closed: set[tuple[str, str]] = set()  # circuits that never changed
        for case in await self._store.take_tasks(claim):
            admitted = read_step_options(case).build_admitted_call(case.workflow, case.name)
            if isinstance(case.input, Unreadable) and not keys:
                failure = Failure.of(Category.INTERNAL, case.input.why, error_type="redrive.Unreadable")
                code = LetterCode.INFRASTRUCTURE_FAILURE
                await self.settle([TaskReport(case=case, failure=failure, cause=code)])
                continue
            if admitted is not None and (case.tenant, admitted.key) not in closed:
                row = (await self._store.circuit(case.tenant, admitted.key)).row
                if row.generation:
                    if not await self._ask_circuit(case, admitted):
                        continue
                else:
                    closed.add((case.tenant, admitted.key))
            ready.append(case)
        return ready

    async def give_back(self, cases: Sequence[TaskCase]) -> None:
        """Let tasks be taken by others, as if they had not been taken."""
        now = self._store.now()
        if cases:
            await self._store.settle_tasks([build_return(case, max(0, case.due_at - now)) for case in cases])

    async def _ask_circuit(self, case: TaskCase, call: AdmittedCall) -> bool:
        """Ask whether a circuit that changed before admits a call; otherwise its task waits or fails."""
        ask = PermitRequest(
            tenant=case.tenant, key=call.key, settings=call.settings, run=case.run, fence=case.fence, index=case.index
        )
        permit = await self._store.permit(ask)
        row = permit.row
        if permit.admission is not Admission.STAY_OUT:
            admitted = [call.key, call.settings, row.generation, permit.admission is Admission.PROBE]
            await self._store.admit_task(case, json.dumps(admitted))
            return True
        if resolve_circuit(call.settings, row.override).on_open == "fail":
            why = Reason(ReasonCode.CIRCUIT_OPEN, circuit=call.key)
            failure, code = build_circuit_failure(why), LetterCode.DEPENDENCY_UNAVAILABLE
            await self.settle([TaskReport(case=case, failure=failure, cause=code, why=why)])
        else:
            wait = max(_CIRCUIT_PAUSE, 0 if row.until is None else row.until - self._store.now())
            await self._store.settle_tasks([build_return(case, wait)])
        return False

    async def find_key(self, case: TaskCase) -> str:
        """Return the idempotency key of a task's step: the same for all its attempts and replays."""
        generation = case.generation and generation_of_call(
            await self._store.journal(case.run), case.key, case.generation
        )
        return flow_key(case.tenant, case.root or case.run_id, case.key, generation)

    # -- answers --------------------------------------------------------------------------------------

    async def make_report(self, case: TaskCase, output: str) -> TaskReport:
        """Return the report of an output, a JSON text. One that does not fit its declared type is a failure.

        An output that the worker encrypted is checked by the worker of the run.
        """
        sealed = is_sealed(output)
        most = sealed_limit(self._max_payload) if sealed else self._max_payload
        try:
            check_size(output, most, f"the result of step {case.name!r}")
        except PayloadTooLarge as error:
            return _make_unusable(case, Reason.of_error(error), LetterCode.POLICY_VIOLATION)
        if sealed:
            return TaskReport(case=case, output=output)
        if (fault := find_json_fault(output)) is not None:
            why = Reason(ReasonCode.WORKER_REQUEST_INVALID, why=f"output {fault}")
            return _make_unusable(case, why, LetterCode.VALIDATION_FAILED)
        schema = await self._find_schema(case)
        faults = [] if schema is None else find_faults(json.loads(output), schema)
        if faults:
            return _make_unusable(case, faults[0].reason, LetterCode.VALIDATION_FAILED)
        return TaskReport(case=case, output=output)

    async def _find_schema(self, case: TaskCase) -> Any:
        """Return the JSON Schema of the declared result of a step; None if it is not known."""
        now, place = self._clock.monotonic(), (case.tenant, case.name)
        known = self._schemas.get(place)
        if known is None or now - known[0] > _SCHEMA_LIFETIME:
            rows = [row for row in await self._store.known([case.name], tenant=case.tenant) if row.kind == "step"]
            schema = json.loads(rows[0].schema_out or "null") if rows else None
            if len(self._schemas) > 1000:
                self._schemas.clear()
            known = self._schemas[place] = (now, schema)
        return known[1]

    async def settle(self, reports: Sequence[TaskReport], store: DeskStore | None = None) -> list[TaskReply | None]:
        """Decide on reports and record the decisions in one commit; None for a task that was taken from its worker."""
        settler = TaskSettler(self._store, self._clock, listeners=self._listeners())
        return await settler.settle(reports, store=store)


def _make_unusable(case: TaskCase, why: Reason, cause: LetterCode) -> TaskReport:
    failure = Failure.of(Category.VALIDATION, str(why), error_type="redrive.errors.PayloadError")
    return TaskReport(case=case, failure=failure, cause=cause, stage=Stage.OUTPUT, why=why)
