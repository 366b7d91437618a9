"""Tasks of remote steps: their queues, the answers of those who execute them, and attempts without an answer.

A server hands tasks out to step workers over HTTP, and a bridge to processors of another system. Both only say what
happened: circuits are asked, outputs are checked and attempts are decided on here. The decision is the one that
`decide` makes about a step of a worker's own run. It is recorded under the fence of the task, and not under that of
the run: the holder of the run records the final answer. So a retry wakes no workflow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.circuit import Admission, AdmittedCall, resolve_circuit
from redrive.core.classify import Category
from redrive.core.decide_entry import build_circuit_failure
from redrive.core.failure import Failure
from redrive.core.failure_reason import LetterCode, Stage
from redrive.core.journal import generation_of_call
from redrive.core.json_schema import find_faults, find_json_fault
from redrive.core.keys_and_ids import flow_key
from redrive.core.outcomes import AttemptFailed, AttemptSucceeded, EntryRef, RunView
from redrive.core.payload import check_size
from redrive.core.retry import compute_backoff
from redrive.core.run_options import RunOptions, StepOptions, find_policy
from redrive.core.secret_and_sealed_text import is_sealed, sealed_limit
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import AttemptEnd, AttemptWrite, Transition, TransitionResult
from redrive.errors import PayloadTooLarge
from redrive.observability.counters import SettleListener
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settle.circuits import apply_samples, update_circuit
from redrive.settle.settler import LocalSettler, load_policies, log_unreadable_options, parse_run_options
from redrive.store.circuits import CircuitCase, CircuitUpdate, PermitRequest
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import DeskStore, Store
from redrive.store.step_tasks import TaskCase, TaskClaim, TaskStatus, TaskWrite
from redrive.time_values import format_duration, to_micros

if TYPE_CHECKING:
    from redrive.core.outbox import SinkLease
    from redrive.store.workers import Receipt


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a ticket: an output, or a failure. The other fields are those of `AttemptFailed`."""

    case: TaskCase
    output: str = "null"
    failure: Failure | None = None
    end: AttemptEnd = AttemptEnd.FAILED
    cause: LetterCode | None = None
    stage: Stage = Stage.EXEC
    why: Reason | None = None
    deaths: int = 0


class TaskReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a report: `SUCCESS`, `RETRYING` or `FAILED`. `problem`: why an output could not be used."""

    status: str
    next_in_ms: int | None = None
    problem: str | None = None


class TaskSettler:
    """Decides on the answers to tickets, and records the decisions."""

    def __init__(self, store: DeskStore, clock: Clock, *, listeners: Sequence[SettleListener] = ()) -> None:
        self._store = store
        self._clock = clock
        self._settler = LocalSettler(store, clock, listeners=listeners)

    async def settle(self, reports: Sequence[TaskReport], store: DeskStore | None = None) -> list[TaskReply | None]:
        """Decide on reports and record the decisions in one commit; None for a task that was taken from its worker."""
        now = self._store.now()
        writer = _TaskWriter(store or self._store, reports)
        outcomes = [_make_outcome(report, now) for report in reports]
        settled = await self._settler.settle(outcomes, store=cast(DeskStore, writer))
        for each in settled:
            for sample in each.transition.samples if each.kept else ():
                key, settings = (each.transition.tenant, sample.key), sample.settings
                await update_circuit(self._store, key, partial(_evaluate, settings))
        return [writer.replies[number] if each.kept else None for number, each in enumerate(settled)]

    async def settle_lost(self, lost: Sequence[tuple[TaskCase, bool]]) -> int:
        """Let tasks of workers that are gone begin again under the same number; return how many did.

        A death counts against the suspects among a worker's tasks; if there was none, against all of them.
        """
        policies = await load_policies(self._store)
        suspected = {case.worker for case, _ in lost if case.deaths > 0}
        reports: list[TaskReport] = []
        writes: list[TaskWrite] = []
        for case, died in lost:
            run, step = read_run_options(case), read_step_options(case)
            counts = died and case.begun and (case.deaths > 0 or case.worker not in suspected)
            deaths = case.deaths + counts
            if case.begun and step.at_most_once:
                reports.append(_make_uncertain_report(case))
            elif counts and deaths >= run.max_crashes:
                why = Reason(ReasonCode.WORKERS_DIED, n=deaths)
                failure = Failure.of(Category.UNKNOWN, str(why), error_type="redrive.WorkerDied")
                code = LetterCode.INFRASTRUCTURE_FAILURE
                reports.append(
                    TaskReport(case=case, failure=failure, end=AttemptEnd.LOST, cause=code, why=why, deaths=deaths)
                )
            else:
                policy = find_policy(
                    policies, run=run, step=step, tenant=case.tenant, workflow=case.workflow, name=case.name
                )
                delay = compute_backoff(policy, deaths, self._clock.draw()).seconds if counts else 0.0
                end = AttemptEnd.LOST if died else AttemptEnd.RELEASED
                now = self._store.now()  # a task that was taken before it was due stays due at that time
                writes.append(_build_repeat(case, now, end, deaths, max(to_micros(delay), case.due_at - now)))
        return await self._apply(reports, writes)

    async def settle_late(self, late: Sequence[TaskCase]) -> int:
        """End attempts that passed their time limit."""
        now = self._store.now()
        reports = []
        for case in late:
            step = read_step_options(case)
            timed_out = now >= case.began_at + to_micros(step.timeout)
            limit = step.timeout if timed_out else step.limit
            what = "did not finish within" if timed_out else "sent no heartbeat for"
            message = f"step {case.name!r} {what} {format_duration(limit)}"
            failure = Failure.of(Category.TIMEOUT, message, error_type="builtins.TimeoutError")
            reports.append(TaskReport(case=case, failure=failure, end=AttemptEnd.TIMED_OUT))
        begun = [report for report in reports if report.case.begun]
        waiting = [build_return(case, max(0, case.due_at - now)) for case in late if not case.begun]
        return await self._apply(begun, waiting)

    async def _apply(self, reports: Sequence[TaskReport], writes: Sequence[TaskWrite]) -> int:
        kept = 0 if not writes else len(await self._store.settle_tasks(writes))
        settled = await self.settle(reports) if reports else []
        return kept + sum(reply is not None for reply in settled)


def _evaluate(settings: str, case: CircuitCase) -> CircuitUpdate | None:
    return apply_samples(case, settings)


class _TaskWriter:
    """A store that records decisions about tasks under the fences of their tickets. All other calls are the store's."""

    def __init__(self, store: DeskStore, reports: Sequence[TaskReport]) -> None:
        self._store = store
        self._reports = reports
        self.replies: list[TaskReply] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[SinkLease] = (),
        receipt: Receipt | None = None,
    ) -> list[TransitionResult]:
        pairs = list(zip(self._reports, transitions, strict=True))
        self.replies = [_make_reply(report, transition) for report, transition in pairs]
        writes = [
            _build_write(report, transition, reply)
            for (report, transition), reply in zip(pairs, self.replies, strict=True)
        ]
        kept = await self._store.settle_tasks(writes)
        now = self._store.now()
        return [TransitionResult((each.case.run, each.case.index) in kept, now) for each in self._reports]


def make_run_view_of(case: TaskCase) -> RunView:
    """Return the run of a task as `decide` takes it."""
    return RunView(
        id=case.run,
        public_id=case.run_id,
        tenant=case.tenant,
        workflow=case.workflow,
        fence=case.run_fence,
        input="null",
        options=read_run_options(case),
        correlation_id=case.correlation_id,
    )


def read_run_options(case: TaskCase) -> RunOptions:
    """Return the options of a task's run; the defaults if they cannot be read."""
    try:
        return RunOptions() if case.options is None else parse_run_options(case.options)
    except Exception as error:  # of any kind: another version of the code may have written them
        log_unreadable_options(case.run_id, None, error)
        return RunOptions()


