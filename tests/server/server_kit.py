"""Real server processes on a store with two tenants, and credentials of every role in each."""

from __future__ import annotations

import asyncio
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster
import httpx2

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.core.roles import Role
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.server.http_server import Server, bind_socket
from redrive.server.limits import Limits
from redrive.store.accounts import NewToken, NewUser
from redrive.store.port import Store

PATIENCE = 60.0
SECRET = "a secret of more than sixty-four bytes, enough for every algorithm there is"
PREFIX = "/api/v1"
HERE = Path(__file__).parent
ROLES = list(Role)


class Process:
    """A `redrive server …` process and its output by line. Its user must call `end`."""

    def __init__(
        self, url: str, *arguments: str, app: str | None = "server_shop:app", chores: bool = False, **more: str
    ) -> None:
        command = [sys.executable, "-m", "redrive", "server", "--port", "0", "--url", url, *arguments]
        command += [] if chores else ["--no-chores"]
        self.process = subprocess.Popen(
            [*command, *(("--app", app) if app else ())],
            cwd=HERE,
            env={
                **os.environ,
                "REDRIVE_SECRET_KEY": SECRET,
                "REDRIVE_ENCRYPTION_KEYS": "plain",
                "PYTHONPATH": str(HERE),
                **more,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._queue.put(line)
        self._queue.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next line that contains the text."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line is not None, f"no line with {text!r} in:\n{''.join(self.lines)}"
            if text in line:
                return line

    def ready(self) -> Process:
        """Wait until the server listens."""
        self.address = self.wait_for("listening on").split()[-1]
        return self

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        if self.process.poll() is None:
            # Coverage is written when a process ends by itself.
            (self.process.terminate if "COVERAGE_PROCESS_CONFIG" in os.environ else self.process.kill)()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(url: str, *arguments: str, **more: Any) -> Iterator[Process]:
    """Run a server process while the context is open."""
    process = Process(url, *arguments, **more)
    try:
        yield process.ready()
    finally:
        process.end()


@dataclass
class World:
    """Two tenants on one store, `acme` and `globex`, and a token of each role in each."""

    url: str
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    ids: dict[str, dict[str, str]] = field(default_factory=dict)
    address: str = ""
    _clients: dict[str | None, httpx2.Client] = field(default_factory=dict)
    _others: list[httpx2.Client] = field(default_factory=list)

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def client(self, tenant: str = "acme", role: str = "ADMIN", **more: Any) -> httpx2.Client:
        """Return a client with the token of a role in a tenant."""
        return self.bearer(self.tokens[tenant, role], **more)

    def bearer(self, secret: str | None, **more: Any) -> httpx2.Client:
        """Return a client with this credential. Clients are cached: creating one costs more than a request."""
        if more:
            self._others.append(self._new(secret, **more))
            return self._others[-1]
        if secret not in self._clients:
            self._clients[secret] = self._new(secret)
        return self._clients[secret]

    def _new(self, secret: str | None, **more: Any) -> httpx2.Client:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        headers |= more.pop("headers", {})
        url = self.address + PREFIX
        return httpx2.Client(base_url=url, headers=headers, timeout=30.0, verify=False, **more)

    def close(self) -> None:
        for client in [*self._clients.values(), *self._others]:
            client.close()


async def _populate(url: str, world: World) -> None:
    """Create a successful run, a failed run, a policy, a set, a user and tokens for each tenant."""
    from server_shop import app, fulfil

    app.settings = Redrive(url, secret_key=SECRET, encryption_keys="plain").settings
    async with app:
        for tenant in ("acme", "globex"):
            world.ids[tenant] = await _tenant(app, fulfil, tenant, world)
        while await app.runtime.store.fold(100):
            pass


async def _tenant(app: Redrive, fulfil: Any, tenant: str, world: World) -> dict[str, str]:
    store = app.runtime.store
    access = AccountAdmin(store.accounts, SystemClock(), make_operator("test"), SECRET)
    await access.create_tenant(tenant)
    for role in ROLES:
        made = await access.create_token(NewToken(tenant=tenant, role=role, name=f"{role}"))
        world.tokens[tenant, role.value] = made.secret
    good = await fulfil.start("A-1", 1, "k3y", tenant=tenant)
    bad = await fulfil.start("A-2", 1000, "k3y-s3cr3t", tenant=tenant, correlation_id="c-1")
    await good.result(timeout="30s")
    while (await bad.status()) != "DLQ_PENDING":  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.05)
    user, _ = await access.create_user(
        NewUser(email=f"staff@{tenant}.example", tenant=tenant, role=Role.STAFF, password="a good password")
    )
    booked = await _stopped_rollback(app, tenant)
    begun = await app.dlq.resolve_many([f"dl-{good.id}"], by="test", tenant=tenant)
    spare = await access.create_token(NewToken(tenant=tenant, role=Role.VIEWER, name="spare"))
    await app.runtime.scheduler.run_once()
    return {
        "run": bad.id,
        "good": good.id,
        "letter": f"dl-{bad.id}",
        "fingerprint": (await app.dlq.get(bad.id)).fingerprint,
        "set": begun.id,
        "user": user.id,
        "token": spare.token.id,
        "tenant": tenant,
        "booked": booked,
        "message": f"msg-{booked}-0-0",
        "step": "reserve",
        "key": f"{tenant}-bank",
    }


async def _stopped_rollback(app: Redrive, tenant: str) -> str:
    """Create a stopped rollback, a dead message and manually opened circuits; return the run's id."""
    from server_shop import book

    booked = (await book.start("B-1", tenant=tenant)).id
    while not await app.outbox.blocked(tenant=tenant):  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.05)
    while (await app.runs.get(booked)).letter_id is None:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.05)
    for key in (f"{tenant}-bank", "post"):
        await app.circuits.open(key, tenant=tenant, by="test", reason=f"{tenant} knows why")
    return booked


