"""`redrive workflows`: list, pause and resume workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.errors import NOT_FOUND, CommandFailed, hint, suggest_names, worker_hint
from redrive.cli.options import ChangeOptions
from redrive.cli.output import Column, Output, field_columns
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.workflows import KnownWorkflow


@click.group()
def workflows() -> None:
    """List workflows; pause one while its failures are investigated, resume it later.

    \b
    Examples:
      redrive workflows list
      redrive workflows pause fulfil
      redrive workflows resume fulfil
    """


@workflows.command("list")
@common_options
def list_(target: Target, output: Output) -> None:
    """List the workflows that workers have registered.

    \b
    Examples:
      redrive workflows list
    """
    columns: list[Column[KnownWorkflow]] = [
        *field_columns(WORKFLOW="name", WORKERS="workers", PAUSED_BY="paused_by"),
        Column("UNCLAIMABLE", lambda one: one.unclaimable or None),
    ]
    found = run_on(target, lambda app: app.workflows.list())
    empty = f"No worker has registered a workflow yet. Start one: {worker_hint()}"
    output.list(found, columns, id=lambda one: one.name, empty=empty)


_workflow_command = change_command(workflows, click.argument("name", metavar="WORKFLOW"))


@_workflow_command
async def pause(app: Redrive, name: str, change: ChangeOptions) -> ChangeResult:
    """Stop workers from taking runs of WORKFLOW. Runs in progress continue until they wait; new runs are accepted.

    \b
    Examples:
      redrive workflows pause fulfil
    """
    await _require_known_workflow(app, name)
    change.confirm(f"Pause workflow {name!r}: its runs wait until it is resumed")
    if not change.dry_run:
        await app.workflows.pause(name, by=change.by)
    verb = "would pause" if change.dry_run else "paused"
    text = f"{verb} {name}; to resume it: {hint('workflows', 'resume', name)}"
    return name, {"name": name, "paused": not change.dry_run}, text


@_workflow_command
async def resume(app: Redrive, name: str, change: ChangeOptions) -> ChangeResult:
    """Let workers take runs of WORKFLOW again.

    \b
    Examples:
      redrive workflows resume fulfil
    """
    await _require_known_workflow(app, name)
    was_paused = any(each.paused_by for each in await app.workflows.list() if each.name == name)
    if not change.dry_run:
        await app.workflows.resume(name, by=change.by)
    verb = "would resume" if change.dry_run else "resumed"
    text = f"{verb} {name}" if was_paused else f"{name} was not paused"
    return name, {"name": name, "paused": was_paused and change.dry_run}, text


async def _require_known_workflow(app: Redrive, name: str) -> None:
    from redrive.store.filters import RunFilter

    known = [one.name for one in await app.workflows.list()]
    if name not in known and not (await app.runs.list(RunFilter(workflow=name), limit=1)).items:
        raise CommandFailed(
            f"workflow {name!r} is unknown: no worker has registered it and it has no runs "
            f"(`{hint('workflows', 'list')}` lists all){suggest_names(name, known)}",
            NOT_FOUND,
        )
