"""The `redrive` command. `redrive.cli.messages` has the exit codes.

This module and the commands' own modules import nothing but click, so that `redrive --help` answers
at once; what a command needs it imports when it is called.

begin      demo, init, dev     run    worker (serve, supervise), server, migrate, reencrypt, doctor (health)
commands   runs, dlq, saga, outbox, notifications, audit, policies, circuits, workflows, schedules
shell      completion
access     users, tenants, tokens (access: on the store itself)
shared     place: which store    output: tables, JSON, ids    ids: prefixes, standard input    paging
           change: dry runs, asking first     target: module:app     exits: errors and exit codes
           hints: commands to type next       folding: lines that fit    inputs, example: of workflows
"""

from __future__ import annotations

import click

from redrive.cli.accounts import tenants, tokens
from redrive.cli.activity import audit, notifications
from redrive.cli.circuits import circuits
from redrive.cli.completion import completion
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

_EXAMPLES = """\b
Examples:
  redrive demo                    watch a small shop fail and recover
  redrive init shop               write a small project to begin from
  redrive dev shop:app            run its workflows and see what happens
  redrive runs list               find runs; then runs show, runs why

\b
Exit codes: 0 done, 1 failed, 2 called wrongly, 3 not found, 4 conflict, 5 refused.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(package_name="redrive", message="redrive %(version)s")
def main() -> None:
    """Durable workflows whose speciality is failure."""


for command in (
    demo,
    init,
    dev,
    worker,
    server,
    migrate,
    reencrypt,
    runs,
    dlq,
    saga,
    outbox,
    notifications,
    audit,
    policies,
    circuits,
    workflows,
    schedules,
    users,
    tenants,
    tokens,
    doctor,
    completion,
):
    main.add_command(command)
