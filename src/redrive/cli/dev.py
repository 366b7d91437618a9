"""`redrive dev`: run workflows during development, and print every event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.errors import report_errors
from redrive.cli.server import HOST_OPTION, PORT_OPTION
from redrive.cli.target import load_app
from redrive.cli.worker import override_settings

if TYPE_CHECKING:
    from redrive.cli.worker_process import StopController


@click.command()
@click.argument("app_name", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs to execute at the same time.")
@click.option(
    "--url",
    metavar="URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@HOST_OPTION
@PORT_OPTION
@click.option("--no-server", is_flag=True, help="Do not serve the dashboard and the API.")
def dev(app_name: str, concurrency: int | None, url: str | None, host: str, port: int, no_server: bool) -> None:
    """Run the workflows of APP in MODULE, and print every event of every run.

    For development: a worker as in `redrive worker`, the dashboard and the API as in `redrive server`, and a
    line for each decision about a step and each end of a run. Ctrl-C stops it.

    \b
    Examples:
      redrive dev shop:app
      redrive dev shop:app --url sqlite:///scratch.db
    """
    import asyncio
    import logging

    from redrive.cli.run_feed import print_events
    from redrive.cli.worker_process import run_worker, serve_beside_worker

    with report_errors():
        app = load_app(app_name)
        override_settings(app, concurrency, url)
        tasks: list[asyncio.Task[None]] = []  # the event loop itself holds only weak references

        def start_others(stop: StopController) -> None:
            tasks.append(asyncio.create_task(print_events(app, stop)))
            if not no_server:
                tasks.append(asyncio.create_task(serve_beside_worker(app, host, port, stop)))

        logging.getLogger("redrive.runs").setLevel(logging.CRITICAL)  # the printer shows the same events
        run_worker(app, also=start_others)
