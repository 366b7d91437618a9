"""The `redrive` command. `redrive.cli.messages` has the exit codes.

This module and the modules of the commands import click and a few light modules only, so that `redrive --help`
answers at once. A command imports the rest when it is called.

start      demo, init, dev
run        worker (worker_process), server, store: migrate, reencrypt
work       runs, dlq, saga, outbox, circuits, policies: policies, workflows; schedules; activity: audit, notifications
access     accounts: tenants, tokens; users
check      doctor (doctor_checks, hardening)
shared     target: --url and --app; options; pager; output: tables, JSON, ids; messages: errors, exit codes, hints
"""

from __future__ import annotations

import os

import click

from redrive.cli.accounts import tenants, tokens
from redrive.cli.activity import audit, notifications
from redrive.cli.circuits import circuits
from redrive.cli.demo import demo
from redrive.cli.dev import dev, init
from redrive.cli.dlq import dlq
from redrive.cli.doctor import doctor
from redrive.cli.outbox import outbox
from redrive.cli.policies import policies, workflows
from redrive.cli.runs import runs
from redrive.cli.saga import saga
from redrive.cli.schedules import schedules
from redrive.cli.server import server
from redrive.cli.store import migrate, reencrypt
from redrive.cli.users import users
from redrive.cli.worker import worker

__all__ = ["main"]

_LOGGING_COMMANDS = frozenset({"dev", "server", "worker"})
_EXAMPLES = """\b
Examples:
  redrive demo                    watch a small shop fail and recover
  redrive init shop               write a small project to start from
  redrive dev shop:app            run its workflows and print every event
  redrive runs list               find runs; then runs show, runs why

\b
Exit codes: 0 done, 1 failed, 2 called wrongly, 3 not found, 4 conflict, 5 refused.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(package_name="redrive", message="redrive %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Durable workflows whose speciality is failure."""
    if context.invoked_subcommand in _LOGGING_COMMANDS and os.environ.get("REDRIVE_LOG", "").strip() == "json":
        # Before the command reads its options: what it says about wrong ones is JSON, too.
        from redrive.core.redact import Redactor
        from redrive.observability.logs import configure_logging

        configure_logging("json", dict, Redactor())


@click.command(short_help="Print the completion script for your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete redrive's commands and options.

    \b
    Examples:
      redrive completion bash >> ~/.bashrc
      redrive completion zsh >> ~/.zshrc
      redrive completion fish > ~/.config/fish/completions/redrive.fish
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    script = kind(context.find_root().command, {}, "redrive", "_REDRIVE_COMPLETE")
    click.echo(script.source_template % script.source_vars())


_COMMANDS: tuple[click.Command, ...] = (
    *(demo, init, dev, worker, server, migrate, reencrypt),
    *(runs, dlq, saga, outbox, notifications, audit, policies, circuits, workflows, schedules),
    *(users, tenants, tokens, doctor, completion),
)
for command in _COMMANDS:
    main.add_command(command)
