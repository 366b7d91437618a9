"""Registered workflows, their starts, and the handles of started runs."""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from redrive import errors
from redrive.app.results import RunResult
from redrive.clock import MICROS
from redrive.core import new_run
from redrive.core.children import MAX_DEPTH, OnLetter, OnParentEnd, read_choice
from redrive.core.failure_reason import FailureReason
from redrive.core.new_run import START_OPTIONS, StartableWorkflow
from redrive.core.notification_rules import NotifyRule
from redrive.core.payload import check_size
from redrive.core.run_options import RunOptions, StepLimits, add_option
from redrive.core.schedule import Schedule
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.core.waits_and_events import Wait, WaitMode
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.store.claims import ClaimedRun
from redrive.store.encryption.keyring import Unreadable
from redrive.time_values import Duration, parse_duration
from redrive.worker.branches import NO_ENGINE, Branch, current_scope
from redrive.worker.definitions import LimitExceeded, WorkflowDefinition
from redrive.worker.waits import WaitRequest

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.core.payload import Signature
    from redrive.desk.models import Run, SentEvent

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
_NEW_FOR = 0.002  # seconds after its start in which no run has ended, so that the store need not be asked


class RunHandle(Generic[R]):
    """A run: its id, its status and its result."""

    def __init__(
        self, app: Redrive, run_id: str, signature: Signature | None, *, workflow: str = "", new: bool = False
    ) -> None:
        self._app = app
        self._signature = signature
        self._workflow = workflow
        self._started_at = app.runtime.clock.monotonic() if new else -math.inf
        self.id = run_id

    async def status(self) -> RunStatus:
        """Return the current status of the run."""
        found = await self._app.runtime.result_source.runs_by_id([self.id])
        if not found:
            raise errors.NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(self.id)))
        return found[0].status

    def result(self, timeout: Duration | None = None, *, on_letter: str | None = None) -> Coroutine[Any, Any, R]:
        """Wait for the run's result.

        Raises RunFailed if the run ends without a result. Raises TimeoutError if it does not end in time; it
        continues all the same.

        In workflow code the wait is recorded and costs nothing, and a run without a result raises ChildFailed. While
        the run has an open dead letter the wait continues; with `on_letter="fail"` it ends there. In a `def` workflow
        the call itself blocks.
        """
        here = current_scope.get()
        if not isinstance(here, Branch):
            return self._wait_outside_run(timeout)
        request = self._make_wait(here, timeout, read_choice(OnLetter, "on_letter", on_letter, OnLetter.WAIT))
        waiting: Coroutine[Any, Any, R] = here.execution.calls.waits.wait(here, request)
        return here.execution.call_from_thread(waiting) if here.threaded else waiting

    def _make_wait(self, here: Branch, timeout: Duration | None, on_letter: OnLetter) -> WaitRequest:
        if self.id == here.execution.claimed.public_id:
            raise errors.MisusedStep("a run cannot wait for its own result")
        schema = None if self._signature is None else json.loads(self._signature.get_schema_texts()[1])
        return WaitRequest(
            call="result",
            wait=Wait(mode=WaitMode.RUN, names=(self.id,), schema=schema, letters=on_letter is OnLetter.FAIL),
            types={self.id: self._signature},
            timeout=None if timeout is None else parse_duration(timeout, "timeout"),
            workflow=self._workflow,
        )

    async def _wait_outside_run(self, timeout: Duration | None) -> R:
        results = self._app.runtime.results
        new = self._app.runtime.clock.monotonic() - self._started_at < _NEW_FOR
        if timeout is None:
            return self._decode_result(await results.wait(self.id, new=new))
        limit = parse_duration(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                ending = await results.wait(self.id, new=new)
        except TimeoutError:
            raise TimeoutError(f"run {self.id} did not end within {limit:g} s; it continues") from None
        return self._decode_result(ending)

    async def send(self, name: str, payload: Any = None, *, key: str | None = None, by: str = "unknown") -> SentEvent:
        """Send an event to the run, which takes it with `redrive.wait_for`; the same key is the same event."""
        return await self._app.runs.send(self.id, name, payload, key=key, by=by)

    async def cancel(self, *, by: str = "unknown", reason: str = "") -> Run:
        """Cancel the run for good."""
        return await self._app.runs.cancel(self.id, by=by, reason=reason)

    async def describe(self) -> Run:
        """Return everything about the run: its steps, all attempts, and the reasons for decisions."""
        return await self._app.runs.get(self.id)

    def _decode_result(self, ending: RunResult) -> R:
        text = ending.output or "null"
        # A run that was rolled back with its parent keeps its result.
        if ending.status is not RunStatus.SUCCESS and ending.output is None:
            raise _make_run_failed(ending)
        if isinstance(text, Unreadable):
            raise _make_unreadable_error(ending, text)
        value: Any = json.loads(text) if self._signature is None else self._signature.decode_result(text)
        return value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def _make_unreadable_error(ending: RunResult, text: Unreadable) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"run {ending.public_id} ended as {ending.status}, but its result is unreadable: {text.why}"
    )


