"""`redrive runs rollback`: undo what a failed run did."""

from __future__ import annotations

import click

from redrive.cli.change import Change, changing
from redrive.cli.output import Output, shown
from redrive.cli.place import Place, at_a_place

__all__ = ["rollback"]


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@changing
@shown
@at_a_place
def rollback(id: str, reason: str | None, change: Change, place: Place, output: Output) -> None:
    """Undo what a failed RUN did, by the compensations of its steps. `saga show` follows it.

    It works whether or not the workflow is rolled back by itself, and is refused behind a pivot.

    \b
    Examples:
      redrive runs rollback 01k9x7 --dry-run
      redrive runs rollback 01k9x7 --reason "the customer cancelled"
    """
    from redrive.cli.saga import decide_back

    decide_back(place, id, "rollback", None, reason, change, output)
