"""The class `Redrive`: registration of workflows and steps, opening, and access to runs and dead letters."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from redrive.app import registration
from redrive.app.declarations import FailureHandlers, check_schedule_inputs, compute_version, make_catalogue
from redrive.app.follow_up_steps import FollowUpDefinition, FollowUpSteps
from redrive.app.registration import SinkOptions, make_subscriber_decorator, make_webhook, register_sink
from redrive.app.sources import Source, bind_to_app, register_source, serve_sources
from redrive.app.workflow import RunHandle, Workflow
from redrive.clock import SystemClock
from redrive.core.classify import Rule
from redrive.core.schedule import Schedule
from redrive.errors import ConfigurationError, UnknownWorkflow
from redrive.notify.channels import Channels, Texts
from redrive.policy import Circuit, RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings, parse_allowed_hosts
from redrive.sinks import Sink, SinkDefinition
from redrive.store.user_database import check_user_database_url
from redrive.store.workers import Catalogue
from redrive.time_values import Duration
from redrive.worker.branches import current_scope
from redrive.worker.definitions import Step

if TYPE_CHECKING:
    from redrive.app.runtime import Runtime
    from redrive.desk.audit import Audit
    from redrive.desk.circuits import Circuits
    from redrive.desk.letters import DeadLetters
    from redrive.desk.notifications import Notifications
    from redrive.desk.outbox_and_sinks import Outbox, Sinks
    from redrive.desk.policies import Policies
    from redrive.desk.runs import Runs
    from redrive.desk.saga import Ledger
    from redrive.desk.saved_views import SavedViews
    from redrive.desk.schedules import Schedules
    from redrive.desk.tasks import Tasks
    from redrive.desk.workflows import Workflows
    from redrive.worker.dry_execution import HistoryCheck

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
SubscriberFn = TypeVar("SubscriberFn", bound=Callable[..., Any])


class Redrive:
    """An app: registers workflows and steps, starts runs, and gives access to runs and dead letters.

        app = Redrive("sqlite:///orders.db")

        @app.step(retry=RetryPolicy(max_retries=5), timeout="30s")
        async def charge(order: Order) -> Receipt: ...

        @app.workflow
        async def fulfil(order: Order) -> Receipt:
            return await charge(order)

        async with app:                          # opens the store and runs a worker in this process
            handle = await fulfil.start(order)
            receipt = await handle.result()

    `async with app.client():` opens the store without a worker, for instance in a web application.

    - `url`: the store, `sqlite:///path` or `postgresql://...`, or a server, `https://host`, with its `token`.
      Default: `REDRIVE_URL`, else `sqlite:///redrive.db`.
    - `classify`: a list of `Rule(when, category)` that assigns errors to categories before the built-in rules.
    - All other arguments are settings, as in `concurrency=200`. The settings reference lists them.
    """

    def __init__(self, url: str | None = None, *, classify: Sequence[Rule] = (), **settings: Any) -> None:
        unknown = settings.keys() - Settings.__dataclass_fields__.keys()
        if unknown:
            known = ", ".join(Settings.__dataclass_fields__)
            raise ConfigurationError(f"unknown settings: {', '.join(sorted(unknown))}; there are: {known}")
        self.settings = Settings.load({"url": url, **settings})
        self.rules = registration.read_classify_rules(classify)
        self.registered_workflows: dict[str, Workflow[Any, Any, Any]] = {}
        self.registered_steps: dict[str, Step[Any, Any]] = {}
        self.handlers = FailureHandlers(self)
        self.registrations = 0
        self.registered_sinks: dict[str, SinkDefinition] = {}
        self.registered_sources: dict[str, Source] = {}
        allowed = parse_allowed_hosts(self.settings.allow_hosts)
        self.follow_up_steps = FollowUpSteps(allowed=allowed)
        self.channels = Channels(allowed)
        self.texts = Texts()
        self._runtime: Runtime | None = None
        self._version: str | None = None

    # -- registration ---------------------------------------------------------------------------------

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
        remote: str | None = None,
    ) -> registration.StepDecorator: ...
    def step(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a step: its result is recorded, and a failed call is retried.

        A run that resumes after a crash continues with the recorded results of its steps. Inside a workflow, call
        the step like the function. Outside a run, it is the plain function.

        - `name`: the name of the step. Default: the name of the function.
        - `retry`: the retry policy. Default: the policy of the workflow.
        - `timeout`: the time limit of each attempt. Default: `step_timeout` of the workflow, or 10 minutes.
        - `heartbeat_timeout`: the longest silence of an attempt that sends heartbeats.
        - `circuit`: a `Circuit` that stops calls while the dependency behind the step fails.
        - `at_most_once`: never call the function again, even if the outcome of the first call is unknown.
        - `transactional`: pass a `tx` as first argument; its SQL commits together with the step's result.
        - `effect`: a few words about the effect on the outside world, shown in dry runs.
        - `compensate`: a function or declared action that undoes the step (see `step.compensate`).
        - `confirm`, `cancel`: functions or declared actions that end a reservation made by the step: `confirm`
          when the run succeeds, `cancel` when it fails.
        - `pivot`: do not roll the run back any more once this step has happened.
        - `remote`: the queue whose workers, in any language, execute the step. The function itself is never called.
        """
        # Annotations may name types that are local to the function in which the decorator is used.
        names = sys._getframe(1).f_locals
        request = registration.read_options("step", registration.StepRequest, options)
        decorate = partial(registration.register_step, self, names=names, request=request)
        return decorate if fn is None else decorate(fn)

    def connection(self, name: str, url: str) -> None:
        """Register your own database under a name, for the declared action `Sql`."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigurationError(f"{name!r} cannot name a connection: use a printable text")
        if name in self.follow_up_steps.connections:
            raise ConfigurationError(f"connection {name!r} is registered already: use another name")
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
        step_timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        rollback: bool = False,
        dead_letter: bool = True,
        max_crashes: int = 3,
        retention_runs: int | None = None,
        dlq_retention: Duration | None = None,
        index: Sequence[str] = (),
        on_failure: Workflow[Any, Any, Any] | str | None = None,
        failure_queue: str | None = None,
        notify: Mapping[str, Any] | None = None,
        schedule: Schedule | Sequence[Schedule] | None = None,
        events: Mapping[str, Any] | None = None,
        version: str | None = None,
        pinned: bool = False,
    ) -> registration.WorkflowDecorator: ...
    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a workflow: plain Python that calls steps and survives crashes.

        Start runs with `await fn.start(...)`. Called outside a run, it is the plain function.

        - `name`: the name of the workflow. Default: the name of the function.
        - `retry`: the retry policy of steps that have none.
        - `timeout`: the time limit of a whole run.
        - `step_timeout`, `heartbeat_timeout`: the time limits of steps that have none.
        - `rollback`: when a run fails, undo its steps with their compensations.
        - `dead_letter`: False ends failed runs as FAILED, without a dead letter.
        - `max_crashes`: the number of worker crashes after which a run becomes a dead letter. Default: 3.
        - `retention_runs`: how many finished runs to keep. Default: the setting.
        - `dlq_retention`: how long dead letters wait for a decision, or "forever". Default: the setting.
        - `index`: fields of the input by which runs and dead letters can be found, as in `["customer.email"]`.
        - `on_failure`: a workflow, or its name, to start with a `FailureEvent` when a run fails.
        - `failure_queue`: the queue of the runs that handle its failures. Default: that of the failed run.
        - `notify`: whom to notify of which events, as in `{"email": ["ops@example.org"]}`.
        - `schedule`: a `Schedule`, or a list of them, by which workers start runs.
        - `events`: the types of the events that runs wait for, by name, as in `{"approved": Approval}`. Other events
          are refused, and payloads are checked when they are sent. Default: any event with any JSON.
        - `version`: the version of this workflow, as in `"3"`. Default: that of the app, a hash of all its code.
        - `pinned`: runs that began with a version are continued only by workers with that version.
        """
        names = sys._getframe(1).f_locals
        request = registration.read_options("workflow", registration.WorkflowRequest, options)
        decorate = partial(registration.register_workflow, self, names=names, request=request)
        return decorate if fn is None else decorate(fn)

    def on_failure(self, workflow: Callable[P, R] | Workflow[P, Any, Any], /) -> Workflow[P, Any, Any]:
        """Let a workflow handle the failures of all workflows; a plain function is registered as one first.

        The commit that ends a failed run also starts the handler, with a `FailureEvent`. A handler that the failed
        workflow names itself is started as well. A handler that fails becomes a dead letter.
        """
        names = sys._getframe(1).f_locals
        if not isinstance(workflow, Workflow):
            workflow = registration.register_workflow(self, workflow, names, registration.WorkflowRequest())
        self.handlers.set_for_all(workflow)
        self.on_registered()
        return workflow

    def on_registered(self) -> None:
        """Discard what was computed from the earlier registrations: the version and the options of workflows."""
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
        """Call a function, `async def` or `def`, with each message on these topics.

            @app.subscribe("orders.*")
            async def forward(message: Message) -> None: ...

        The function becomes a sink with the name of the function, or `name`. `retry` says how a call that raises
        is repeated, `timeout` limits each call (default: 30 seconds), `concurrency` the calls at the same time (16).
        """
        options = SinkOptions(retry, timeout, concurrency)
        return make_subscriber_decorator(self.registered_sinks, topics, name, options)

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
        """Post each message on these topics to a URL, as a CloudEvent signed with the secret.

        Give several secrets while you replace one: each of them signs. The URL must be public, or allowed by the
        setting `allow_hosts`. `retry`, `timeout` and `concurrency` are those of `subscribe`.
        """
        options = SinkOptions(retry, timeout, concurrency)
        sink = make_webhook(name, url, secret, options, self.settings)
        register_sink(self.registered_sinks, name, "webhook", topics, sink, options)

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
        """Deliver each message on these topics to a sink: `RedisStreams`, or your own class.

        A sink has the methods `async deliver(message)` and `close()`. `retry`, `timeout` and `concurrency` are
        those of `subscribe`.
        """
        bind_to_app(sink, self)
        options = SinkOptions(retry, timeout, concurrency)
        register_sink(self.registered_sinks, name, type(sink).__name__, topics, sink, options)

    def source(self, name: str, source: Source) -> None:
        """Start runs for the messages of a broker, such as `BullMQ().consume(...)`; see `serve_sources`."""
        register_source(self, name, source)

    async def serve_sources(self) -> None:
        """Serve the sources of this open app and deliver to its sinks, until cancelled. It needs no worker."""
        await serve_sources(self)

    def channel(
        self,
        name: str,
        *,
        email: str | Sequence[str] = (),
        slack: str | Sequence[str] = (),
        teams: str | Sequence[str] = (),
        webhook: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Register destinations of notifications under a name.

        Use the name in `notify={"channels": [name]}` and in the declared action `Notify`. `slack` and `teams` take
        URLs of incoming webhooks. `webhook` takes one or several `{"url": ..., "secret": ...}`, whose requests are
        signed like those of `app.webhook`. URLs and secrets are never stored.
        """
        self.channels.add(name, {"email": email, "slack": slack, "teams": teams, "webhook": webhook})

    def notification(
        self, event: str = "*", *, subject: str | None = None, text: str | None = None
    ) -> Callable[[SubscriberFn], SubscriberFn]:
        """Replace the text of notifications, for one event or for all of them.

        `subject` and `text` are templates with fields of a `Notification`, as in `{{workflow}}`. Without both, this
        is a decorator for a function that takes a `Notification` and returns a text, or a subject and a text.
        """
        return self.texts.register(event, subject, text)

    @property
    def version(self) -> str:
        """The version of the registered code: the setting `version`, or else a hash of the code."""
        if self.settings.version:
            return self.settings.version
        if self._version is None:
            self._version = compute_version(self.registered_workflows, self.registered_steps)
        return self._version

    def catalogue(self) -> Catalogue:
        """Describe all registered workflows and steps, for processes without this code."""
        return make_catalogue(self.version, self.registered_workflows, self.registered_steps, self.channels.names)

    # -- opening --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Redrive:
        if not self.registered_workflows:
            raise ConfigurationError(
                "no workflow is registered, so a worker would have nothing to do: decorate a function with "
                "@app.workflow, or use app.client() to open the store without a worker"
            )
        await self._open(work=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redrive]:
        """Open the store without a worker, for instance in a web application."""
        await self._open(work=False)
        try:
            yield self
        finally:
            await self._close()

    async def _open(self, *, work: bool) -> None:
        clock = SystemClock()
        # Imported when an app is opened: a program that only declares workflows or starts a command needs none of it.
        from redrive.app.runtime import Runtime, make_store

        runtime: Runtime
        if self.settings.url.startswith(("http://", "https://")):
            from redrive.app.remote_runtime import RemoteRuntime

            # It has the calls of a runtime that need no store, and refuses the others by name.
            runtime = await self.attach(cast("Runtime", RemoteRuntime(self, clock)))
        else:
            runtime = await self.attach(Runtime(self, make_store(self.settings, clock), clock))
        try:
            await runtime.check_readable()
            if work:
                await runtime.work()
        except BaseException:
            await self._close()
            raise

    async def attach(self, runtime: Runtime) -> Runtime:
        """Check all registrations, then open a runtime and use it for this app."""
        steps, workflows = self.registered_steps.values(), self.registered_workflows.values()
        for signature in [*(step.signature for step in steps), *(workflow.signature for workflow in workflows)]:
            signature.prepare()  # an unusable type is refused here, not in a run
        self.handlers.check()
        check_schedule_inputs(self, runtime.clock.now())
        for follower in self.follow_up_steps.all:
            follower.check_types()
        if self._runtime is not None:
            raise ConfigurationError("this app is open already: open it once in a process")
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
        """The open store and the worker of this app; ConfigurationError while the app is not open."""
        if self._runtime is None:
            raise ConfigurationError(
                "the app is not open; use `async with app:` (with a worker) or `async with app.client():`"
            )
        return self._runtime

    # -- access to runs, dead letters and settings ----------------------------------------------------

    def handle(self, run_id: str, workflow: str | None = None) -> RunHandle[Any]:
        """Return a handle to the run with this id; name its workflow to decode the result by its type."""
        return RunHandle(self, run_id, None if workflow is None else self.find(workflow).definition.signature)

    def find(self, workflow: str) -> Workflow[Any, Any, Any]:
        """Return the registered workflow with this name; raise UnknownWorkflow if there is none."""
        found = self.registered_workflows.get(workflow)
        if found is None:
            known = ", ".join(sorted(self.registered_workflows)) or "none"
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_NOT_REGISTERED, workflow=repr(workflow), known=known))
        return found

    def receive_event(
        self, stream: str, event_id: str, workflow: Workflow[Any, Any, T] | str, *args: Any, **options: Any
    ) -> Coroutine[Any, Any, RunHandle[T]]:
        """Start a workflow for an event, once, however often the event is delivered.

        An event is identified by its tenant, its stream and its id. If it is delivered again, this returns the
        handle of the run that it started; with other arguments, or another workflow, it raises `Conflict`. Takes
        the options of `start` except `idempotency_key`. All other arguments are those of the workflow.
        """
        found = self.find(workflow) if isinstance(workflow, str) else workflow
        return found.receive((stream, event_id), *args, **options)

    async def check_code(self, *, sample: int | None = None) -> list[HistoryCheck]:
        """Return for each open run whether its record fits this code; with `sample`, for some of each workflow.

        No step is called and nothing is written.
        """
        from redrive.app.code_check import check_code

        return [check async for check in check_code(self, self.runs, sample=sample)]

    @property
    def runs(self) -> Runs:
        """Runs: get, list, cancel, retry, send an event."""
        if self._runtime is None and current_scope.get() is not None:
            from redrive.app.events_from_runs import CheckedRuns

            return cast("Runs", CheckedRuns())  # the code is only checked, so an event that it sends is recorded
        return self.runtime.runs

    @property
    def dlq(self) -> DeadLetters:
        """Dead letters: get, list, group, replay, resolve, ignore; one or many."""
        return self.runtime.dlq

    async def saga(self, run_id: str, *, tenant: str | None = None) -> Ledger:
        """Return the rollback of a run: the state of each compensation, with methods to resume, skip or mark them."""
        return await self.runtime.sagas.get(run_id, tenant=tenant)

    @property
    def tasks(self) -> Tasks:
        """Tasks of people: list, get, answer, assign, comment."""
        return self.runtime.tasks

    @property
    def outbox(self) -> Outbox:
        """Published messages and their deliveries: list, retry, skip."""
        return self.runtime.outbox

    @property
    def sinks(self) -> Sinks:
        """Sinks that receive messages: list, and remove those that no app registers any more."""
        return self.runtime.sinks

    @property
    def audit(self) -> Audit:
        """Audit log: actions of users and decisions of the engine."""
        return self.runtime.audit

    @property
    def notifications(self) -> Notifications:
        """Inbox of notifications, and the stored rules that say whom to notify."""
        return self.runtime.notifications

    @property
    def policies(self) -> Policies:
        """Stored retry policies, which override those in the code: get, set, list, delete."""
        return self.runtime.policies

    @property
    def circuits(self) -> Circuits:
        """Circuits: list, open, close, reset, change settings."""
        return self.runtime.circuits

    @property
    def schedules(self) -> Schedules:
        """Schedules: list, pause, resume."""
        return self.runtime.schedules

    @property
    def views(self) -> SavedViews:
        """Saved views: list filters stored under a name."""
        return self.runtime.views

    @property
    def workflows(self) -> Workflows:
        """Workflows: pause, resume."""
        return self.runtime.workflows
