"""The app: where workflows and steps are registered, and from which everything is reached."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from redrive.app import channels as sinks
from redrive.app.catalogue import FailureHandlers, check_schedule_inputs, compute_version, make_catalogue
from redrive.app.compensation import FollowUpDefinition, FollowUpSteps
from redrive.app.register import (
    StepDecorator,
    StepRequest,
    WorkflowDecorator,
    WorkflowRequest,
    check_options,
    read_classify_rules,
    register_step,
    register_workflow,
)
from redrive.app.runtime import Runtime, make_store
from redrive.app.workflow import RunHandle, Workflow
from redrive.clock import SystemClock
from redrive.core.classify import Rule
from redrive.core.schedule import Schedule
from redrive.desk.audit import Audit
from redrive.desk.circuits import Circuits
from redrive.desk.letters import DeadLetters
from redrive.desk.notifications import Notifications
from redrive.desk.outbox import Outbox, Sinks
from redrive.desk.runs import Runs
from redrive.desk.saga import Ledger
from redrive.desk.saved_views import SavedViews
from redrive.desk.settings import Policies, Schedules, Workflows
from redrive.duration import Duration
from redrive.errors import ConfigurationError, UnknownWorkflow
from redrive.notify.channels import Channels, Texts
from redrive.policy import Circuit, RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings, parse_allowed_hosts
from redrive.sinks import Sink, SinkDefinition
from redrive.store.encryption.codec import refuse_unreadable
from redrive.store.user_database import check_user_database_url
from redrive.store.workers import Catalogue
from redrive.worker.definitions import Step

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])


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
        self.rules = read_classify_rules(classify)
        self.registered_workflows: dict[str, Workflow[Any, Any, Any]] = {}
        self.registered_steps: dict[str, Step[Any, Any]] = {}
        self.handlers = FailureHandlers(self)
        self.registrations = 0
        self.registered_sinks: dict[str, SinkDefinition] = {}
        allowed = parse_allowed_hosts(self.settings.allow_hosts)
        self.follow_up_steps = FollowUpSteps(allowed=allowed)
        self.channels = Channels(allowed)
        self.words = Texts()
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
        compensate: FollowUpDefinition | None = None,
        confirm: FollowUpDefinition | None = None,
        cancel: FollowUpDefinition | None = None,
        pivot: bool = False,
    ) -> StepDecorator: ...
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
        check_options("step", StepRequest, options)
        names = sys._getframe(1).f_locals  # types defined beside the function, inside another function
        asked = StepRequest(**options)
        if fn is not None:
            return register_step(self, fn, names, asked)
        return lambda fn: register_step(self, fn, names, asked)

    def connection(self, name: str, url: str) -> None:
        """Register a database of your own under a name, for the declared action `Sql`."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigurationError(f"a connection is registered under a name, not under {name!r}")
        if name in self.follow_up_steps.connections:
            raise ConfigurationError(f"connection {name!r} is registered already; use another name")
        self.follow_up_steps.connections[name] = check_user_database_url(name, url)

    @overload
    def workflow(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, Coroutine[Any, Any, R], R]: ...
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
        retention_runs: int | None = None,
        dlq_retention: Duration | None = None,
        index: Sequence[str] = (),
        on_failure: Workflow[Any, Any, Any] | str | None = None,
        notify: Mapping[str, Any] | None = None,
        schedule: Schedule | Sequence[Schedule] | None = None,
    ) -> WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a workflow.

        `retry` is the policy of steps that have none; `timeout` limits the whole run; `rollback` undoes what
        a run did that does not succeed, by the compensations of its steps; `dead_letter=False`
        lets failures end as FAILED without a letter; `max_crashes` is how many workers may die over a run;
        `retention_runs` is how many of its finished runs are kept, if not as many as the setting says;
        `dlq_retention` is how long its dead letters wait for a decision, if not as long as the setting says;
        `index` names fields of the input to search runs and dead letters by, as in `["customer.email"]`;
        `on_failure` is a workflow, or its name, that is started with a `FailureEvent` when a run fails;
        `notify` says which people are told of what, as in `{"email": ["ops@example.org"]}`;
        `schedule` is a `Schedule`, or a list of them, by which workers start it themselves.
        """
        check_options("workflow", WorkflowRequest, options)
        names = sys._getframe(1).f_locals
        asked = WorkflowRequest(**options)
        if fn is not None:
            return register_workflow(self, fn, names, asked)
        return lambda fn: register_workflow(self, fn, names, asked)

    def on_failure(self, workflow: Callable[P, R] | Workflow[P, Any, Any], /) -> Workflow[P, Any, Any]:
        """Let a workflow handle the failures of all workflows; a plain function becomes a workflow first.

        It is started with a `FailureEvent`, in the commit that ends the failed run, and beside whatever
        handler that run's workflow has of its own. What it does itself when it fails is a dead letter.
        """
        names = sys._getframe(1).f_locals
        handler = (
            workflow if isinstance(workflow, Workflow) else register_workflow(self, workflow, names, WorkflowRequest())
        )
        self.handlers.set_for_all(handler)
        self.changed()
        return handler

    def changed(self) -> None:
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
    ) -> Callable[[SubscriberFn], SubscriberFn]:
        """Call a function, `async def` or `def`, with every message on these topics.

        It is a sink called like the function, or `name`. A call that raises is repeated as `retry` says.
        """
        return sinks.make_subscriber_decorator(
            self.registered_sinks, topics, name, sinks.SinkOptions(retry, timeout, concurrency)
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
        options = sinks.SinkOptions(retry, timeout, concurrency)
        sink = sinks.make_webhook(name, url, secret, options, self.settings)
        sinks.register_sink(self.registered_sinks, name, "webhook", topics, sink, options)

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
        options = sinks.SinkOptions(retry, timeout, concurrency)
        sinks.register_sink(self.registered_sinks, name, type(sink).__name__, topics, sink, options)

    def channel(
        self,
        name: str,
        *,
        email: str | Sequence[str] = (),
        slack: str | Sequence[str] = (),
        teams: str | Sequence[str] = (),
        webhook: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Register places to tell under a name, for `notify={"channels": [name]}` and the action `Notify`.

        `slack` and `teams` take URLs of incoming webhooks, `webhook` one or several of
        `{"url": ..., "secret": ...}`, signed like those of the outbox. None of them is ever stored.
        """
        places = {"email": email, "slack": slack, "teams": teams, "webhook": webhook}
        self.channels.add(name, places)

    def notification(
        self, event: str = "*", *, subject: str | None = None, text: str | None = None
    ) -> Callable[[SubscriberFn], SubscriberFn]:
        """Put notifications of an event, or of all of them, into other words.

        `subject` and `text` are templates that name fields of a `Notification`, as in `{{workflow}}`. With
        neither of them it decorates a function, which gets the `Notification` and returns a text, or a
        subject and a text.
        """
        return self.words.register(event, subject, text)

    @property
    def version(self) -> str:
        """The version of the registered code: what was set, or a hash of it."""
        if self.settings.version:
            return self.settings.version
        if self._version is None:
            self._version = compute_version(self.registered_workflows, self.registered_steps)
        return self._version

    def catalogue(self) -> Catalogue:
        """What this code registers, for processes that do not have it."""
        return make_catalogue(self.version, self.registered_workflows, self.registered_steps)

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
        check_schedule_inputs(self, runtime.clock.now())
        for follower in self.follow_up_steps.all:
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
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_NOT_REGISTERED, workflow=repr(workflow), known=known))
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
    def sinks(self) -> Sinks:
        """Look at the sinks that messages go to, and remove those that no app has any more."""
        return self.runtime.sinks

    @property
    def audit(self) -> Audit:
        """Who did what, and what the engine decided."""
        return self.runtime.audit

    @property
    def notifications(self) -> Notifications:
        """The inbox, and the stored rules about who is told of what."""
        return self.runtime.notifications

    @property
    def policies(self) -> Policies:
        """Stored retry policies."""
        return self.runtime.policies

    @property
    def circuits(self) -> Circuits:
        """Look at circuits, open and close them, change their settings."""
        return self.runtime.circuits

    @property
    def schedules(self) -> Schedules:
        """Look at schedules, pause and resume them."""
        return self.runtime.schedules

    @property
    def views(self) -> SavedViews:
        """Filters of lists under a name."""
        return self.runtime.views

    @property
    def workflows(self) -> Workflows:
        """Pause and resume workflows."""
        return self.runtime.workflows
