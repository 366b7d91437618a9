"""`redrive dlq groups`: failures by their cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.hints import hint
from redrive.cli.output import Column, Output, ago, as_json, echo, on_terminal, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.desk.groups import FailureGroup, GroupList

__all__ = ["groups"]

_BARS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--closed", is_flag=True, help="Also those of which no letter is open any more.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@shown
@at_a_place
def groups(
    tenant: str | None, closed: bool, limit: int, cursor: str | None, output: Output, place: Place
) -> None:
    """List failures by their cause, the one seen last first: how many wait, since when, how it develops.

    Workers count them, a few seconds late. --quiet prints fingerprints.

    \b
    Examples:
      redrive dlq groups
      redrive dlq list --fingerprint daf56cff46003d07
      redrive dlq replay --all --fingerprint daf56cff46003d07
    """
    status = None if closed else "OPEN"
    page = ask(place, lambda app: app.dlq.groups(tenant, status=status, limit=limit, cursor=cursor))
    if output.json:
        output.object(as_json(page))
        return
    columns: list[Column[FailureGroup]] = [
        Column("FINGERPRINT", lambda group: group.fingerprint),
        Column("OPEN", lambda group: group.open),
        Column("WORKFLOW", lambda group: ", ".join(group.workflows)),
        Column("STEP", lambda group: ", ".join(group.steps)),
        Column("LAST SEEN", lambda group: group.last_seen),
        Column("LAST 24 H", _trend),
        Column("REASON", lambda group: group.message, sentence=True),
        Column("FIRST SEEN", lambda group: group.first_seen),
        Column("TOTAL", lambda group: group.total),
        Column("CODE", lambda group: group.code),
        Column("SAMPLE", lambda group: group.sample_id),
        Column("TENANT", lambda group: group.tenant),
    ]
    output.list(
        page.items,
        columns,
        id=lambda group: group.fingerprint,
        empty="No failure waits for a person.",
        next=page.next,
        prev=page.prev,
    )
    if on_terminal() and not output.quiet:
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


def _trend(group: FailureGroup) -> str:
    """Failures by hour: a picture for people, numbers for programs."""
    if not on_terminal():
        return ",".join(map(str, group.trend))
    most = max(group.trend, default=0)
    if not most:
        return ""
    return "".join(_BARS[-(-count * 7 // most)] for count in group.trend)
