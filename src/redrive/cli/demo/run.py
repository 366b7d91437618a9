"""Work that keeps arriving at the shop."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from redrive.app import Redrive, RunHandle, Workflow
from redrive.cli.demo.services import CRASH_EXIT_CODE
from redrive.cli.demo.shop import (
    MARKET,
    PASSWORD,
    SHOP,
    USERS,
    Order,
    app,
    ask_supplier,
    create_users,
    fulfil,
    import_catalogue,
    invoice,
    make_to_measure,
    remind,
    renew,
)
from redrive.cli.server import DEFAULT_HOST, DEFAULT_PORT, require_extras
from redrive.cli.worker_process import run_worker, stop_with_parent
from redrive.errors import ConfigurationError

# -- Work that keeps arriving at the shop ----------------------------------------------------------------


_FIRST_INTERVAL, _LATER_INTERVAL = 0.8, 2.0  # seconds between two runs: in the first round, and from then on
Scenario = Callable[..., Coroutine[Any, Any, RunHandle[Any]]]


def _make_order(id: str, **other: str) -> Order:
    fields = {"product": "teapot", "card": "fine", "address": "12 Mill Lane"} | other
    return Order(id=id, price=Decimal("19.90"), **fields)


def _make_scenario(workflow: Workflow[..., Any, Any], about: str) -> Scenario:
    """A story about something that has a name."""

    def story(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        return workflow.start(about, idempotency_key=id, correlation_id=id, tenant=tenant)

    return story


def _make_order_scenario(workflow: Workflow[..., Any, Any], **fields: str) -> Scenario:
    """A story about an order."""

    def story(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        order = _make_order(id, **fields)
        return workflow.start(order, idempotency_key=id, correlation_id=id, tenant=tenant)

    return story


SCENARIOS: dict[str, Scenario] = {
    "goes well": _make_order_scenario(fulfil),
    "retried until the line holds": _make_order_scenario(fulfil, card="flaky"),
    "wrong input": _make_order_scenario(fulfil, address="nowhere"),
    "told to come back later": _make_order_scenario(fulfil, card="busy"),
    "survives the death of its worker": _make_scenario(import_catalogue, "large.csv"),
    "the provider breaks, and comes back": _make_scenario(renew, "last straw"),
    "waits until the provider is back": _make_scenario(renew, "ann"),
    "rolled back": _make_order_scenario(make_to_measure, product="ebony table"),
    "timed out, then retried": _make_order_scenario(fulfil, card="slow"),
    "declined, and the workflow deals with it": _make_order_scenario(fulfil, card="declined"),
    "retries run out": _make_order_scenario(fulfil, card="down"),
    "cannot be rolled back": _make_order_scenario(make_to_measure, product="ebony chair", card="frozen"),
    "booked at the second try": _make_order_scenario(invoice, product="lamp"),
    "an error in the code": _make_order_scenario(invoice, product="gramophone"),
    "waits": _make_scenario(remind, "jo@example.org"),
    "mail that has to wait": _make_scenario(remind, "jo@busy.example"),
    "not answered in time": _make_scenario(ask_supplier, "lamp"),
    "kills its workers": _make_scenario(import_catalogue, "poison.csv"),
}
"""Everything that can happen, by what it shows. Each is started with an id."""

_ORDINARY_SCENARIOS = (
    "goes well",
    "booked at the second try",
    "waits until the provider is back",
    "waits",
    "goes well",
)


def _list_round() -> list[str]:
    """One round: every story once, with ordinary business between them."""
    ordinary = itertools.cycle(_ORDINARY_SCENARIOS)
    return [name for story in SCENARIOS for name in (story, next(ordinary))]


async def generate_traffic(first: int) -> None:
    """Start one run after the other, for as long as the task lives; numbered from `first` on.

    Every third run is the market hall's, so that each tenant has everything before long.
    """
    script = _list_round()
    for count in itertools.count():
        number, name = first + count, script[count % len(script)]
        await SCENARIOS[name](f"order-{number}", MARKET if number % 3 == 0 else SHOP)
        await asyncio.sleep(_FIRST_INTERVAL if count < len(script) else _LATER_INTERVAL)


# -- Keeping a worker process alive while workflows kill it ----------------------------------------------


_RESTART_DELAY = 0.5
_STOP_TIMEOUT = 6.0  # for a worker that was asked to stop


class WorkerProcess:
    """One worker process at a time, started again whenever it crashes. Its output goes to `worker.log`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.log = folder / "worker.log"
        self.pid = 0
        self.crashes = 0
        self._folder = folder
        self._environment = {**os.environ, "REDRIVE_URL": url}
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WorkerProcess:
        self._keeping = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeping is not None
        self._keeping.cancel()
        await asyncio.wait([self._keeping])

    def check(self) -> None:
        """Raise what went wrong with the worker, other than the crashes that are part of the show."""
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()

    async def _keep_alive(self) -> None:
        while True:
            code = await self._run_process()
            if code != CRASH_EXIT_CODE:
                raise click.ClickException(
                    f"the demo's worker ended with code {code}; its log is {self.log}:\n{self._read_log_tail()}"
                )
            self.crashes += 1
            await asyncio.sleep(_RESTART_DELAY)

    async def _run_process(self) -> int:
        """Start a worker and wait until it ends; when cancelled, end it in good order."""
        with self.log.open("ab") as log:
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "redrive.cli.demo.run",
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops its worker
            )
        self.pid = worker.pid
        try:
            return await worker.wait()
        finally:
            self.pid = 0
            await self._stop_process(worker)

    async def _stop_process(self, worker: asyncio.subprocess.Process) -> None:
        assert worker.stdin is not None
        worker.stdin.close()
        try:
            await asyncio.wait_for(worker.wait(), _STOP_TIMEOUT)
        except TimeoutError:
            worker.kill()
            await worker.wait()

    def _read_log_tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


