"""`redrive dlq assign`, `comment` and `tag`: note something on letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import click

from redrive.cli.change import Change, changing, end, tried
from redrive.cli.exits import Misused
from redrive.cli.output import Output, shown
from redrive.cli.place import Place, ask, at_a_place
from redrive.frozen import dataclass

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import DeadLetter

__all__ = ["Note", "assign", "comment", "note_each", "tag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something to do to letters: its words, the doing, and whether it closes them, which is asked first."""

    verb: str
    done: str
    make: Callable[[Redrive, str], Awaitable[DeadLetter]]
    closes: bool = False
    details: str = ""


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="LETTER...")
@click.option("--to", metavar="NAME", help="Who looks after it.  [default: you]")
@click.option("--nobody", is_flag=True, help="Nobody looks after it any more.")
@changing
@shown
@at_a_place
def assign(
    ids: tuple[str, ...], to: str | None, nobody: bool, change: Change, output: Output, place: Place
) -> None:
    """Say who looks after letters. `-` reads ids from standard input.

    \b
    Examples:
      redrive dlq assign dl-01k9x7
      redrive dlq assign dl-01k9x7 --to kim
    """
    if to is not None and nobody:
        raise Misused("--to and --nobody exclude each other")
    if to is not None and not to.strip():  # what a script gives whose variable is not set
        raise Misused("--to is empty: give a name, leave --to out to take it yourself, or give --nobody")
    owner = None if nobody else change.by if to is None else to
    note = Note(
        verb="assign",
        done="assigned",
        make=lambda app, id: app.dlq.assign(id, to=owner, by=change.by),
        details=f" to {owner or 'nobody'}",
    )
    note_each(place, ids, note, change, output)


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("text", metavar="TEXT")
@changing
@shown
@at_a_place
def comment(id: str, text: str, change: Change, output: Output, place: Place) -> None:
    """Say something about a letter, for whoever looks at it next.

    \b
    Examples:
      redrive dlq comment dl-01k9x7 "asked the bank, they answer tomorrow"
    """
    note = Note(
        verb="comment on",
        done="commented on",
        make=lambda app, id: app.dlq.comment(id, text, by=change.by),
    )
    note_each(place, [id], note, change, output)


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@click.option("--none", is_flag=True, help="Take all tags away.")
@changing
@shown
@at_a_place
def tag(id: str, tags: tuple[str, ...], none: bool, change: Change, output: Output, place: Place) -> None:
    """Mark a letter with words, in place of those it has. `-` as LETTER reads ids from standard input.

    \b
    Examples:
      redrive dlq tag dl-01k9x7 refunded urgent
      redrive dlq tag dl-01k9x7 --none
    """
    if bool(tags) == none:
        raise Misused("give the tags that the letter is to have, or --none")
    note = Note(
        verb="tag",
        done="tagged",
        make=lambda app, id: app.dlq.tag(id, tags, by=change.by),
        details=f": {' '.join(tags) or 'no tags'}",
    )
    note_each(place, [id], note, change, output)


def note_each(place: Place, ids: Sequence[str], note: Note, change: Change, output: Output) -> None:
    """Do it to each; one that cannot be found or changed does not keep the others from it."""
    from redrive.cli.dlq.finding import act_on, found_letter, must_be_open, named
    from redrive.cli.ids import given
    from redrive.core.states import LetterStatus

    found: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> None:
        letter = await found_letter(app, id)
        found[letter.id] = letter

    async def one(app: Redrive, id: str) -> None:
        if change.dry_run:
            if note.closes:
                must_be_open(found[id])
            output.done(id, found[id], f"would {note.verb} {id}{note.details}")
            return
        letter = await act_on(found[id], lambda: note.make(app, id))
        output.done(id, letter, f"{note.done} {id}{note.details}")

    async def work(app: Redrive) -> int:
        missing = await tried(given(ids), lambda id: find(app, id))
        if note.closes and any(letter.status is LetterStatus.OPEN for letter in found.values()):
            change.confirm(f"{note.verb.capitalize()} {named(list(found.values()))}: it will not run again")
        return max(missing, await tried(list(found), lambda id: one(app, id)))

    end(ask(place, work))
