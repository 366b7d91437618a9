"""The virtual engine with a remote worker: its calls pass the routes of a server as bytes, without a socket.

The store, the desk and the chores are those of the server. A worker that dies takes its server with it, so that a
crash may happen at each store call that a request makes; a store that does not answer is a status 503 for the worker.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from fastapi import FastAPI

from redrive.app.runtime import Runtime
from redrive.clock import MICROS
from redrive.core.roles import ALL_TENANTS, Principal, Role
from redrive.core.transitions import NewRun
from redrive.errors import StoreError
from redrive.remote import worker_protocol
from redrive.remote.backend import RemoteBackend, RemoteLease
from redrive.remote.client import Address, Client, read_problem
from redrive.remote.worker_connection import Server
from redrive.server.problem_responses import install_error_handlers
from redrive.server.remote_workers import RemoteWorkers, WorkerSession
from redrive.server.routes.workers import WorkerDoor, worker_routes
from redrive.server.step_workers import StepWorkers
from redrive.settings import API_PREFIX
from redrive.settle.settler import LocalSettler
from redrive.store.children import WokenRun
from redrive.store.circuits import CircuitRow
from redrive.store.events import SendResult
from redrive.store.port import LeaseConnection, Store
from redrive.store.runs import StartResult
from redrive.store.workers import HeartbeatReply
from redrive.worker.backend import Backend, LocalBackend
from redrive.worker.worker import Worker

_ADDRESS = Address.read("http://127.0.0.1:9")  # nothing connects to it
_PRINCIPAL = Principal(who="fleet", tenant=ALL_TENANTS, role=Role.WORKER, token="fleet")
_SERVICE: ContextVar[Any] = ContextVar("service")
_STARTS: ContextVar[bool] = ContextVar("starts", default=False)


class _State:
    """The state of the API, which all engines share: to make its routes takes longer than a test."""

    @property
    def service(self) -> Any:
        return _SERVICE.get()

    @staticmethod
    async def redact(reason: Any) -> Any:
        return reason


_API = FastAPI()
_API.state = cast("Any", _State())
_API.router.routes.extend(worker_routes.routes)
_API.add_middleware(cast("Any", WorkerDoor))
install_error_handlers(_API)


class _Heartbeats:
    """Heartbeats that are written at once: under a virtual clock, a worker's heartbeat must not wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lease: LeaseConnection | None = None

    async def renew(self, worker: int, lease: int, steps: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        if self._lease is None:
            self._lease = self._store.lease_connection()
        return self._lease.beat({worker: steps})[worker]

    def space(self, lease: int) -> int:
        return min(MICROS, lease // 6)

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()


class _Door:
    """The server of one worker, called without a connection."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store
        server = SimpleNamespace(
            store=store, listeners=runtime.listeners, wake_listeners=set(), wake_workers=runtime.wake_workers
        )
        most = runtime._app.settings.max_payload

        def get_runtime() -> Runtime:
            # A start is a call of the test, and the test does not die with the worker.
            return runtime if _STARTS.get() else cast("Runtime", server)

        self._workers = RemoteWorkers(get_runtime, runtime.clock, most)
        self._workers._heartbeats.close()
        self.heartbeats = _Heartbeats(store)
        self._workers._heartbeats = cast("Any", self.heartbeats)
        polls = self._workers.polls

        async def get_principal(authorization: str) -> Principal:
            return _PRINCIPAL

        self._service = SimpleNamespace(
            app=SimpleNamespace(runtime=server),
            proxies=(),
            worker_credentials=SimpleNamespace(principal=get_principal),
            remote_workers=self._workers,
            step_workers=StepWorkers(get_runtime, runtime.clock, polls, most),
        )

    async def call(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the answer; raise the error behind a problem."""
        answer = await self._ask(method, path, body, headers)
        if path == f"{worker_protocol.WORKER_PATH}/register":
            await self._begin_session(msgspec.json.decode(answer, type=worker_protocol.Registered).worker)
        return answer

    async def _begin_session(self, worker: int) -> None:
        """Read a worker as its first request would; if that was a heartbeat, it could not wait for the store."""
        row = await self._runtime.store.remote_worker(worker)
        assert row is not None
        settler = LocalSettler(self._store, self._runtime.clock, worker=worker, listeners=self._runtime.listeners)
        self._workers._sessions[worker] = WorkerSession(row, settler)

    def call_now(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Send a request that needs no cycle of the event loop."""
        return _run_inline(self._ask(method, path, body, headers))

    async def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        parts: list[dict[str, Any]] = []
        where, _, query = path.partition("?")
        lines = {"authorization": "Bearer token", "content-type": "application/json", **headers}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body or b"", "more_body": False}

        async def send(message: Any) -> None:
            parts.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"{API_PREFIX}/{where}",
            "raw_path": f"{API_PREFIX}/{where}".encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in lines.items()],
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 9),
        }
        before, starts = _SERVICE.set(self._service), _STARTS.set(where == f"{worker_protocol.WORKER_PATH}/start")
        try:
            await _API(scope, receive, cast("Any", send))
        except Exception as error:
            self._fail_test(error)
            raise
        finally:
            _SERVICE.reset(before)
            _STARTS.reset(starts)
        text = b"".join(part.get("body", b"") for part in parts[1:])
        if parts[0]["status"] >= 300:
            raise read_problem(_ADDRESS, parts[0]["status"], text)
        return text

    def _fail_test(self, error: Exception) -> None:
        """Raise an unexpected error of the server where the test moves time: a worker only repeats its request."""

        def raise_error() -> None:
            raise AssertionError("the server failed") from error

        cast("Any", self._runtime.clock).next_due = raise_error

    def close(self) -> None:
        self._workers.polls.close()
        self.heartbeats.close()


def _run_inline(call: Coroutine[Any, Any, bytes]) -> bytes:
    try:
        call.send(None)
    except StopIteration as returned:
        return cast("bytes", returned.value)
    call.close()
    raise AssertionError("the request waits, and nothing else could happen meanwhile")


class _Backend(RemoteBackend):
    """The backend of a remote worker, without connections."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        super().__init__(_ADDRESS, "token", runtime.clock)
        self._door = _Door(runtime, store)
        self._server = cast("Server", self._door)

    def lease_connection(self) -> LeaseConnection:
        client = SimpleNamespace(call=self._door.call_now, close=self._door.heartbeats.close)
        return RemoteLease(self, cast("Client", client), self._time, self._clock)


class RemoteWorkRuntime(Runtime):
    """A server with one remote worker, which asks the server after each hint.

    `workers` counts the workers that were made in this process.
    """

    workers = 0

    def _make_worker(self, backend: Backend, *, poll: float, wrap_step: Any, **_: Any) -> Worker:
        assert isinstance(backend, LocalBackend)
        RemoteWorkRuntime.workers += 1
        return super()._make_worker(_Backend(self, backend._store), poll=poll, wrap_step=wrap_step)

    async def start(self, runs: Sequence[NewRun], *, in_slot: bool = False) -> list[StartResult]:
        worker = self.worker
        if worker is None:
            return await super().start(runs, in_slot=in_slot)
        backend = cast("RemoteBackend", worker.backend)
        async with worker.claimer.reserve(runs, in_slot=in_slot) as reservation:
            reservation.started = await self.ask_store(lambda: backend.start(runs, worker=reservation.worker_id))
        return list(reservation.started)

    def on_sent(self, sent: SendResult) -> None:
        self._hint(due=sent.woke)

    def on_woken(self, woken: Sequence[WokenRun]) -> None:
        self._hint(due=any(each.due for each in woken))

    def learn_circuit(self, row: CircuitRow) -> None:
        if self.worker is not None:
            self.worker.spawn(self._repeat(self.worker, self.worker.circuits.refresh))
            self.worker.wakeup.notify()

    def _hint(self, *, due: bool) -> None:
        if self.worker is not None and self.worker.waits_by_run:
            self.worker.spawn(self._repeat(self.worker, lambda: _look_for_events(self.worker)))
        if due:
            self.wake_workers()

    async def _repeat(self, worker: Worker, ask: Any) -> None:
        """Ask the server until it answers, as the loops of a worker do that is not driven by a test."""
        while worker is self.worker:
            try:
                await ask()
                return
            except StoreError:
                await self.clock.sleep(1.0)


async def _look_for_events(worker: Worker | None) -> None:
    if worker is not None and worker.waits_by_run:
        for run, wakeups in (await worker.backend.wakeups(list(worker.waits_by_run))).items():
            worker.wake_waits(run, wakeups)
