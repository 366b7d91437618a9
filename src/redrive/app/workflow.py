"""A registered workflow: the plain function, and the ways to start it."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from redrive.app.results import RunResult
from redrive.clock import MICROS
from redrive.core.failure_reason import FailureReason as Failed
from redrive.core.new_run import (
    START_OPTIONS,
    StartableWorkflow,
    build_new_run,
    describe_key_conflict,
    set_event_key,
    set_schedule_key,
)
from redrive.core.notify_rules import NotifyRule
from redrive.core.payload import check_size
from redrive.core.run_options import RunOptions
from redrive.core.schedule import Schedule
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.desk.models import Run
from redrive.duration import Duration, parse_duration
from redrive.errors import (
    ConfigurationError,
    Conflict,
    InputError,
    MisusedStep,
    NotFound,
    RunCancelled,
    RunFailed,
    RunPartial,
)
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.store.encryption.keyring import Unreadable
from redrive.store.records import StartResult
from redrive.store.workers import ClaimedRun
from redrive.worker.branches import NO_ENGINE, Branch, current_scope
from redrive.worker.definitions import WorkflowDefinition

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.core.payload import Signature

# -- A started run, as its starter holds it --------------------------------------------------------------


R = TypeVar("R")
_NEW_FOR_SECONDS = 0.002  # seconds


class RunHandle(Generic[R]):
    """One run: its id, and what can be asked of it."""

    def __init__(self, app: Redrive, run_id: str, signature: Signature | None, *, new: bool = False) -> None:
        self._app = app
        self._signature = signature
        self._start_outside_run = app.runtime.clock.monotonic() if new else None
        self.id = run_id

    async def status(self) -> RunStatus:
        """Where the run stands now."""
        row = await self._app.runtime.store.run(self.id)
        if row is None:
            raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=repr(self.id)))
        return row.status

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the run's result. Raises RunFailed if it ends without one, TimeoutError if that takes
        too long; the run goes on."""
        if isinstance(current_scope.get(), Branch):
            raise MisusedStep(
                "handle.result() was called in workflow code, where waiting is not recorded and would hold a "
                "worker; wait for the run where it was started from outside, or let it start what comes next"
            )
        if timeout is None:
            return self._decode_result(await self._wait_for_end())
        limit = parse_duration(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                ending = await self._wait_for_end()
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not ended within {limit:g} s; it goes on") from None
        return self._decode_result(ending)

    def _wait_for_end(self) -> Awaitable[RunResult]:
        return self._app.runtime.results.wait(self.id, new=self._is_new)

    async def cancel(self, *, by: str = "unknown", reason: str = "") -> Run:
        """Cancel the run for good."""
        return await self._app.runs.cancel(self.id, by=by, reason=reason)

    async def describe(self) -> Run:
        """Everything about the run: its steps and every attempt, with decisions in words."""
        return await self._app.runs.get(self.id)

    @property
    def _is_new(self) -> bool:
        """True for a moment after the start: so soon no run has ended."""
        started = self._start_outside_run
        return started is not None and self._app.runtime.clock.monotonic() - started < _NEW_FOR_SECONDS

    def _decode_result(self, ending: RunResult) -> R:
        if ending.status is not RunStatus.SUCCESS:
            raise _make_run_failed(ending)
        text = _require_readable(ending, ending.output or "null")
        value: Any = json.loads(text) if self._signature is None else self._signature.decode_result(text)
        return value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def _require_readable(ending: RunResult, text: str) -> str:
    """What the store holds, unless it is sealed with a key that this process does not have."""
    if isinstance(text, Unreadable):
        raise ConfigurationError(f"run {ending.run_id} ended as {ending.status}, but how cannot be read: {text.why}")
    return text


def _describe_failure(ending: RunResult, failed: Failed) -> str:
    message, reason = failed.failure.message, str(failed.reason)
    if not (message and reason.endswith(message)):
        reason = f"{reason}: {message}"
    return f"run {ending.run_id} ended as {ending.status}: {reason}"


def _make_run_failed(ending: RunResult) -> RunFailed:
    kind = {RunStatus.PARTIAL: RunPartial, RunStatus.CANCELLED: RunCancelled}.get(ending.status, RunFailed)
    if ending.failure is None:
        return kind(f"run {ending.run_id} ended as {ending.status}", run_id=ending.run_id, status=ending.status)
    failed = Failed.from_json(_require_readable(ending, ending.failure))
    return kind(
        _describe_failure(ending, failed),
        run_id=ending.run_id,
        status=ending.status.value,
        step=failed.step,
        category=failed.failure.category.value,
        error_type=failed.failure.error_type,
        code=failed.code.value,
        details=failed.failure.details,
    )


# -- A registered workflow: the plain function, and the ways to start it ---------------------------------


P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Start:
    """One item of `start_many` that needs more than arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


class Workflow(Generic[P, R, T]):
    """A named function that the engine runs durably. Called outside a run, it is the plain function.

    `R` is what calling it gives (a coroutine, for `async def`), `T` the result of a run.
    """

    def __init__(
        self,
        app: Redrive,
        definition: WorkflowDefinition,
        *,
        retry: RetryPolicy | None,
        timeout: float | None,
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
            dead_letter=dead_letter,
            max_crashes=max_crashes,
            letter_keeps=int((dlq_retention or app.settings.dlq_retention) * MICROS),
            index=index,
            rollback=rollback,
            notify=notify,
        )
        self._complete: tuple[int, RunOptions, str] | None = None
        self._startable: StartableWorkflow | None = None

    @property
    def options_text(self) -> str:
        """The snapshot that runs carry."""
        return self._current_snapshot()[1]

    def _current_snapshot(self) -> tuple[RunOptions, str]:
        """The options with the handlers and steps registered now, made once for each registration."""
        if self._complete is None or self._complete[0] != self._app.registrations:
            options = replace(
                self.own_options,
                on_failure=self._app.handlers.of(self.name),
                reserves=any(step.cancel is not None for step in self._app.registered_steps.values()),
            )
            self._complete = (self._app.registrations, options, options.to_json())
        return self._complete[1:]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if current_scope.get() is None and self.definition.is_async:
            return self._call_without_engine(*args, **kwargs)  # type: ignore[return-value]
        return self.fn(*args, **kwargs)

    async def _call_without_engine(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without an engine; it may still await its `def` steps."""
        token = current_scope.set(NO_ENGINE)
        try:
            return await self.definition.fn(*args, **kwargs)
        finally:
            current_scope.reset(token)

    def start(self, *args: Any, **options: Any) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run; it is durable when this was awaited. In a `def` workflow the call itself blocks.

        Options: `tenant`, `idempotency_key`, `delay`, `deadline`, `priority` (larger is more urgent),
        `queue`, `correlation_id`, `retry` (a policy for all of the run's steps). All other keyword
        arguments are the workflow's own. Inside a workflow the start is recorded, so that it happens once.
        """
        return self._start_in_context([_make_start(args, options)], _only_handle)

    def receive(self, event: tuple[str, str], *args: Any, **options: Any) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run for an event of a stream, unless that was done before: see `Redrive.receive_event`."""
        if options.get("idempotency_key") is not None:
            raise InputError(Reason(ReasonCode.EVENT_HAS_KEY))
        return self._start_in_context([_make_start(args, options)], _only_handle, event)

    def start_many(self, items: Iterable[tuple[Any, ...] | Start]) -> Coroutine[Any, Any, list[RunHandle[T]]]:
        """Start many runs, a thousand to a commit. Each item is a tuple of arguments, or a `Start`.

        Items that do not fit are refused before anything is started. Inside a workflow each start is
        recorded, so that it happens once.
        """
        starts = [item if isinstance(item, Start) else _read_item(item) for item in items]
        return self._start_in_context(starts, list)

    def _start_in_context(
        self, starts: list[Start], shape: Callable[[list[RunHandle[T]]], S], event: tuple[str, str] | None = None
    ) -> Coroutine[Any, Any, S]:
        """Start from where the caller is: recorded in workflow code, and blocking if that is in a thread."""
        here = current_scope.get()
        if not isinstance(here, Branch):
            return self._start_outside_run(starts, shape, event)
        call = self._start_children(here, starts, shape, event)
        return here.execution.call_from_thread(call) if here.threaded else call

    async def _start_outside_run(
        self, starts: list[Start], shape: Callable[[list[RunHandle[T]]], S], event: tuple[str, str] | None
    ) -> S:
        started = await self._start_all(starts, event)
        return shape([self._make_handle(each.public_id, each.new) for each in started])

    async def _start_children(
        self,
        branch: Branch,
        starts: list[Start],
        shape: Callable[[list[RunHandle[T]]], S],
        event: tuple[str, str] | None,
    ) -> S:
        start = branch.execution.requests.start
        ids = [await start(branch, self.name, self._make_child_starter(branch, s, event)) for s in starts]
        return shape([self._make_handle(run_id) for run_id in ids])

    def _make_handle(self, run_id: str, new: bool = False) -> RunHandle[T]:
        return RunHandle(self._app, run_id, self.definition.signature, new=new)

    def _make_child_starter(
        self, branch: Branch, start: Start, event: tuple[str, str] | None
    ) -> Callable[[str], Coroutine[Any, Any, str]]:
        parent = branch.execution.claimed
        options = {"tenant": parent.tenant, "correlation_id": branch.execution.correlation_id, **start.options}
        keyed = start.options.get("idempotency_key") is not None

        async def go(key: str) -> str:
            given = options if keyed else {**options, "idempotency_key": key}
            with self._app.runtime.starting(self.name) as trace:
                new = self._make_requested_run(Start(start.args, start.kwargs, given), parent, event, trace)
                (answer,) = await self._submit_runs([new])
            if keyed or event is not None:
                _refuse_clash(new, answer, event)
            # The engine's own key says where the child was started, not with what: a replay with another
            # input that comes by again gets the child that is there.
            return answer.public_id

        return go

    async def _start_all(self, starts: list[Start], event: tuple[str, str] | None) -> list[StartResult]:
        with self._app.runtime.starting(self.name) as trace:
            new = [self._make_requested_run(start, None, event, trace) for start in starts]
            started = await self._submit_runs(new)
        for run, answer in zip(new, started, strict=True):
            _refuse_clash(run, answer, event)
        return started

    def _make_requested_run(
        self, start: Start, parent: ClaimedRun | None, event: tuple[str, str] | None, trace: str | None
    ) -> NewRun:
        new = self._make_new_run(start, parent, trace)
        return new if event is None else set_event_key(new, event)

    async def _submit_runs(self, new: list[NewRun]) -> list[StartResult]:
        runtime = self._app.runtime
        started: list[StartResult] = []
        for begin in range(0, len(new), _BATCH):
            batch = new[begin : begin + _BATCH]
            started += await runtime.start(batch)
        return started

    def _make_new_run(self, start: Start, parent: ClaimedRun | None, trace: str | None) -> NewRun:
        runtime, settings = self._app.runtime, self._app.settings
        return build_new_run(
            self.startable(),
            self.input_text(start.args, start.kwargs),
            start.options,
            public_id=runtime.clock.new_id(),
            now=runtime.store.now(),
            key_keeps=int(settings.idempotency_retention * MICROS),
            parent=None if parent is None else parent.public_id,
            handler_for=None if parent is None else parent.handler_for,
            trace=trace,
        )

    def input_text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The arguments as a run carries them; PayloadError if they do not fit, or are too large."""
        text = self.definition.signature.encode(args, dict(kwargs))
        check_size(text, self._app.settings.max_payload, f"the input of workflow {self.name!r}")
        return text

    def scheduled(self, schedule: Schedule, at: int) -> NewRun:
        """The run for a time of one of its schedules: the same one, whoever makes it."""
        start = Start((), schedule.input_at(at), {"tenant": schedule.tenant})
        with self._app.runtime.starting(self.name) as trace:
            run = self._make_new_run(start, None, trace)
        return set_schedule_key(run, schedule.name, at, 2 * schedule.catch_up)

    def startable(self) -> StartableWorkflow:
        """What starting it takes, whoever does so."""
        options, text = self._current_snapshot()
        known = self._startable
        if known is None or known.text is not text or known.version != self._app.version:
            self._startable = known = StartableWorkflow(
                name=self.name, version=self._app.version, options=options, text=text, timeout=self.timeout
            )
        return known

    @property
    def catalogue_text(self) -> str:
        """What others need to know of it: its options, how long a run may take, how many are kept."""
        beside = {"timeout": self.timeout, "retention_runs": self.retention_runs}
        return json.dumps({**json.loads(self.options_text), **beside}, separators=(",", ":"))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _refuse_clash(run: NewRun, answer: StartResult, event: tuple[str, str] | None) -> None:
    if answer.clash:
        raise Conflict(describe_key_conflict(run, answer.public_id, event))


def _only_handle(handles: list[RunHandle[T]]) -> RunHandle[T]:
    (handle,) = handles
    return handle


def _make_start(args: tuple[Any, ...], keywords: dict[str, Any]) -> Start:
    options = {name: value for name, value in keywords.items() if name in START_OPTIONS and value is not None}
    kwargs = {name: value for name, value in keywords.items() if name not in START_OPTIONS}
    return Start(args, kwargs, options)


def _read_item(item: Any) -> Start:
    if not isinstance(item, tuple):
        raise InputError(Reason(ReasonCode.START_ITEM_INVALID, type=type(item).__name__))
    return Start(item)
