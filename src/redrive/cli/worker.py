"""`redrive worker`: run the workflows of an app until told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.messages import report_errors

if TYPE_CHECKING:
    from redrive.app import Redrive


@click.command(short_help="Run workflows until stopped.")
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
    envvar="REDRIVE_WORKER_URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Worker processes to keep alive; one that dies is started again.  [default: 1]",
)
@click.option(
    "--metrics",
    metavar="[ADDRESS:]PORT",
    help="Where Prometheus finds metrics; more processes take the next ports.  [default: $REDRIVE_METRICS]",
)
@click.option("--tied", is_flag=True, hidden=True, help="Stop when standard input closes.")
def worker(
    target: str, concurrency: int | None, url: str | None, processes: int, metrics: str | None, tied: bool
) -> None:
    """Run the workflows of APP in MODULE until stopped.

    SIGTERM or Ctrl-C stops it in good order: steps in flight may end within the grace period
    (REDRIVE_GRACE, 30 s), everything else is given back for another worker. A second one cuts the grace
    period short. Neither costs a run an attempt.

    \b
    Examples:
      redrive worker shop:app
      redrive worker company.shop:app --concurrency 20
      redrive worker shop:app --processes 4 --metrics 9464
    """
    from redrive.cli.target import load_app
    from redrive.cli.worker_process import run_worker, stop_with_parent, tune_interpreter

    with report_errors():
        app = load_app(target)
        override_settings(app, concurrency, url, metrics)
        if processes == 1:
            tune_interpreter()
            run_worker(app, also=stop_with_parent if tied else None)
            return
        from redrive.cli.worker_process import supervise_workers

        command, place = _worker_arguments(target, concurrency, url), app.settings.metrics
        code = supervise_workers(lambda number: [*command, *_metrics_arguments(place, number)], processes)
    raise click.exceptions.Exit(code)


def _worker_arguments(target: str, concurrency: int | None, url: str | None) -> list[str]:
    """The arguments of one worker process. The URL may hold a password, so it goes another way."""
    import os

    if url is not None:
        os.environ["REDRIVE_WORKER_URL"] = url
    more = [] if concurrency is None else ["--concurrency", str(concurrency)]
    return ["worker", target, "--tied", *more]


def _metrics_arguments(metrics: str, number: int) -> list[str]:
    """Where the worker process with this number tells its metrics: each needs a port of its own."""
    from redrive.settings import parse_metrics_address

    address = parse_metrics_address(metrics)
    if address is None:
        return []
    host, port = address
    return ["--metrics", f"{host}:{port + number - 1 if port else 0}"]


def override_settings(app: Redrive, concurrency: int | None, url: str | None, metrics: str | None = None) -> None:
    """Let the command line overrule what the app says."""
    from dataclasses import replace

    if concurrency is not None:
        app.settings = replace(app.settings, concurrency=concurrency)
    if url is not None:
        app.settings = replace(app.settings, url=url)
    if metrics is not None:
        app.settings = replace(app.settings, metrics=metrics)
