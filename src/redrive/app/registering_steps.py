"""Registering steps, and what undoes, confirms or cancels them, which are steps of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.app.checks import check_flags, check_retry, chosen_name, time_limit
from redrive.app.dependencies import check_circuit
from redrive.app.undoing import CANCEL, CONFIRM, UNDO, Follower, How, Role, accepts_nothing, check_how
from redrive.core.options import StepOptions
from redrive.core.payload import Signature
from redrive.core.payload.resolve import read_signature
from redrive.duration import Duration
from redrive.errors import RegistrationError
from redrive.frozen import dataclass
from redrive.policy import Circuit, RetryPolicy
from redrive.worker.definitions import Step, Undo

if TYPE_CHECKING:
    from redrive.app.app import Redrive

__all__ = ["StepRequest", "register_step"]

_DEFAULT_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What `@app.step` was told, not checked yet."""

    name: str | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    circuit: Circuit | None = None
    at_most_once: bool = False
    transactional: bool = False
    effect: str | None = None
    compensate: How | None = None
    confirm: How | None = None
    cancel: How | None = None
    pivot: bool = False


def register_step(
    app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], asked: StepRequest
) -> Step[Any, Any]:
    """Make a function a step of the app. `names` are those that its annotations may refer to."""
    name = chosen_name("step", asked.name, fn, app.registered_steps)
    what = f"step {name!r}"
    _check(what, fn, asked)
    check_circuit(what, asked.circuit, app.registered_steps)
    options = _options(what, asked)
    signature = Signature.of(fn, skip_first=asked.transactional, names=names)
    step: Step[Any, Any] = Step(
        fn, name=name, options=options, signature=signature, registrar=partial(_register_undo, app)
    )
    _register_followers(app, step, asked, names)
    app.registered_steps[name] = step
    app.changed()
    return step


def _check(what: str, fn: Callable[..., Any], asked: StepRequest) -> None:
    check_flags(what, at_most_once=asked.at_most_once, transactional=asked.transactional, pivot=asked.pivot)
    _check_following(what, asked)
    if asked.effect is not None and not isinstance(asked.effect, str):
        raise RegistrationError(f"effect of {what} is {asked.effect!r}; give a few words, or leave it out")
    if asked.at_most_once and asked.retry is not None:
        raise RegistrationError(f"{what} runs at most once, so it cannot have retry=; remove one of them")
    if asked.at_most_once and asked.transactional:
        raise RegistrationError(
            f"{what}: a transactional step takes effect exactly once, at_most_once adds nothing"
        )
    if asked.transactional:
        _check_transactional(what, fn)
    check_retry(what, asked.retry)


def _check_following(what: str, asked: StepRequest) -> None:
    if (asked.confirm is None) != (asked.cancel is None):
        raise RegistrationError(
            f"{what}: confirm= and cancel= go together; what is reserved ends in one of them"
        )
    if asked.compensate is not None and asked.cancel is not None:
        raise RegistrationError(f"{what} has compensate= and cancel=; give the one way back that it has")


def _check_transactional(what: str, fn: Callable[..., Any]) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationError(f"{what} is transactional and must be an `async def` function")
    first = next(iter(read_signature(fn).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise RegistrationError(f"{what} is transactional and must take `tx` as its first parameter")


def _options(what: str, asked: StepRequest) -> StepOptions:
    return StepOptions(
        retry=asked.retry,
        timeout=time_limit(asked.timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT,
        heartbeat_timeout=time_limit(asked.heartbeat_timeout, f"heartbeat_timeout of {what}"),
        at_most_once=asked.at_most_once,
        transactional=asked.transactional,
        effect=asked.effect,
        circuit=asked.circuit,
        pivot=asked.pivot,
    )


def _register_followers(
    app: Redrive, step: Step[Any, Any], asked: StepRequest, names: Mapping[str, Any]
) -> None:
    follows = [(asked.confirm, CONFIRM), (asked.cancel, CANCEL)]
    made = {role: _make_follower(app, step, how, role, names) for how, role in follows if how is not None}
    if asked.compensate is not None:
        _register_undo(app, step, asked.compensate, names)
    if made:
        step.confirm = made[CONFIRM]
        step.cancel = Undo(step=made[CANCEL], uncertain=accepts_nothing(made[CANCEL]))
        step.marked(confirm=step.confirm.name, cancel=made[CANCEL].name)


def _register_undo(
    app: Redrive,
    step: Step[Any, Any],
    how: How,
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
    made = _make_follower(
        app, step, how, UNDO, names, name=name, retry=retry, timeout=timeout, uncertain=uncertain
    )
    step.undo = Undo(step=made, uncertain=uncertain)
    step.marked(undo=made.name)
    app.changed()
    return made


def _make_follower(
    app: Redrive,
    step: Step[Any, Any],
    how: How,
    role: Role,
    names: Mapping[str, Any],
    *,
    uncertain: bool = False,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Step[Any, Any]:
    """Register what undoes, confirms or cancels a step, as a step of its own."""
    check_how(step.name, how, role)
    what = f"what is to {role.verb} step {step.name!r}"
    check_retry(what, retry)
    if callable(how):
        chosen, kind = chosen_name("step", name, how, app.registered_steps), None
    else:
        chosen, kind = name or f"{step.name}.{role.verb}", how.kind
    options = StepOptions(
        retry=retry, timeout=time_limit(timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT, action=kind
    )
    made = app.followers.make(step, how, role, names, chosen, options)
    app.followers.add(Follower(of=step, step=made, uncertain=uncertain))
    app.registered_steps[chosen] = made
    return made
