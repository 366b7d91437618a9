"""`redrive schedules`: when workflows are started by themselves, and pausing that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import hint
from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Column, Output, display_tenant, output_options
from redrive.cli.place import Target, run_on, target_options
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.settings import KnownSchedule


@click.group(short_help="List schedules; pause and resume them.")
def schedules() -> None:
    """List schedules; pause one, resume it later. They are made in code, on their workflows.

    \b
    Examples:
      redrive schedules list
      redrive schedules pause report
      redrive schedules resume report
    """


@schedules.command("list")
@click.option("--tenant", metavar="NAME", help="Of this tenant only.  [default: all]")
@output_options
@target_options
def list_(tenant: str | None, place: Target, output: Output) -> None:
    """List schedules with their next times, as clocks in their zones show them.

    \b
    Examples:
      redrive schedules list
      redrive schedules list --tenant acme --json
    """
    columns: list[Column[KnownSchedule]] = [
        Column("WORKFLOW", lambda one: one.workflow),
        Column("NAME", lambda one: one.name),
        Column("CRON", lambda one: one.cron),
        Column("ZONE", lambda one: one.timezone),
        Column("NEXT", _format_next_times),
        Column("LAST RUN", lambda one: one.last_run),
        Column("STATUS", lambda one: one.last_status),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    output.list(
        run_on(place, lambda app: app.schedules.list(tenant=tenant)),
        columns,
        id=lambda one: f"{one.workflow}/{one.name}",
        empty="No worker whose workflows have schedules was started yet.",
    )


def _format_next_times(one: KnownSchedule) -> str:
    """Its next times, or why there are none."""
    if one.paused_by is not None:
        return f"paused by {one.paused_by}"
    if not one.live:
        return "no live worker has it" + (f", late since {_format_time(one.late_since)}" if one.late_since else "")
    return ", ".join(map(_format_time, one.next))


def _format_time(at: datetime) -> str:
    return f"{at:%a %d %b %H:%M}"


def _decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        target_options,
        output_options,
        change_options,
        click.option("--reason", metavar="TEXT", help="Why, for the record."),
        click.option("--tenant", metavar="NAME", default=DEFAULT_TENANT, show_default=True, help="Whose it is."),
        click.argument("name", default="default"),
        click.argument("workflow"),
    ):
        command = option(command)
    return command


@schedules.command()
@_decision_options
def pause(**what: Any) -> None:
    """Start nothing for a schedule of WORKFLOW until it is resumed. NAME tells which, if it has several.

    \b
    Examples:
      redrive schedules pause report
      redrive schedules pause report month-end --tenant acme --reason "books are closed"
    """
    _apply_decision("pause", ("paused", "was paused before"), **what)


@schedules.command()
@_decision_options
def resume(**what: Any) -> None:
    """Go on with a schedule's next time; those that came meanwhile are not made up for.

    \b
    Examples:
      redrive schedules resume report
    """
    _apply_decision("resume", ("resumed", "was not paused"), **what)


@schedules.command()
@_decision_options
def forget(**what: Any) -> None:
    """Forget a schedule that is in no code any more.

    \b
    Examples:
      redrive schedules forget report old-one
    """
    _apply_decision("remove", ("forgot", ""), **what)


def _apply_decision(
    verb: str,
    done: tuple[str, str],
    *,
    workflow: str,
    name: str,
    tenant: str,
    reason: str | None,
    change: ChangeOptions,
    output: Output,
    place: Target,
) -> None:
    what = f"{workflow}/{name}"
    change.confirm(f"{verb} schedule {what} of tenant {tenant}")

    async def work(app: Redrive) -> bool | None:
        act = getattr(app.schedules, verb)
        found: bool | None = await act(
            workflow, name, tenant=tenant, by=change.by, reason=reason, dry_run=change.dry_run
        )
        return found

    changed = run_on(place, work) is not False
    told = f"would {verb} {what}" if change.dry_run else f"{done[0]} {what}"
    text = told if changed else f"{what} {done[1]}"
    if verb == "pause" and changed and not change.dry_run:
        text += f"; to go on: {hint('schedules', 'resume', workflow, name)}"
    output.done(what, {"workflow": workflow, "name": name, "tenant": tenant, "changed": changed}, text)
