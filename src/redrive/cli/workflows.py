"""`redrive workflows`: list workflows and the versions of their code, pause and resume workflows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, assert_never

import click

from redrive.cli.errors import NOT_FOUND, CommandFailed
from redrive.cli.hints import hint, suggest_names, worker_hint
from redrive.cli.options import ChangeOptions
from redrive.cli.output import Column, Output, field_columns
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on
from redrive.time_values import format_duration, to_datetime

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.workflows import DeployedVersion, KnownWorkflow


@click.group()
def workflows() -> None:
    """List workflows and versions; pause a workflow while its failures are investigated, resume it later.

    \b
    Examples:
      redrive workflows list
      redrive workflows versions
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


@workflows.command()
@common_options
def versions(target: Target, output: Output) -> None:
    """List versions of code, and whether their workers may stop.

    Versions are listed that live workers have or open runs need. PINNED runs are continued by no other version. The
    records of DIVERGED runs do not fit newer code. Runs that have not begun count for no version.

    \b
    Examples:
      redrive workflows versions
      redrive workflows versions --json
    """
    from redrive.clock import SystemClock

    now = to_datetime(SystemClock().now())
    columns: list[Column[DeployedVersion]] = [
        *field_columns(VERSION="version", WORKERS="workers", RUNS="runs", PINNED="pinned", DIVERGED="diverged"),
        *field_columns(OLDEST="oldest"),
        Column("WORKFLOWS", lambda one: ", ".join(each.workflow for each in one.workflows)),
        Column("STATE", lambda one: describe_version(one, now), sentence=True),
    ]
    found = run_on(target, lambda app: app.workflows.versions())
    empty = f"No worker is alive and no run is open. Start a worker: {worker_hint()}"
    output.list(found, columns, id=lambda one: one.version, empty=empty)


def describe_version(one: DeployedVersion, now: datetime) -> str:
    """Return the sentence for the state of a version."""
    from redrive.desk.workflows import VersionState

    tied = one.pinned + one.diverged
    need = "needs" if tied == 1 else "need"
    seconds = 0.0 if one.oldest is None else max(0.0, (now - one.oldest).total_seconds())
    age = "" if one.oldest is None else f", the oldest for {format_duration(seconds)}"
    match one.state:
        case VersionState.CURRENT:
            return f"new runs get it; {one.runs:,} open{age}" if one.runs else "new runs get it"
        case VersionState.NEEDED:
            return f"{_count_runs(tied)} still {need} it{age}"
        case VersionState.MISSING:
            move = hint("runs", "move", "RUN", "--to", "VERSION")
            return f"{_count_runs(tied)} {need} it{age}, and no live worker has it: start one, or move them with {move}"
        case VersionState.REPLACED:
            return f"{_count_runs(one.runs)} began with it{age}; newer code continues them if it fits"
        case VersionState.STOPPABLE:
            return "its workers may be stopped"
        case VersionState.UNUSED:
            return "no run needs it; its workers also have other workflows, which are needed"
        case other:
            assert_never(other)


def _count_runs(number: int) -> str:
    return f"{number:,} run" if number == 1 else f"{number:,} runs"


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
