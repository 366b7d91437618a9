"""`redrive dlq list` and `show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.filters import filtered
from redrive.cli.output import Column, Output, echo, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import DeadLetter

__all__ = ["list_", "show"]

_LENGTH = 300  # of a message in a table
_STATUSES = ("OPEN", "REPLAYING", "RESOLVED", "IGNORED", "EXPIRED", "ALL")


@click.command("list")
@click.option(
    "--status",
    type=click.Choice(_STATUSES, case_sensitive=False),
    default="OPEN",
    show_default=True,
    help="Only letters that stand here.",
)
@filtered
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@shown
@at_a_place
def list_(
    status: str, filters: dict[str, Any], limit: int, cursor: str | None, output: Output, place: Place
) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      redrive dlq list
      redrive dlq list --code timeout --since 1d
      redrive dlq list -q --step charge | redrive dlq replay -
    """
    from redrive.store.selection import LetterFilter

    where = LetterFilter(**filters, status=None if status == "ALL" else status)
    page = ask(place, lambda app: app.dlq.list(where, limit=limit, cursor=cursor))
    columns: list[Column[DeadLetter]] = [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("CODE", lambda letter: letter.code),
        Column("FAILED", lambda letter: letter.failed_at),
        *_why(),
        *([Column("STATUS", _status)] if status == "ALL" else []),
        Column("OWNER", lambda letter: letter.owner),
        Column("TAGS", lambda letter: " ".join(letter.tags)),
    ]
    output.list(
        page.items,
        columns,
        id=lambda letter: letter.id,
        empty="No dead letter here: nothing waits for a person.",
        next=page.next,
        prev=page.prev,
    )


def _why() -> list[Column[DeadLetter]]:
    """What the error said, and the engine's reason: in one sentence for people, apart for programs."""
    from redrive.cli.output import on_terminal

    if on_terminal():
        return [
            Column("REASON", lambda letter: f"{_message(letter, _LENGTH)} ({letter.reason})", sentence=True)
        ]
    return [Column("REASON", lambda letter: letter.reason), Column("MESSAGE", _message)]


def _message(letter: DeadLetter, most: int = sys.maxsize) -> str:
    said = " ".join(letter.message.split()) or letter.error_type
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _status(letter: DeadLetter) -> str:
    return letter.status.value


@click.command()
@click.argument("id", metavar="LETTER")
@click.option("--reveal", is_flag=True, help="Show hidden values, too; the audit log says that you looked.")
@click.option("--by", metavar="NAME", help="Who looks, for the record.  [default: your user name]")
@shown
@at_a_place
def show(id: str, reveal: bool, by: str | None, place: Place, output: Output) -> None:
    """Show one dead letter: what happened, why it waits, what was tried, and what to do next.

    LETTER is the id of a letter or of its run, or a beginning that fits no other. Secrets are hidden.

    \b
    Examples:
      redrive dlq show dl-01k9x7
      redrive dlq show 01k9x7 --json
    """
    from redrive.cli.change import user
    from redrive.cli.dlq.finding import found_letter

    async def find(app: Redrive) -> DeadLetter:
        letter = await found_letter(app, id)
        return await app.dlq.get(letter.id, reveal=True, by=by or user()) if reveal else letter

    letter = ask(place, find)
    if output.json:
        output.object(letter)
    elif output.quiet:
        echo(letter.id)
    else:
        from redrive.cli.dlq.story import story

        echo("\n".join(story(letter)))
