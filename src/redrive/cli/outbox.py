"""`redrive outbox`: messages, where they got to, and deciding about those that did not arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, REFUSED, CommandFailed, hint
from redrive.cli.options import TIME_TYPE, ChangeOptions, change_options, find_run_id, for_each_id_or_exit, read_ids
from redrive.cli.output import Column, Output, display_tenant, echo, escape_line, json_text, output_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.outbox import Blocked, Delivery, OutboxMessage, SinkStatus

_STATUSES = ("PENDING", "DELIVERED", "DEAD", "SKIPPED")


@click.group(short_help="See messages; retry and skip those that did not arrive.")
def outbox() -> None:
    """See which messages were published and where they got to. Decide about those that did not arrive.

    \b
    Examples:
      redrive outbox list --status DEAD
      redrive outbox blocked
      redrive outbox retry msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0
      redrive outbox list --status DEAD --sink billing -q | redrive outbox retry -
    """


@outbox.command("list")
@click.option("--topic", metavar="TOPIC", help="Only this topic; orders.* means all that begin so.")
@click.option("--key", metavar="KEY", help="Only messages with this key.")
@click.option("--run", metavar="RUN", help="Only messages of this run.")
@click.option("--sink", metavar="NAME", help="Only messages that go to this sink.")
@click.option(
    "--status", type=click.Choice(_STATUSES, case_sensitive=False), help="Only with a delivery that stands so."
)
@click.option("--tenant", metavar="NAME", help="Only messages of this tenant.  [default: all]")
@click.option("--since", type=TIME_TYPE, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
@click.option("--until", type=TIME_TYPE, metavar="TIME", help="Before.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@output_options
@target_options
def list_(limit: int, cursor: str | None, output: Output, place: Target, **filters: Any) -> None:
    """List messages, newest first.

    \b
    Examples:
      redrive outbox list --topic "orders.*" --since 1h
      redrive outbox list --status DEAD --sink billing
    """

    async def work(app: Redrive) -> Any:
        from redrive.store.filters import OutboxFilter

        run = filters.pop("run")
        filters["run_id"] = await find_run_id(app, run) if run else None
        return await app.outbox.list(OutboxFilter(**filters), limit=limit, cursor=cursor)

    page = run_on(place, work)
    columns: list[Column[OutboxMessage]] = [
        Column("ID", lambda one: one.id),
        Column("PUBLISHED", lambda one: one.created_at),
        Column("TOPIC", lambda one: one.topic),
        Column("KEY", lambda one: one.key),
        Column("DELIVERIES", lambda one: ", ".join(_describe_delivery(each) for each in one.deliveries)),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    output.list(
        page.items,
        columns,
        id=lambda one: one.id,
        empty="No message of this kind is in the outbox.",
        next=page.next,
        prev=page.prev,
    )


@outbox.command()
@click.argument("id", metavar="MESSAGE")
@output_options
@target_options
def show(id: str, output: Output, place: Target) -> None:
    """Show a message: what it says, and where it got to. Hidden fields stay hidden.

    \b
    Examples:
      redrive outbox show msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0
    """

    async def work(app: Redrive) -> Any:
        return await app.outbox.get(await _find_message_id(app, id))

    message = run_on(place, work)
    if output.json:
        output.object(message)
    elif output.quiet:
        echo(message.id)
    else:
        _print_message(message)


@outbox.command()
@click.option("--tenant", metavar="NAME", help="Only keys of this tenant.  [default: all]")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@output_options
@target_options
def blocked(tenant: str | None, limit: int, output: Output, place: Target) -> None:
    """List keys whose messages wait behind one that did not arrive.

    \b
    Examples:
      redrive outbox blocked
    """
    columns: list[Column[Blocked]] = [
        Column("MESSAGE", lambda one: one.message_id),
        Column("SINK", lambda one: one.sink),
        Column("KEY", lambda one: one.key),
        Column("WAITING", lambda one: one.waiting),
        Column("ERROR", lambda one: one.error),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    output.list(
        run_on(place, lambda app: app.outbox.blocked(tenant=tenant, limit=limit)),
        columns,
        id=lambda one: one.message_id,
        empty="No key is blocked.",
    )


@outbox.command()
@output_options
@target_options
def sinks(output: Output, place: Target) -> None:
    """List the sinks that messages go to, and how many messages wait for each.

    \b
    Examples:
      redrive outbox sinks
    """
    columns: list[Column[SinkStatus]] = [
        Column("SINK", lambda one: one.name),
        Column("KIND", lambda one: one.kind),
        Column("TOPICS", lambda one: " ".join(one.topics)),
        Column("PENDING", lambda one: one.pending),
        Column("DEAD", lambda one: one.dead),
        Column("LAST SEEN", lambda one: one.seen_at),
    ]
    output.list(
        run_on(place, lambda app: app.sinks.list()),
        columns,
        id=lambda one: one.name,
        empty="No worker whose app has sinks was started yet.",
    )


def _decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        target_options,
        output_options,
        change_options,
        click.option("--reason", metavar="TEXT", help="Why, for the record."),
        click.option("--sink", metavar="NAME", help="At this sink only.  [default: all]"),
        click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True),
    ):
        command = option(command)
    return command


@outbox.command()
@_decision_options
def retry(ids: tuple[str, ...], **how: Any) -> None:
    """Send messages again that are dead or wait for their time. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox retry msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --sink billing
    """
    _apply_decision("retry", "sent again", ids, **how)


@outbox.command()
@_decision_options
def skip(ids: tuple[str, ...], **how: Any) -> None:
    """Give up on messages; those behind them go on. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox skip msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --reason "told them by phone"
    """
    _apply_decision("skip", "skipped", ids, **how)


def _apply_decision(
    verb: str,
    done: str,
    ids: tuple[str, ...],
    *,
    sink: str | None,
    reason: str | None,
    change: ChangeOptions,
    output: Output,
    place: Target,
) -> None:
    wanted = read_ids(ids)
    change.confirm(f"{verb} {len(wanted)} message{'' if len(wanted) == 1 else 's'}")

    async def work(app: Redrive) -> None:
        async def one(text: str) -> None:
            id = await _find_message_id(app, text)
            act = getattr(app.outbox, verb)
            message = await act(id, sink=sink, by=change.by, reason=reason, dry_run=change.dry_run)
            told = f"would {verb}" if change.dry_run else done
            output.done(id, message, f"{told} {id}: {_describe_deliveries(message)}")

        await for_each_id_or_exit(wanted, one)

    run_on(place, work)


@outbox.command()
@click.argument("name", metavar="SINK")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@change_options
@output_options
@target_options
def forget(name: str, reason: str | None, change: ChangeOptions, output: Output, place: Target) -> None:
    """Forget a sink that no app has any more, and skip the messages that wait for it.

    \b
    Examples:
      redrive outbox forget billing --reason "the old billing system is gone"
    """
    change.confirm(f"forget sink {name} and skip what waits for it")

    async def work(app: Redrive) -> None:
        await app.sinks.remove(name, by=change.by, reason=reason, dry_run=change.dry_run)

    run_on(place, work)
    output.done(name, {"sink": name}, f"{'would forget' if change.dry_run else 'forgot'} {name}")


async def _find_message_id(app: Redrive, text: str) -> str:
    """The id of the message that is meant; a run's id, or its beginning, means its only message."""
    if text.startswith("msg-"):
        return text
    from redrive.store.filters import OutboxFilter

    run = await find_run_id(app, text)
    found = [one.id for one in (await app.outbox.list(OutboxFilter(run_id=run), limit=2)).items]
    if not found:
        raise CommandFailed(f"run {run} has no message in the outbox", NOT_FOUND)
    if len(found) > 1:
        seen = hint("outbox", "list", "--run", run)
        raise CommandFailed(f"run {run} published several messages; `{seen}` shows them", REFUSED)
    return found[0]


def _describe_delivery(delivery: Delivery) -> str:
    return f"{delivery.sink} {delivery.status.lower()}"


def _describe_deliveries(message: OutboxMessage) -> str:
    return ", ".join(_describe_delivery(each) for each in message.deliveries) or "no sink"


def _print_message(message: OutboxMessage) -> None:
    echo(f"{message.id}\n")
    facts = {
        "topic": message.topic,
        "key": message.key,
        "tenant": message.tenant,
        "run": message.run_id,
        "published": message.created_at.isoformat(timespec="seconds"),
    }
    for name, value in facts.items():
        if value is not None:
            echo(f"{name:10} {escape_line(value)}")
    echo(json_text(message.payload, indent=2))
    for one in message.deliveries:
        echo(f"\n{escape_line(one.sink)}: {one.status.lower()}, {one.attempt} tried{_describe_wait(one)}")


def _describe_wait(one: Delivery) -> str:
    said = ""
    if one.behind is not None:
        said += f", waits behind {one.behind}"
    elif one.next_at is not None:
        said += f", next at {one.next_at.isoformat(timespec='seconds')}"
    return said + (f"\n    {escape_line(one.error)}" if one.error else "")
