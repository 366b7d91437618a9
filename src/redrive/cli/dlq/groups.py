"""`redrive dlq groups`: failures by their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from redrive.cli.dlq.look import error_and_reason
from redrive.cli.hints import hint
from redrive.cli.output import Column, Output, ago, echo, on_terminal, shown, told_tenant
from redrive.cli.paging import Listing, Pages, paged
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.desk.groups import FailureGroup, GroupList

__all__ = ["groups"]

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
