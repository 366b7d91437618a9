"""The demo from start to end: opens the store, starts the traffic, the worker, the dashboard and a view."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.app import Redrive, RunHandle, Workflow
from redrive.cli.demo import list_commands, shop
from redrive.cli.demo.plain_view import PlainView, wrap_line
from redrive.cli.demo.shop import MARKET, SHOP, app, fulfil, import_catalogue, invoice, make_to_measure, remind, renew
from redrive.cli.demo.worker import WorkerProcess, describe_crashes
from redrive.cli.run_feed import EventFeed, format_counts
from redrive.cli.server import DEFAULT_HOST, DEFAULT_PORT, require_extras
from redrive.desk.models import DeadLetter
from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.cli.demo.screen_view import ScreenView


_FIRST_INTERVAL, _LATER_INTERVAL = 0.8, 2.0  # seconds between two runs: in the first round, and after it
Scenario = Callable[..., Coroutine[Any, Any, RunHandle[Any]]]


def make_order(id: str, **fields: str) -> shop.Order:
    """Make an order that succeeds, unless a field makes it fail."""
    fields = {"product": "teapot", "card": "fine", "address": "12 Mill Lane"} | fields
    return shop.Order(id=id, price=Decimal("19.90"), **fields)


def _make_scenario(workflow: Workflow[..., Any, Any], subject: str | None = None, **fields: str) -> Scenario:
    """Make a scenario that starts the workflow with a subject, or with an order that has these fields."""

    def start(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        argument = subject or make_order(id, **fields)
        return workflow.start(argument, idempotency_key=id, correlation_id=id, tenant=tenant)

    return start


# All scenarios by name. Each is started with an id.
SCENARIOS: dict[str, Scenario] = {
    "goes well": _make_scenario(fulfil),
    "retried until the line holds": _make_scenario(fulfil, card="flaky"),
    "wrong input": _make_scenario(fulfil, address="nowhere"),
    "told to come back later": _make_scenario(fulfil, card="busy"),
    "survives the death of its worker": _make_scenario(import_catalogue, "large.csv"),
    "the provider breaks, and comes back": _make_scenario(renew, "last straw"),
    "waits until the provider is back": _make_scenario(renew, "ann"),
    "rolled back": _make_scenario(make_to_measure, product="ebony table"),
    "timed out, then retried": _make_scenario(fulfil, card="slow"),
    "declined, and the workflow deals with it": _make_scenario(fulfil, card="declined"),
    "retries run out": _make_scenario(fulfil, card="down"),
    "cannot be rolled back": _make_scenario(make_to_measure, product="ebony chair", card="frozen"),
    "booked at the second try": _make_scenario(invoice, product="lamp"),
    "an error in the code": _make_scenario(invoice, product="gramophone"),
    "waits": _make_scenario(remind, "jo@example.org"),
    "needs an approval": _make_scenario(shop.refund),
    "a child waits for a decision": _make_scenario(shop.gift, address="nowhere"),
    "mail that has to wait": _make_scenario(remind, "jo@busy.example"),
    "not answered in time": _make_scenario(shop.ask_supplier, "lamp"),
    "kills its workers": _make_scenario(import_catalogue, "poison.csv"),
}
_ORDINARY_NAMES = ("goes well", "booked at the second try", "waits until the provider is back", "waits", "goes well")


async def generate_traffic(first: int) -> None:
    """Start one run after the other until the task is cancelled; number them from `first`."""
    script = list_demo_round()
    for count in itertools.count():
        name, is_story = script[count % len(script)]
        # The first round gives the stories to the shop, the next one to the market hall, and so on.
        is_shop_round = count // len(script) % 2 == 0
        await SCENARIOS[name](f"order-{first + count}", SHOP if is_story is is_shop_round else MARKET)
        await asyncio.sleep(_FIRST_INTERVAL if count < len(script) else _LATER_INTERVAL)


def list_demo_round() -> list[tuple[str, bool]]:
    """List the runs of one round: each story (True) followed by an ordinary run (False) of the other tenant."""
    ordinary = itertools.cycle(_ORDINARY_NAMES)
    return [run for story in SCENARIOS for run in ((story, True), (next(ordinary), False))]


_FIRST_ORDER = 1001
_POLL_INTERVAL = 0.25


class Dashboard:
    """The dashboard and the API, served in this process. Without their extras, the demo runs without them.

    If the default port is taken, the dashboard takes a free one; a port of the command line must be free.
    """

    def __init__(self, app: Redrive, port: int | None) -> None:
        self.lines: list[str] = []
        self._app = app
        self._port = port
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Dashboard:
        try:
            with require_extras():
                listening = self._bind()
                await shop.create_users(self._app)
        except ConfigurationError as error:
            if self._port is not None:
                raise
            self.lines = [f"the dashboard is not served: {error}"]
            return self
        self._task = asyncio.create_task(self._serve(listening))
        host, port = listening.getsockname()
        owner, *others = shop.USERS
        self.lines = [f"http://{host}:{port}  sign in as {owner.email}, password {shop.PASSWORD}"]
        self.lines += [f"    or as {user.email}, {user.role} of {user.tenant}" for user in others]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    def check(self) -> None:
        """Raise the error of the server."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _serve(self, listening: socket.socket) -> None:
        from redrive.server.http_server import Server

        with listening:
            await Server(self._app, listening).serve(self._stop, lambda _: None)

    def _bind(self) -> socket.socket:
        from redrive.server.http_server import bind_socket

        try:
            return bind_socket(DEFAULT_HOST, DEFAULT_PORT if self._port is None else self._port)
        except ConfigurationError:
            if self._port is not None:
                raise
            return bind_socket(DEFAULT_HOST, 0)


