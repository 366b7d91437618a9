"""`redrive server`: the HTTP API, until told to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.messages import explained
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["HOST", "OWNER", "PORT", "needed", "server", "welcome"]

HOST, PORT = "127.0.0.1", 8700
OWNER = "owner@localhost"


@click.command(short_help="Serve the dashboard and the HTTP API.")
@click.option("--host", default=HOST, metavar="ADDRESS", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    metavar="N",
    show_default=True,
    help="The port; 0 takes a free one.",
)
@click.option(
    "--owner",
    default=OWNER,
    metavar="EMAIL",
    show_default=True,
    help="Who the first owner is, where nobody is known yet.",
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=100,
    metavar="N",
    show_default=True,
    help="Requests a second for each credential; four times as many at once.",
)
@at_a_place
def server(host: str, port: int, owner: str, rate: int, place: Place) -> None:
    """Serve the dashboard and the HTTP API until stopped.

    The first start makes an owner and prints a code to sign in with once. SIGTERM or Ctrl-C stops it in
    good order: open streams end, requests under way have 10 s. Runs are executed by workers; this
    process needs none of their code.

    \b
    Examples:
      redrive server
      redrive server --host 0.0.0.0 --port 80 --url postgresql://shop@db/shop
    """
    import asyncio

    with explained():
        app = place.app()
        _keep_log(app)
        with needed():
            asyncio.run(_serve(app, host, port, owner, rate))


def _keep_log(app: Redrive) -> None:
    from redrive.core.redact import Redactor
    from redrive.observability.logs import configure
    from redrive.worker.context import log_context

    configure(app.settings.log, log_context, Redactor.parse(app.settings.redact))


@contextmanager
def needed() -> Iterator[None]:
    """Say which extra is missing, where one is."""
    from redrive.errors import ConfigurationError

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "jinja2", "markupsafe", "uvicorn", "argon2", "joserfc"):
            raise
        raise ConfigurationError(f'this needs {error.name}: pip install "redrive[web,auth]"') from None


async def _serve(app: Redrive, host: str, port: int, owner: str, rate: int) -> None:
    import asyncio
    import signal

    from redrive.server.limits import Limits
    from redrive.server.process import Server, allow_many_connections, bind

    allow_many_connections()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with bind(host, port) as socket:
        async with app.client():
            await welcome(app, owner)
            limits = Limits(rate=rate, burst=4 * rate)
            await Server(app, socket, limits).serve(stop, lambda address: _say(f"listening on {address}"))
    _say("stopped")


async def welcome(app: Redrive, owner: str) -> None:
    """Make the first owner, if nobody is known, and print how to come in."""
    from redrive.server.auth.admin import first_owner

    runtime = app.runtime
    code = await first_owner(runtime.store, runtime.clock, owner)
    if code is not None:
        _say(f"first start: {owner} is the owner. Sign in once with this code, within a day:")
        click.echo(f"    {code}")


def _say(text: str) -> None:
    import os
    import sys

    from redrive.cli.output import folded

    print(folded(f"redrive server {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)
