"""Registration of steps, workflows and sinks: checks of options and definitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from redrive.app import follow_up_steps
from redrive.app.declarations import read_events, read_schedules
from redrive.app.follow_up_steps import FollowUpDefinition, FollowUpVerb
from redrive.app.workflow import Workflow
from redrive.clock import MICROS, SystemClock
from redrive.core.children import CHILD_OPTIONS
from redrive.core.classify import Rule
from redrive.core.new_run import MAX_INDEX_FIELDS, START_OPTIONS, check_name, split_field_path
from redrive.core.outbox import DEFAULT_SINK_RETRY, parse_patterns
from redrive.core.payload import Signature
from redrive.core.payload.signature import read_signature
from redrive.core.run_options import StepLimits, StepOptions
from redrive.core.schedule import Schedule
from redrive.errors import ConfigurationError, InputError, RegistrationError
from redrive.policy import Circuit, RetryPolicy
from redrive.record_fields import field_names
from redrive.settings import Settings, parse_allowed_hosts
from redrive.sinks import Sink, SinkDefinition, Subscriber
from redrive.sinks.webhook import Webhook, read_secrets
from redrive.store.workers import VERSION
from redrive.time_values import Duration, parse_duration, parse_retention
from redrive.worker.definitions import Compensation, Step, WorkflowDefinition

if TYPE_CHECKING:
    from redrive.app.app import Redrive


T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
_DEFAULT_TIMEOUT = 600.0


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@app.step`, not yet checked."""

    name: str | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    circuit: Circuit | None = None
    at_most_once: bool = False
    transactional: bool = False
    effect: str | None = None
    compensate: FollowUpDefinition | None = None
    confirm: FollowUpDefinition | None = None
    cancel: FollowUpDefinition | None = None
    pivot: bool = False
    remote: str | None = None


class WorkflowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@app.workflow`, not yet checked."""

    name: str | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    step_timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    rollback: bool = False
    dead_letter: bool = True
    max_crashes: int = 3
    retention_runs: int | None = None
    dlq_retention: Duration | None = None
    index: Sequence[str] = ()
    on_failure: Workflow[Any, Any, Any] | str | None = None
    failure_queue: str | None = None
    notify: Mapping[str, Any] | None = None
    schedule: Schedule | Sequence[Schedule] | None = None
    events: Mapping[str, Any] | None = None
    version: str | None = None
    pinned: bool = False


def read_options(kind: str, record: type[T], options: Mapping[str, Any]) -> T:
    """Return the options of a decorator as a record; refuse unknown ones before the function is decorated."""
    known = field_names(record)
    unknown = ", ".join(name for name in options if name not in known)
    if unknown:
        raise RegistrationError(f"@app.{kind} has no option {unknown}; it has {', '.join(known)}")
    return record(**options)


def read_classify_rules(classify: Any) -> tuple[Rule, ...]:
    """Return the rules by which an app classifies errors."""
    rules = tuple(classify) if isinstance(classify, Iterable) else (classify,)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"classify holds {rule!r}; give a list of Rule(when, category)")
    return rules


def register_step(
    app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], request: StepRequest
) -> Step[Any, Any]:
    """Register a function as a step. `names` are the local names that its annotations may use."""
    name = _choose_name("step", request.name, fn, app.registered_steps)
    what = f"step {name!r}"
    _check_step_request(what, fn, request)
    _check_circuit(what, request.circuit, app.registered_steps)
    options = StepOptions(
        retry=request.retry,
        timeout=_read_time_limit(request.timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT,
        heartbeat_timeout=_read_time_limit(request.heartbeat_timeout, f"heartbeat_timeout of {what}"),
        at_most_once=request.at_most_once,
        transactional=request.transactional,
        effect=request.effect,
        circuit=request.circuit,
        pivot=request.pivot,
        remote=request.remote,
    )
    signature = Signature.of(fn, skip_first=request.transactional, names=names)
    register = partial(_register_compensation, app)
    step: Step[Any, Any] = Step(fn, name=name, options=options, signature=signature, registrar=register)
    step.has_timeout = request.timeout is not None
    if request.confirm is not None and request.cancel is not None:
        step.confirm = _register_follow_up(app, step, request.confirm, "confirm", names)
        cancel = _register_follow_up(app, step, request.cancel, "cancel", names)
        step.cancel = Compensation(step=cancel, uncertain=follow_up_steps.accepts_missing_result(cancel))
        step.set_options(confirm=step.confirm.name, cancel=cancel.name)
    if request.compensate is not None:
        _register_compensation(app, step, request.compensate, names)
    app.registered_steps[name] = step
    app.on_registered()
    return step


def _check_step_request(what: str, fn: Callable[..., Any], request: StepRequest) -> None:
    _check_flags(what, at_most_once=request.at_most_once, transactional=request.transactional, pivot=request.pivot)
    if (request.confirm is None) != (request.cancel is None):
        raise RegistrationError(f"{what}: confirm= and cancel= go together; a reservation ends with one of them")
    if request.compensate is not None and request.cancel is not None:
        raise RegistrationError(f"{what} has compensate= and cancel=; give only one of them")
    if request.effect is not None and not isinstance(request.effect, str):
        raise RegistrationError(f"effect of {what} is {request.effect!r}; give a few words, or leave it out")
    if request.at_most_once and request.retry is not None:
        raise RegistrationError(f"{what} runs at most once, so it cannot have retry=; remove one of them")
    if request.at_most_once and request.transactional:
        raise RegistrationError(f"{what}: a transactional step takes effect exactly once, at_most_once adds nothing")
    if request.remote is not None:
        if request.transactional:
            raise RegistrationError(f"{what} is remote and cannot be transactional; workers of a queue have no `tx`")
        try:
            check_name(f"remote of {what}", request.remote, "")
        except InputError as error:
            raise RegistrationError(str(error)) from None
    if request.transactional:
        if not inspect.iscoroutinefunction(fn):
            raise RegistrationError(f"{what} is transactional and must be an `async def` function")
        first = next(iter(read_signature(fn).parameters.values()), None)
        if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
            raise RegistrationError(f"{what} is transactional and must take `tx` as its first parameter")
    _check_retry(what, request.retry)


def _register_compensation(
    app: Redrive,
    step: Step[Any, Any],
    definition: FollowUpDefinition,
    names: Mapping[str, Any],
    *,
    uncertain: bool = False,
    **options: Any,
) -> Step[Any, Any]:
    """Register the compensation of a step, which can have one."""
    _check_flags(f"the compensation of step {step.name!r}", uncertain=uncertain)
    known = step.undo or step.cancel
    if known is not None:
        raise RegistrationError(
            f"step {step.name!r} is undone by {known.step.name!r} already; it can have one compensation"
        )
    undo = _register_follow_up(app, step, definition, "undo", names, uncertain=uncertain, **options)
    step.undo = Compensation(step=undo, uncertain=uncertain)
    step.set_options(undo=undo.name)
    app.on_registered()
    return undo


def _register_follow_up(
    app: Redrive,
    step: Step[Any, Any],
    definition: FollowUpDefinition,
    verb: FollowUpVerb,
    names: Mapping[str, Any],
    *,
    uncertain: bool = False,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Step[Any, Any]:
    """Register the step that undoes, confirms or cancels another step."""
    follow_up_steps.check_follow_up(step.name, definition, verb)
    what = f"the step to {verb} step {step.name!r}"
    _check_retry(what, retry)
    if callable(definition):
        name, action = _choose_name("step", name, definition, app.registered_steps), None
    else:
        name, action = name or f"{step.name}.{verb}", definition.kind
    limit = _read_time_limit(timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT
    options = StepOptions(retry=retry, timeout=limit, action=action)
    made = app.follow_up_steps.add(step, definition, verb, names, name, options, uncertain=uncertain)
    made.has_timeout = timeout is not None
    app.registered_steps[name] = made
    return made


def register_workflow(
    app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], request: WorkflowRequest
) -> Workflow[Any, Any, Any]:
    """Register a function as a workflow. `names` are the local names that its annotations may use."""
    name = _choose_name("workflow", request.name, fn, app.registered_workflows)
    what = f"workflow {name!r}"
    _check_flags(what, dead_letter=request.dead_letter, rollback=request.rollback, pinned=request.pinned)
    _check_version(what, request.version, request.pinned)
    _check_number(f"max_crashes of {what}", request.max_crashes, least=1)
    if request.retention_runs is not None:
        _check_number(f"retention_runs of {what}", request.retention_runs, least=0)
    _check_retry(what, request.retry)
    limits = StepLimits(
        default_timeout=_read_time_limit(request.step_timeout, f"step_timeout of {what}"),
        default_heartbeat_timeout=_read_time_limit(request.heartbeat_timeout, f"heartbeat_timeout of {what}"),
    )
    if request.failure_queue is not None:
        try:
            check_name(f"failure_queue of {what}", request.failure_queue, "")
        except InputError as error:
            raise RegistrationError(str(error)) from None
    signature = Signature.of(fn, reserved=START_OPTIONS | CHILD_OPTIONS, names=names)
    workflow: Workflow[Any, Any, Any] = Workflow(
        app,
        WorkflowDefinition(
            name=name,
            fn=fn,
            signature=signature,
            is_async=inspect.iscoroutinefunction(fn),
            events=read_events(what, request.events),
            version=request.version,
            pinned=request.pinned,
        ),
        retry=request.retry,
        timeout=_read_time_limit(request.timeout, f"timeout of {what}"),
        limits=None if limits == StepLimits() else limits,
        dead_letter=request.dead_letter,
        max_crashes=request.max_crashes,
        retention_runs=request.retention_runs,
        dlq_retention=_read_time_limit(request.dlq_retention, f"dlq_retention of {what}", parse_retention),
        index=_read_index_fields(what, request.index, signature.parameters),
        rollback=request.rollback,
        notify=None if request.notify is None else app.channels.rule(name, request.notify),
        schedules=read_schedules(what, request.schedule),
    )
    app.handlers.add(name, request.on_failure, request.failure_queue)
    app.registered_workflows[name] = workflow
    app.on_registered()
    return workflow


def _read_index_fields(what: str, fields: Any, parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the input fields to search by, each once."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise RegistrationError(f'index of {what} is {fields!r}; give a list, as in ["customer.email"]')
    for field in fields:
        path = split_field_path(field) if isinstance(field, str) else ("",)
        if not all(path) or path[0] not in parameters:
            raise RegistrationError(
                f"index of {what} has {field!r}; give a parameter ({', '.join(parameters) or 'there is none'}), "
                "and behind dots the names inside its value"
            )
    if len(fields) > MAX_INDEX_FIELDS:
        raise RegistrationError(f"index of {what} has {len(fields)} fields; {MAX_INDEX_FIELDS} are the most")
    return tuple(dict.fromkeys(fields))


def _choose_name(kind: str, name: str | None, fn: Callable[..., Any], taken: Mapping[str, Any]) -> str:
    """Return the name to register a function under; refuse an invalid one, and one that is taken."""
    if isinstance(fn, Step | Workflow):
        raise RegistrationError(f"@app.{kind} decorates a plain function, and {fn!r} is registered already")
    if not callable(fn) or isinstance(fn, type):
        raise RegistrationError(
            f"@app.{kind} decorates a function, not {fn!r}; options have names, as in @app.{kind}(name=...)"
        )
    chosen = name if name is not None else getattr(fn, "__name__", None)
    if chosen is None:
        raise RegistrationError(f"{fn!r} has no __name__; give it a name with @app.{kind}(name=...)")
    # Journal keys use / and # as separators; names also stand in one line of a log.
    valid = isinstance(chosen, str) and 0 < len(chosen) <= 200 and chosen.isprintable() and not set(chosen) & {"/", "#"}
    if not valid:
        raise RegistrationError(
            f"{chosen!r} cannot name a {kind}: use a text of 1 to 200 printable characters, but not / or #"
        )
    if chosen.startswith("redrive."):
        raise RegistrationError(f"{kind} {chosen!r}: names that begin with 'redrive.' are reserved for the engine")
    if chosen in taken:
        first, second = (getattr(each, "__qualname__", None) or repr(each) for each in (taken[chosen].fn, fn))
        raise RegistrationError(
            f"two functions are registered as {kind} {chosen!r} ({first} and {second}); give one of them another name="
        )
    return chosen


def _check_flags(what: str, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RegistrationError(f"{name} of {what} is {value!r}; give True or False")


def _check_version(what: str, version: Any, pinned: bool) -> None:
    if version is None:
        if pinned:
            raise RegistrationError(f'{what} is pinned, so it needs a version; add version="1"')
    elif not isinstance(version, str) or not VERSION.fullmatch(version):
        raise RegistrationError(
            f"version of {what} is {version!r:.80}; give a text of 1 to 100 letters, digits and . _ + -"
        )


def _check_number(what: str, number: Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise RegistrationError(f"{what} is {number!r}; give a whole number from {least} on")


def _check_retry(what: str, retry: Any) -> None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")


def _read_time_limit(
    value: Duration | None, what: str, parse: Callable[[Duration, str], float] = parse_duration
) -> float | None:
    """Return a time limit in seconds, or None if there is none."""
    length = None if value is None else parse(value, what)
    if length == 0:
        raise RegistrationError(f"{what} is {value!r}; give a duration longer than 0, or leave it out")
    return length


class StepDecorator(Protocol):
    """The type of `@app.step(...)`. A `def` step is awaited in an `async def` workflow and called plainly elsewhere,
    so the type of its call is Any."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, Any]: ...


class WorkflowDecorator(Protocol):
    """The type of `@app.workflow(...)`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R, R]: ...


def _check_circuit(what: str, circuit: Any, registered: Mapping[str, Step[Any, Any]]) -> None:
    """Refuse a value that is not a Circuit, and a circuit whose name another step uses with other settings."""
    if circuit is None:
        return
    if not isinstance(circuit, Circuit):
        raise RegistrationError(
            f'circuit of {what} takes a Circuit, not {type(circuit).__name__}; write circuit=Circuit("payments")'
        )
    for step in registered.values():
        other = step.options.circuit
        if other is not None and circuit.name is not None and other.name == circuit.name and other != circuit:
            raise RegistrationError(
                f"two definitions of circuit {circuit.name!r} differ: {what} has {_format_circuit(circuit)}, "
                f"step {step.name!r} has {_format_circuit(other)}; make it once and give it to both"
            )


def _format_circuit(circuit: Circuit) -> str:
    return ", ".join(f"{name}={value}" for name, value in circuit.to_json().items() if name != "name")


SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])
_DEFAULT_SINK_TIMEOUT = 30.0
_DEFAULT_CONCURRENCY = 16
_MAX_CONCURRENCY = 250
_OWN_SINKS = ("redrive.sinks.", "redrive.bridges.")


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a sink, not yet checked; None means the default."""

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    concurrency: int | None = None

    def read_timeout(self, what: str) -> float:
        """Return the time limit of one delivery in seconds."""
        length = _DEFAULT_SINK_TIMEOUT if self.timeout is None else parse_duration(self.timeout, f"timeout of {what}")
        if not length:
            raise RegistrationError(f"timeout of {what} is {self.timeout!r}; give more than 0")
        return length

    def read_concurrency(self, what: str) -> int:
        """Return the most deliveries at the same time."""
        given = _DEFAULT_CONCURRENCY if self.concurrency is None else self.concurrency
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MAX_CONCURRENCY:
            raise RegistrationError(
                f"concurrency of {what} is {given!r}; give a whole number from 1 to {_MAX_CONCURRENCY}"
            )
        return given


def register_sink(
    known: dict[str, SinkDefinition],
    name: str,
    kind: str,
    topics: str | Sequence[str],
    sink: Sink,
    options: SinkOptions,
) -> None:
    """Register a sink under a name that no other sink has."""
    what, retry = f"sink {name!r}", options.retry
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise RegistrationError(f"{name!r} cannot name a sink: use a text of 1 to 200 printable characters")
    if name in known:
        raise RegistrationError(f"two sinks are called {name!r}; give one of them another name")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")
    if not isinstance(sink, Sink):
        raise RegistrationError(f"{what} is {sink!r}, which lacks `async def deliver(message)` or `close()`")
    try:
        patterns = parse_patterns(topics)
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
    known[name] = SinkDefinition(
        name=name,
        kind=kind,
        topics=patterns,
        sink=sink,
        retry=retry or getattr(sink, "retry", None) or DEFAULT_SINK_RETRY,
        timeout=options.read_timeout(what),
        concurrency=options.read_concurrency(what),
        user_code=isinstance(sink, Subscriber) or not type(sink).__module__.startswith(_OWN_SINKS),
    )


def make_subscriber_decorator(
    known: dict[str, SinkDefinition], topics: str | Sequence[str], name: str | None, options: SinkOptions
) -> Callable[[SubscriberFn], SubscriberFn]:
    """Return a decorator that registers a function as a sink."""
    if not isinstance(topics, str | Sequence):
        raise RegistrationError('@app.subscribe names topics, as in @app.subscribe("orders.*")')

    def register(fn: SubscriberFn) -> SubscriberFn:
        chosen = str(name or getattr(fn, "__name__", ""))
        sink = Subscriber(fn, options.read_concurrency(f"sink {chosen!r}"))
        register_sink(known, chosen, "subscriber", topics, sink, options)
        return fn

    return register


def make_webhook(name: str, url: str, secret: str | Sequence[str], options: SinkOptions, settings: Settings) -> Webhook:
    """Return a webhook, after its URL and secrets were checked."""
    what = f"webhook {name!r}"
    clock = SystemClock()
    try:
        return Webhook(
            url,
            read_secrets(secret, what),
            allowed=parse_allowed_hosts(settings.allow_hosts, "allow_hosts"),
            timeout=options.read_timeout(what),
            connections=options.read_concurrency(what),
            now=lambda: clock.now() // MICROS,
        )
    except InputError as error:
        raise RegistrationError(f"{what}: {error}") from None
