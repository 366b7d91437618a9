"""`redrive bridge`: connect other queues to a store."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import UsageError, report_errors
from redrive.cli.output import fold_text
from redrive.cli.target import load_app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redrive.app import Redrive

_QUEUE, _LETTERS = "workflow-execution", "workflow-execution-dlq"


@click.group()
def bridge() -> None:
    """Connect queues of other systems: their jobs become runs, dead letters become jobs.

    \b
    Examples:
      redrive bridge bullmq shop:app
      redrive bridge bullmq --workflow fulfil --tenant acme
    """


@bridge.command()
@click.argument("app_name", metavar="[MODULE:APP]", required=False)
@click.option("--workflow", metavar="NAME", help="Without an app: the workflow that a job starts.")
@click.option(
    "--queue",
    default=_QUEUE,
    metavar="NAME",
    show_default=True,
    help="Without an app: the queue whose jobs become runs.",
)
@click.option(
    "--tenant", default="default", metavar="NAME", show_default=True, help="Without an app: tenant of the runs."
)
@click.option(
    "--complete",
    type=click.Choice(["ended", "accepted"]),
    default="ended",
    show_default=True,
    help="Without an app: complete a job when its run has ended, or when it is stored.",
)
@click.option(
    "--mirror",
    default=_LETTERS,
    metavar="NAME",
    show_default=True,
    help='Without an app: the queue that has a job for each dead letter; "" for none.',
)
@click.option(
    "--steps",
    multiple=True,
    metavar="QUEUE",
    help='Without an app: a queue whose processors execute the steps with remote="QUEUE". May be repeated.',
)
@click.option(
    "--redis", metavar="URL", help="Without an app: the Redis.  [default: $REDIS_URL, else $REDIS_HOST:$REDIS_PORT]"
)
@click.option(
    "--allow-eviction",
    is_flag=True,
    help="Without an app: accept a Redis that may remove jobs when its memory is full.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Jobs accepted at a time.  [default: the app's own, else $WORKER_CONCURRENCY, else 100]",
)
@click.option(
    "--url", metavar="URL", help="The store.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]"
)
@click.option("--resync", is_flag=True, help="First put the jobs of all dead letters without a decision back.")
def bullmq(app_name: str | None, concurrency: int | None, url: str | None, resync: bool, **options: Any) -> None:
    """Serve queues of BullMQ until stopped.

    With MODULE:APP, serve the sources and sinks of that app. Without, start a run of --workflow for each job of
    --queue, and keep a job in the queue --mirror for each dead letter; with --steps, processors execute remote steps. A
    bridge executes no runs: workers do. Several bridges share the work.

    \b
    Examples:
      redrive bridge bullmq --workflow execute --tenant acme
      redrive bridge bullmq --steps emails --steps reports
      REDIS_HOST=queue.internal redrive bridge bullmq bridge:app
    """
    import asyncio
    from dataclasses import replace

    from redrive.core.redact import Redactor
    from redrive.observability.logs import configure_logging
    from redrive.worker.context import log_context

    with report_errors():
        app = load_app(app_name) if app_name else _make_app(url, **options)
        given: dict[str, Any] = {"concurrency": concurrency, "url": url}
        app.settings = replace(app.settings, **{name: value for name, value in given.items() if value is not None})
        configure_logging(app.settings.log, log_context, Redactor.parse(app.settings.redact))
        asyncio.run(_serve_until_stopped(app, resync=resync))


def _make_app(
    url: str | None,
    workflow: str | None,
    queue: str,
    tenant: str,
    complete: Any,
    mirror: str,
    steps: Sequence[str],
    redis: str | None,
    allow_eviction: bool,
) -> Redrive:
    """Return an app with the sources and the mirror that the options describe."""
    from redrive.app import Redrive
    from redrive.bridges.bullmq import LETTERS, BullMQ

    if workflow is None and not steps:
        raise UsageError("name an app as module:app, the workflow that a job starts with --workflow, or --steps")
    app, bull = Redrive(url), BullMQ(redis, allow_eviction=allow_eviction)
    for each in dict.fromkeys(steps):
        app.source(f"steps:{each}", bull.steps(each))
    if workflow is not None:
        app.source(queue, bull.consume(queue, workflow=workflow, tenant=tenant, complete=complete))
    if workflow is not None and mirror:
        app.sink(mirror, LETTERS, bull.mirror(mirror))
    return app


async def _serve_until_stopped(app: Redrive, *, resync: bool) -> None:
    import asyncio
    import signal

    from redrive.bridges.bullmq import LetterMirror
    from redrive.core.redact import Redactor

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with app.client():
        if resync:
            mirrors = [each.sink for each in app.registered_sinks.values() if isinstance(each.sink, LetterMirror)]
            count = sum([await mirror.resync() for mirror in mirrors])
            _print_status(f"dead letters put back: {count}")
        names = ", ".join(app.registered_sources) or "no source"
        _print_status(f"serving {names}; store {Redactor().text(app.settings.url)}")
        serving, stopped = asyncio.create_task(app.serve_sources()), asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        serving.cancel()
        (failure,) = await asyncio.gather(serving, return_exceptions=True)
        if isinstance(failure, Exception):
            raise failure
    _print_status("stopped; jobs in Redis wait for the next bridge")


def _print_status(text: str) -> None:
    print(fold_text(f"redrive bridge {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)
