"""`redrive notifications`: the inbox, and who is told of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.change import Change, changing, named_or_user
from redrive.cli.exits import NOT_FOUND, Stopped
from redrive.cli.hints import hint, program
from redrive.cli.ids import given
from redrive.cli.inputs import typed
from redrive.cli.output import Column, Output, clean, echo, shown, told_tenant
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.notifications import InboxItem, StoredRule

__all__ = ["notifications"]

_READER = click.option("--reader", metavar="NAME", help="Whose inbox.  [default: your user name]")
_TENANT = click.option("--tenant", metavar="NAME", help="Of this tenant.  [default: all]")
_WORKFLOW = click.option("--workflow", metavar="NAME", help="Of this workflow.  [default: all]")


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
@_WORKFLOW
@_TENANT
@_READER
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@shown
@at_a_place
def list_(reader: str | None, output: Output, place: Place, **options: Any) -> None:
    """List the inbox, newest first.

    \b
    Examples:
      redrive notifications list --unread
    """
    who = named_or_user(reader, "--reader")
    page = ask(place, lambda app: app.notifications.list(reader=who, **options))
    columns: list[Column[InboxItem]] = [
        Column("ID", lambda one: one.id),
        Column("TOLD", lambda one: one.at),
        Column("READ", lambda one: "yes" if one.read_at else "no"),
        Column("COUNT", lambda one: one.count),
        Column("WHAT", lambda one: one.title.removeprefix("[redrive] ")),
        Column("TENANT", lambda one: told_tenant(one.tenant)),
    ]
    output.list(
        page.items,
        columns,
        id=lambda one: one.id,
        empty=f"Nothing is in the inbox. To be told of failures: {program()} notifications set --help",
        next=page.next,
        prev=page.prev,
    )


@notifications.command()
@click.argument("id", metavar="NOTIFICATION")
@_READER
@shown
@at_a_place
def show(id: str, reader: str | None, output: Output, place: Place) -> None:
    """Show a notification as it was told. Secrets in it are hidden.

    \b
    Examples:
      redrive notifications show ntf-12-0a1b2c3d4e5f
    """
    who = named_or_user(reader, "--reader")
    item = ask(place, lambda app: app.notifications.get(id, reader=who))
    if output.json:
        output.object(item)
    elif output.quiet:
        echo(item.id)
    else:
        echo(clean(item.title))
        echo("")
        echo(item.text)


@notifications.command()
@click.argument("ids", nargs=-1, metavar="NOTIFICATION...")
@_TENANT
@_READER
@shown
@at_a_place
def read(ids: tuple[str, ...], tenant: str | None, reader: str | None, output: Output, place: Place) -> None:
    """Mark notifications as read, all there are if none is named. `-` reads ids from standard input.

    \b
    Examples:
      redrive notifications read
      redrive notifications list --unread --workflow fulfil -q | redrive notifications read -
    """
    who = named_or_user(reader, "--reader")
    named = given(ids) if ids else None
    marked = ask(place, lambda app: app.notifications.mark_read(named, reader=who, tenant=tenant))
    output.done(str(marked), {"marked": marked}, f"marked {marked} as read")


@notifications.command()
@shown
@at_a_place
def rules(output: Output, place: Place) -> None:
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
        list(ask(place, lambda app: app.notifications.rules())),
        columns,
        id=lambda one: _path(one.tenant, one.workflow),
        empty="No rule is stored: what the code says holds.",
    )


@notifications.command("set", short_help="Store who is told of what, for a workflow or for all.")
@click.argument("rule", metavar="RULE")
@_WORKFLOW
@_TENANT
@changing
@shown
@at_a_place
def set_(
    rule: str, workflow: str | None, tenant: str | None, change: Change, output: Output, place: Place
) -> None:
    """Store who is told of what, replacing the rule for the same. It goes before what the code says.

    RULE is JSON with `on`, `email`, `slack`, `teams`, `webhook`, `channels` and `app`, as `notify=` of a
    workflow takes it; {"on": []} silences.

    \b
    Examples:
      redrive notifications set --workflow fulfil '{"email": ["ops@example.org"], "on": ["dead_letter"]}'
      redrive notifications set --tenant acme '{"on": []}'
    """
    from redrive.cli.exits import well_called
    from redrive.core.notify import NotifyRule

    with well_called():
        wanted = typed(rule, "the rule")
        NotifyRule.read(wanted, "the rule")
    change.confirm(f"Store this rule for {_words(tenant, workflow)}")
    if not change.dry_run:
        ask(
            place,
            lambda app: app.notifications.set_rule(wanted, workflow=workflow, tenant=tenant, by=change.by),
        )
    verb = "would store" if change.dry_run else "stored"
    output.done(_path(tenant, workflow), wanted, f"{verb} who is told of {_words(tenant, workflow)}")


@notifications.command()
@_WORKFLOW
@_TENANT
@changing
@shown
@at_a_place
def unset(workflow: str | None, tenant: str | None, change: Change, output: Output, place: Place) -> None:
    """Remove a stored rule; what is more general, or what the code says, holds again.

    \b
    Examples:
      redrive notifications unset --workflow fulfil
    """

    async def work(app: Redrive) -> None:
        change.confirm(f"Remove the rule for {_words(tenant, workflow)}")
        if change.dry_run:
            return
        if not await app.notifications.delete_rule(workflow=workflow, tenant=tenant, by=change.by):
            shows = hint("notifications", "rules")
            raise Stopped(f"no rule is stored for {_words(tenant, workflow)}; `{shows}` shows all", NOT_FOUND)

    ask(place, work)
    verb = "would remove" if change.dry_run else "removed"
    path = _path(tenant, workflow)
    output.done(path, {"rule": path}, f"{verb} the rule for {_words(tenant, workflow)}")


def _path(tenant: str | None, workflow: str | None) -> str:
    return f"{tenant or '*'}/{workflow or '*'}"


def _words(tenant: str | None, workflow: str | None) -> str:
    what = f"workflow {workflow!r}" if workflow else "all workflows"
    return f"{what} of tenant {tenant!r}" if tenant else what
