"""`redrive dlq groups`: failures by cause, and the commands that assign, comment on and mute a cause."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.list_show import join_error_and_reason
from redrive.cli.hints import hint
from redrive.cli.options import REASON_OPTION, ChangeOptions, check_assignee
from redrive.cli.output import Column, Output, display_tenant, echo, escape_line, field_columns, format_age, on_terminal
from redrive.cli.target import (
    ChangeResult,
    Listing,
    PageOptions,
    Target,
    change_command,
    common_options,
    page_options,
    run_on,
)

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.groups import FailureGroup, GroupList

_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"
_FINGERPRINT_ARGUMENT = click.argument("fingerprint", metavar="FINGERPRINT")
_MAX_SHOWN = 10  # versions and comments of a cause


@click.group(invoke_without_command=True, short_help="List failures by their cause; assign, comment on and mute one.")
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--closed", is_flag=True, help="Also causes without open letters.")
@click.option("--muted", is_flag=True, help="Only causes that are muted.")
@click.option(
    "--sort",
    type=click.Choice(["count", "trend", "newest"]),
    default="count",
    show_default=True,
    help="Begin with most open letters, most failures in 24 hours, or the latest failure.",
)
@page_options
@common_options
@click.pass_context
def groups(
    context: click.Context,
    tenant: str | None,
    closed: bool,
    muted: bool,
    sort: str,
    pages: PageOptions,
    output: Output,
    target: Target,
) -> None:
    """List failures by their cause, with the number of open letters and the trend; the largest first.

    Workers count them, with a delay of a few seconds. --quiet prints fingerprints.

    \b
    Examples:
      redrive dlq groups
      redrive dlq groups show daf56cff46003d07
      redrive dlq groups mute daf56cff46003d07
      redrive dlq replay --all --fingerprint daf56cff46003d07
    """
    if context.invoked_subcommand is not None:
        return
    options: dict[str, Any] = {"status": None if closed else "OPEN", "muted": True if muted else None, "sort": sort}
    columns: list[Column[FailureGroup]] = [
        *field_columns(FINGERPRINT="fingerprint", OPEN="open"),
        Column("WORKFLOW", lambda group: ", ".join(group.workflows)),
        Column("STEP", lambda group: ", ".join(group.steps)),
        Column("LAST SEEN", lambda group: group.last_seen),
        Column("LAST 24 H", _format_trend, ends=True),
        Column("REASON", _format_reason, sentence=True),
        *field_columns(FIRST_SEEN="first_seen", TOTAL="total", CODE="code", SAMPLE="sample_id"),
        Column("TENANT", lambda group: display_tenant(group.tenant)),
    ]
    if not on_terminal():  # on a terminal, the reason contains it
        columns.append(Column("ERROR", lambda group: group.error))
    listing: Listing[FailureGroup] = Listing(
        # A page of groups has the fields of other pages, and `as_of`.
        fetch=lambda app, limit, cursor: cast("Any", app.dlq.groups(tenant, limit=limit, cursor=cursor, **options)),
        columns=columns,
        id=lambda group: group.fingerprint,
        empty="No open failures. All clear.",
        also=("as_of", "total"),
    )
    page: GroupList = cast("Any", pages.show(target, listing, output))
    if not on_terminal() or output.quiet or output.json:
        return
    echo(f"Counted up to {format_age(page.as_of)}.")
    if page.items:
        first = ["--fingerprint", page.items[0].fingerprint]
        echo(f"Letters of the first: {hint('dlq', 'list', *first)}")
        echo(f"Run them again:       {hint('dlq', 'replay', '--all', *first)}")


@groups.command()
@_FINGERPRINT_ARGUMENT
@common_options
def show(fingerprint: str, output: Output, target: Target) -> None:
    """Show one cause: error, versions, assignee, comments, retries.

    \b
    Examples:
      redrive dlq groups show daf56cff46003d07
    """
    found = run_on(target, lambda app: app.dlq.group(fingerprint))
    where = ", ".join((*found.steps, *found.workflows))
    lines = [
        f"{where}: {found.error or found.message}",
        f"{found.open:,} open of {found.total:,} letters, first seen {_format_time(found.first_seen)}, "
        f"last seen {_format_time(found.last_seen)}.",
        f"Assigned to {found.owner}." if found.owner else "Unassigned.",
    ]
    if found.muted:
        lines.append(f"Muted by {found.muted_by} {_describe_end(found.muted_until)}.")
    if found.resolved_at is not None:
        back = f", back since {found.back_version}" if found.back_version else ""
        version = f" in {found.resolved_version}" if found.resolved_version else ""
        lines.append(f"Resolved{version} by {found.resolved_by}, {_format_time(found.resolved_at)}{back}.")
    if found.retried_at is not None:
        lines.append(
            f"Last retried by {found.retried_by}, {_format_time(found.retried_at)}: bulk action {found.retried_bulk}."
        )
    lines += [f"  {each.version}: seen {each.seen:,} times" for each in found.versions[:_MAX_SHOWN]]
    lines += [f"  {line.by}, {_format_time(line.at)}: {line.after}" for line in found.comments[-_MAX_SHOWN:]]
    output.record(found.fingerprint, found, "\n".join(map(escape_line, lines)))


@change_command(
    groups,
    _FINGERPRINT_ARGUMENT,
    click.option("--to", metavar="NAME", help="The new assignee.  [default: you]"),
    click.option("--unassign", is_flag=True, help="Leave the cause unassigned."),
)
async def assign(app: Redrive, fingerprint: str, to: str | None, unassign: bool, change: ChangeOptions) -> ChangeResult:
    """Assign a cause to a person.

    \b
    Examples:
      redrive dlq groups assign daf56cff46003d07 --to kim
    """
    check_assignee(to, unassign)
    assignee = None if unassign else change.by if to is None else to
    verb = f"assign {fingerprint} to {assignee}" if assignee else f"unassign {fingerprint}"
    return await _change(app, fingerprint, change, "assign_group", verb, to=assignee)


@change_command(groups, _FINGERPRINT_ARGUMENT, click.argument("text", metavar="TEXT"))
async def comment(app: Redrive, fingerprint: str, text: str, change: ChangeOptions) -> ChangeResult:
    """Add a comment to a cause.

    \b
    Examples:
      redrive dlq groups comment daf56cff46003d07 "the bank answers tomorrow"
    """
    return await _change(app, fingerprint, change, "comment_group", f"comment on {fingerprint}", text=text)


class _EndType(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from redrive.clock import MICROS, SystemClock
        from redrive.errors import ConfigurationError
        from redrive.time_values import parse_duration, parse_past_time, to_datetime

        now = SystemClock().now()
        try:
            return to_datetime(now + round(parse_duration(value) * MICROS))
        except ConfigurationError:
            found = parse_past_time(value, to_datetime(now))
        if found is None:
            self.fail(f"{value!r} is not a time: give 2h or 3d from now, or 2026-03-01T14:00:00Z", param, ctx)
        return found


@change_command(
    groups,
    _FINGERPRINT_ARGUMENT,
    click.option(
        "--until", type=_EndType(), metavar="TIME", help="2h or 3d from now, or an ISO time.  [default: until it grows]"
    ),
    REASON_OPTION,
)
async def mute(
    app: Redrive, fingerprint: str, until: datetime | None, reason: str | None, change: ChangeOptions
) -> ChangeResult:
    """Mute a cause: no notifications, and not counted in the overview.

    It is back when it has more open letters than now, or with --until at that time.

    \b
    Examples:
      redrive dlq groups mute daf56cff46003d07
      redrive dlq groups mute daf56cff46003d07 --until 3d --reason "fixed in the next release"
    """
    verb = f"mute {fingerprint} {_describe_end(until)}"
    return await _change(app, fingerprint, change, "mute_group", verb, until=until, reason=reason)


@change_command(groups, _FINGERPRINT_ARGUMENT, REASON_OPTION)
async def unmute(app: Redrive, fingerprint: str, reason: str | None, change: ChangeOptions) -> ChangeResult:
    """End the mute of a cause.

    \b
    Examples:
      redrive dlq groups unmute daf56cff46003d07
    """
    return await _change(app, fingerprint, change, "unmute_group", f"unmute {fingerprint}", reason=reason)


async def _change(
    app: Redrive, fingerprint: str, change: ChangeOptions, method: str, verb: str, **arguments: Any
) -> ChangeResult:
    if change.dry_run:
        return fingerprint, await app.dlq.group(fingerprint), f"would {verb}"
    found = await getattr(app.dlq, method)(fingerprint, by=change.by, **arguments)
    return fingerprint, found, f"done: {verb}"


def _describe_end(until: datetime | None) -> str:
    return "until it grows" if until is None else f"until {_format_time(until)}"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _format_reason(group: FailureGroup) -> str | None:
    if group.message is None or not on_terminal():
        return group.message
    return join_error_and_reason(" ".join((group.error or "").split()), group.message)


def _format_trend(group: FailureGroup) -> str:
    """Format failures by hour: as bars on a terminal, as numbers for programs."""
    if not on_terminal():
        return ",".join(map(str, group.trend))
    most = max(group.trend, default=0)
    if not most:
        return ""
    return "".join(_BAR_CHARACTERS[-(-count * 7 // most)] for count in group.trend)
