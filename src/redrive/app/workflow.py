"""A registered workflow: the plain function, and the ways to start it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from redrive.app.handle import RunHandle
from redrive.clock import MICROS
from redrive.core.index import index_values
from redrive.core.keys import event_hash, event_key, job_key, payload_hash
from redrive.core.options import RunOptions
from redrive.core.payload import check_size
from redrive.core.transition import NewRun
from redrive.duration import Duration, seconds
from redrive.errors import Conflict, InputError
from redrive.policy import RetryPolicy
from redrive.store.records import Claimed, Started
from redrive.worker.branch import Branch, current, outside
from redrive.worker.definition import WorkflowDefinition

if TYPE_CHECKING:
    from redrive.app.app import Redrive

__all__ = ["START_OPTIONS", "Start", "Workflow"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

START_OPTIONS = frozenset(
    {"tenant", "idempotency_key", "delay", "deadline", "priority", "queue", "correlation_id", "retry"}
)
"""Names that `start` takes for itself, which no parameter of a workflow may have."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH = 1000
_NAME_LIMIT = 255


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
        dlq_retention: float | None = None,
        index: tuple[str, ...] = (),
        rollback: bool = False,
    ) -> None:
        functools.update_wrapper(self, definition.fn)
        self.definition = definition
        self.name = definition.name
        self.fn: Callable[P, R] = definition.fn
        self.signature = definition.signature
        self.timeout = timeout
        self._app = app
        self.own_options = RunOptions(
            retry=retry,
            dead_letter=dead_letter,
            max_crashes=max_crashes,
            letter_keeps=int((dlq_retention or app.settings.dlq_retention) * MICROS),
            index=index,
            rollback=rollback,
        )
        self._complete: tuple[int, RunOptions, str] | None = None

    @property
    def options_text(self) -> str:
        """The snapshot that runs carry."""
        return self._snapshot_now()[1]

    def _snapshot_now(self) -> tuple[RunOptions, str]:
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
        if current.get() is None and self.definition.is_async:
            return self._call_outside(*args, **kwargs)  # type: ignore[return-value]
        return self.fn(*args, **kwargs)

    async def _call_outside(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function without an engine; it may still await its `def` steps."""
        token = current.set(outside)
        try:
            return await self.definition.fn(*args, **kwargs)
        finally:
            current.reset(token)

    def start(self, *args: Any, **options: Any) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run; it is durable when this was awaited. In a `def` workflow the call itself blocks.

        Options: `tenant`, `idempotency_key`, `delay`, `deadline`, `priority` (larger is more urgent),
        `queue`, `correlation_id`, `retry` (a policy for all of the run's steps). All other keyword
        arguments are the workflow's own. Inside a workflow the start is recorded, so that it happens once.
        """
        return self._start_here([_start(args, options)], _only)

    def receive(
        self, event: tuple[str, str], *args: Any, **options: Any
    ) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a run for an event of a stream, unless that was done before: see `Redrive.receive_event`."""
        if options.get("idempotency_key") is not None:
            raise InputError("an event is its own idempotency key; leave idempotency_key out")
        return self._start_here([_start(args, options)], _only, event)

    def start_many(self, items: Iterable[tuple[Any, ...] | Start]) -> Coroutine[Any, Any, list[RunHandle[T]]]:
        """Start many runs, a thousand to a commit. Each item is a tuple of arguments, or a `Start`.

        Items that do not fit are refused before anything is started. Inside a workflow each start is
        recorded, so that it happens once.
        """
        starts = [item if isinstance(item, Start) else _item(item) for item in items]
        return self._start_here(starts, list)

    def _start_here(
        self,
        starts: list[Start],
        shape: Callable[[list[RunHandle[T]]], S],
        event: tuple[str, str] | None = None,
    ) -> Coroutine[Any, Any, S]:
        """Start from where the caller is: recorded in workflow code, and blocking if that is in a thread."""
        here = current.get()
        if not isinstance(here, Branch):
            return self._started(starts, shape, event)
        call = self._start_children(here, starts, shape, event)
        blocked: Coroutine[Any, Any, S] = here.execution.enter(here, call)
        return blocked

    async def _started(
        self,
        starts: list[Start],
        shape: Callable[[list[RunHandle[T]]], S],
        event: tuple[str, str] | None,
    ) -> S:
        started = await self._start_all(starts, event)
        return shape([self._handle(each.public_id, each.new) for each in started])

    async def _start_children(
        self,
        branch: Branch,
        starts: list[Start],
        shape: Callable[[list[RunHandle[T]]], S],
        event: tuple[str, str] | None,
    ) -> S:
        execution = branch.execution
        ids = [await execution.start(branch, self.name, self._start_child(branch, s, event)) for s in starts]
        return shape([self._handle(run_id) for run_id in ids])

    def _handle(self, run_id: str, new: bool = False) -> RunHandle[T]:
        return RunHandle(self._app, run_id, self.definition.signature, new=new)

    def _start_child(
        self, branch: Branch, start: Start, event: tuple[str, str] | None
    ) -> Callable[[str], Coroutine[Any, Any, str]]:
        parent = branch.execution.claimed
        options = {
            "tenant": parent.tenant,
            "correlation_id": branch.execution.correlation_id,
            **start.options,
        }
        keyed = start.options.get("idempotency_key") is not None

        async def go(key: str) -> str:
            given = options if keyed else {**options, "idempotency_key": key}
            new = self._wanted(Start(start.args, start.kwargs, given), parent, event)
            (answer,) = await self._accepted([new])
            if keyed or event is not None:
                _refuse_clash(new, answer, event)
            # The engine's own key says where the child was started, not with what: a replay with another
            # input that comes by again gets the child that is there.
            return answer.public_id

        return go

    async def _start_all(self, starts: list[Start], event: tuple[str, str] | None) -> list[Started]:
        new = [self._wanted(start, None, event) for start in starts]
        started = await self._accepted(new)
        for run, answer in zip(new, started, strict=True):
            _refuse_clash(run, answer, event)
        return started

    def _wanted(self, start: Start, parent: Claimed | None, event: tuple[str, str] | None) -> NewRun:
        new = self._new_run(start, parent)
        return new if event is None else _for_event(new, *event)

    async def _accepted(self, new: list[NewRun]) -> list[Started]:
        runtime = self._app.runtime
        started: list[Started] = []
        for begin in range(0, len(new), _BATCH):
            batch = new[begin : begin + _BATCH]
            started += await runtime.start(batch)
        return started

    def _new_run(self, start: Start, parent: Claimed | None) -> NewRun:
        unknown = start.options.keys() - START_OPTIONS
        if unknown:
            raise InputError(
                f"start has no option {', '.join(sorted(unknown))}; it has {_listed(START_OPTIONS)}"
            )
        settings, options = self._app.settings, start.options
        text = self.definition.signature.encode(start.args, dict(start.kwargs))
        check_size(text, settings.max_payload, f"the input of workflow {self.name!r}")
        tenant = _text("tenant", options.get("tenant"), "default")
        key = options.get("idempotency_key")
        delay = _micros("delay", options.get("delay")) or 0
        return NewRun(
            public_id=self._app.runtime.clock.new_id(),
            tenant=tenant,
            workflow=self.name,
            input=text,
            options=self._snapshot(options.get("retry")),
            queue=_text("queue", options.get("queue"), "default"),
            priority=_priority(options.get("priority")),
            delay=delay,
            timeout=None if self.timeout is None else delay + int(self.timeout * MICROS),
            deadline=self._deadline(options.get("deadline")),
            version=self._app.version,
            correlation_id=_optional("correlation_id", options.get("correlation_id")),
            parent=None if parent is None else parent.public_id,
            handler_for=None if parent is None else parent.handler_for,
            key=None if key is None else job_key(tenant, self.name, _text("idempotency_key", key, "")),
            key_hash=None if key is None else payload_hash(text),
            key_keeps=int(settings.idempotency_retention * MICROS),
            index=index_values(text, self.own_options.index),
        )

    def _snapshot(self, override: RetryPolicy | None) -> str:
        options, text = self._snapshot_now()
        if override is None:
            return text
        if not isinstance(override, RetryPolicy):
            raise InputError(f"retry takes a RetryPolicy, not {type(override).__name__}")
        return replace(options, override=override).to_json()

    def _deadline(self, value: datetime | Duration | None) -> int | None:
        if value is None:
            return None
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise InputError("deadline needs a time zone: use datetime.now(UTC) + ... or a duration")
            try:
                value = value.astimezone(UTC)
            except OverflowError:
                raise InputError(f"deadline {value} is beyond what a clock can show; leave it out") from None
            return (value - _EPOCH) // timedelta(microseconds=1)
        return self._app.runtime.store.now() + int(seconds(value, "deadline") * MICROS)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _refuse_clash(run: NewRun, answer: Started, event: tuple[str, str] | None) -> None:
    if answer.clash:
        raise Conflict(_clash(run, answer.public_id, event))


def _only(handles: list[RunHandle[T]]) -> RunHandle[T]:
    (handle,) = handles
    return handle


def _start(args: tuple[Any, ...], keywords: dict[str, Any]) -> Start:
    options = {name: value for name, value in keywords.items() if name in START_OPTIONS and value is not None}
    kwargs = {name: value for name, value in keywords.items() if name not in START_OPTIONS}
    return Start(args, kwargs, options)


def _for_event(run: NewRun, stream: str, event_id: str) -> NewRun:
    """The run under the key of its event; what the event stands for is the workflow, too."""
    key = event_key(run.tenant, _text("stream", stream, ""), _text("event_id", event_id, ""))
    return replace(run, key=key, key_hash=event_hash(run.workflow, run.input))


def _clash(run: NewRun, first: str, event: tuple[str, str] | None) -> str:
    where = f"(workflow {run.workflow!r}, tenant {run.tenant!r})"
    if event is not None:
        stream, event_id = event
        return (
            f"event {event_id!r} of stream {stream!r} was received before, with another content or for "
            f"another workflow, and started run {first}; a new event needs a new id, and a second consumer "
            f"a stream name of its own {where}"
        )
    return (
        f"the idempotency key of this start was used for run {first} with another input; use a new key for a "
        f"new input {where}"
    )


def _item(item: Any) -> Start:
    if not isinstance(item, tuple):
        raise InputError(
            f"start_many takes tuples of arguments or Start(...), not {type(item).__name__}; "
            "write (value,) for a single argument"
        )
    return Start(item)


def _text(what: str, value: Any, default: str) -> str:
    """A name that people give: not empty, not huge, and storable anywhere."""
    value = default if value is None else value
    if not isinstance(value, str) or not value or len(value) > _NAME_LIMIT:
        raise InputError(f"{what} must be a text of 1 to {_NAME_LIMIT} characters, not {value!r:.60}")
    if "\x00" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(f"{what} contains a NUL byte or a lone surrogate: {value!r:.60}")
    return value


def _optional(what: str, value: Any) -> str | None:
    return None if value is None else _text(what, value, "")


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1000:
        raise InputError(f"priority must be a whole number from -1000 to 1000, not {value!r}")
    return value


def _micros(what: str, value: Duration | None) -> int | None:
    return None if value is None else int(seconds(value, what) * MICROS)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
