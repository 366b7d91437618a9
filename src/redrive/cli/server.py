"""`redrive server`: serve the dashboard and the HTTP API."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.errors import report_errors
from redrive.cli.output import fold_text
from redrive.cli.target import Target, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8700
DEFAULT_OWNER = "owner@localhost"
HOST_OPTION = click.option(
    "--host", default=DEFAULT_HOST, metavar="ADDRESS", show_default=True, help="Address of the dashboard and the API."
)
PORT_OPTION = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    metavar="N",
    show_default=True,
    help="Port of the dashboard and the API; 0 takes a free one.",
)


@click.command()
@HOST_OPTION
@PORT_OPTION
@click.option(
    "--owner",
    default=DEFAULT_OWNER,
    metavar="EMAIL",
    show_default=True,
    help="The first owner, if there are no users yet.",
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=100,
    metavar="N",
    show_default=True,
    help="Requests a second for each credential; four times as many at once.",
)
@click.option(
    "--no-chores",
    is_flag=True,
    help="Leave the chores to workers beside the store: recovery, schedules, retention, notifications.",
)
@target_options
def server(host: str, port: int, owner: str, rate: int, no_chores: bool, target: Target) -> None:
    """Serve the dashboard and the HTTP API until stopped.

    The first start creates an owner and prints a code to sign in with once. SIGTERM or Ctrl-C stops the
    server: open streams end, requests in progress have 10 s. Workers execute the runs; this process needs
    none of their code. It does the chores of the store, as each worker beside the store does, so that remote
    workers are enough.

    \b
    Examples:
      redrive server
      redrive server --host 0.0.0.0 --port 80 --url postgresql://shop@db/shop
    """
    from redrive.cli.worker_process import run_event_loop, tune_interpreter
    from redrive.core.redact import Redactor
    from redrive.observability.logs import configure_logging
    from redrive.worker.context import log_context

    with report_errors():
        app = target.app()
        configure_logging(app.settings.log, log_context, Redactor.parse(app.settings.redact))
        with require_extras():
            tune_interpreter()
            run_event_loop(_serve_until_stopped(app, host, port, owner, rate, chores=not no_chores))


@contextmanager
def require_extras() -> Iterator[None]:
    """Name the extra to install if one of its packages is missing."""
    from redrive.errors import ConfigurationError

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "jinja2", "markupsafe", "uvicorn", "argon2", "joserfc"):
            raise
        raise ConfigurationError(f'{error.name} is not installed: pip install "redrive[web,auth]"') from None


async def _serve_until_stopped(app: Redrive, host: str, port: int, owner: str, rate: int, *, chores: bool) -> None:
    import asyncio
    import signal

    from redrive.server.http_server import Server, bind_socket, raise_open_file_limit
    from redrive.server.limits import Limits

    raise_open_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with bind_socket(host, port) as socket:
        async with app.client():
            await ensure_first_owner(app, owner)
            if chores:
                await app.runtime.start_chores()
            limits = Limits(rate=rate, burst=4 * rate)
            await Server(app, socket, limits).serve(stop, lambda address: _print_status(f"listening on {address}"))
    _print_status("stopped")


async def ensure_first_owner(app: Redrive, owner: str) -> None:
    """Create the first owner if there are no users, and print a code to sign in with."""
    from redrive.server.auth.admin import create_first_owner

    code = await create_first_owner(app.runtime.store, app.runtime.clock, owner)
    if code is not None:
        _print_status(f"first start: {owner} is the owner. Sign in once with this code, within a day:")
        click.echo(f"    {code}")


def _print_status(text: str) -> None:
    print(fold_text(f"redrive server {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)
