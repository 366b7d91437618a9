"""`redrive notifications`: the inbox, and who is told of what."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, CommandFailed, hint, program_name
from redrive.cli.options import (
    TIME_TYPE,
    ChangeOptions,
    change_options,
    name_or_current_user,
    parse_json_text,
    read_ids,
)
from redrive.cli.output import (
    Column,
    Output,
    as_json,
    display_tenant,
    echo,
    escape_line,
    json_text,
    on_terminal,
    output_options,
)
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import AuditRecord
    from redrive.desk.notifications import InboxItem, StoredRule
    from redrive.store.filters import AuditFilter
    from redrive.store.list_query import Page

# -- `redrive audit`: who did what, and what the engine decided by itself --------------------------------


_CSV_FIELDS = ("id", "at", "event", "label", "by", "tenant", "subject", "letter", "before", "after", "reason")
_LETTER_ID_LENGTH = len("dl-") + 26
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


@click.group(short_help="See who did what.")
def audit() -> None:
    """See who did what, and what the engine decided by itself. Nothing in the log is ever changed.

    \b
    Examples:
      redrive audit list --by kim --since 7d
      redrive audit export --since 2026-01-01 > audit.csv
    """


def _audit_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which lines are meant; it receives them as `filters`."""

    @click.option("--event", metavar="NAME", help="Only this event, such as dlq.retry; dlq. means all that begin so.")
    @click.option("--by", metavar="NAME", help="Only what this person did; redrive is the engine itself.")
    @click.option("--run", "subject", metavar="RUN", help="Only lines about this run.")
    @click.option("--letter", metavar="LETTER", help="Only lines about this dead letter.")
    @click.option("--tenant", metavar="NAME", help="Only lines of this tenant.  [default: all]")
    @click.option("--since", type=TIME_TYPE, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
    @click.option("--until", type=TIME_TYPE, metavar="TIME", help="Before.")
    @click.option(
        "--lang", type=click.Choice(("en", "pl")), default="en", show_default=True, help="Language of the labels."
    )
    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        names = ("event", "by", "subject", "letter", "tenant", "since", "until")
        filters = {name: options.pop(name) for name in names}
        return command(*args, filters=filters, **options)

    return with_filters


@audit.command("list")
@_audit_filter_options
@page_options
@output_options
@target_options
def list_(filters: dict[str, Any], lang: str, pages: PageOptions, output: Output, place: Target) -> None:
    """List lines of the audit log, newest first.

    \b
    Examples:
      redrive audit list
      redrive audit list --event dlq. --since 1d
      redrive audit list --letter dl-01k9x7 --lang pl
    """

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[AuditRecord]:
        where = await _build_filter(app, filters)
        return await app.audit.list(where, limit=limit, cursor=cursor, language=lang)

    listing: Listing[AuditRecord] = Listing(
        fetch=fetch, columns=_audit_columns(), id=lambda line: str(line.id), empty="Nothing of this kind is in the log."
    )
    pages.show(place, listing, output)


def _audit_columns() -> list[Column[AuditRecord]]:
    first: list[Column[AuditRecord]] = [
        Column("WHEN", lambda line: line.at),
        Column("BY", lambda line: line.by),
        Column("ABOUT", lambda line: line.letter or line.subject),
    ]
    if on_terminal():
        return [*first, Column("WHAT", _describe_entry, sentence=True)]
    return [*first, Column("WHAT", lambda line: line.label), Column("DETAILS", _describe_change)]


@audit.command()
@_audit_filter_options
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json")),
    default="csv",
    show_default=True,
    help="A table for a spreadsheet, or one JSON object on each line.",
)
@target_options
def export(filters: dict[str, Any], lang: str, form: str, place: Target) -> None:
    """Print every line that matches, newest first, as CSV or JSON.

    In CSV, a text that a spreadsheet would take for a formula has a ' in front.

    \b
    Examples:
      redrive audit export --since 30d > audit.csv
      redrive audit export --format json --event policy. > policies.jsonl
    """

    async def work(app: Redrive) -> None:
        lines = app.audit.export(await _build_filter(app, filters), language=lang)
        await (_print_csv(lines) if form == "csv" else _print_json_lines(lines))

    run_on(place, work)