def _make_view(url: str, dashboard_lines: Sequence[str] = ()) -> PlainView | ScreenView:
    """Make a view of the whole terminal if there is one and rich is installed, otherwise lines."""
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            from redrive.cli.demo.screen_view import ScreenView

            return ScreenView(url, dashboard_lines)
    return PlainView(url, dashboard_lines)


async def describe_letter(app: Redrive, letter: DeadLetter) -> list[str]:
    """Describe one dead letter with its attempts."""
    whole = await app.dlq.get(letter.id)
    lines = [f"{whole.id}  {whole.workflow} of {whole.correlation_id}", f"  {whole.reason}"]
    for step in whole.steps:
        lines += (f"    {step.name}: {attempt.decision}" for attempt in step.attempts)
    return lines


def summarize_demo(feed: EventFeed, worker: WorkerProcess) -> list[str]:
    """Return the counts at the end of the demo."""
    return [
        f"{feed.runs} runs: {format_counts(feed)}." if feed.runs else "No runs were started.",
        f"The worker {describe_crashes(worker.crashes)}.",
    ]


def run_demo(folder: Path, *, seconds: float | None, keep: bool, port: int | None) -> None:
    """Run the demo in a folder for some seconds or until a signal comes."""
    url = f"sqlite:///{folder / 'shop.db'}"
    app.settings = replace(app.settings, url=url)
    for line in asyncio.run(_open_shop(folder, seconds, port)):
        print(wrap_line(line))
    if keep:
        print(f"\nThe store is kept in {folder}. To look at it:")
        print("\n".join(f"  {line}" for line in list_commands(url)))
    else:
        print("\nThe store is removed; --keep keeps it.")


async def _open_shop(folder: Path, seconds: float | None, port: int | None) -> list[str]:
    loop, over, url = asyncio.get_running_loop(), asyncio.Event(), app.settings.url
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, over.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(over.set))
    if seconds is not None:
        loop.call_later(seconds, over.set)
    async with app.client():
        feed = EventFeed(app)
        await feed.refresh()
        async with Dashboard(app, port) as dashboard, WorkerProcess(folder, url) as worker:
            await _watch(feed, worker, _make_view(url, dashboard.lines), over)
            dashboard.check()
        await feed.refresh()
        lines = summarize_demo(feed, worker)
        if feed.letters:
            example = max(feed.letters, key=lambda letter: letter.attempts)
            lines += ["", *await describe_letter(app, example)]
        return lines


async def _watch(feed: EventFeed, worker: WorkerProcess, view: PlainView | ScreenView, over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    newest = (await app.runs.list(limit=1)).items
    # The folder of an earlier demo has orders already: continue with the number after the last.
    first = int((newest[0].correlation_id or "").rpartition("-")[2]) + 1 if newest else _FIRST_ORDER
    traffic = asyncio.create_task(generate_traffic(first))
    try:
        with view:
            while not over.is_set():
                worker.check()
                if traffic.done():
                    traffic.result()
                await feed.refresh()
                view.show(feed, worker, loop.time() - started)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), _POLL_INTERVAL)
    finally:
        traffic.cancel()
        await asyncio.wait([traffic])
