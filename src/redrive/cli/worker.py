"""`redrive worker`: run the workflows of an app until told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["worker"]


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs to execute at the same time.  [default: the app's own, else $WORKER_CONCURRENCY, else 100]",
)
@click.option(
    "--url",
    metavar="URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
def worker(target: str, concurrency: int | None, url: str | None) -> None:
    """Run the workflows of APP in MODULE until stopped.

    SIGTERM or Ctrl-C stops it in good order: steps in flight may end within the grace period
    (REDRIVE_GRACE, 30 s), everything else is given back for another worker. A second one cuts the grace
    period short. Neither costs a run an attempt.

    \b
    Examples:
      redrive worker shop:app
      redrive worker company.shop:app --concurrency 20
    """
    from redrive.cli.serve import run
    from redrive.cli.target import load_app
    from redrive.errors import RedriveError

    try:
        app = load_app(target)
        _adjust(app, concurrency, url)
        run(app)
    except RedriveError as error:
        raise click.ClickException(str(error)) from error


def _adjust(app: Redrive, concurrency: int | None, url: str | None) -> None:
    from dataclasses import replace

    if concurrency is not None:
        app.settings = replace(app.settings, concurrency=concurrency)
    if url is not None:
        app.settings = replace(app.settings, url=url)
