"""Registering steps, and what undoes, confirms or cancels them, which are steps of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from redrive.app.catalogue import read_schedules
from redrive.app.compensation import (
    CANCEL,
    CONFIRM,
    UNDO,
    FollowUpDefinition,
    FollowUpRole,
    FollowUpStep,
    accepts_missing_result,
    check_circuit,
    check_follow_up,
)
from redrive.app.workflow import Workflow
from redrive.core.classify import Rule
from redrive.core.new_run import MAX_INDEX_FIELDS, START_OPTIONS, split_field_path
from redrive.core.payload import Signature
from redrive.core.payload.signature import read_signature
from redrive.core.run_options import StepOptions
from redrive.core.schedule import Schedule
from redrive.duration import Duration, parse_duration
from redrive.errors import ConfigurationError, RegistrationError
from redrive.policy import Circuit, RetryPolicy
from redrive.records import field_names
from redrive.worker.definitions import Compensation, Step, WorkflowDefinition

if TYPE_CHECKING:
    from redrive.app.app import Redrive

# -- Checking what was said at registration: names, flags, limits; whatever is wrong is refused in w -----


def check_options(kind: str, record: type[Any], options: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, at the decorator and not at the function below it."""
    known = field_names(record)
    unknown = ", ".join(name for name in options if name not in known)
    if unknown:
        raise RegistrationError(f"@app.{kind} has no option {unknown}; it has {', '.join(known)}")


def choose_name(kind: str, name: str | None, fn: Callable[..., Any], taken: dict[str, Any]) -> str:
    """The name to register a function under; whatever cannot be one, or is taken, is refused."""
    if isinstance(fn, Step | Workflow):
        raise RegistrationError(f"@app.{kind} decorates a plain function, and {fn!r} is registered already")
    if not callable(fn) or isinstance(fn, type):
        raise RegistrationError(
            f"@app.{kind} decorates a function, not {fn!r}; options have names, as in @app.{kind}(name=...)"
        )
    chosen = name if name is not None else getattr(fn, "__name__", None)
    if chosen is None:
        raise RegistrationError(f"{fn!r} has no name of its own; give it one with @app.{kind}(name=...)")
    if not _is_valid_name(chosen):
        raise RegistrationError(
            f"{chosen!r} cannot name a {kind}: use a text of 1 to 200 printable characters, but not / or #"
        )
    if chosen.startswith("redrive."):
        raise RegistrationError(f"{kind} {chosen!r}: names that begin with 'redrive.' are the engine's own")
    if chosen in taken:
        raise RegistrationError(
            f"two functions are registered as {kind} {chosen!r} ({_qualified_name(taken[chosen].fn)} and "
            f"{_qualified_name(fn)}); give one of them another name="
        )
    return chosen


def _is_valid_name(text: Any) -> bool:
    """True for what can stand in journal keys, in every store and in one line of a log."""
    return isinstance(text, str) and 0 < len(text) <= 200 and text.isprintable() and not set(text) & {"/", "#"}


def _qualified_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def check_flags(what: str, **flags: Any) -> None:
    """Refuse what is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RegistrationError(f"{name} of {what} is {value!r}; give True or False")


def check_retry(what: str, retry: Any) -> None:
    """Refuse what is no retry policy."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")


def read_time_limit(value: Duration | None, what: str) -> float | None:
    """A time limit in seconds, if one was given."""
    length = None if value is None else parse_duration(value, what)
    if length == 0:
        raise RegistrationError(f"{what} is {value!r}; give a duration longer than nothing, or leave it out")
    return length


def read_classify_rules(classify: Any) -> tuple[Rule, ...]:
    """The rules of an app for recognising errors."""
    rules = tuple(classify) if isinstance(classify, Iterable) else (classify,)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"classify holds {rule!r}; give a list of Rule(when, category)")
    return rules


# -- Registering steps, and what undoes, confirms or cancels them, which are steps of their own ----------