def read_step_options(case: TaskCase) -> StepOptions:
    """Return the options of a task's step; the defaults if they cannot be read."""
    try:
        return StepOptions.from_json(case.step_options)
    except Exception as error:  # of any kind, as above
        log_unreadable_options(case.run_id, case.name, error)
        return StepOptions()


def _make_outcome(report: TaskReport, now: int) -> AttemptSucceeded | AttemptFailed:
    case = report.case
    place = EntryRef(case.index, case.key, EntryKind.STEP, case.name)
    began_ago = max(0, now - case.began_at)
    admitted = read_step_options(case).build_admitted_call(case.workflow, case.name)
    if case.admitted is not None:
        admitted = AdmittedCall(*json.loads(case.admitted))
    # The run's holder gives the entry its completion number, so the one here is not used.
    if report.failure is None:
        return AttemptSucceeded(
            run=make_run_view_of(case),
            place=place,
            attempt=case.attempt,
            began_ago=began_ago,
            done=0,
            input=case.input,
            output=report.output,
            admitted=admitted if admitted is not None and admitted.probe else None,
        )
    return AttemptFailed(
        run=make_run_view_of(case),
        place=place,
        attempt=case.attempt,
        began_ago=began_ago,
        first_ago=max(0, now - case.first_at),
        done=0,
        input=case.input,
        failure=report.failure,
        step=read_step_options(case),
        end=report.end,
        cause=report.cause,
        stage=report.stage,
        why=report.why,
        admitted=admitted,
    )


def _make_uncertain_report(case: TaskCase) -> TaskReport:
    """Return the report of a step that runs at most once, and whose worker is gone."""
    why = Reason(ReasonCode.STEP_CUT_SHORT, step=case.name)
    failure = Failure.of(Category.UNKNOWN, str(why), error_type="redrive.MayHaveHappened")
    return TaskReport(case=case, failure=failure, end=AttemptEnd.LOST, cause=LetterCode.INFRASTRUCTURE_FAILURE, why=why)


def _make_reply(report: TaskReport, transition: Transition) -> TaskReply:
    entry = transition.entries[0]
    problem = str(report.why) if report.stage is Stage.OUTPUT and report.why is not None else None
    wait = None if entry.wake_in is None else -(-entry.wake_in // 1000)
    return TaskReply(status=entry.status.value, next_in_ms=wait, problem=problem)


def _build_write(report: TaskReport, transition: Transition, reply: TaskReply) -> TaskWrite:
    case, entry = report.case, transition.entries[0]
    retries = entry.status is StepStatus.RETRYING
    return TaskWrite(
        run=case.run,
        index=case.index,
        fence=case.fence,
        tenant=case.tenant,
        worker=case.worker,
        status=TaskStatus.READY if retries else TaskStatus.ANSWERED,
        attempt=case.attempt + retries,
        deaths=report.deaths,
        delay=entry.wake_in or 0,
        output=entry.output,
        failure=entry.failure,
        reply=msgspec.json.encode(reply).decode(),
        shown=StepStatus.RETRYING if retries else None,
        decided=transition,
    )


def build_return(case: TaskCase, delay: int) -> TaskWrite:
    """Return the write that gives a task back whose body was not called."""
    return _build_repeat(replace(case, begun=False), case.began_at, AttemptEnd.RELEASED, case.deaths, delay)


def _build_repeat(case: TaskCase, now: int, end: AttemptEnd, deaths: int, delay: int) -> TaskWrite:
    """Return the write that lets an attempt begin again under its number."""
    attempt = AttemptWrite(index=case.index, attempt=case.attempt, end=end, began_ago=max(0, now - case.began_at))
    return TaskWrite(
        run=case.run,
        index=case.index,
        fence=case.fence,
        tenant=case.tenant,
        worker=case.worker,
        status=TaskStatus.READY,
        attempt=case.attempt,
        deaths=deaths,
        delay=delay,
        shown=StepStatus.PENDING,
        decided=Transition(
            run=case.run, tenant=case.tenant, fence=case.run_fence, attempts=(attempt,) if case.begun else ()
        ),
    )


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
