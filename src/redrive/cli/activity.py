"""`redrive audit` and `redrive notifications`: the audit log, the inbox, and the rules of notifications."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, CommandFailed, hint, program_name, report_usage_errors
from redrive.cli.options import (
    ChangeOptions,
    find_run_id,
    name_or_current_user,
    parse_json_text,
    read_ids,
    time_options,
)
from redrive.cli.output import (
    Column,
    Output,
    as_json,
    display_tenant,
    echo,
    escape_line,
    field_columns,
    json_text,
    on_terminal,
)
from redrive.cli.pager import CURSOR_OPTION, LIMIT_OPTION, Listing, PageOptions, page_options
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on, target_options
from redrive.duration import format_duration

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import AuditRecord
    from redrive.desk.notifications import InboxItem, StoredRule
    from redrive.store.filters import AuditFilter
    from redrive.store.list_query import Page

_CSV_FIELDS = ("id", "at", "event", "label", "by", "tenant", "subject", "letter", "before", "after", "reason")
_FILTER_NAMES = ("event", "by", "people", "subject", "letter", "tenant", "since", "until")
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
_READER_OPTION = click.option("--reader", metavar="NAME", help="Whose inbox.  [default: your user name]")
_TENANT_OPTION = click.option("--tenant", metavar="NAME", help="Only for this tenant.  [default: all]")
_WORKFLOW_OPTION = click.option("--workflow", metavar="NAME", help="Only for this workflow.  [default: all]")


@click.group()
def audit() -> None:
    """Read the audit log: changes that users made, and decisions of the engine. Entries never change.

    \b
    Examples:
      redrive audit list --by kim --since 7d
      redrive audit export --since 2026-01-01 > audit.csv
    """


def _audit_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose entries of the audit log; it receives them as `filters`."""

    @click.option(
        "--event", metavar="NAME", help="Only this event, such as dlq.retry; dlq. means all that begin with dlq."
    )
    @click.option("--by", metavar="NAME", help="Only entries of this user; redrive is the engine itself.")
    @click.option("--people", is_flag=True, help="Only what users and their programs did, not the engine.")
    @click.option("--run", "subject", metavar="RUN", help="Only entries about this run.")
    @click.option("--letter", metavar="LETTER", help="Only entries about this dead letter.")
    @click.option("--tenant", metavar="NAME", help="Only entries of this tenant.  [default: all]")
    @time_options
    @click.option(
        "--lang", type=click.Choice(("en", "pl")), default="en", show_default=True, help="Language of the labels."
    )
    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        return command(*args, filters={name: options.pop(name) for name in _FILTER_NAMES}, **options)

    return with_filters


@audit.command("list")
@_audit_filter_options
@page_options
@common_options
def list_(filters: dict[str, Any], lang: str, pages: PageOptions, output: Output, target: Target) -> None:
    """List entries of the audit log, newest first.

    \b
    Examples:
      redrive audit list
      redrive audit list --event dlq. --since 1d
      redrive audit list --letter dl-01k9x7 --lang pl
    """

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[AuditRecord]:
        where = await _build_filter(app, filters)
        return await app.audit.list(where, limit=limit, cursor=cursor, language=lang)

    columns: list[Column[AuditRecord]] = [
        *field_columns(WHEN="at", BY="by"),
        Column("ABOUT", lambda line: line.letter or line.subject),
    ]
    if on_terminal():
        columns.append(Column("WHAT", lambda line: ": ".join(filter(None, (line.label, _describe_change(line)))), True))
    else:
        columns += [Column("WHAT", lambda line: line.label), Column("DETAILS", _describe_change)]
    listing: Listing[AuditRecord] = Listing(
        fetch=fetch, columns=columns, id=lambda line: str(line.id), empty="No entry of the audit log matches."
    )
    pages.show(target, listing, output)


