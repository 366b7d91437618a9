"""`redrive notifications`: the inbox, and the rules of notifications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import NOT_FOUND, CommandFailed, report_usage_errors
from redrive.cli.hints import hint, program_name
from redrive.cli.options import ChangeOptions, _parse_json_text, name_or_current_user, read_ids
from redrive.cli.output import Column, Output, display_tenant, escape_line, field_columns
from redrive.cli.target import CURSOR_OPTION, LIMIT_OPTION, ChangeResult, Target, change_command, common_options, run_on
from redrive.time_values import format_duration

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.notifications import InboxItem, StoredRule

_READER_OPTION = click.option("--reader", metavar="NAME", help="User whose inbox is used.  [default: your user name]")
_TENANT_OPTION = click.option("--tenant", metavar="NAME", help="Only for this tenant.  [default: all]")
_WORKFLOW_OPTION = click.option("--workflow", metavar="NAME", help="Only for this workflow.  [default: all]")


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
def list_(reader: str | None, output: Output, target: Target, **options: Any) -> None:
    """List the inbox, newest first.

    \b
    Examples:
      redrive notifications list --unread
    """
    user = name_or_current_user(reader, "--reader")
    page = run_on(target, lambda app: app.notifications.list(reader=user, **options))
    columns: list[Column[InboxItem]] = [
        *field_columns(ID="id", SENT="at"),
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
        Column("TARGETS", lambda one: ", ".join([*one.targets, *_name_inbox(one)])),
        Column("ESCALATES", _describe_escalation),
        *field_columns(SET_BY="updated_by", SET="updated_at"),
    ]
    stored = run_on(target, lambda app: app.notifications.rules())
    empty = "No rule is stored: the rules of the code apply."
    output.list(list(stored), columns, id=lambda one: _format_rule_id(one.tenant, one.workflow), empty=empty)


def _parse_rule(_: click.Context, __: click.Parameter, text: str) -> Any:
    from redrive.core.notification_rules import NotifyRule

    with report_usage_errors():
        rule = _parse_json_text(text, "the rule")
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
    """Remove a stored rule. A more general rule, or the rule of the code, applies again.

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
