"""`redrive dlq list` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.filters import filtered
from redrive.cli.output import Column, Output, echo, on_terminal, shown
from redrive.cli.paging import Listing, Pages, paged
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import DeadLetter
    from redrive.store.records import Page
    from redrive.store.selection import LetterFilter

__all__ = ["error_and_reason", "list_", "show"]

_LENGTH = 300  # of a message in a table
_STATUSES = ("OPEN", "REPLAYING", "RESOLVED", "IGNORED", "EXPIRED", "ALL")


@click.command("list")
@click.option(
    "--status",
    type=click.Choice(_STATUSES, case_sensitive=False),
    help="Only letters that stand here.  [default: OPEN]",
)
@click.option(
    "--view", metavar="NAME", help="As this saved view of the dashboard has it; other options go before it."
)
@filtered
@paged
@shown
@at_a_place
def list_(
    status: str | None,
    view: str | None,
    filters: dict[str, Any],
    pages: Pages,
    output: Output,
    place: Place,
) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      redrive dlq list
      redrive dlq list --code timeout --since 1d
      redrive dlq list --index customer.email=ann@example.org
      redrive dlq list -q --step charge | redrive dlq replay -
      redrive dlq list --view "night shift"
    """
    given = {name: value for name, value in {**filters, "status": status}.items() if value is not None}

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[DeadLetter]:
        where = given if view is None else {**await _viewed(app, view, filters["tenant"]), **given}
        return await app.dlq.list(_filter(where), limit=limit, cursor=cursor)

    listing: Listing[DeadLetter] = Listing(
        fetch=fetch,
        columns=_for_people() if on_terminal() else _for_programs(),
        id=lambda letter: letter.id,
        empty="No dead letter matches."
        if given or view
        else "No dead letter here: nothing waits for a person.",
    )
    pages.show(place, listing, output)


async def _viewed(app: Redrive, view: str, tenant: str | None) -> dict[str, Any]:
    from redrive.cli.dlq.views import opened

    return await opened(app, view, tenant)


def _filter(wanted: dict[str, Any]) -> LetterFilter:
    """Open letters, unless something else is said."""
    from redrive.store.selection import LetterFilter

    status = wanted.get("status", "OPEN")
    return LetterFilter(**{**wanted, "status": None if status == "ALL" else status})


def _for_people() -> list[Column[DeadLetter]]:
    """What a letter is about comes early, and why it waits is one sentence."""
    return [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("ABOUT", _about),
        Column("STATUS", _status),
        Column("FAILED", lambda letter: letter.failed_at),
        Column("OWNER", lambda letter: letter.owner),
        Column("TAGS", lambda letter: " ".join(letter.tags)),
        Column("CODE", lambda letter: letter.code),
        Column("REASON", _reason, sentence=True),
    ]


def _for_programs() -> list[Column[DeadLetter]]:
    """One line for each letter; a column keeps its place, and new ones come last."""
    return [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("CODE", lambda letter: letter.code),
        Column("FAILED", lambda letter: letter.failed_at),
        Column("REASON", lambda letter: letter.reason),
        Column("MESSAGE", _message),
        Column("OWNER", lambda letter: letter.owner),
        Column("TAGS", lambda letter: " ".join(letter.tags)),
        Column("ABOUT", _about),
        Column("STATUS", lambda letter: letter.status.value),
    ]


def _about(letter: DeadLetter) -> str:
    """What people know it by: its correlation id, and the fields that the workflow is searched by."""
    from redrive.core.index import reached

    fields = (letter.config or {}).get("index", ())
    values = [letter.correlation_id, *(reached(letter.input, field) for field in fields)]
    return " ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _reason(letter: DeadLetter) -> str:
    return error_and_reason(_message(letter), letter.reason)


def error_and_reason(error: str, reason: str) -> str:
    """What an error said, at some length, and the engine's reason, unless the one quotes the other."""
    said = error if len(error) <= _LENGTH else f"{error[: _LENGTH - 1]}…"
    return reason if said in reason else f"{said} ({reason})"


def _message(letter: DeadLetter) -> str:
    return " ".join(letter.message.split()) or letter.error_type


def _status(letter: DeadLetter) -> str | None:
    """Where it stands, unless it is open, as nearly all in a list are."""
    return None if letter.status.value == "OPEN" else letter.status.value


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
    from redrive.cli.change import named_or_user
    from redrive.cli.dlq.finding import found_letter

    who = named_or_user(by, "--by")

    async def find(app: Redrive) -> DeadLetter:
        letter = await found_letter(app, id)
        return await app.dlq.get(letter.id, reveal=True, by=who) if reveal else letter

    letter = ask(place, find)
    if output.json:
        output.object(letter)
    elif output.quiet:
        echo(letter.id)
    else:
        from redrive.cli.dlq.story import story

        echo("\n".join(story(letter)))
