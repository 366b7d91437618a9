"""Commands about workers: `worker` and `dev` run the workflows of an app, `workers` lists, drains and retires workers.

`worker-check` checks a step worker in any language against the protocol.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from redrive.cli.errors import FAILED, NOT_FOUND, CommandFailed, UsageError, report_errors
from redrive.cli.hints import hint, worker_hint
from redrive.cli.options import REASON_OPTION, ChangeOptions
from redrive.cli.output import Column, Output, field_columns, fold_text
from redrive.cli.server import HOST_OPTION, PORT_OPTION
from redrive.cli.target import ChangeResult, Target, change_command, common_options, load_app, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.worker_process import StopController
    from redrive.desk.workflows import KnownWorker


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


_RUNNING = ("RUNNING", "DRAINING")


@click.group()
def workers() -> None:
    """List workers; drain one before its machine is replaced; take the runs of one that hangs back.

    \b
    Examples:
      redrive workers list
      redrive workers drain 17
      redrive workers retire 17 --reason "it hangs"
    """


@workers.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that stopped or crashed within a day.")
@common_options
def list_(ended: bool, target: Target, output: Output) -> None:
    """List the running workers, newest first. STALLED counts runs held for ten leases without any outcome.

    \b
    Examples:
      redrive workers list
      redrive workers list --all --json
    """
    columns: list[Column[KnownWorker]] = [
        *field_columns(ID="id", WORKER="name", STATE="state"),
        Column("REMOTE", lambda one: "yes" if one.remote else None),
        *field_columns(RUNS="runs"),
        Column("STALLED", lambda one: one.stalled or None),
        *field_columns(SEEN="beat_at", STARTED="started_at", VERSION="version"),
        Column("QUEUES", lambda one: "all" if one.queues is None else ", ".join(one.queues)),
        Column("WORKFLOWS", lambda one: ", ".join(one.workflows)),
    ]
    found = [one for one in run_on(target, lambda app: app.workflows.workers()) if ended or one.state in _RUNNING]
    empty = f"No worker is running. Start one: {worker_hint()}"
    output.list(found, columns, id=lambda one: str(one.id), empty=empty)


_worker_command = change_command(workers, click.argument("id", metavar="ID", type=int), REASON_OPTION)


@_worker_command
async def drain(app: Redrive, id: int, reason: str | None, change: ChangeOptions) -> ChangeResult:
    """Stop worker ID after its running steps, as SIGTERM does.

    It begins nothing more as soon as it hears this with its next heartbeat, within a second or two. Other workers
    continue its runs. No run loses an attempt.

    \b
    Examples:
      redrive workers drain 17 --reason "its machine is replaced"
    """
    worker = await _find_running(app, id)
    change.confirm(f"Drain worker {id} ({worker.name}): it ends after its running steps")
    if not change.dry_run:
        await app.workflows.drain_worker(id, by=change.by, reason=reason)
    verb = "would drain" if change.dry_run else "was draining before:" if worker.state == "DRAINING" else "drains"
    return str(id), {"id": id, "name": worker.name, "runs": worker.runs}, f"{verb} {id} ({worker.name})"


@_worker_command
async def retire(app: Redrive, id: int, reason: str | None, change: ChangeOptions) -> ChangeResult:
    """Take all runs from worker ID at once.

    Other workers continue them. This works for a worker that hangs, too. Its running steps are repeated elsewhere,
    without a lost attempt. What it reports later is refused, and it ends when it hears this. Revoke the token of a
    remote worker that must not come back.

    \b
    Examples:
      redrive workers retire 17 --reason "it hangs"
    """
    worker = await _find_running(app, id)
    change.confirm(f"Retire worker {id} ({worker.name}): its {worker.runs} runs continue elsewhere")
    if not change.dry_run:
        await app.workflows.retire_worker(id, by=change.by, reason=reason)
    verb = "would retire" if change.dry_run else "retired"
    return str(id), {"id": id, "name": worker.name, "runs": worker.runs}, f"{verb} {id} ({worker.name})"


async def _find_running(app: Redrive, id: int) -> KnownWorker:
    for worker in await app.workflows.workers():
        if worker.id == id and worker.state in _RUNNING:
            return worker
    raise CommandFailed(f"worker {id} is not running: `{hint('workers', 'list')}` shows those that are", NOT_FOUND)


@click.command("worker-check")
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--url", default="http://127.0.0.1:8799", metavar="URL", show_default=True, help="Address to listen on.")
@click.option(
    "--token", default="check", metavar="TOKEN", show_default=True, help="The token that the worker must send."
)
@click.option(
    "--queue", default="check", metavar="NAME", show_default=True, help="The queue that the worker must poll."
)
@click.option(
    "--patience", default=30.0, metavar="SECONDS", show_default=True, help="How long to wait for each request."
)
def worker_check(command: tuple[str, ...], url: str, token: str, queue: str, patience: float) -> None:
    """Check a step worker in any language against the protocol.

    Plays the server's side of each edge case: lost answers, refused tickets, cancelled steps, an expired lease. The
    worker needs three steps: echo returns its argument value, fail raises an error, slow takes `seconds` seconds.
    With a COMMAND, it is started with REDRIVE_URL and REDRIVE_TOKEN, and stopped at the end. Exit code 1 if a rule is
    broken.

    \b
    Examples:
      redrive worker-check -- node worker.js
      redrive worker-check --url http://127.0.0.1:8799 --token secret
    """
    from redrive.testing.worker_check import CheckServer, check_rule, check_stop, check_worker, serving

    with report_errors():
        address = urlsplit(url)
        if address.scheme != "http" or address.port is None:
            raise UsageError(f"{url!r} is not an address to listen on: give one such as http://127.0.0.1:8799")
        server, broken = CheckServer(token, queue, patience), 0
        with serving(server, address.hostname or "127.0.0.1", address.port) as base:
            environment = {**os.environ, "REDRIVE_URL": base, "REDRIVE_TOKEN": token}
            process = subprocess.Popen(command, env=environment) if command else None

            def stop() -> int | None:
                assert process is not None
                process.send_signal(signal.SIGTERM)
                try:
                    return process.wait(patience)
                except subprocess.TimeoutExpired:
                    return None

            try:
                if process is None:
                    print(f"waiting for a worker of queue {queue} at {base} with the token {token}", flush=True)
                for result in check_worker(server):
                    broken += _print_result(result.rule, result.problem)
                if process is not None and server.polls:
                    rule = "ends its steps when it is stopped, and exits with 0"
                    broken += _print_result(
                        rule, check_rule(server, rule, lambda server: check_stop(server, stop)).problem
                    )
            finally:
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
    if broken:
        raise click.exceptions.Exit(FAILED)


def _print_result(rule: str, problem: str | None) -> bool:
    print(f"{'ok     ' if problem is None else 'BROKEN '} {rule}", flush=True)
    if problem is not None:
        print(fold_text(f"        {problem}", sys.stdout), flush=True)
    return problem is not None


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
