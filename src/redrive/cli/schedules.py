"""`redrive schedules`: list the schedules of workflows; run, pause and resume them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.hints import hint
from redrive.cli.options import REASON_OPTION, ChangeOptions
from redrive.cli.output import Column, Output, display_tenant, field_columns
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.schedules import KnownSchedule

_TIME_FORMAT = "%a %d %b %H:%M"


@click.group()
def schedules() -> None:
    """List schedules; run one now, pause one, resume it later. Schedules are defined in the code of their workflows.

    \b
    Examples:
      redrive schedules list
      redrive schedules run report
      redrive schedules pause report
      redrive schedules resume report
    """


@schedules.command("list")
@click.option("--tenant", metavar="NAME", help="Only schedules of this tenant.  [default: all]")
@common_options
def list_(tenant: str | None, target: Target, output: Output) -> None:
    """List schedules with their next times. Times are in the time zone of the schedule.

    \b
    Examples:
      redrive schedules list
      redrive schedules list --tenant acme --json
    """

    def format_next(one: KnownSchedule) -> str:
        if one.paused_by is not None:
            return f"paused by {one.paused_by}"
        if one.live:
            return ", ".join(f"{at:{_TIME_FORMAT}}" for at in one.next)
        return "no live worker has it" + (f", late since {one.late_since:{_TIME_FORMAT}}" if one.late_since else "")

    columns: list[Column[KnownSchedule]] = [
        *field_columns(WORKFLOW="workflow", NAME="name", CRON="cron", ZONE="timezone"),
        Column("NEXT", format_next),
        *field_columns(LAST_RUN="last_run", STATUS="last_status"),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    found = run_on(target, lambda app: app.schedules.list(tenant=tenant))
    empty = "No schedule is known: no worker whose workflows have schedules was started yet."
    output.list(found, columns, id=lambda one: f"{one.workflow}/{one.name}", empty=empty)


_schedule_command = change_command(
    schedules,
    click.argument("workflow"),
    click.argument("name", default="default"),
    click.option("--tenant", metavar="NAME", default=DEFAULT_TENANT, show_default=True, help="Tenant of the schedule."),
    REASON_OPTION,
)


@_schedule_command
async def run(app: Redrive, **arguments: Any) -> ChangeResult:
    """Start a run of a schedule of WORKFLOW now, beside its times. Give NAME if the workflow has several.

    \b
    Examples:
      redrive schedules run report
      redrive schedules run report month-end --tenant acme --reason "the last one was incomplete"
    """
    return await _change_schedule(app, "run", "a worker starts", "was asked for before and starts soon", **arguments)


@_schedule_command
async def pause(app: Redrive, **arguments: Any) -> ChangeResult:
    """Start no runs for a schedule of WORKFLOW until it is resumed. Give NAME if the workflow has several.

    \b
    Examples:
      redrive schedules pause report
      redrive schedules pause report month-end --tenant acme --reason "books are closed"
    """
    return await _change_schedule(app, "pause", "paused", "was paused before", **arguments)


@_schedule_command
async def resume(app: Redrive, **arguments: Any) -> ChangeResult:
    """Start runs again from the schedule's next time on. Times that passed meanwhile are skipped.

    \b
    Examples:
      redrive schedules resume report
    """
    return await _change_schedule(app, "resume", "resumed", "was not paused", **arguments)


@_schedule_command
async def forget(app: Redrive, **arguments: Any) -> ChangeResult:
    """Delete a schedule that no code declares.

    \b
    Examples:
      redrive schedules forget report old-one
    """
    return await _change_schedule(app, "remove", "forgot", "", **arguments)


async def _change_schedule(
    app: Redrive,
    verb: str,
    done: str,
    unchanged: str,
    *,
    workflow: str,
    name: str,
    tenant: str,
    reason: str | None,
    change: ChangeOptions,
) -> ChangeResult:
    id = f"{workflow}/{name}"
    change.confirm(f"{verb.capitalize()} schedule {id} of tenant {tenant}")
    act = getattr(app.schedules, verb)
    result = await act(workflow, name, tenant=tenant, by=change.by, reason=reason, dry_run=change.dry_run)
    if result is False:  # only run, pause and resume report that nothing changed
        text = f"{id} {unchanged}"
    elif change.dry_run:
        text = f"would {verb} {id}"
    else:
        text = f"{done} {id}"
        if verb == "pause":
            text += f"; to resume it: {hint('schedules', 'resume', workflow, name)}"
    return id, {"workflow": workflow, "name": name, "tenant": tenant, "changed": result is not False}, text
