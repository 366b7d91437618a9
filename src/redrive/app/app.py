"""The app: where workflows and steps are registered, and from which everything is reached."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from redrive.allowed import read_allowed
from redrive.app import sinks
from redrive.app.dependencies import check_circuit
from redrive.app.handle import RunHandle
from redrive.app.handlers import Handlers
from redrive.app.opening import make_store
from redrive.app.runtime import Runtime
from redrive.app.undoing import (
    CANCEL,
    CONFIRM,
    UNDO,
    Follower,
    Followers,
    How,
    Role,
    accepts_nothing,
    check_how,
)
from redrive.app.version import code_version
from redrive.app.workflow import START_OPTIONS, Workflow
from redrive.clock import SystemClock
from redrive.core.classify import Rule
from redrive.core.index import MOST_FIELDS, parts
from redrive.core.options import StepOptions
from redrive.core.payload import Signature
from redrive.core.payload.resolve import read_signature
from redrive.desk.audit import Audit
from redrive.desk.circuits import Circuits
from redrive.desk.dlq import DeadLetters
from redrive.desk.outbox import Outbox
from redrive.desk.policies import Policies
from redrive.desk.runs import Runs
from redrive.desk.saga import Ledger
from redrive.desk.workflows import Workflows
from redrive.duration import Duration, seconds
from redrive.errors import ConfigurationError, RegistrationError, UnknownWorkflow
from redrive.policy import Circuit, RetryPolicy
from redrive.settings import Settings
from redrive.sinks import Sink, SinkDefinition
from redrive.store.elsewhere import check_elsewhere
from redrive.store.records import Catalogue, CatalogueItem
from redrive.store.sealed import refuse_unreadable
from redrive.worker.definition import Step, Undo, WorkflowDefinition

__all__ = ["Redrive"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Subscribed = TypeVar("Subscribed", bound=Callable[..., Any])

_DEFAULT_TIMEOUT = 600.0


class _StepDecorator(Protocol):
    """What `@app.step(...)` decorates with. A `def` step is awaited in `async def` workflows and called
    plainly elsewhere, so what calling it gives cannot be said more precisely."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, Any]: ...


class _WorkflowDecorator(Protocol):
    """What `@app.workflow(...)` decorates with."""

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R, R]: ...