_DEFAULT_TIMEOUT = 600.0


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `@app.step` was told, not checked yet."""

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


def register_step(app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], asked: StepRequest) -> Step[Any, Any]:
    """Make a function a step of the app. `names` are those that its annotations may refer to."""
    name = choose_name("step", asked.name, fn, app.registered_steps)
    what = f"step {name!r}"
    _check_step_request(what, fn, asked)
    check_circuit(what, asked.circuit, app.registered_steps)
    options = _make_step_options(what, asked)
    signature = Signature.of(fn, skip_first=asked.transactional, names=names)
    step: Step[Any, Any] = Step(
        fn, name=name, options=options, signature=signature, registrar=partial(_register_compensation, app)
    )
    _register_follow_ups(app, step, asked, names)
    app.registered_steps[name] = step
    app.changed()
    return step


def _check_step_request(what: str, fn: Callable[..., Any], asked: StepRequest) -> None:
    check_flags(what, at_most_once=asked.at_most_once, transactional=asked.transactional, pivot=asked.pivot)
    _check_follow_ups(what, asked)
    if asked.effect is not None and not isinstance(asked.effect, str):
        raise RegistrationError(f"effect of {what} is {asked.effect!r}; give a few words, or leave it out")
    if asked.at_most_once and asked.retry is not None:
        raise RegistrationError(f"{what} runs at most once, so it cannot have retry=; remove one of them")
    if asked.at_most_once and asked.transactional:
        raise RegistrationError(f"{what}: a transactional step takes effect exactly once, at_most_once adds nothing")
    if asked.transactional:
        _check_transactional(what, fn)
    check_retry(what, asked.retry)


def _check_follow_ups(what: str, asked: StepRequest) -> None:
    if (asked.confirm is None) != (asked.cancel is None):
        raise RegistrationError(f"{what}: confirm= and cancel= go together; what is reserved ends in one of them")
    if asked.compensate is not None and asked.cancel is not None:
        raise RegistrationError(f"{what} has compensate= and cancel=; give the one way back that it has")


def _check_transactional(what: str, fn: Callable[..., Any]) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationError(f"{what} is transactional and must be an `async def` function")
    first = next(iter(read_signature(fn).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise RegistrationError(f"{what} is transactional and must take `tx` as its first parameter")


def _make_step_options(what: str, asked: StepRequest) -> StepOptions:
    return StepOptions(
        retry=asked.retry,
        timeout=read_time_limit(asked.timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT,
        heartbeat_timeout=read_time_limit(asked.heartbeat_timeout, f"heartbeat_timeout of {what}"),
        at_most_once=asked.at_most_once,
        transactional=asked.transactional,
        effect=asked.effect,
        circuit=asked.circuit,
        pivot=asked.pivot,
    )


def _register_follow_ups(app: Redrive, step: Step[Any, Any], asked: StepRequest, names: Mapping[str, Any]) -> None:
    follows = [(asked.confirm, CONFIRM), (asked.cancel, CANCEL)]
    made = {role: _register_follow_up(app, step, how, role, names) for how, role in follows if how is not None}
    if asked.compensate is not None:
        _register_compensation(app, step, asked.compensate, names)
    if made:
        step.confirm = made[CONFIRM]
        step.cancel = Compensation(step=made[CANCEL], uncertain=accepts_missing_result(made[CANCEL]))
        step.marked(confirm=step.confirm.name, cancel=made[CANCEL].name)


def _register_compensation(
    app: Redrive,
    step: Step[Any, Any],
    how: FollowUpDefinition,
    names: Mapping[str, Any],
    *,
    uncertain: bool = False,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Step[Any, Any]:
    """Register the one way back of a step."""
    check_flags(f"the compensation of step {step.name!r}", uncertain=uncertain)
    if step.undo is not None or step.cancel is not None:
        by = (step.undo or step.cancel).step.name  # type: ignore[union-attr]
        raise RegistrationError(f"step {step.name!r} is undone by {by!r} already; it has one way back")
    made = _register_follow_up(
        app, step, how, UNDO, names, name=name, retry=retry, timeout=timeout, uncertain=uncertain
    )
    step.undo = Compensation(step=made, uncertain=uncertain)
    step.marked(undo=made.name)
    app.changed()
    return made


def _register_follow_up(
    app: Redrive,
    step: Step[Any, Any],
    how: FollowUpDefinition,
    role: FollowUpRole,
    names: Mapping[str, Any],
    *,
    uncertain: bool = False,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Step[Any, Any]:
    """Register what undoes, confirms or cancels a step, as a step of its own."""
    check_follow_up(step.name, how, role)
    what = f"what is to {role.verb} step {step.name!r}"
    check_retry(what, retry)
    if callable(how):
        chosen, kind = choose_name("step", name, how, app.registered_steps), None
    else:
        chosen, kind = name or f"{step.name}.{role.verb}", how.kind
    options = StepOptions(
        retry=retry, timeout=read_time_limit(timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT, action=kind
    )
    made = app.follow_up_steps.make(step, how, role, names, chosen, options)
    app.follow_up_steps.add(FollowUpStep(of=step, step=made, uncertain=uncertain))
    app.registered_steps[chosen] = made
    return made


# -- Registering workflows -------------------------------------------------------------------------------


class WorkflowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `@app.workflow` was told, not checked yet."""

    name: str | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    rollback: bool = False
    dead_letter: bool = True
    max_crashes: int = 3
    retention_runs: int | None = None
    dlq_retention: Duration | None = None
    index: Sequence[str] = ()
    on_failure: Workflow[Any, Any, Any] | str | None = None
    notify: Mapping[str, Any] | None = None
    schedule: Schedule | Sequence[Schedule] | None = None


