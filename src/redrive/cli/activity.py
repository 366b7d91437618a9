"""`redrive notifications`: the inbox, and who is told of what."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, Stopped, hint, program
from redrive.cli.options import MOMENT, Change, changing, given, named_or_user, typed
from redrive.cli.output import (
    Column,
    Output,
    as_json,
    clean,
    echo,
    json_text,
    on_terminal,
    shown,
    told_tenant,
)
from redrive.cli.pager import Listing, Pages, paged
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import AuditRecord
    from redrive.desk.notifications import InboxItem, StoredRule
    from redrive.store.filters import AuditFilter
    from redrive.store.records import Page

__all__ = ["audit", "notifications"]


# -- `redrive audit`: who did what, and what the engine decided by itself --------------------------------


_FIELDS = ("id", "at", "event", "label", "by", "tenant", "subject", "letter", "before", "after", "reason")
_WHOLE = len("dl-") + 26
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@click.group(short_help="See who did what.")
def audit() -> None:
    """See who did what, and what the engine decided by itself. Nothing in the log is ever changed.

    \b
    Examples:
      redrive audit list --by kim --since 7d
      redrive audit export --since 2026-01-01 > audit.csv
    """


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which lines are meant; it receives them as `filters`."""

    @click.option(
        "--event", metavar="NAME", help="Only this event, such as dlq.retry; dlq. means all that begin so."
    )
    @click.option("--by", metavar="NAME", help="Only what this person did; redrive is the engine itself.")
    @click.option("--run", "subject", metavar="RUN", help="Only lines about this run.")
    @click.option("--letter", metavar="LETTER", help="Only lines about this dead letter.")
    @click.option("--tenant", metavar="NAME", help="Only lines of this tenant.  [default: all]")
    @click.option("--since", type=MOMENT, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
    @click.option("--until", type=MOMENT, metavar="TIME", help="Before.")
    @click.option(
        "--lang",
        type=click.Choice(("en", "pl")),
        default="en",
        show_default=True,
        help="Language of the labels.",
    )
    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        names = ("event", "by", "subject", "letter", "tenant", "since", "until")
        filters = {name: options.pop(name) for name in names}
        return command(*args, filters=filters, **options)

    return with_filters


@audit.command("list")
@_chosen
@paged
@shown
@at_a_place
def list_(filters: dict[str, Any], lang: str, pages: Pages, output: Output, place: Place) -> None:
    """List lines of the audit log, newest first.

    \b
    Examples:
      redrive audit list
      redrive audit list --event dlq. --since 1d
      redrive audit list --letter dl-01k9x7 --lang pl
    """

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[AuditRecord]:
        where = await _where(app, filters)
        return await app.audit.list(where, limit=limit, cursor=cursor, language=lang)

    listing: Listing[AuditRecord] = Listing(
        fetch=fetch,
        columns=_columns(),
        id=lambda line: str(line.id),
        empty="Nothing of this kind is in the log.",
    )
    pages.show(place, listing, output)


def _columns() -> list[Column[AuditRecord]]:
    first: list[Column[AuditRecord]] = [
        Column("WHEN", lambda line: line.at),
        Column("BY", lambda line: line.by),
        Column("ABOUT", lambda line: line.letter or line.subject),
    ]
    if on_terminal():
        return [*first, Column("WHAT", _told, sentence=True)]
    return [*first, Column("WHAT", lambda line: line.label), Column("DETAILS", _details)]


@audit.command()
@_chosen
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json")),
    default="csv",
    show_default=True,
    help="A table for a spreadsheet, or one JSON object on each line.",
)
@at_a_place
def export(filters: dict[str, Any], lang: str, form: str, place: Place) -> None:
    """Print every line that matches, newest first, as CSV or JSON.

    In CSV, a text that a spreadsheet would take for a formula has a ' in front.

    \b
    Examples:
      redrive audit export --since 30d > audit.csv
      redrive audit export --format json --event policy. > policies.jsonl
    """

    async def work(app: Redrive) -> None:
        lines = app.audit.export(await _where(app, filters), language=lang)
        await (_as_csv(lines) if form == "csv" else _as_json(lines))

    ask(place, work)


async def _where(app: Redrive, filters: dict[str, Any]) -> AuditFilter:
    """The filter, with ids that were given by a beginning made whole."""
    from redrive.cli.dlq.lookup import found_letter
    from redrive.cli.options import find_run
    from redrive.store.filters import AuditFilter

    whole = dict(filters)
    if whole["subject"]:
        whole["subject"] = await find_run(app, whole["subject"])
    if whole["letter"] and len(whole["letter"]) < _WHOLE:  # a whole id may be of a letter that is gone
        whole["letter"] = (await found_letter(app, whole["letter"])).id
    return AuditFilter(**whole)


async def _as_csv(lines: AsyncIterator[AuditRecord]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_FIELDS)
    async for line in lines:
        row = as_json(line)
        writer.writerow([_cell(row[name]) for name in _FIELDS])


async def _as_json(lines: AsyncIterator[AuditRecord]) -> None:
    async for line in lines:
        echo(json_text(line))


def _cell(value: Any) -> str:
    """A cell of a spreadsheet; none is a formula, whoever wrote it."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _told(line: AuditRecord) -> str:
    return ": ".join(part for part in (line.label, _details(line)) if part)


def _details(line: AuditRecord) -> str:
    """What changed and why, in one line."""
    said = [f"{_short(line.before)} -> {_short(line.after)}" if line.before else _short(line.after)]
    if line.reason:
        said.append(f"because: {line.reason}")
    return "; ".join(part for part in said if part)


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- `redrive notifications`: the inbox, and who is told of what -----------------------------------------


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
def list__notifications(reader: str | None, output: Output, place: Place, **options: Any) -> None:
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
    from redrive.cli.messages import well_called
    from redrive.core.notify_rules import NotifyRule

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
