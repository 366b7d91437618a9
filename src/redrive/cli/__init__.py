"""The `redrive` command. `redrive.cli.errors` has the exit codes.

This module imports click only, and each command is imported when it is called, so that `redrive --help` answers at
once. The modules of the commands import a few light modules; a command imports the engine when it runs.

start      demo, init
run        worker: worker, dev, workers, worker-check (worker_process); bridge, server, store (migrate, reencrypt)
work       runs, dlq, saga, outbox, circuits, policies, workflows, schedules, audit, notifications
access     accounts: tenants, tokens; users
check      doctor (doctor_security), code
shared     target: --url and --app, changes, pages of lists; options, values and ids; output: tables, JSON, ids; errors
"""

from __future__ import annotations

import importlib
import os

import click

__all__ = ["main"]

_LOGGING_COMMANDS = frozenset({"bridge", "dev", "server", "worker"})
_EXAMPLES = """\b
Examples:
  redrive demo                    watch a small shop fail and recover
  redrive init shop               write a small project to start from
  redrive dev shop:app            run its workflows and print every event
  redrive runs list               find runs; then runs show, runs why

\b
Exit codes: 0 done, 1 failed, 2 called wrongly, 3 not found, 4 conflict, 5 refused.
"""


_COMMANDS = {
    "audit": ("redrive.cli.audit", "Read the audit log."),
    "bridge": ("redrive.cli.bridge", "Connect queues of other systems."),
    "circuits": ("redrive.cli.circuits", "List circuits; open and close them."),
    "code": ("redrive.cli.code", "Check code against the runs that continue with it."),
    "completion": ("redrive.cli", "Print the completion script for your shell."),
    "demo": ("redrive.cli.demo", "Watch a sample shop fail and recover."),
    "dev": ("redrive.cli.worker", "Run workflows with dashboard and API, and print every event."),
    "dlq": ("redrive.cli.dlq", "Handle failures that need a decision."),
    "doctor": ("redrive.cli.doctor", "Check that everything is in order."),
    "init": ("redrive.cli.init", "Write a small project to start from."),
    "migrate": ("redrive.cli.store", "Bring the schema of a store up to date."),
    "notifications": ("redrive.cli.notifications", "Read the inbox; choose who is notified about failures."),
    "outbox": ("redrive.cli.outbox", "List messages; retry and skip those that were not delivered."),
    "policies": ("redrive.cli.policies", "Change how steps are retried, without a deploy."),
    "reencrypt": ("redrive.cli.store", "Rewrite payloads with the first encryption key."),
    "runs": ("redrive.cli.runs", "Find, explain, start, cancel and retry runs, and send them events."),
    "saga": ("redrive.cli.saga", "Show a rollback; decide about its compensations."),
    "schedules": ("redrive.cli.schedules", "List schedules; run, pause and resume them."),
    "server": ("redrive.cli.server", "Serve the dashboard and the HTTP API."),
    "tasks": ("redrive.cli.tasks", "List the tasks of people; answer and assign them."),
    "tenants": ("redrive.cli.accounts", "Manage the tenants that share a store."),
    "tokens": ("redrive.cli.accounts", "Manage the tokens with which programs use the server."),
    "users": ("redrive.cli.users", "Manage the users who may sign in to the server."),
    "worker": ("redrive.cli.worker", "Run workflows until stopped."),
    "worker-check": ("redrive.cli.worker", "Check a step worker in any language against the protocol."),
    "workers": ("redrive.cli.worker", "List workers; drain and retire them."),
    "workflows": ("redrive.cli.workflows", "List workflows; pause and resume them."),
}
"""The module of each command, and its line in the help of `redrive`."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called; help and completion read the table above."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = getattr(importlib.import_module(_COMMANDS[name][0]), name.replace("-", "_"))
        return name, command, rest


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(package_name="redrive", message="redrive %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Durable workflows whose speciality is failure."""
    if context.invoked_subcommand in _LOGGING_COMMANDS and os.environ.get("REDRIVE_LOG", "").strip() == "json":
        # Before the command reads its options: what it says about wrong ones is JSON, too.
        from redrive.core.redact import Redactor
        from redrive.observability.logs import configure_logging

        configure_logging("json", dict, Redactor())


@click.command()
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


for name, (_, line) in _COMMANDS.items():
    main.add_command(click.Command(name, short_help=line))
