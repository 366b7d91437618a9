"""`redrive dev`: a worker, and everything it decides, in one terminal."""

from __future__ import annotations

import click

from redrive.cli.exits import explained
from redrive.cli.server import HOST, PORT

__all__ = ["dev"]


@click.command(short_help="Run workflows here, and see what happens.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs to execute at the same time."
)
@click.option(
    "--url",
    metavar="URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@click.option(
    "--host",
    default=HOST,
    metavar="ADDRESS",
    show_default=True,
    help="Where the dashboard and the API listen.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    metavar="N",
    show_default=True,
    help="Its port; 0: a free one.",
)
@click.option("--no-server", is_flag=True, help="Do not serve the dashboard and the API.")
def dev(target: str, concurrency: int | None, url: str | None, host: str, port: int, no_server: bool) -> None:
    """Run the workflows of APP in MODULE here, and show what happens to every run.

    For development: a worker as `redrive worker` has it, the API as `redrive server` has it, and a line
    for each decision about a step and each ending of a run. Ctrl-C stops it in good order.

    \b
    Examples:
      redrive dev shop:app
      redrive dev shop:app --url sqlite:///scratch.db
    """
    from redrive.cli.beside import Beside
    from redrive.cli.live import Live
    from redrive.cli.serve import Stop, run
    from redrive.cli.target import load_app
    from redrive.cli.worker import adjust

    with explained():
        app = load_app(target)
        adjust(app, concurrency, url)
        live, beside = Live(app), None if no_server else Beside(app, host, port)

        def also(stop: Stop) -> None:
            live.begin(stop)
            if beside is not None:
                beside.begin(stop)

        import logging

        logging.getLogger("redrive.runs").setLevel(logging.CRITICAL)  # what it says is shown here anyway
        run(app, also=also)