# -- The demo's server, beside its view: the dashboard and the API, for as long as the demo goes on ------


class Dashboard:
    """Serves an open app in this process. Without the extra for it the demo goes on and says so.

    Where the usual port is taken, a free one will do; a port that was asked for is insisted on.
    """

    def __init__(self, app: Redrive, port: int | None) -> None:
        self.lines: list[str] = []
        self._app = app
        self._port = port
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Dashboard:
        try:
            with require_extras():
                listening = self._bind()
                await create_users(self._app)
        except ConfigurationError as error:
            if self._port is not None:
                raise
            self.lines = [f"the dashboard is not served: {error}"]
            return self
        self._serving = asyncio.create_task(self._serve(listening))
        host, port = listening.getsockname()
        self.lines = [f"http://{host}:{port}  sign in as {USERS[0].email}, password {PASSWORD}"]
        self.lines += [f"    or as {each.email}, {each.role} of {each.tenant}" for each in USERS[1:]]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._serving is not None:
            await self._serving

    def check(self) -> None:
        """Raise what went wrong with the server."""
        if self._serving is not None and self._serving.done():
            self._serving.result()

    async def _serve(self, listening: socket.socket) -> None:
        from redrive.server.process import Server

        with listening:
            await Server(self._app, listening).serve(self._stop, lambda _: None)

    def _bind(self) -> socket.socket:
        from redrive.server.process import bind_socket

        try:
            return bind_socket(DEFAULT_HOST, DEFAULT_PORT if self._port is None else self._port)
        except ConfigurationError:
            if self._port is not None:
                raise
            return bind_socket(DEFAULT_HOST, 0)


# -- The demo's worker process: what `redrive worker redrive.cli.demo.shop:app` does, but tied to th -----


def main() -> None:
    """Work until the demo is gone, or this process is told to stop."""
    run_worker(app, also=stop_with_parent)


if __name__ == "__main__":
    main()
