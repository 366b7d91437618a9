"""`redrive workflows`: which there are, and pausing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.change import Change, changing
from redrive.cli.hints import hint, worker_hint
from redrive.cli.output import Column, Output, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.workflows import KnownWorkflow

__all__ = ["workflows"]


@click.group(short_help="List workflows; pause and resume them.")
def workflows() -> None:
    """List workflows; pause one to stop the bleeding, resume it later.

    \b
    Examples:
      redrive workflows list
      redrive workflows pause fulfil
      redrive workflows resume fulfil
    """


@workflows.command("list")
@shown
@at_a_place
def list_(place: Place, output: Output) -> None:
    """List the workflows that workers have registered.

    \b
    Examples:
      redrive workflows list
    """
    columns: list[Column[KnownWorkflow]] = [
        Column("WORKFLOW", lambda one: one.name),
        Column("WORKERS", lambda one: one.workers),
        Column("PAUSED BY", lambda one: one.paused_by),
        Column("UNCLAIMABLE", lambda one: one.unclaimable or None),
    ]
    output.list(
        ask(place, lambda app: app.workflows.list()),
        columns,
        id=lambda one: one.name,
        empty=f"No worker has registered a workflow yet. Start one: {worker_hint()}",
    )


@workflows.command()
@click.argument("name", metavar="WORKFLOW")
@changing
@shown
@at_a_place
def pause(name: str, change: Change, place: Place, output: Output) -> None:
    """Let nobody take runs of WORKFLOW. Those under way go on until they wait; new ones are accepted.

    \b
    Examples:
      redrive workflows pause fulfil
    """

    async def work(app: Redrive) -> None:
        await _must_be_known(app, name)
        change.confirm(f"Pause workflow {name!r}: its runs wait until it is resumed")
        if not change.dry_run:
            await app.workflows.pause(name, by=change.by)

    ask(place, work)
    verb = "would pause" if change.dry_run else "paused"
    output.done(
        name,
        {"name": name, "paused": not change.dry_run},
        f"{verb} {name}; to go on: {hint('workflows', 'resume', name)}",
    )


@workflows.command()
@click.argument("name", metavar="WORKFLOW")
@changing
@shown
@at_a_place
def resume(name: str, change: Change, place: Place, output: Output) -> None:
    """Let runs of WORKFLOW be taken again.

    \b
    Examples:
      redrive workflows resume fulfil
    """

    async def work(app: Redrive) -> bool:
        await _must_be_known(app, name)
        was_paused = name in await app.workflows.paused()
        if not change.dry_run:
            await app.workflows.resume(name, by=change.by)
        return was_paused

    was_paused = ask(place, work)
    verb = "would resume" if change.dry_run else "resumed"
    text = f"{verb} {name}" if was_paused else f"{name} was not paused"
    output.done(name, {"name": name, "paused": was_paused and change.dry_run}, text)


async def _must_be_known(app: Redrive, name: str) -> None:
    from redrive.cli.inputs import near
    from redrive.errors import UnknownWorkflow
    from redrive.store.selection import RunFilter

    known = [one.name for one in await app.workflows.list()]
    if name in known or (await app.runs.list(RunFilter(workflow=name), limit=1)).items:
        return
    raise UnknownWorkflow(
        f"no worker has registered a workflow {name!r}, and there is no run of it "
        f"(`redrive workflows list` shows all){near(name, known)}"
    )