def _make_run_failed(ending: RunResult) -> errors.RunFailed:
    kind = {RunStatus.PARTIAL: errors.RunPartial, RunStatus.CANCELLED: errors.RunCancelled}.get(
        ending.status, errors.RunFailed
    )
    ended = f"run {ending.public_id} ended as {ending.status}"
    if ending.failure is None:
        return kind(ended, run_id=ending.public_id, status=ending.status)
    if isinstance(ending.failure, Unreadable):
        raise _make_unreadable_error(ending, ending.failure)
    failed = FailureReason.from_json(ending.failure)
    message, reason = failed.failure.message, str(failed.reason)
    if not (message and reason.endswith(message)):
        reason = f"{reason}: {message}"
    return kind(
        f"{ended}: {reason}",
        run_id=ending.public_id,
        status=ending.status.value,
        step=failed.step,
        category=failed.failure.category.value,
        error_type=failed.failure.error_type,
        code=failed.code.value,
        details=failed.failure.details,
    )


@dataclass(frozen=True, slots=True)
class Start:
    """An item of `start_many` that needs options beside its arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


class Workflow(Generic[P, R, T]):
    """A named function that the engine runs durably. Called outside a run, it is the plain function.

    `R` is the type that calling it returns (a coroutine for `async def`), `T` the type of a run's result.
    """

    def __init__(
        self,
        app: Redrive,
        definition: WorkflowDefinition,
        *,
        retry: RetryPolicy | None,
        timeout: float | None,
        limits: StepLimits | None,
        dead_letter: bool,
        max_crashes: int,
        retention_runs: int | None = None,
        dlq_retention: float | None = None,
        index: tuple[str, ...] = (),
        rollback: bool = False,
        notify: NotifyRule | None = None,
        schedules: tuple[Schedule, ...] = (),
    ) -> None:
        functools.update_wrapper(self, definition.fn)
        self.definition = definition
        self.name = definition.name
        self.fn: Callable[P, R] = definition.fn
        self.signature = definition.signature
        self.timeout = timeout
        self.retention_runs = retention_runs
        self.schedules = schedules
        self._app = app
        self.own_options = RunOptions(
            retry=retry,
            limits=limits,
            dead_letter=dead_letter,
            max_crashes=max_crashes,
            letter_keeps=int((dlq_retention or app.settings.dlq_retention) * MICROS),
            index=index,
            rollback=rollback,
            notify=notify,
        )
        self._startable: StartableWorkflow | None = None
        self._startable_as_of = -1  # the number of registrations when it was made

    @property
    def options_text(self) -> str:
        """The stored options of new runs."""
        return self.make_startable().text

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if current_scope.get() is None and self.definition.is_async:
            return self._call_without_engine(*args, **kwargs)  # type: ignore[return-value]
        return self.fn(*args, **kwargs)

    async def _call_without_engine(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without an engine; it may still await its `def` steps, as in unit tests."""
        token = current_scope.set(NO_ENGINE)
        try:
            return await self.definition.fn(*args, **kwargs)
        finally:
            current_scope.reset(token)

    def start(self, *args: Any, **options: Any) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run; it is durable when this was awaited. In a `def` workflow the call itself blocks.

        Options: `tenant`, `idempotency_key`, `delay`, `deadline`, `timeout` (of the whole run), `priority` (larger
        is more urgent), `queue`, `correlation_id`; for all steps of the run, before their own options: `retry`,
        `step_timeout`, `heartbeat_timeout`; for its failure: `on_failure`, `failure_queue`. All other keyword
        arguments belong to the workflow. Inside a workflow the start is recorded, so that it happens once.
        """
        return self._start_in_context([_split_options(args, options)], itemgetter(0))

    def run(self, *args: Any, **options: Any) -> Coroutine[Any, Any, T]:
        """Start a run and return its result. In workflow code it is a child, and waiting for it costs nothing.

        Options are those of `start`, and two more in workflow code. `on_letter="wait"` (the default): while the child
        has an open dead letter, this run waits for the decision about it; `"fail"` raises ChildFailed at once.
        `on_parent_end="cancel"` (the default): the child is cancelled if this run ends first; `"leave"` lets it
        continue. A child that ends without a result raises ChildFailed. In a `def` workflow the call itself blocks.
        """
        on_letter = read_choice(OnLetter, "on_letter", options.pop("on_letter", None), OnLetter.WAIT)
        here = current_scope.get()
        if isinstance(here, Branch):
            options.setdefault("on_parent_end", OnParentEnd.CANCEL.value)
        start = _split_options(args, options)
        if not isinstance(here, Branch):
            return self._run_outside_run(start)
        call = self._run_child(here, start, on_letter)
        return here.execution.call_from_thread(call) if here.threaded else call

    async def _run_outside_run(self, start: Start) -> T:
        (handle,) = await self._start_outside_run([start], list, None)
        return await handle.result()

    async def _run_child(self, branch: Branch, start: Start, on_letter: OnLetter) -> T:
        execution = branch.execution
        depth, tenant = execution.view.options.depth + 1, execution.claimed.tenant
        if start.options.get("tenant", tenant) != tenant:
            raise errors.InputError(Reason(ReasonCode.TENANT_OF_CODE, tenant=tenant))
        if depth > MAX_DEPTH:
            raise LimitExceeded(Reason(ReasonCode.CHILD_TOO_DEEP, most=MAX_DEPTH))
        (handle,) = await self._start_children(branch, [start], list, None, depth)
        request: Any = handle._make_wait(branch, None, on_letter)
        result: T = await execution.calls.waits.wait(branch, request)
        return result

    def receive(self, event: tuple[str, str], *args: Any, **options: Any) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run for an event of a stream, unless that was done before: see `Redrive.receive_event`."""
        if options.get("idempotency_key") is not None:
            raise errors.InputError(Reason(ReasonCode.EVENT_HAS_KEY))
        return self._start_in_context([_split_options(args, options)], itemgetter(0), event)

    def start_many(self, items: Iterable[tuple[Any, ...] | Start]) -> Coroutine[Any, Any, list[RunHandle[T]]]:
        """Start many runs, a thousand to a commit. Each item is a tuple of arguments, or a `Start`.

        Invalid items are refused before any run is started. If the store fails in between, any thousand of them may
        have been started: repeat the call with the same idempotency keys. Inside a workflow each start is recorded,
        so that it happens once.
        """
        starts = []
        for item in items:
            if not isinstance(item, Start | tuple):
                raise errors.InputError(Reason(ReasonCode.START_ITEM_INVALID, type=type(item).__name__))
            starts.append(item if isinstance(item, Start) else Start(item))
        return self._start_in_context(starts, list)

    def _start_in_context(
        self, starts: list[Start], shape: Callable[[list[RunHandle[T]]], S], event: tuple[str, str] | None = None
    ) -> Coroutine[Any, Any, S]:
        """Start runs. In workflow code each start is recorded; in a thread of workflow code the call blocks."""
        here = current_scope.get()
        if not isinstance(here, Branch):
            return self._start_outside_run(starts, shape, event)
        call = self._start_children(here, starts, shape, event)
        return here.execution.call_from_thread(call) if here.threaded else call

    async def _start_outside_run(
        self, starts: list[Start], shape: Callable[[list[RunHandle[T]]], S], event: tuple[str, str] | None
    ) -> S:
        runtime = self._app.runtime
        with runtime.trace_start(self.name) as trace:
            now = runtime.now()
            runs = self._make_new_runs(starts, trace, now, event)
            results = await runtime.start_many(runs)
        handles: list[RunHandle[T]] = []
        for run, result in zip(runs, results, strict=True):
            if result.clash:
                raise errors.Conflict(new_run.describe_key_conflict(run, result.public_id, event))
            handles.append(RunHandle(self._app, result.public_id, self.signature, workflow=self.name, new=result.new))
        return shape(handles)

    async def _start_children(
        self,
        branch: Branch,
        starts: list[Start],
        shape: Callable[[list[RunHandle[T]]], S],
        event: tuple[str, str] | None,
        depth: int = 0,
    ) -> S:
        execution = branch.execution
        own = execution.view.options
        inherited: dict[str, Any] = {"tenant": execution.claimed.tenant, "correlation_id": execution.correlation_id}
        if own.priority:
            inherited["priority"] = own.priority
        # The person behind the parent, so that four eyes hold in its children, too.
        inherited["started_by"] = own.started_by or f"run:{execution.claimed.public_id}"

        async def start_child(start: Start, key: str) -> str:
            runtime = self._app.runtime  # an app whose code is only checked is not open, and starts nothing
            keyed = start.options.get("idempotency_key") is not None
            options = {**inherited, **start.options}
            if not keyed:
                options["idempotency_key"] = key
            with runtime.trace_start(self.name) as trace:
                now, child = runtime.now(), Start(start.args, start.kwargs, options)
                run = self._make_new_run(child, trace or own.trace, now, execution.claimed, event)
                if depth:
                    run = replace(run, options=add_option(run.options, "depth", depth))
                # A parent that does nothing but wait for the child gives it its slot.
                in_slot = depth > 0 and execution.is_only_branch()
                (result,) = await runtime.start([run], in_slot=in_slot)
            # A key of the engine says where the child was started, not with which input: a replay with another
            # input gets the child that was started before.
            if result.clash and (keyed or event is not None):
                raise errors.Conflict(new_run.describe_key_conflict(run, result.public_id, event))
            return result.public_id

        request = execution.calls.start
        ids = [await request(branch, self.name, functools.partial(start_child, start)) for start in starts]
        return shape([RunHandle(self._app, run_id, self.signature, workflow=self.name) for run_id in ids])

    def _make_new_runs(
        self, starts: list[Start], trace: str | None, now: int, event: tuple[str, str] | None
    ) -> list[NewRun]:
        runs: list[NewRun] = []
        plain: NewRun | None = None
        new_id = self._app.runtime.clock.new_id
        for start in starts:
            if plain is not None and not start.options:
                # Runs that are started without options differ in their id and input only.
                runs.append(replace(plain, public_id=new_id(), input=self.encode_input(start.args, start.kwargs)))
                continue
            run = self._make_new_run(start, trace, now, event=event)
            if not (start.options or event or self.own_options.index):
                plain = run
            runs.append(run)
        return runs

    def _make_new_run(
        self,
        start: Start,
        trace: str | None,
        now: int,
        parent: ClaimedRun | None = None,
        event: tuple[str, str] | None = None,
    ) -> NewRun:
        runtime, settings, options = self._app.runtime, self._app.settings, start.options
        if options.get("on_failure") is not None:
            options = {**options, "on_failure": self._app.handlers.find(options["on_failure"], self.name)}
        run = new_run.build_new_run(
            self.make_startable(),
            self.encode_input(start.args, start.kwargs),
            options,
            public_id=runtime.clock.new_id(),
            now=now,
            key_keeps=int(settings.idempotency_retention * MICROS),
            parent=None if parent is None else parent.public_id,
            handler_for=None if parent is None else parent.handler_for,
            trace=trace,
        )
        if "on_parent_end" in options:
            ends = read_choice(OnParentEnd, "on_parent_end", options["on_parent_end"], OnParentEnd.LEAVE)
            if parent is None:
                raise errors.InputError(Reason(ReasonCode.PARENT_MISSING))
            run = replace(run, owner=parent.public_id if ends is OnParentEnd.CANCEL else None)
        return run if event is None else new_run.set_event_key(run, event)

    def encode_input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments as stored; raise PayloadError if they do not fit, or are too large."""
        text = self.definition.signature.encode(args, dict(kwargs))
        check_size(text, self._app.settings.max_payload, f"the input of workflow {self.name!r}")
        return text

    def build_scheduled_run(self, schedule: Schedule, at: int) -> NewRun:
        """Return the run for a time of one of its schedules. All processes return the same run, by its key."""
        start = Start((), schedule.input_at(at), {"tenant": schedule.tenant})
        with self._app.runtime.trace_start(self.name) as trace:
            run = self._make_new_run(start, trace, self._app.runtime.now())
        run = replace(run, options=add_option(run.options, "started_by", f"schedule:{schedule.name}"))
        return new_run.set_schedule_key(run, schedule.name, at, 2 * schedule.catch_up)

    def make_startable(self) -> StartableWorkflow:
        """Return the workflow as its runs are started, with the handlers and steps that are registered now."""
        app = self._app
        if self._startable is None or self._startable_as_of != app.registrations:
            options = replace(
                self.own_options,
                on_failure=app.handlers.of(self.name),
                reserves=any(step.cancel is not None for step in app.registered_steps.values()),
            )
            version = self.definition.version or app.version
            self._startable = StartableWorkflow(
                name=self.name, version=version, options=options, text=options.to_json(), timeout=self.timeout
            )
            self._startable_as_of = app.registrations
        return self._startable

    @property
    def catalogue_text(self) -> str:
        """The workflow as other processes see it: its options, the time limit of runs, the number of runs to keep."""
        beside = {"timeout": self.timeout, "retention_runs": self.retention_runs}
        return json.dumps({**json.loads(self.options_text), **beside}, separators=(",", ":"))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _split_options(args: tuple[Any, ...], keywords: dict[str, Any]) -> Start:
    """Separate the options of `start` from the keyword arguments of the workflow."""
    options = {name: value for name, value in keywords.items() if name in START_OPTIONS and value is not None}
    kwargs = {name: value for name, value in keywords.items() if name not in START_OPTIONS}
    return Start(args, kwargs, options)