def populate(url: str) -> World:
    """Populate a store from code that runs outside an event loop."""
    world = World(url)
    asyncio.run(_populate(url, world))
    return world


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """Open the store behind a server."""
    app = Redrive(url, secret_key=SECRET, encryption_keys="plain")
    async with app.client():
        yield app.runtime.store


def access_of(store: Store) -> AccountAdmin:
    """Return an account administrator who may do everything."""
    return AccountAdmin(store.accounts, SystemClock(), make_operator("test"), SECRET)


@contextmanager
def populated(kind: str, folder: Path) -> Iterator[World]:
    """Create a world with a separate store. The first one of each kind is populated, the others are copies."""
    with populated_store(kind, folder) as url:
        first = _first[kind]
        yield World(url, dict(first.tokens), {tenant: dict(ids) for tenant, ids in first.ids.items()})


@contextmanager
def served(kind: str, folder: Path) -> Iterator[World]:
    """Run a server process on a separate world."""
    with populated(kind, folder) as made, serving(made.url) as process:
        made.address = process.address
        yield made
        made.close()


@contextmanager
def served_in_thread(kind: str, folder: Path) -> Iterator[World]:
    """Run a server in a thread on a separate world. A process would need a second more for its imports."""
    begun: queue.Queue[tuple[str, Callable[[], None]]] = queue.Queue()
    with populated(kind, folder) as made, ThreadPoolExecutor(1, "server") as thread:
        done = thread.submit(asyncio.run, _serve(made.url, begun))
        done.add_done_callback(lambda _: begun.put(("", lambda: None)))  # If it failed, `result` raises.
        made.address, stop = begun.get(timeout=PATIENCE)
        try:
            if made.address:
                yield made
                made.close()
        finally:
            stop()
            done.result(PATIENCE)


async def _serve(url: str, begun: queue.Queue[tuple[str, Callable[[], None]]]) -> None:
    """Serve like `redrive server --app server_shop:app` until stopped."""
    app = runpy.run_path(str(HERE / "server_shop.py"))["app"]
    app.settings = Redrive(url, secret_key=SECRET, encryption_keys="plain").settings
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    with bind_socket("127.0.0.1", 0) as at:
        async with app.client():
            server = Server(app, at)
            await server.serve(stop, lambda address: begun.put((address, lambda: loop.call_soon_threadsafe(stop.set))))


_first: dict[str, World] = {}
_file: list[bytes] = []


@contextmanager
def populated_store(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a populated store."""
    if kind == "sqlite":
        yield _file_in(folder)
        return
    cluster.need_postgres()
    url = asyncio.run(cluster.copy_of(kind, _database(kind)))
    try:
        yield url
    finally:
        asyncio.run(cluster.drop(kind, url))


def _file_in(folder: Path) -> str:
    path = folder / "redrive.db"
    url = f"sqlite:///{path}"
    if _file:
        path.write_bytes(_file[0])
    else:
        _first["sqlite"] = populate(url)
        _file.append(path.read_bytes())
    return url


def _database(kind: str) -> str:
    url = asyncio.run(cluster.database_of(cluster.shared(kind).url, "world"))
    if kind not in _first:
        _first[kind] = populate(url)
    return url


@asynccontextmanager
async def served_here(
    folder: Path, limits: Limits, *, host: str = "127.0.0.1", **settings: str
) -> AsyncIterator[World]:
    """Run a server in the event loop of the test."""
    made = populated("sqlite", folder)
    world = await asyncio.to_thread(made.__enter__)  # populating needs a separate loop
    with bind_socket(host, 0) as at:
        app = Redrive(world.url, secret_key=SECRET, encryption_keys="plain", **settings)  # type: ignore[arg-type]
        async with app.client():
            stop, ready = asyncio.Event(), asyncio.Event()
            server = Server(app, at, limits)
            world.address = server.address
            serving = asyncio.create_task(server.serve(stop, lambda _: ready.set()))
            await ready.wait()
            try:
                yield world
            finally:
                stop.set()
                await serving


def caller(world: World, known: bool = True, **headers: str) -> httpx2.AsyncClient:
    if known:
        headers["Authorization"] = f"Bearer {world.tokens['acme', 'ADMIN']}"
    return httpx2.AsyncClient(base_url=world.address, headers=headers, timeout=PATIENCE, verify=False)
