"""`redrive outbox`: messages, where they got to, and deciding about those that did not arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, REFUSED, Stopped, hint
from redrive.cli.options import MOMENT, Change, changing, each, find_run, given
from redrive.cli.output import Column, Output, clean, echo, json_text, shown, told_tenant
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.outbox import Blocked, Delivery, OutboxMessage, SinkStatus

__all__ = ["outbox"]

_STATES = ("PENDING", "DELIVERED", "DEAD", "SKIPPED")


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
    "--status", type=click.Choice(_STATES, case_sensitive=False), help="Only with a delivery that stands so."
)
@click.option("--tenant", metavar="NAME", help="Only messages of this tenant.  [default: all]")
@click.option("--since", type=MOMENT, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Before.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@shown
@at_a_place
def list_(limit: int, cursor: str | None, output: Output, place: Place, **filters: Any) -> None:
    """List messages, newest first.

    \b
    Examples:
      redrive outbox list --topic "orders.*" --since 1h
      redrive outbox list --status DEAD --sink billing
    """

    async def work(app: Redrive) -> Any:
        from redrive.store.filters import OutboxFilter

        run = filters.pop("run")
        filters["run_id"] = await find_run(app, run) if run else None
        return await app.outbox.list(OutboxFilter(**filters), limit=limit, cursor=cursor)

    page = ask(place, work)
    columns: list[Column[OutboxMessage]] = [
        Column("ID", lambda one: one.id),
        Column("PUBLISHED", lambda one: one.created_at),
        Column("TOPIC", lambda one: one.topic),
        Column("KEY", lambda one: one.key),
        Column("DELIVERIES", lambda one: ", ".join(_short(each) for each in one.deliveries)),
        Column("TENANT", lambda one: told_tenant(one.tenant)),
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
@shown
@at_a_place
def show(id: str, output: Output, place: Place) -> None:
    """Show a message: what it says, and where it got to. Hidden fields stay hidden.

    \b
    Examples:
      redrive outbox show msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0
    """

    async def work(app: Redrive) -> Any:
        return await app.outbox.get(await _find(app, id))

    message = ask(place, work)
    if output.json:
        output.object(message)
    elif output.quiet:
        echo(message.id)
    else:
        _tell(message)


@outbox.command()
@click.option("--tenant", metavar="NAME", help="Only keys of this tenant.  [default: all]")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@shown
@at_a_place
def blocked(tenant: str | None, limit: int, output: Output, place: Place) -> None:
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
        Column("TENANT", lambda one: told_tenant(one.tenant)),
    ]
    output.list(
        ask(place, lambda app: app.outbox.blocked(tenant=tenant, limit=limit)),
        columns,
        id=lambda one: one.message_id,
        empty="No key is blocked.",
    )


@outbox.command()
@shown
@at_a_place
def sinks(output: Output, place: Place) -> None:
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
        ask(place, lambda app: app.sinks.list()),
        columns,
        id=lambda one: one.name,
        empty="No worker whose app has sinks was started yet.",
    )


def _deciding(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        at_a_place,
        shown,
        changing,
        click.option("--reason", metavar="TEXT", help="Why, for the record."),
        click.option("--sink", metavar="NAME", help="At this sink only.  [default: all]"),
        click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True),
    ):
        command = option(command)
    return command


@outbox.command()
@_deciding
def retry(ids: tuple[str, ...], **how: Any) -> None:
    """Send messages again that are dead or wait for their time. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox retry msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --sink billing
    """
    _decide("retry", "sent again", ids, **how)


@outbox.command()
@_deciding
def skip(ids: tuple[str, ...], **how: Any) -> None:
    """Give up on messages; those behind them go on. `-` reads ids from standard input.

    \b
    Examples:
      redrive outbox skip msg-01k9x7qk3v8d2m5n6p7r8s9t0a-3-0 --reason "told them by phone"
    """
    _decide("skip", "skipped", ids, **how)


def _decide(
    verb: str,
    done: str,
    ids: tuple[str, ...],
    *,
    sink: str | None,
    reason: str | None,
    change: Change,
    output: Output,
    place: Place,
) -> None:
    wanted = given(ids)
    change.confirm(f"{verb} {len(wanted)} message{'' if len(wanted) == 1 else 's'}")

    async def work(app: Redrive) -> None:
        async def one(text: str) -> None:
            id = await _find(app, text)
            act = getattr(app.outbox, verb)
            message = await act(id, sink=sink, by=change.by, reason=reason, dry_run=change.dry_run)
            told = f"would {verb}" if change.dry_run else done
            output.done(id, message, f"{told} {id}: {_where(message)}")

        await each(wanted, one)

    ask(place, work)


@outbox.command()
@click.argument("name", metavar="SINK")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@changing
@shown
@at_a_place
def forget(name: str, reason: str | None, change: Change, output: Output, place: Place) -> None:
    """Forget a sink that no app has any more, and skip the messages that wait for it.

    \b
    Examples:
      redrive outbox forget billing --reason "the old billing system is gone"
    """
    change.confirm(f"forget sink {name} and skip what waits for it")

    async def work(app: Redrive) -> None:
        await app.sinks.remove(name, by=change.by, reason=reason, dry_run=change.dry_run)

    ask(place, work)
    output.done(name, {"sink": name}, f"{'would forget' if change.dry_run else 'forgot'} {name}")


async def _find(app: Redrive, text: str) -> str:
    """The id of the message that is meant; a run's id, or its beginning, means its only message."""
    if text.startswith("msg-"):
        return text
    from redrive.store.filters import OutboxFilter

    run = await find_run(app, text)
    found = [one.id for one in (await app.outbox.list(OutboxFilter(run_id=run), limit=2)).items]
    if not found:
        raise Stopped(f"run {run} has no message in the outbox", NOT_FOUND)
    if len(found) > 1:
        seen = hint("outbox", "list", "--run", run)
        raise Stopped(f"run {run} published several messages; `{seen}` shows them", REFUSED)
    return found[0]


def _short(delivery: Delivery) -> str:
    return f"{delivery.sink} {delivery.status.lower()}"


def _where(message: OutboxMessage) -> str:
    return ", ".join(_short(each) for each in message.deliveries) or "no sink"


def _tell(message: OutboxMessage) -> None:
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
            echo(f"{name:10} {clean(value)}")
    echo(json_text(message.payload, indent=2))
    for one in message.deliveries:
        echo(f"\n{clean(one.sink)}: {one.status.lower()}, {one.attempt} tried{_rest(one)}")


def _rest(one: Delivery) -> str:
    said = ""
    if one.behind is not None:
        said += f", waits behind {one.behind}"
    elif one.next_at is not None:
        said += f", next at {one.next_at.isoformat(timespec='seconds')}"
    return said + (f"\n    {clean(one.error)}" if one.error else "")
