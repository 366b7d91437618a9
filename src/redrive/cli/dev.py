"""`redrive dev`: a worker, and everything it decides, in one terminal."""

from __future__ import annotations

import click

from redrive.cli.exits import explained

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
def dev(target: str, concurrency: int | None, url: str | None) -> None:
    """Run the workflows of APP in MODULE here, and show what happens to every run.

    For development: a worker as `redrive worker` has it, and a line for each decision about a step and
    each ending of a run. Ctrl-C stops it in good order.

    \b
    Examples:
      redrive dev shop:app
      redrive dev shop:app --url sqlite:///scratch.db
    """
    from redrive.cli.live import Live
    from redrive.cli.serve import run
    from redrive.cli.target import load_app
    from redrive.cli.worker import adjust

    with explained():
        app = load_app(target)
        adjust(app, concurrency, url)
        live = Live(app)
        run(app, also=live.begin)
