"""`redrive workers`: list, drain and retire workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.errors import NOT_FOUND, CommandFailed, hint, worker_hint
from redrive.cli.options import REASON_OPTION, ChangeOptions
from redrive.cli.output import Column, Output, field_columns
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.workflows import KnownWorker

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