class Redrive:
    """Registers workflows and steps, starts and finds runs.

    `async with app:` opens the store and runs a worker in this process; `async with app.client():` opens
    the store only. Settings are listed in the settings reference; each is an argument here.
    """

    def __init__(self, url: str | None = None, *, classify: Sequence[Rule] = (), **settings: Any) -> None:
        unknown = settings.keys() - Settings.__dataclass_fields__.keys()
        if unknown:
            known = ", ".join(Settings.__dataclass_fields__)
            raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}; there are: {known}")
        self.settings = Settings.load({"url": url, **settings})
        self.rules = _rules(classify)
        self.registered_workflows: dict[str, Workflow[Any, Any, Any]] = {}
        self.registered_steps: dict[str, Step[Any, Any]] = {}
        self.handlers = Handlers(self)
        self.registrations = 0
        self.registered_sinks: dict[str, SinkDefinition] = {}
        self.followers = Followers(allowed=read_allowed(self.settings.allow_hosts))
        self._runtime: Runtime | None = None
        self._version: str | None = None

    # -- registering ----------------------------------------------------------------------------------

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, Coroutine[Any, Any, R]]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, Any]: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        circuit: Circuit | None = None,
        at_most_once: bool = False,
        transactional: bool = False,
        effect: str | None = None,
        compensate: How | None = None,
        confirm: How | None = None,
        cancel: How | None = None,
        pivot: bool = False,
    ) -> _StepDecorator: ...
    def step(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a step: its result is recorded, its failures are retried.

        `timeout` (10 minutes) limits each attempt, `heartbeat_timeout` the silence of one that sends
        heartbeats. `circuit`: when to stop calling, because the dependency behind the step is out of order.
        `at_most_once`: never called again once it was called. `transactional`: the function's
        first parameter is a `tx` whose SQL commits together with the record. `effect` names in a few words
        what the step does to the outside world. `compensate` undoes it (see `step.compensate`); `confirm` and
        `cancel` end what it reserves, when the run succeeds or fails; each a function or a declared action.
        `pivot`: once it has happened, the run is not rolled back any more.
        """
        _check_options("step", self._register_step, options)
        names = sys._getframe(1).f_locals  # types defined beside the function, inside another function
        if fn is not None:
            return self._register_step(fn, names, **options)
        return lambda fn: self._register_step(fn, names, **options)

    def _register_step(
        self,
        fn: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        circuit: Circuit | None = None,
        at_most_once: bool = False,
        transactional: bool = False,
        effect: str | None = None,
        compensate: How | None = None,
        confirm: How | None = None,
        cancel: How | None = None,
        pivot: bool = False,
    ) -> Step[Any, Any]:
        name = _name("step", name, fn, self.registered_steps)
        what = f"step {name!r}"
        _check_flags(what, at_most_once=at_most_once, transactional=transactional, pivot=pivot)
        _check_following(what, compensate, confirm, cancel)
        if effect is not None and not isinstance(effect, str):
            raise RegistrationError(f"effect of {what} is {effect!r}; give a few words, or leave it out")
        if at_most_once and retry is not None:
            raise RegistrationError(f"{what} runs at most once, so it cannot have retry=; remove one of them")
        if at_most_once and transactional:
            raise RegistrationError(
                f"{what}: a transactional step takes effect exactly once, at_most_once adds nothing"
            )
        if transactional:
            _check_transactional(what, fn)
        _check_retry(what, retry)
        check_circuit(what, circuit, self.registered_steps)
        options = StepOptions(
            retry=retry,
            timeout=_limit(timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT,
            heartbeat_timeout=_limit(heartbeat_timeout, f"heartbeat_timeout of {what}"),
            at_most_once=at_most_once,
            transactional=transactional,
            effect=effect,
            circuit=circuit,
            pivot=pivot,
        )
        signature = Signature.of(fn, skip_first=transactional, names=names)
        step: Step[Any, Any] = Step(
            fn, name=name, options=options, signature=signature, registrar=self._register_undo
        )
        follows = [(how, role) for how, role in ((confirm, CONFIRM), (cancel, CANCEL)) if how is not None]
        made = {role: self._make_follower(step, how, role, names) for how, role in follows}
        if compensate is not None:
            self._register_undo(step, compensate, names)
        if made:
            step.confirm = made[CONFIRM]
            step.cancel = Undo(step=made[CANCEL], uncertain=accepts_nothing(made[CANCEL]))
            step.marked(confirm=step.confirm.name, cancel=made[CANCEL].name)
        self.registered_steps[name] = step
        self._changed()
        return step

    def _register_undo(
        self,
        step: Step[Any, Any],
        how: How,
        names: Mapping[str, Any],
        *,
        uncertain: bool = False,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
    ) -> Step[Any, Any]:
        _check_flags(f"the compensation of step {step.name!r}", uncertain=uncertain)
        if step.undo is not None or step.cancel is not None:
            by = (step.undo or step.cancel).step.name  # type: ignore[union-attr]
            raise RegistrationError(f"step {step.name!r} is undone by {by!r} already; it has one way back")
        made = self._make_follower(
            step, how, UNDO, names, name=name, retry=retry, timeout=timeout, uncertain=uncertain
        )
        step.undo = Undo(step=made, uncertain=uncertain)
        step.marked(undo=made.name)
        self._changed()
        return made

    def _make_follower(
        self,
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
        _check_retry(what, retry)
        if callable(how):
            chosen, kind = _name("step", name, how, self.registered_steps), None
        else:
            chosen, kind = name or f"{step.name}.{role.verb}", how.kind
        options = StepOptions(
            retry=retry, timeout=_limit(timeout, f"timeout of {what}") or _DEFAULT_TIMEOUT, action=kind
        )
        made = self.followers.make(step, how, role, names, chosen, options)
        self.followers.add(Follower(of=step, step=made, uncertain=uncertain))
        self.registered_steps[chosen] = made
        return made

    def connection(self, name: str, url: str) -> None:
        """Register a database of your own under a name, for the declared action `Sql`."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigurationError(f"a connection is registered under a name, not under {name!r}")
        if name in self.followers.connections:
            raise ConfigurationError(f"connection {name!r} is registered already; use another name")
        self.followers.connections[name] = check_elsewhere(name, url)

    @overload
    def workflow(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def workflow(self, fn: Callable[P, R], /) -> Workflow[P, R, R]: ...
    @overload
    def workflow(
        self,
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        rollback: bool = False,
        dead_letter: bool = True,
        max_crashes: int = 3,
        dlq_retention: Duration | None = None,
        index: Sequence[str] = (),
        on_failure: Workflow[Any, Any, Any] | str | None = None,
    ) -> _WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a workflow.

        `retry` is the policy of steps that have none; `timeout` limits the whole run; `rollback` undoes what
        a run did that does not succeed, by the compensations of its steps; `dead_letter=False`
        lets failures end as FAILED without a letter; `max_crashes` is how many workers may die over a run;
        `dlq_retention` is how long its dead letters wait for a decision, if not as long as the setting says;
        `index` names fields of the input to search runs and dead letters by, as in `["customer.email"]`;
        `on_failure` is a workflow, or its name, that is started with a `FailureEvent` when a run fails.
        """
        _check_options("workflow", self._register_workflow, options)
        names = sys._getframe(1).f_locals
        if fn is not None:
            return self._register_workflow(fn, names, **options)
        return lambda fn: self._register_workflow(fn, names, **options)

    def _register_workflow(
        self,
        fn: Callable[..., Any],
        names: Mapping[str, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        rollback: bool = False,
        dead_letter: bool = True,
        max_crashes: int = 3,
        dlq_retention: Duration | None = None,
        index: Sequence[str] = (),
        on_failure: Workflow[Any, Any, Any] | str | None = None,
    ) -> Workflow[Any, Any, Any]:
        name = _name("workflow", name, fn, self.registered_workflows)
        what = f"workflow {name!r}"
        _check_flags(what, dead_letter=dead_letter, rollback=rollback)
        if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 1:
            raise RegistrationError(
                f"max_crashes of {what} is {max_crashes!r}; give a whole number from 1 on"
            )
        _check_retry(what, retry)
        definition = WorkflowDefinition(
            name=name,
            fn=fn,
            signature=Signature.of(fn, reserved=START_OPTIONS, names=names),
            is_async=inspect.iscoroutinefunction(fn),
        )
        workflow: Workflow[Any, Any, Any] = Workflow(
            self,
            definition,
            retry=retry,
            timeout=_limit(timeout, f"timeout of {what}"),
            dead_letter=dead_letter,
            max_crashes=max_crashes,
            dlq_retention=_limit(dlq_retention, f"dlq_retention of {what}"),
            index=_index(what, index, definition.signature),
            rollback=rollback,
        )
        self.handlers.note(name, on_failure)
        self.registered_workflows[name] = workflow
        self._changed()
        return workflow

    def on_failure(self, workflow: Callable[P, R] | Workflow[P, Any, Any], /) -> Workflow[P, Any, Any]:
        """Let a workflow handle the failures of all workflows; a plain function becomes a workflow first.

        It is started with a `FailureEvent`, in the commit that ends the failed run, and beside whatever
        handler that run's workflow has of its own. What it does itself when it fails is a dead letter.
        """
        names = sys._getframe(1).f_locals
        handler = workflow if isinstance(workflow, Workflow) else self._register_workflow(workflow, names)
        self.handlers.note_for_all(handler)
        self._changed()
        return handler

    def _changed(self) -> None:
        """Something was registered: what was worked out from all registrations is worked out anew."""
        self._version = None
        self.registrations += 1

    def subscribe(
        self,
        topics: str | Sequence[str],
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> Callable[[Subscribed], Subscribed]:
        """Call a function, `async def` or `def`, with every message on these topics.

        It is a sink called like the function, or `name`. A call that raises is repeated as `retry` says.
        """
        return sinks.subscriber(
            self.registered_sinks, topics, name, sinks.Options(retry, timeout, concurrency)
        )

    def webhook(
        self,
        name: str,
        url: str,
        topics: str | Sequence[str],
        *,
        secret: str | Sequence[str],
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Post every message on these topics to a URL, as a CloudEvent signed with the secret.

        Several secrets all sign, while one is exchanged for another. The URL has to be a public one, or let
        through by `allow_hosts`.
        """
        options = sinks.Options(retry, timeout, concurrency)
        sink = sinks.webhook(name, url, secret, options, self.settings)
        sinks.add(self.registered_sinks, name, "webhook", topics, sink, options)

    def sink(
        self,
        name: str,
        topics: str | Sequence[str],
        sink: Sink,
        *,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Bring every message on these topics to a sink: `RedisStreams`, or one of your own."""
        options = sinks.Options(retry, timeout, concurrency)
        sinks.add(self.registered_sinks, name, type(sink).__name__, topics, sink, options)

    @property
    def version(self) -> str:
        """The version of the registered code: what was set, or a hash of it."""
        if self.settings.version:
            return self.settings.version
        if self._version is None:
            functions = [(f"workflow {name}", w.fn) for name, w in self.registered_workflows.items()]
            functions += [(f"step {name}{_written(s)}", s.fn) for name, s in self.registered_steps.items()]
            self._version = code_version(functions)
        return self._version

    def catalogue(self) -> Catalogue:
        """What this code registers, for processes that do not have it."""
        return Catalogue(
            version=self.version,
            workflows=tuple(
                _item(name, w.options_text, w.definition.signature)
                for name, w in self.registered_workflows.items()
            ),
            steps=tuple(
                _item(name, s.options_text, s.signature) for name, s in self.registered_steps.items()
            ),
        )

    # -- opening --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Redrive:
        if not self.registered_workflows:
            raise ConfigurationError(
                "no workflow is registered, so a worker would have nothing to do; decorate a function with "
                "@app.workflow, or use app.client() to look and start only"
            )
        runtime = await self._open()
        try:
            await runtime.work()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redrive]:
        """Open the store without a worker, as a web application does."""
        await self._open()
        try:
            yield self
        finally:
            await self._close()

    async def _open(self) -> Runtime:
        clock = SystemClock()
        runtime = await self.attach(Runtime(self, make_store(self.settings, clock), clock))
        try:
            await runtime.answered(lambda: refuse_unreadable(runtime.store))
        except BaseException:
            await self._close()
            raise
        return runtime

    async def attach(self, runtime: Runtime) -> Runtime:
        """Open a runtime and make it this app's own."""
        signatures = [step.signature for step in self.registered_steps.values()]
        signatures += [workflow.signature for workflow in self.registered_workflows.values()]
        for signature in signatures:
            signature.prepare()  # whatever is wrong with a type shows now, not in a run
        self.handlers.check()
        for follower in self.followers.all:
            follower.check_types()
        if self._runtime is not None:
            raise ConfigurationError("this app is open already; an app is opened once in a process")
        self._runtime = runtime
        try:
            await runtime.open()
        except BaseException:
            await self._close()
            raise
        return runtime

    async def _close(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    def detach(self) -> None:
        """Forget the runtime without closing it, as a crash would."""
        self._runtime = None

    @property
    def runtime(self) -> Runtime:
        """The app at work; an error outside `async with`."""
        if self._runtime is None:
            raise ConfigurationError(
                "the app is not open; use `async with app:` (with a worker) or `async with app.client():`"
            )
        return self._runtime

    # -- looking and acting ---------------------------------------------------------------------------

    def handle(self, run_id: str, workflow: str | None = None) -> RunHandle[Any]:
        """A handle to a run by its id; name the workflow to have its result decoded by type."""
        if workflow is None:
            return RunHandle(self, run_id, None)
        return RunHandle(self, run_id, self.find(workflow).definition.signature)

    def find(self, workflow: str) -> Workflow[Any, Any, Any]:
        """The registered workflow of that name."""
        found = self.registered_workflows.get(workflow)
        if found is None:
            known = ", ".join(sorted(self.registered_workflows)) or "none"
            raise UnknownWorkflow(f"no workflow is called {workflow!r}; registered are: {known}")
        return found

    def receive_event(
        self, stream: str, event_id: str, workflow: Workflow[Any, Any, T] | str, *args: Any, **options: Any
    ) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a workflow for an event, once however often the event is delivered.

        The event is known by its tenant, its stream and its id. Delivered again, it gives the handle of the
        run that it started; with other arguments, or for another workflow, it is a `Conflict`. Takes the
        options of `start` except `idempotency_key`; all else are the workflow's arguments.
        """
        found = self.find(workflow) if isinstance(workflow, str) else workflow
        return found.receive((stream, event_id), *args, **options)

    @property
    def runs(self) -> Runs:
        """Look at runs, cancel them, retry those that failed."""
        return self.runtime.runs

    @property
    def dlq(self) -> DeadLetters:
        """Look at dead letters, replay and close them."""
        return self.runtime.dlq

    async def saga(self, run_id: str, *, tenant: str | None = None) -> Ledger:
        """The ledger of a run: what of it is undone, what is left, and what can be decided about that."""
        return await self.runtime.sagas.get(run_id, tenant=tenant)

    @property
    def outbox(self) -> Outbox:
        """Look at messages and their deliveries, retry and skip those that sinks did not take."""
        return self.runtime.outbox

    @property
    def audit(self) -> Audit:
        """Who did what, and what the engine decided."""
        return self.runtime.audit

    @property
    def policies(self) -> Policies:
        """Stored retry policies."""
        return self.runtime.policies

    @property
    def circuits(self) -> Circuits:
        """Look at circuits, open and close them, change their settings."""
        return self.runtime.circuits

    @property
    def workflows(self) -> Workflows:
        """Pause and resume workflows."""
        return self.runtime.workflows


def _name(kind: str, name: str | None, fn: Callable[..., Any], taken: dict[str, Any]) -> str:
    if isinstance(fn, Step | Workflow):
        raise RegistrationError(f"@app.{kind} decorates a plain function, and {fn!r} is registered already")
    if not callable(fn) or isinstance(fn, type):
        raise RegistrationError(
            f"@app.{kind} decorates a function, not {fn!r}; options have names, as in @app.{kind}(name=...)"
        )
    chosen = name if name is not None else getattr(fn, "__name__", None)
    if chosen is None:
        raise RegistrationError(f"{fn!r} has no name of its own; give it one with @app.{kind}(name=...)")
    if not _can_be_name(chosen):
        raise RegistrationError(
            f"{chosen!r} cannot name a {kind}: use a text of 1 to 200 printable characters, but not / or #"
        )
    if chosen.startswith("redrive."):
        raise RegistrationError(f"{kind} {chosen!r}: names that begin with 'redrive.' are the engine's own")
    if chosen in taken:
        raise RegistrationError(
            f"two functions are registered as {kind} {chosen!r} ({_called(taken[chosen].fn)} and "
            f"{_called(fn)}); give one of them another name="
        )
    return chosen


def _can_be_name(text: Any) -> bool:
    """True for what can stand in journal keys, in every store and in one line of a log."""
    return (
        isinstance(text, str) and 0 < len(text) <= 200 and text.isprintable() and not set(text) & {"/", "#"}
    )


def _called(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _check_options(kind: str, register: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, at the decorator and not at the function below it."""
    parameters = inspect.signature(register).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    unknown = ", ".join(name for name in options if name not in known)
    if unknown:
        raise RegistrationError(f"@app.{kind} has no option {unknown}; it has {', '.join(known)}")


def _check_flags(what: str, **flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RegistrationError(f"{name} of {what} is {value!r}; give True or False")


def _check_following(what: str, compensate: Any, confirm: Any, cancel: Any) -> None:
    if (confirm is None) != (cancel is None):
        raise RegistrationError(
            f"{what}: confirm= and cancel= go together; what is reserved ends in one of them"
        )
    if compensate is not None and cancel is not None:
        raise RegistrationError(f"{what} has compensate= and cancel=; give the one way back that it has")


def _written(step: Step[Any, Any]) -> str:
    """What a declared action says, which is its code."""
    return "" if step.action is None else f" {json.dumps(step.action.to_json(), sort_keys=True)}"


def _check_transactional(what: str, fn: Callable[..., Any]) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationError(f"{what} is transactional and must be an `async def` function")
    first = next(iter(read_signature(fn).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise RegistrationError(f"{what} is transactional and must take `tx` as its first parameter")


def _check_retry(what: str, retry: Any) -> None:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise RegistrationError(f"retry of {what} takes a RetryPolicy, not {type(retry).__name__}")


def _index(what: str, fields: Any, signature: Signature) -> tuple[str, ...]:
    """The fields to search by, each once; whatever cannot be one is refused."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise RegistrationError(f'index of {what} is {fields!r}; give a list, as in ["customer.email"]')
    for field in fields:
        known = signature.parameters
        if not isinstance(field, str) or not all(parts(field)) or parts(field)[0] not in known:
            raise RegistrationError(
                f"index of {what} has {field!r}; give a parameter ({', '.join(known) or 'there is none'}), "
                "and behind dots the names inside its value"
            )
    if len(fields) > MOST_FIELDS:
        raise RegistrationError(f"index of {what} has {len(fields)} fields; {MOST_FIELDS} are the most")
    return tuple(dict.fromkeys(fields))


def _limit(value: Duration | None, what: str) -> float | None:
    """A time limit in seconds, if one was given."""
    length = None if value is None else seconds(value, what)
    if length == 0:
        raise RegistrationError(f"{what} is {value!r}; give a duration longer than nothing, or leave it out")
    return length


def _rules(classify: Any) -> tuple[Rule, ...]:
    rules = tuple(classify) if isinstance(classify, Iterable) else (classify,)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"classify holds {rule!r}; give a list of Rule(when, category)")
    return rules


def _item(name: str, options: str, signature: Signature) -> CatalogueItem:
    return CatalogueItem(
        name=name,
        options=options,
        schema_in=json.dumps(signature.schema_in()),
        schema_out=json.dumps(signature.schema_out()),
    )
