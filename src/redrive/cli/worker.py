"""`redrive worker`: run the workflows of an app."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import report_errors
from redrive.cli.target import load_app

if TYPE_CHECKING:
    from redrive.app import Redrive


@click.command()
@click.argument("app_name", metavar="MODULE:APP")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs to execute at the same time.  [default: the app's own, else $WORKER_CONCURRENCY, else 100]",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Take only runs of this queue; may be repeated.  [default: the app's own, else $REDRIVE_QUEUES, else all]",
)
@click.option(
    "--url",
    metavar="URL",
    envvar="REDRIVE_WORKER_URL",
    help="The store to work on, or a server as https://host with its token in $REDRIVE_TOKEN.  "
    "[default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Worker processes to run; one that dies is started again.  [default: 1]",
)
@click.option(
    "--metrics",
    metavar="[ADDRESS:]PORT",
    help="Where to serve metrics for Prometheus; more processes take the next ports.  [default: $REDRIVE_METRICS]",
)
@click.option("--tied", is_flag=True, hidden=True, help="Stop when standard input closes.")
def worker(
    app_name: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    url: str | None,
    processes: int,
    metrics: str | None,
    tied: bool,
) -> None:
    """Run the workflows of APP in MODULE until stopped.

    SIGTERM or Ctrl-C stops the worker: running steps may end within the grace period (REDRIVE_GRACE,
    30 s), all other runs are released for another worker. A second signal ends the grace period at once.
    Neither costs a run an attempt. `redrive workers drain` does the same from afar.

    \b
    Examples:
      redrive worker shop:app
      redrive worker company.shop:app --concurrency 20
      redrive worker shop:app --queue emails --queue default
      redrive worker shop:app --processes 4 --metrics 9464
    """
    from redrive.cli.worker_process import DRAINED, run_worker, stop_with_parent, supervise_workers, tune_interpreter

    with report_errors():
        app = load_app(app_name)
        override_settings(app, concurrency, url, metrics, queues)
        if processes == 1:
            tune_interpreter()
            run_worker(app, also=stop_with_parent if tied else None, drained=DRAINED if tied else 0)
            return
        if url is not None:
            # The URL may hold a password, which other users could read in the arguments of a process.
            os.environ["REDRIVE_WORKER_URL"] = url
        command = ["worker", app_name, "--tied"]
        if concurrency is not None:
            command += ["--concurrency", str(concurrency)]
        for queue in queues:
            command += ["--queue", queue]
        metrics = app.settings.metrics
        code = supervise_workers(lambda number: [*command, *metrics_arguments(metrics, number)], processes)
    raise click.exceptions.Exit(code)


def metrics_arguments(metrics: str, number: int) -> list[str]:
    """Return the `--metrics` option of a worker process. Each process has another port."""
    from redrive.settings import parse_metrics_address

    address = parse_metrics_address(metrics)
    if address is None:
        return []
    host, port = address
    return ["--metrics", f"{host}:{port + number - 1 if port else 0}"]


def override_settings(
    app: Redrive, concurrency: int | None, url: str | None, metrics: str | None = None, queues: tuple[str, ...] = ()
) -> None:
    """Replace settings of the app by those of the command line."""
    from dataclasses import replace

    given: dict[str, Any] = {"concurrency": concurrency, "url": url, "metrics": metrics, "queues": queues or None}
    if url is not None:
        given["token"] = os.environ.get("REDRIVE_TOKEN") or None  # the app may have been made for a store
    app.settings = replace(app.settings, **{name: value for name, value in given.items() if value is not None})