@audit.command()
@_audit_filter_options
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json")),
    default="csv",
    show_default=True,
    help="CSV for a spreadsheet, or one JSON object on each line.",
)
@target_options
def export(filters: dict[str, Any], lang: str, form: str, target: Target) -> None:
    """Print all matching entries, newest first, as CSV or JSON.

    In CSV, text that a spreadsheet would read as a formula has a ' in front.

    \b
    Examples:
      redrive audit export --since 30d > audit.csv
      redrive audit export --format json --event policy. > policies.jsonl
    """

    def format_cell(value: Any) -> str:
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        # Other users wrote this text, and a spreadsheet would execute a formula in it.
        return f"'{text}" if text.startswith(_FORMULA_PREFIXES) else text

    async def print_entries(app: Redrive) -> None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if form == "csv":
            writer.writerow(_CSV_FIELDS)
        async for line in app.audit.export(await _build_filter(app, filters), language=lang):
            if form == "csv":
                row = as_json(line)
                writer.writerow([format_cell(row[name]) for name in _CSV_FIELDS])
            else:
                echo(json_text(line))

    run_on(target, print_entries)


async def _build_filter(app: Redrive, filters: dict[str, Any]) -> AuditFilter:
    """Return the filter, with prefixes of ids replaced by whole ids."""
    from redrive.cli.dlq.arguments import load_letter
    from redrive.store.filters import AuditFilter

    whole = dict(filters)
    if whole["subject"]:
        whole["subject"] = await find_run_id(app, whole["subject"])
    # A whole id is not looked up: the letter may have been removed since.
    if whole["letter"] and len(whole["letter"]) < len("dl-") + 26:
        whole["letter"] = (await load_letter(app, whole["letter"])).id
    return AuditFilter(**whole)


def _describe_change(line: AuditRecord) -> str:
    """Return what an entry changed, and why, as one line."""
    change = _format_value(line.after)
    if line.before:
        change = f"{_format_value(line.before)} -> {change}"
    return "; ".join(filter(None, (change, f"because: {line.reason}" if line.reason else "")))


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(one) or 'none'}" for name, one in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.group()
def notifications() -> None:
    """Read notifications about failures, and choose who gets them.

    \b
    Examples:
      redrive notifications list --unread
      redrive notifications read
      redrive notifications set --workflow fulfil '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
    """