def register_workflow(
    app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], asked: WorkflowRequest
) -> Workflow[Any, Any, Any]:
    """Make a function a workflow of the app. `names` are those that its annotations may refer to."""
    name = choose_name("workflow", asked.name, fn, app.registered_workflows)
    what = f"workflow {name!r}"
    _check_workflow_request(what, asked)
    definition = WorkflowDefinition(
        name=name,
        fn=fn,
        signature=Signature.of(fn, reserved=START_OPTIONS, names=names),
        is_async=inspect.iscoroutinefunction(fn),
    )
    workflow = _make_workflow(app, what, definition, asked)
    app.handlers.note(name, asked.on_failure)
    app.registered_workflows[name] = workflow
    app.changed()
    return workflow


def _check_workflow_request(what: str, asked: WorkflowRequest) -> None:
    check_flags(what, dead_letter=asked.dead_letter, rollback=asked.rollback)
    _check_number(f"max_crashes of {what}", asked.max_crashes, least=1)
    if asked.retention_runs is not None:
        _check_number(f"retention_runs of {what}", asked.retention_runs, least=0)
    check_retry(what, asked.retry)


def _check_number(what: str, number: Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise RegistrationError(f"{what} is {number!r}; give a whole number from {least} on")


def _make_workflow(
    app: Redrive, what: str, definition: WorkflowDefinition, asked: WorkflowRequest
) -> Workflow[Any, Any, Any]:
    return Workflow(
        app,
        definition,
        retry=asked.retry,
        timeout=read_time_limit(asked.timeout, f"timeout of {what}"),
        dead_letter=asked.dead_letter,
        max_crashes=asked.max_crashes,
        retention_runs=asked.retention_runs,
        dlq_retention=read_time_limit(asked.dlq_retention, f"dlq_retention of {what}"),
        index=_read_index_fields(what, asked.index, definition.signature),
        rollback=asked.rollback,
        notify=None if asked.notify is None else app.channels.rule(definition.name, asked.notify),
        schedules=read_schedules(what, asked.schedule),
    )


def _read_index_fields(what: str, fields: Any, signature: Signature) -> tuple[str, ...]:
    """The fields to search by, each once; whatever cannot be one is refused."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise RegistrationError(f'index of {what} is {fields!r}; give a list, as in ["customer.email"]')
    for field in fields:
        known = signature.parameters
        if not isinstance(field, str) or not all(split_field_path(field)) or split_field_path(field)[0] not in known:
            raise RegistrationError(
                f"index of {what} has {field!r}; give a parameter ({', '.join(known) or 'there is none'}), "
                "and behind dots the names inside its value"
            )
    if len(fields) > MAX_INDEX_FIELDS:
        raise RegistrationError(f"index of {what} has {len(fields)} fields; {MAX_INDEX_FIELDS} are the most")
    return tuple(dict.fromkeys(fields))


# -- What `@app.step(...)` and `@app.workflow(...)` decorate with, as type checkers see it ---------------


P = ParamSpec("P")
R = TypeVar("R")


class StepDecorator(Protocol):
    """What `@app.step(...)` decorates with. A `def` step is awaited in `async def` workflows and called
    plainly elsewhere, so what calling it gives cannot be said more precisely."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, Any]: ...


class WorkflowDecorator(Protocol):
    """What `@app.workflow(...)` decorates with."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R, R]: ...
