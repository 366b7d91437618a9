"""`redrive dlq assign`, `comment` and `tag`: note something on letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec

from redrive.cli.dlq.list import join_error_and_reason, selection_options
from redrive.cli.messages import UsageError, hint
from redrive.cli.options import ChangeOptions, change_options, exit_if_failed, for_each_id
from redrive.cli.output import Column, Output, display_tenant, echo, format_age, on_terminal, output_options
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.target import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.desk.presenter import FailureGroup, GroupList
    from redrive.store.filters import LetterFilter

# -- `redrive dlq assign`, `comment` and `tag`: note something on letters --------------------------------


class LetterChange(msgspec.Struct, frozen=True, kw_only=True):
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
@change_options
@output_options
@target_options
def assign(
    ids: tuple[str, ...], to: str | None, nobody: bool, change: ChangeOptions, output: Output, place: Target
) -> None:
    """Say who looks after letters. `-` reads ids from standard input.

    \b
    Examples:
      redrive dlq assign dl-01k9x7
      redrive dlq assign dl-01k9x7 --to kim
    """
    if to is not None and nobody:
        raise UsageError("--to and --nobody exclude each other")
    if to is not None and not to.strip():  # what a script gives whose variable is not set
        raise UsageError("--to is empty: give a name, leave --to out to take it yourself, or give --nobody")
    owner = None if nobody else change.by if to is None else to
    note = LetterChange(
        verb="assign",
        done="assigned",
        make=lambda app, id: app.dlq.assign(id, to=owner, by=change.by),
        details=f" to {owner or 'nobody'}",
    )
    change_letters(place, ids, note, change, output)


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("text", metavar="TEXT")
@change_options
@output_options
@target_options
def comment(id: str, text: str, change: ChangeOptions, output: Output, place: Target) -> None:
    """Say something about a letter, for whoever looks at it next.

    \b
    Examples:
      redrive dlq comment dl-01k9x7 "asked the bank, they answer tomorrow"
    """
    note = LetterChange(
        verb="comment on", done="commented on", make=lambda app, id: app.dlq.comment(id, text, by=change.by)
    )
    change_letters(place, [id], note, change, output)


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@click.option("--none", is_flag=True, help="Take all tags away.")
@change_options
@output_options
@target_options
def tag(id: str, tags: tuple[str, ...], none: bool, change: ChangeOptions, output: Output, place: Target) -> None:
    """Mark a letter with words, in place of those it has. `-` as LETTER reads ids from standard input.

    \b
    Examples:
      redrive dlq tag dl-01k9x7 refunded urgent
      redrive dlq tag dl-01k9x7 --none
    """
    if bool(tags) == none:
        raise UsageError("give the tags that the letter is to have, or --none")
    note = LetterChange(
        verb="tag",
        done="tagged",
        make=lambda app, id: app.dlq.tag(id, tags, by=change.by),
        details=f": {' '.join(tags) or 'no tags'}",
    )
    change_letters(place, [id], note, change, output)


def change_letters(
    place: Target, ids: Sequence[str], note: LetterChange, change: ChangeOptions, output: Output
) -> None:
    """Do it to each; one that cannot be found or changed does not keep the others from it."""
    from redrive.cli.dlq.lookup import act_on_letter, describe_letters, load_letter, require_open
    from redrive.cli.options import read_ids
    from redrive.core.states import LetterStatus

    found: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> None:
        letter = await load_letter(app, id)
        found[letter.id] = letter

    async def one(app: Redrive, id: str) -> None:
        if change.dry_run:
            if note.closes:
                require_open(found[id])
            output.done(id, found[id], f"would {note.verb} {id}{note.details}")
            return
        letter = await act_on_letter(found[id], lambda: note.make(app, id))
        output.done(id, letter, f"{note.done} {id}{note.details}")

    async def work(app: Redrive) -> int:
        missing = await for_each_id(read_ids(ids), lambda id: find(app, id))
        if note.closes and any(letter.status is LetterStatus.OPEN for letter in found.values()):
            change.confirm(f"{note.verb.capitalize()} {describe_letters(list(found.values()))}: it will not run again")
        return max(missing, await for_each_id(list(found), lambda id: one(app, id)))

    exit_if_failed(run_on(place, work))


# -- `redrive dlq resolve` and `ignore`: close letters without running them again ------------------------


_WAIT_OPTION = click.option(
    "--wait",
    is_flag=True,
    help="With --all: wait until every letter was decided on; exit code 1 if some were refused or the set was stopped.",
)


@click.command()
@selection_options
@click.option("--reason", metavar="TEXT", help="What was done about it, for the record.")
@_WAIT_OPTION
@change_options
@output_options
@target_options
def resolve(ids: tuple[str, ...], where: LetterFilter | None, place: Target, **how: Any) -> None:
    """Close letters whose cause was dealt with outside. `-` reads ids from standard input.

    Nothing runs again: the run has failed for good, and the letter says why that is all right. --all takes
    all open letters that match a filter.

    \b
    Examples:
      redrive dlq resolve dl-01k9x7 --reason "refunded by hand"
      redrive dlq resolve --all --tag refunded --reason "refunded by hand"
    """
    _close_letters("resolve", place, ids, where, **how)


@click.command()
@selection_options
@click.option("--reason", metavar="TEXT", help="Why nothing needs to be done, for the record.")
@_WAIT_OPTION
@change_options
@output_options
@target_options
def ignore(ids: tuple[str, ...], where: LetterFilter | None, place: Target, **how: Any) -> None:
    """Close letters that need nothing done. `-` reads ids from standard input.

    Nothing runs again: the run has failed for good. --all takes all open letters that match a filter.

    \b
    Examples:
      redrive dlq ignore dl-01k9x7 --reason "a test order"
      redrive dlq ignore --all --tenant sandbox --reason "test orders"
    """
    _close_letters("ignore", place, ids, where, **how)


def _close_letters(
    verb: str,
    place: Target,
    ids: Sequence[str],
    where: LetterFilter | None,
    *,
    reason: str | None,
    wait: bool,
    rate: str | None,
    change: ChangeOptions,
    output: Output,
) -> None:
    said = {"by": change.by, "reason": reason}
    if where is None:
        note = LetterChange(
            verb=verb, done=f"{verb}d", make=lambda app, id: getattr(app.dlq, verb)(id, **said), closes=True
        )
        change_letters(place, ids, note, change, output)
        return
    from redrive.cli.dlq.decision import DecisionOptions
    from redrive.cli.dlq.lookup import BulkDecision, run_bulk_decision

    many = BulkDecision(verb=verb, begin=lambda app: getattr(app.dlq, f"{verb}_many")(where, rate=rate, **said))
    run_bulk_decision(place, where, many, DecisionOptions(change=change, output=output, wait=wait))


# -- `redrive dlq groups`: failures by their cause -------------------------------------------------------


_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--closed", is_flag=True, help="Also those of which no letter is open any more.")
@page_options
@output_options
@target_options
def groups(tenant: str | None, closed: bool, pages: PageOptions, output: Output, place: Target) -> None:
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
        Column("LAST 24 H", _format_trend, ends=True),
        Column("REASON", _format_reason, sentence=True),
        Column("FIRST SEEN", lambda group: group.first_seen),
        Column("TOTAL", lambda group: group.total),
        Column("CODE", lambda group: group.code),
        Column("SAMPLE", lambda group: group.sample_id),
        Column("TENANT", lambda group: display_tenant(group.tenant)),
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
        echo("\n".join(_render_footer(page)))


def _render_footer(page: GroupList) -> list[str]:
    """How late the figures are, and where they lead."""
    lines = [f"Counted up to {format_age(page.as_of)}."]
    if page.items:
        first = ["--fingerprint", page.items[0].fingerprint]
        lines += [
            f"Those of the first: {hint('dlq', 'list', *first)}",
            f"Run them again:     {hint('dlq', 'replay', '--all', *first)}",
        ]
    return lines


def _format_reason(group: FailureGroup) -> str | None:
    """Why the letter that stands for all is there: programs get the error in a column of its own."""
    if group.message is None or not on_terminal():
        return group.message
    return join_error_and_reason(" ".join((group.error or "").split()), group.message)


def _format_trend(group: FailureGroup) -> str:
    """Failures by hour: a picture for people, numbers for programs."""
    if not on_terminal():
        return ",".join(map(str, group.trend))
    most = max(group.trend, default=0)
    if not most:
        return ""
    return "".join(_BAR_CHARACTERS[-(-count * 7 // most)] for count in group.trend)
