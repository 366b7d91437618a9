"""`redrive dlq resolve` and `ignore`: close letters without running them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.change import Change, changing
from redrive.cli.dlq.filters import ids_or_filter
from redrive.cli.dlq.triage import Note, note_each
from redrive.cli.output import Output, shown
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.store.selection import LetterFilter

__all__ = ["ignore", "resolve"]

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
    from redrive.cli.dlq.deciding import Asked
    from redrive.cli.dlq.many import Many, decide_on_many

    many = Many(verb=verb, begin=lambda app: getattr(app.dlq, f"{verb}_many")(where, rate=rate, **said))
    decide_on_many(place, where, many, Asked(change=change, output=output, wait=wait))