@notifications.command("list")
@click.option("--unread", is_flag=True, help="Only unread ones.")
@_WORKFLOW_OPTION
@_TENANT_OPTION
@_READER_OPTION
@LIMIT_OPTION
@CURSOR_OPTION
@common_options
def list_notifications(reader: str | None, output: Output, target: Target, **options: Any) -> None:
    """List the inbox, newest first.

    \b
    Examples:
      redrive notifications list --unread
    """
    user = name_or_current_user(reader, "--reader")
    page = run_on(target, lambda app: app.notifications.list(reader=user, **options))
    columns: list[Column[InboxItem]] = [
        *field_columns(ID="id", TOLD="at"),
        Column("READ", lambda one: "yes" if one.read_at else "no"),
        Column("COUNT", lambda one: one.count),
        Column("WHAT", lambda one: one.title.removeprefix("[redrive] ")),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    empty = f"The inbox is empty. To be notified about failures: {program_name()} notifications set --help"
    output.list(page.items, columns, id=lambda one: one.id, empty=empty, next=page.next, prev=page.prev)


@notifications.command()
@click.argument("id", metavar="NOTIFICATION")
@_READER_OPTION
@common_options
def show(id: str, reader: str | None, output: Output, target: Target) -> None:
    """Show a notification as it was sent. Secrets in it are redacted.

    \b
    Examples:
      redrive notifications show ntf-12-0a1b2c3d4e5f
    """
    user = name_or_current_user(reader, "--reader")
    item = run_on(target, lambda app: app.notifications.get(id, reader=user))
    output.record(item.id, item, f"{escape_line(item.title)}\n\n{item.text}")


@notifications.command()
@click.argument("ids", nargs=-1, metavar="[NOTIFICATION]...")
@_TENANT_OPTION
@_READER_OPTION
@common_options
def read(ids: tuple[str, ...], tenant: str | None, reader: str | None, output: Output, target: Target) -> None:
    """Mark notifications as read; all of them if no id is given. `-` reads ids from standard input.

    \b
    Examples:
      redrive notifications read
      redrive notifications list --unread --workflow fulfil -q | redrive notifications read -
    """
    user = name_or_current_user(reader, "--reader")
    named = read_ids(ids) if ids else None
    marked = run_on(target, lambda app: app.notifications.mark_read(named, reader=user, tenant=tenant))
    output.done(str(marked), {"marked": marked}, f"marked {marked} as read")


@notifications.command()
@common_options
def rules(output: Output, target: Target) -> None:
    """List the stored rules: who is notified about which events. Only the host of a URL is shown.

    \b
    Examples:
      redrive notifications rules
    """
    columns: list[Column[StoredRule]] = [
        *field_columns(WORKFLOW="workflow", TENANT="tenant"),
        Column("ON", lambda one: None if one.only_escalates else ", ".join(one.on) or "nothing"),
        Column("TOLD", lambda one: ", ".join([*one.targets, *_name_inbox(one)])),
        Column("ESCALATES", _describe_escalation),
        *field_columns(SET_BY="updated_by", SET="updated_at"),
    ]
    stored = run_on(target, lambda app: app.notifications.rules())
    empty = "No rule is stored: the rules of the code apply."
    output.list(list(stored), columns, id=lambda one: _format_rule_id(one.tenant, one.workflow), empty=empty)


def _parse_rule(_: click.Context, __: click.Parameter, text: str) -> Any:
    from redrive.core.notify_rules import NotifyRule

    with report_usage_errors():
        rule = parse_json_text(text, "the rule")
        NotifyRule.read(rule, "the rule")
    return rule


@change_command(
    notifications,
    click.argument("rule", metavar="RULE", callback=_parse_rule),
    _WORKFLOW_OPTION,
    _TENANT_OPTION,
    short_help="Store who is notified, for a workflow or for all.",
)
async def set_(
    app: Redrive, rule: Any, workflow: str | None, tenant: str | None, change: ChangeOptions
) -> ChangeResult:
    """Store who is notified. The rule replaces the one for the same workflow and tenant, and overrides the code.

    RULE is JSON with `on`, `email`, `slack`, `teams`, `webhook`, `channels` and `app`, as in `notify=` of a
    workflow; {"on": []} turns notifications off. `escalate` says when open dead letters are escalated; a rule with
    nothing else leaves notifications as they are, and {"after": 0} turns escalation off.

    \b
    Examples:
      redrive notifications set --workflow fulfil '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
      redrive notifications set --tenant acme '{"on": []}'
      redrive notifications set --tenant acme '{"escalate": {"after": "4h", "to": "ADMIN"}}'
    """
    scope = _describe_rule_scope(tenant, workflow)
    change.confirm(f"Store this rule for {scope}")
    if not change.dry_run:
        await app.notifications.set_rule(rule, workflow=workflow, tenant=tenant, by=change.by)
    verb = "would store" if change.dry_run else "stored"
    return _format_rule_id(tenant, workflow), rule, f"{verb} the rule for {scope}"


@change_command(notifications, _WORKFLOW_OPTION, _TENANT_OPTION)
async def unset(app: Redrive, workflow: str | None, tenant: str | None, change: ChangeOptions) -> ChangeResult:
    """Remove a stored rule; a more general rule, or the rule of the code, applies again.

    \b
    Examples:
      redrive notifications unset --workflow fulfil
    """
    scope, id = _describe_rule_scope(tenant, workflow), _format_rule_id(tenant, workflow)
    change.confirm(f"Remove the rule for {scope}")
    if not change.dry_run and not await app.notifications.delete_rule(workflow=workflow, tenant=tenant, by=change.by):
        raise CommandFailed(f"no rule is stored for {scope}: `{hint('notifications', 'rules')}` lists all", NOT_FOUND)
    return id, {"rule": id}, f"{'would remove' if change.dry_run else 'removed'} the rule for {scope}"


def _name_inbox(rule: StoredRule) -> tuple[str, ...]:
    return ("inbox",) if rule.app and not rule.only_escalates else ()


def _describe_escalation(rule: StoredRule) -> str | None:
    if rule.escalate_after is None:
        return None
    return f"to {rule.escalate_to} after {format_duration(rule.escalate_after)}" if rule.escalate_after else "never"


def _format_rule_id(tenant: str | None, workflow: str | None) -> str:
    return f"{tenant or '*'}/{workflow or '*'}"


def _describe_rule_scope(tenant: str | None, workflow: str | None) -> str:
    workflows = f"workflow {workflow!r}" if workflow else "all workflows"
    return f"{workflows} of tenant {tenant!r}" if tenant else workflows