async def _build_filter(app: Redrive, filters: dict[str, Any]) -> AuditFilter:
    """The filter, with ids that were given by a beginning made whole."""
    from redrive.cli.dlq.lookup import load_letter
    from redrive.cli.options import find_run_id
    from redrive.store.filters import AuditFilter

    whole = dict(filters)
    if whole["subject"]:
        whole["subject"] = await find_run_id(app, whole["subject"])
    if whole["letter"] and len(whole["letter"]) < _LETTER_ID_LENGTH:  # a whole id may be of a letter that is gone
        whole["letter"] = (await load_letter(app, whole["letter"])).id
    return AuditFilter(**whole)


async def _print_csv(lines: AsyncIterator[AuditRecord]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_CSV_FIELDS)
    async for line in lines:
        row = as_json(line)
        writer.writerow([_format_csv_cell(row[name]) for name in _CSV_FIELDS])


async def _print_json_lines(lines: AsyncIterator[AuditRecord]) -> None:
    async for line in lines:
        echo(json_text(line))


def _format_csv_cell(value: Any) -> str:
    """A cell of a spreadsheet; none is a formula, whoever wrote it."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA_PREFIXES) else text


def _describe_entry(line: AuditRecord) -> str:
    return ": ".join(part for part in (line.label, _describe_change(line)) if part)


def _describe_change(line: AuditRecord) -> str:
    """What changed and why, in one line."""
    said = [
        f"{_format_value(line.before)} -> {_format_value(line.after)}" if line.before else _format_value(line.after)
    ]
    if line.reason:
        said.append(f"because: {line.reason}")
    return "; ".join(part for part in said if part)


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(one)}" for name, one in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- `redrive notifications`: the inbox, and who is told of what -----------------------------------------


_READER_OPTION = click.option("--reader", metavar="NAME", help="Whose inbox.  [default: your user name]")
_TENANT_OPTION = click.option("--tenant", metavar="NAME", help="Of this tenant.  [default: all]")
_WORKFLOW_OPTION = click.option("--workflow", metavar="NAME", help="Of this workflow.  [default: all]")


@click.group(short_help="Read what people were told; say who is told of what.")
def notifications() -> None:
    """Read what people were told of failures, and say who is told of what.

    \b
    Examples:
      redrive notifications list --unread
      redrive notifications read
      redrive notifications set --workflow fulfil '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
    """


@notifications.command("list")
@click.option("--unread", is_flag=True, help="Only those not read yet.")
@_WORKFLOW_OPTION
@_TENANT_OPTION
@_READER_OPTION
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@output_options
@target_options
def list_notifications(reader: str | None, output: Output, place: Target, **options: Any) -> None:
    """List the inbox, newest first.

    \b
    Examples:
      redrive notifications list --unread
    """
    who = name_or_current_user(reader, "--reader")
    page = run_on(place, lambda app: app.notifications.list(reader=who, **options))
    columns: list[Column[InboxItem]] = [
        Column("ID", lambda one: one.id),
        Column("TOLD", lambda one: one.at),
        Column("READ", lambda one: "yes" if one.read_at else "no"),
        Column("COUNT", lambda one: one.count),
        Column("WHAT", lambda one: one.title.removeprefix("[redrive] ")),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    output.list(
        page.items,
        columns,
        id=lambda one: one.id,
        empty=f"Nothing is in the inbox. To be told of failures: {program_name()} notifications set --help",
        next=page.next,
        prev=page.prev,
    )


@notifications.command()
@click.argument("id", metavar="NOTIFICATION")
@_READER_OPTION
@output_options
@target_options
def show(id: str, reader: str | None, output: Output, place: Target) -> None:
    """Show a notification as it was told. Secrets in it are hidden.

    \b
    Examples:
      redrive notifications show ntf-12-0a1b2c3d4e5f
    """
    who = name_or_current_user(reader, "--reader")
    item = run_on(place, lambda app: app.notifications.get(id, reader=who))
    if output.json:
        output.object(item)
    elif output.quiet:
        echo(item.id)
    else:
        echo(escape_line(item.title))
        echo("")
        echo(item.text)


@notifications.command()
@click.argument("ids", nargs=-1, metavar="NOTIFICATION...")
@_TENANT_OPTION
@_READER_OPTION
@output_options
@target_options
def read(ids: tuple[str, ...], tenant: str | None, reader: str | None, output: Output, place: Target) -> None:
    """Mark notifications as read, all there are if none is named. `-` reads ids from standard input.

    \b
    Examples:
      redrive notifications read
      redrive notifications list --unread --workflow fulfil -q | redrive notifications read -
    """
    who = name_or_current_user(reader, "--reader")
    named = read_ids(ids) if ids else None
    marked = run_on(place, lambda app: app.notifications.mark_read(named, reader=who, tenant=tenant))
    output.done(str(marked), {"marked": marked}, f"marked {marked} as read")


@notifications.command()
@output_options
@target_options
def rules(output: Output, place: Target) -> None:
    """List the stored rules about who is told of what. Of URLs only the host is shown.

    \b
    Examples:
      redrive notifications rules
    """
    columns: list[Column[StoredRule]] = [
        Column("WORKFLOW", lambda one: one.workflow),
        Column("TENANT", lambda one: one.tenant),
        Column("ON", lambda one: ", ".join(one.on) or "nothing"),
        Column("TOLD", lambda one: ", ".join([*one.targets, *(["inbox"] if one.app else [])])),
        Column("SET BY", lambda one: one.updated_by),
        Column("SET", lambda one: one.updated_at),
    ]
    output.list(
        list(run_on(place, lambda app: app.notifications.rules())),
        columns,
        id=lambda one: _format_rule_id(one.tenant, one.workflow),
        empty="No rule is stored: what the code says holds.",
    )


@notifications.command("set", short_help="Store who is told of what, for a workflow or for all.")
@click.argument("rule", metavar="RULE")
@_WORKFLOW_OPTION
@_TENANT_OPTION
@change_options
@output_options
@target_options
def set_(
    rule: str, workflow: str | None, tenant: str | None, change: ChangeOptions, output: Output, place: Target
) -> None:
    """Store who is told of what, replacing the rule for the same. It goes before what the code says.

    RULE is JSON with `on`, `email`, `slack`, `teams`, `webhook`, `channels` and `app`, as `notify=` of a
    workflow takes it; {"on": []} silences.

    \b
    Examples:
      redrive notifications set --workflow fulfil '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
      redrive notifications set --tenant acme '{"on": []}'
    """
    from redrive.cli.messages import report_usage_errors
    from redrive.core.notify_rules import NotifyRule

    with report_usage_errors():
        wanted = parse_json_text(rule, "the rule")
        NotifyRule.read(wanted, "the rule")
    change.confirm(f"Store this rule for {_describe_rule_scope(tenant, workflow)}")
    if not change.dry_run:
        run_on(place, lambda app: app.notifications.set_rule(wanted, workflow=workflow, tenant=tenant, by=change.by))
    verb = "would store" if change.dry_run else "stored"
    output.done(
        _format_rule_id(tenant, workflow), wanted, f"{verb} who is told of {_describe_rule_scope(tenant, workflow)}"
    )


@notifications.command()
@_WORKFLOW_OPTION
@_TENANT_OPTION
@change_options
@output_options
@target_options
def unset(workflow: str | None, tenant: str | None, change: ChangeOptions, output: Output, place: Target) -> None:
    """Remove a stored rule; what is more general, or what the code says, holds again.

    \b
    Examples:
      redrive notifications unset --workflow fulfil
    """

    async def work(app: Redrive) -> None:
        change.confirm(f"Remove the rule for {_describe_rule_scope(tenant, workflow)}")
        if change.dry_run:
            return
        if not await app.notifications.delete_rule(workflow=workflow, tenant=tenant, by=change.by):
            shows = hint("notifications", "rules")
            raise CommandFailed(
                f"no rule is stored for {_describe_rule_scope(tenant, workflow)}; `{shows}` shows all", NOT_FOUND
            )

    run_on(place, work)
    verb = "would remove" if change.dry_run else "removed"
    path = _format_rule_id(tenant, workflow)
    output.done(path, {"rule": path}, f"{verb} the rule for {_describe_rule_scope(tenant, workflow)}")


def _format_rule_id(tenant: str | None, workflow: str | None) -> str:
    return f"{tenant or '*'}/{workflow or '*'}"


def _describe_rule_scope(tenant: str | None, workflow: str | None) -> str:
    what = f"workflow {workflow!r}" if workflow else "all workflows"
    return f"{what} of tenant {tenant!r}" if tenant else what
