"""`redrive dlq assign`, `comment` and `tag`: note something on letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.list import error_and_reason, ids_or_filter
from redrive.cli.messages import Misused, hint
from redrive.cli.options import Change, changing, end, tried
from redrive.cli.output import Column, Output, ago, echo, on_terminal, shown, told_tenant
from redrive.cli.pager import Listing, Pages, paged
from redrive.cli.place import Place, ask, at_a_place
from redrive.frozen import dataclass

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.desk.presenter import FailureGroup, GroupList
    from redrive.store.filters import LetterFilter

__all__ = ["Note", "assign", "comment", "groups", "ignore", "note_each", "resolve", "tag"]


# -- `redrive dlq assign`, `comment` and `tag`: note something on letters --------------------------------


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
    from redrive.cli.dlq.lookup import act_on, found_letter, must_be_open, named
    from redrive.cli.options import given
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


# -- `redrive dlq resolve` and `ignore`: close letters without running them again ------------------------


_WAIT = click.option(
    "--wait",
    is_flag=True,
    help="With --all: wait until every letter was decided on; exit code 1 if some were refused or the set "
    "was stopped.",
)


@click.command()
@ids_or_filter
@click.option("--reason", metavar="TEXT", help="What was done about it, for the record.")
@_WAIT
@changing
@shown
@at_a_place
def resolve(ids: tuple[str, ...], where: LetterFilter | None, place: Place, **how: Any) -> None:
    """Close letters whose cause was dealt with outside. `-` reads ids from standard input.

    Nothing runs again: the run has failed for good, and the letter says why that is all right. --all takes
    all open letters that match a filter.

    \b
    Examples:
      redrive dlq resolve dl-01k9x7 --reason "refunded by hand"
      redrive dlq resolve --all --tag refunded --reason "refunded by hand"
    """
    _close("resolve", place, ids, where, **how)


@click.command()
@ids_or_filter
@click.option("--reason", metavar="TEXT", help="Why nothing needs to be done, for the record.")
@_WAIT
@changing
@shown
@at_a_place
def ignore(ids: tuple[str, ...], where: LetterFilter | None, place: Place, **how: Any) -> None:
    """Close letters that need nothing done. `-` reads ids from standard input.

    Nothing runs again: the run has failed for good. --all takes all open letters that match a filter.

    \b
    Examples:
      redrive dlq ignore dl-01k9x7 --reason "a test order"
      redrive dlq ignore --all --tenant sandbox --reason "test orders"
    """
    _close("ignore", place, ids, where, **how)


def _close(
    verb: str,
    place: Place,
    ids: Sequence[str],
    where: LetterFilter | None,
    *,
    reason: str | None,
    wait: bool,
    rate: str | None,
    change: Change,
    output: Output,
) -> None:
    said = {"by": change.by, "reason": reason}
    if where is None:
        note = Note(
            verb=verb,
            done=f"{verb}d",
            make=lambda app, id: getattr(app.dlq, verb)(id, **said),
            closes=True,
        )
        note_each(place, ids, note, change, output)
        return
    from redrive.cli.dlq.decision import Asked
    from redrive.cli.dlq.lookup import Many, decide_on_many

    many = Many(verb=verb, begin=lambda app: getattr(app.dlq, f"{verb}_many")(where, rate=rate, **said))
    decide_on_many(place, where, many, Asked(change=change, output=output, wait=wait))


# -- `redrive dlq groups`: failures by their cause -------------------------------------------------------


_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--closed", is_flag=True, help="Also those of which no letter is open any more.")
@paged
@shown
@at_a_place
def groups(tenant: str | None, closed: bool, pages: Pages, output: Output, place: Place) -> None:
    """List failures by their cause, the one seen last first: how many wait, since when, how it develops.

    Workers count them, a few seconds late. --quiet prints fingerprints.

    \b
    Examples:
      redrive dlq groups
      redrive dlq list --fingerprint daf56cff46003d07
      redrive dlq replay --all --fingerprint daf56cff46003d07
    """
    status = None if closed else "OPEN"
    columns: list[Column[FailureGroup]] = [
        Column("FINGERPRINT", lambda group: group.fingerprint),
        Column("OPEN", lambda group: group.open),
        Column("WORKFLOW", lambda group: ", ".join(group.workflows)),
        Column("STEP", lambda group: ", ".join(group.steps)),
        Column("LAST SEEN", lambda group: group.last_seen),
        Column("LAST 24 H", _trend, ends=True),
        Column("REASON", _reason, sentence=True),
        Column("FIRST SEEN", lambda group: group.first_seen),
        Column("TOTAL", lambda group: group.total),
        Column("CODE", lambda group: group.code),
        Column("SAMPLE", lambda group: group.sample_id),
        Column("TENANT", lambda group: told_tenant(group.tenant)),
    ]
    if not on_terminal():  # people read it with the reason
        columns.append(Column("ERROR", lambda group: group.error))
    listing: Listing[FailureGroup] = Listing(
        fetch=lambda app, limit, cursor: app.dlq.groups(tenant, status=status, limit=limit, cursor=cursor),
        columns=columns,
        id=lambda group: group.fingerprint,
        empty="No failure waits for a person.",
        also=("as_of",),
    )
    page = cast("GroupList", pages.show(place, listing, output))
    if on_terminal() and not (output.quiet or output.json):
        echo("\n".join(_below(page)))


def _below(page: GroupList) -> list[str]:
    """How late the figures are, and where they lead."""
    lines = [f"Counted up to {ago(page.as_of)}."]
    if page.items:
        first = ["--fingerprint", page.items[0].fingerprint]
        lines += [
            f"Those of the first: {hint('dlq', 'list', *first)}",
            f"Run them again:     {hint('dlq', 'replay', '--all', *first)}",
        ]
    return lines


def _reason(group: FailureGroup) -> str | None:
    """Why the letter that stands for all is there: programs get the error in a column of its own."""
    if group.message is None or not on_terminal():
        return group.message
    return error_and_reason(" ".join((group.error or "").split()), group.message)


def _trend(group: FailureGroup) -> str:
    """Failures by hour: a picture for people, numbers for programs."""
    if not on_terminal():
        return ",".join(map(str, group.trend))
    most = max(group.trend, default=0)
    if not most:
        return ""
    return "".join(_BARS[-(-count * 7 // most)] for count in group.trend)
