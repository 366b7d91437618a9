"""`redrive outbox`: list messages and their deliveries, retry and skip those that were not delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import NOT_FOUND, REFUSED, CommandFailed
from redrive.cli.hints import hint
from redrive.cli.options import (
    REASON_OPTION,
    ChangeOptions,
    exit_if_failed,
    find_run_id,
    for_each_id,
    read_ids,
    time_options,
)
from redrive.cli.output import Column, Output, display_tenant, escape_line, field_columns, json_text
from redrive.cli.target import (
    CURSOR_OPTION,
    LIMIT_OPTION,
    ChangeResult,
    Target,
    change_command,
    common_options,
    decision_options,
    run_on,
)

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.outbox_and_sinks import Blocked, OutboxMessage, SinkStatus
    from redrive.store.result_page import Page


@click.group()
def outbox() -> None:
    """List published messages and their deliveries. Retry or skip those that were not delivered.

    \b
    Examples:
      redrive outbox list --status DEAD
      redrive outbox blocked
      redrive outbox retry msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0
      redrive outbox list --status DEAD --sink billing -q | redrive outbox retry -
    """


@outbox.command("list")
@click.option("--topic", metavar="TOPIC", help="Only this topic; orders.* means all that begin with orders.")
@click.option("--key", metavar="KEY", help="Only messages with this key.")
@click.option("--run", metavar="RUN", help="Only messages of this run.")
@click.option("--sink", metavar="NAME", help="Only messages for this sink.")
@click.option(
    "--status",
    type=click.Choice(("PENDING", "DELIVERED", "DEAD", "SKIPPED"), case_sensitive=False),
    help="Only messages that have a delivery with this status.",
)
@click.option("--tenant", metavar="NAME", help="Only messages of this tenant.  [default: all]")
@time_options
@LIMIT_OPTION
@CURSOR_OPTION
@common_options
def list_(run: str | None, limit: int, cursor: str | None, output: Output, target: Target, **filters: Any) -> None:
    """List messages, newest first.

    \b
    Examples:
      redrive outbox list --topic "orders.*" --since 1h
      redrive outbox list --status DEAD --sink billing
    """
    from redrive.store.filters import OutboxFilter

    async def fetch(app: Redrive) -> Page[OutboxMessage]:
        where = OutboxFilter(run_id=await find_run_id(app, run) if run else None, **filters)
        return await app.outbox.list(where, limit=limit, cursor=cursor)

    columns: list[Column[OutboxMessage]] = [
        *field_columns(ID="id", PUBLISHED="created_at", TOPIC="topic", KEY="key"),
        Column("DELIVERIES", _describe_deliveries),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    page = run_on(target, fetch)
    empty = "No message matches."
    output.list(page.items, columns, id=lambda one: one.id, empty=empty, next=page.next, prev=page.prev)


@outbox.command()
@click.argument("id", metavar="MESSAGE")
@common_options
def show(id: str, output: Output, target: Target) -> None:
    """Show a message: its payload, and its delivery to each sink. Redacted fields stay redacted.

    \b
    Examples:
      redrive outbox show msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0
    """

    async def load(app: Redrive) -> OutboxMessage:
        return await app.outbox.get(await _find_message_id(app, id))

    message = run_on(target, load)
    facts = {
        "topic": message.topic,
        "key": message.key,
        "tenant": message.tenant,
        "run": message.run_id,
        "published": message.created_at.isoformat(timespec="seconds"),
    }
    lines = [f"{message.id}\n"]
    lines += [f"{name:10} {escape_line(value)}" for name, value in facts.items() if value is not None]
    lines.append(json_text(message.payload, indent=2))
    for one in message.deliveries:
        line = f"\n{escape_line(one.sink)}: {one.status.lower()}, {one.attempt} tried"
        if one.behind is not None:
            line += f", waits behind {one.behind}"
        elif one.next_at is not None:
            line += f", next at {one.next_at.isoformat(timespec='seconds')}"
        lines.append(line + (f"\n    {escape_line(one.error)}" if one.error else ""))
    output.record(message.id, message, "\n".join(lines))


@outbox.command()
@click.option("--tenant", metavar="NAME", help="Only keys of this tenant.  [default: all]")
@LIMIT_OPTION
@common_options
def blocked(tenant: str | None, limit: int, output: Output, target: Target) -> None:
    """List keys whose messages wait behind one that was not delivered.

    \b
    Examples:
      redrive outbox blocked
    """
    columns: list[Column[Blocked]] = [
        *field_columns(MESSAGE="message_id", SINK="sink", KEY="key", WAITING="waiting", ERROR="error"),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    found = run_on(target, lambda app: app.outbox.blocked(tenant=tenant, limit=limit))
    output.list(found, columns, id=lambda one: one.message_id, empty="No key is blocked.")


@outbox.command()
@common_options
def sinks(output: Output, target: Target) -> None:
    """List the sinks, and how many messages wait for each.

    \b
    Examples:
      redrive outbox sinks
    """
    columns: list[Column[SinkStatus]] = [
        *field_columns(SINK="name", KIND="kind"),
        Column("TOPICS", lambda one: " ".join(one.topics)),
        *field_columns(PENDING="pending", DEAD="dead", LAST_SEEN="seen_at"),
    ]
    found = run_on(target, lambda app: app.sinks.list())
    empty = "No sink is known: no worker whose app has sinks was started yet."
    output.list(found, columns, id=lambda one: one.name, empty=empty)


def _message_command(command: Callable[..., None]) -> Callable[..., Any]:
    """Make `redrive outbox VERB MESSAGE...` of a function that changes messages."""
    ids = click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True)
    sink = click.option("--sink", metavar="NAME", help="Only the delivery to this sink.  [default: all]")
    return outbox.command(command.__name__)(ids(sink(REASON_OPTION(decision_options(command)))))


@_message_command
def retry(**arguments: Any) -> None:
    """Deliver dead or waiting messages now. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox retry msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --sink billing
    """
    _change_messages("retry", "sent again", **arguments)


@_message_command
def skip(**arguments: Any) -> None:
    """Give up on messages; the messages behind them are delivered. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox skip msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --reason "told them by phone"
    """
    _change_messages("skip", "skipped", **arguments)


def _change_messages(
    verb: str,
    done: str,
    *,
    ids: tuple[str, ...],
    sink: str | None,
    reason: str | None,
    change: ChangeOptions,
    output: Output,
    target: Target,
) -> None:
    names = read_ids(ids)
    change.confirm(f"{verb.capitalize()} {len(names)} message{'' if len(names) == 1 else 's'}")

    async def work(app: Redrive) -> None:
        async def change_message(name: str) -> None:
            id = await _find_message_id(app, name)
            act = getattr(app.outbox, verb)
            message = await act(id, sink=sink, by=change.by, reason=reason, dry_run=change.dry_run)
            result = f"would {verb}" if change.dry_run else done
            output.done(id, message, f"{result} {id}: {_describe_deliveries(message) or 'no sink'}")

        exit_if_failed(await for_each_id(names, change_message))

    run_on(target, work)


@change_command(outbox, click.argument("name", metavar="SINK"), REASON_OPTION)
async def forget(app: Redrive, name: str, reason: str | None, change: ChangeOptions) -> ChangeResult:
    """Forget a sink that no app has any more. Messages that wait for it are skipped.

    \b
    Examples:
      redrive outbox forget billing --reason "the old billing system is gone"
    """
    change.confirm(f"Forget sink {name} and skip the messages that wait for it")
    await app.sinks.remove(name, by=change.by, reason=reason, dry_run=change.dry_run)
    return name, {"sink": name}, f"{'would forget' if change.dry_run else 'forgot'} {name}"


async def _find_message_id(app: Redrive, text: str) -> str:
    """Return the id of a message. The id of a run, or its beginning, names the only message of the run."""
    if text.startswith("msg-"):
        return text
    from redrive.store.filters import OutboxFilter

    run = await find_run_id(app, text)
    found = [one.id for one in (await app.outbox.list(OutboxFilter(run_id=run), limit=2)).items]
    if not found:
        raise CommandFailed(f"run {run} has no message in the outbox", NOT_FOUND)
    if len(found) > 1:
        listing = hint("outbox", "list", "--run", run)
        raise CommandFailed(f"run {run} has several messages: give the id of one; `{listing}` lists them", REFUSED)
    return found[0]


def _describe_deliveries(message: OutboxMessage) -> str:
    return ", ".join(f"{each.sink} {each.status.lower()}" for each in message.deliveries)
