"""`redrive worker-check`: check a step worker in any language against the protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import click

from redrive.cli.errors import FAILED, UsageError, report_errors
from redrive.cli.output import fold_text


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
