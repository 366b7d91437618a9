"""The runtime of an app whose URL is that of a server: a remote worker, and the desk over HTTP.

Everything that workflow code can do works as beside the store. What needs the store itself is refused when the app is
opened, with the name of the thing and what to do instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive.app.events_from_runs import send_once
from redrive.app.results import RunResult
from redrive.app.runtime import RuntimeBase
from redrive.clock import MICROS, Clock
from redrive.core.keys_and_ids import decode_key
from redrive.core.secret_and_sealed_text import is_sealed, make_sealed_value
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.desk.event_sender import EventRequest
from redrive.desk.models import SentEvent
from redrive.desk.run_starter import StartRequest
from redrive.errors import ConfigurationError
from redrive.remote.backend import RemoteBackend
from redrive.remote.client import TOKEN_VARIABLE, Address, Client
from redrive.remote.desk import Remote, RemoteRuns
from redrive.remote.sealing import read_sealing
from redrive.settle.settler import parse_run_options
from redrive.store.port import Store
from redrive.store.runs import StartResult, caller_key
from redrive.time_values import to_datetime
from redrive.worker.worker import StepWrapper, Worker

if TYPE_CHECKING:
    from redrive.app.app import Redrive

_POLL_INTERVAL = 20.0  # seconds after which an idle worker claims without a hint of the server
_RESULTS_PER_REQUEST = 500


class _SendingRuns(RemoteRuns):
    """Runs of a server, for code of a worker: an event that the code of a run sends is sent once."""

    async def _send(self, request: EventRequest) -> SentEvent:
        return await send_once(request, super()._send)


class RemoteRuntime(RuntimeBase):
    """The parts of an open app that reaches its store through a server."""

    def __init__(self, app: Redrive, clock: Clock) -> None:
        settings = app.settings
        self._address = Address.read(settings.url, settings.proxy, settings.ca_file)
        self._token = settings.token
        if not self._token:
            raise ConfigurationError(
                f"the URL is that of a server: put the token into {TOKEN_VARIABLE}, or give token="
            )
        if not (self._address.secure or settings.allow_plain or self._address.is_local):
            raise ConfigurationError(
                f"{self._address} has no https, so others on the network could read the token and the "
                "payloads: write https://, or set REDRIVE_ALLOW_PLAIN=yes if the network is private"
            )
        _refuse_what_needs_the_store(app)
        self._sealing = read_sealing(settings.encryption_keys)
        self._source = _ServerResults(Client(self._address, self._token, self._sealing))
        super().__init__(app, clock, self._source)
        self.remote = remote = Remote(self._address, self._token, app.registered_steps, self._sealing)
        self.runs, self.dlq, self.starter = remote.make_runs(_SendingRuns), remote.dlq, remote.starter
        self.sagas = _RemoteSagas(remote)
        self.tasks = remote.tasks
        self.policies, self.circuits, self.outbox = remote.policies, remote.circuits, remote.outbox
        self.audit, self.notifications, self.schedules = remote.audit, remote.notifications, remote.schedules
        self.views, self.workflows, self.sinks = remote.views, remote.workflows, remote.sinks
        self._backend: RemoteBackend | None = None

    @property
    def result_source(self) -> _ServerResults:
        """The source of results: the server."""
        return self._source

    def now(self) -> int:
        """Return the server's time in microseconds since 1970."""
        return self.clock.now() if self._backend is None else self._backend.now()

    @property
    def store(self) -> Store:
        """The store, which only the server has."""
        raise ConfigurationError(
            f"this needs a database, and {self._address} is a server: use the URL of the database instead"
        )

    async def open(self) -> None:
        """Do nothing: the first request connects."""

    async def check_readable(self) -> None:
        """Do nothing: the server has the keys."""

    async def work(
        self, *, automatic: bool = True, store: Store | None = None, wrap_step: StepWrapper | None = None
    ) -> Worker:
        """Start a worker that claims and settles through the server. The server does the chores."""
        backend = self._backend = RemoteBackend(self._address, self._token, self.clock, self._sealing)
        worker = self._make_worker(backend, poll=_POLL_INTERVAL, wrap_step=wrap_step)
        await worker.start(automatic=automatic)
        self.worker = worker
        return worker

    async def close(self) -> None:
        """Stop the worker, then close all connections."""
        if self.worker is not None:
            await self.worker.stop()
        if self._backend is not None:
            self._backend.close()
        await self._actions.close()
        self.results.close()
        self._source.close()
        async with self.remote.client():
            pass  # closes its connection

    async def start(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> list[StartResult]:
        backend = self._backend
        if self._sealing is not None:
            runs = [self._sealing.seal_run(run) for run in runs]  # once: a repeated request has the same texts
        if self.worker is None or backend is None:
            return await self.starter.start([_make_request(self._app, run) for run in runs])
        async with self.worker.claimer.reserve(runs, in_slot=in_slot) as reservation:
            started = await self.ask_store(lambda: backend.start(runs, worker=reservation.worker_id))
            reservation.started = started
        return started

    @property
    def refused(self) -> asyncio.Future[Any] | None:
        """A future that is done when the server refuses the token of the worker."""
        return None if self._backend is None else self._backend.refused


class _ServerResults:
    """Results of runs from a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunResult]:
        """Return those of the runs that exist."""
        found: list[RunResult] = []
        for begin in range(0, len(public_ids), _RESULTS_PER_REQUEST):
            body = {"ids": list(public_ids[begin : begin + _RESULTS_PER_REQUEST])}
            for each in (await self._client.request("POST", "runs:results", body=body))["runs"]:
                status = RunStatus(each["status"])
                found.append(RunResult(each["id"], status, each.get("output"), each.get("failure")))
        return found

    def close(self) -> None:
        self._client.close()


class _RemoteSagas:
    """The rollbacks of a server."""

    def __init__(self, remote: Remote) -> None:
        self.get = remote.saga


def _refuse_what_needs_the_store(app: Redrive) -> None:
    """Refuse an app that registered something that only a process beside the store can do."""
    transactional = [step.name for step in app.registered_steps.values() if step.options.transactional]
    if transactional:
        raise ConfigurationError(
            f"step {transactional[0]!r} is transactional, and a remote worker has no transaction to join: use "
            "step.idempotency_key with the other service, or run this workflow on a worker beside the store"
        )
    if app.registered_sinks:
        name = next(iter(app.registered_sinks))
        raise ConfigurationError(
            f"sink {name!r} delivers messages from the store: register it in the app of `redrive server --app` or of a "
            "worker beside the store"
        )
    if app.channels or app.texts:
        raise ConfigurationError(
            "notifications are sent beside the store: register channels and texts in the app of `redrive server --app`"
        )
    scheduled = [workflow.name for workflow in app.registered_workflows.values() if workflow.schedules]
    if scheduled:
        raise ConfigurationError(
            f"workflow {scheduled[0]!r} has a schedule, which a process beside the store keeps: register it in the app "
            "of `redrive server --app` or of a worker beside the store"
        )


def _make_request(app: Redrive, run: NewRun) -> StartRequest:
    """Return a start as the API takes it."""
    options: dict[str, Any] = {"tenant": run.tenant, "queue": run.queue, "priority": run.priority}
    stored, default = parse_run_options(run.options), app.registered_workflows[run.workflow].make_startable().options
    if run.delay:
        options["delay"] = run.delay / MICROS
    if run.deadline is not None:
        options["deadline"] = to_datetime(run.deadline).isoformat()
    if run.timeout is not None:
        options["timeout"] = (run.timeout - run.delay) / MICROS
    if run.correlation_id is not None:
        options["correlation_id"] = run.correlation_id
    if stored.override is not None:
        options["retry"] = stored.override
    if stored.limits is not None:
        options["step_timeout"], options["heartbeat_timeout"] = stored.limits.timeout, stored.limits.heartbeat_timeout
    if stored.on_failure is not None and stored.on_failure != default.on_failure:
        own = [each.workflow for each in stored.on_failure.handlers if not each.for_all]
        options["on_failure"] = own[0] if own else None
        options["failure_queue"] = stored.on_failure.queue
    event = None
    if run.key is not None:
        kind, parts = decode_key(run.key)
        if kind == "idem_evt":
            event = (parts[1], parts[2])
        else:
            options["idempotency_key"] = caller_key(run.key)
    given = {name: value for name, value in options.items() if value is not None}
    sealed = is_sealed(run.input)
    return StartRequest(
        workflow=run.workflow,
        event=event,
        input=make_sealed_value(run.input) if sealed else json.loads(run.input),
        options=given,
        input_hash=run.key_hash if sealed else None,
        input_index=run.index if sealed else (),
    )
