"""`redrive dlq`: look at dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.moment import MOMENT
from redrive.cli.output import Column, Output, clean, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import DeadLetter

__all__ = ["dlq"]

_STATUSES = ("OPEN", "REPLAYING", "RESOLVED", "IGNORED", "EXPIRED", "ALL")


@click.group(short_help="Look at failures that wait for a person.")
def dlq() -> None:
    """Look at dead letters: failures that wait for a person.

    \b
    Examples:
      redrive dlq list
      redrive dlq show dl-01k9x7
    """


@dlq.command("list")
@click.option(
    "--status",
    type=click.Choice(_STATUSES, case_sensitive=False),
    default="OPEN",
    show_default=True,
    help="Only letters that stand here.",
)
@click.option("--workflow", metavar="NAME", help="Only letters of this workflow.")
@click.option("--step", metavar="NAME", help="Only failures of this step.")
@click.option("--code", metavar="CODE", help="Only this code, such as timeout or exhausted_retries.")
@click.option("--category", metavar="NAME", help="Only this category of error, such as network.")
@click.option("--stage", metavar="NAME", help="Only failures at this stage, such as exec.")
@click.option("--fingerprint", metavar="TEXT", help="Only failures with this cause.")
@click.option("--owner", metavar="NAME", help="Only letters that are assigned to this person.")
@click.option("--text", metavar="TEXT", help="Only letters whose reason contains this.")
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--since", type=MOMENT, metavar="TIME", help="Written at or after: 2h (ago), or an ISO time.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Written before.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the last page ended.")
@shown
@at_a_place
def list_(place: Place, output: Output, limit: int, cursor: str | None, **filters: Any) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      redrive dlq list
      redrive dlq list --code timeout --since 1d
      redrive dlq list -q --step charge | wc -l
    """
    from redrive.store.port import LetterFilter

    if filters["status"] == "ALL":
        filters["status"] = None
    page = ask(place, lambda app: app.dlq.list(LetterFilter(**filters), limit=limit, cursor=cursor))
    columns: list[Column[DeadLetter]] = [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("CODE", lambda letter: letter.code),
        Column("FAILED", lambda letter: letter.failed_at),
        Column("REASON", lambda letter: letter.reason),
    ]
    output.list(
        page.items,
        columns,
        id=lambda letter: letter.id,
        empty="No dead letter here: nothing waits for a person.",
        next=page.next,
        prev=page.prev,
    )


@dlq.command()
@click.argument("id", metavar="LETTER")
@shown
@at_a_place
def show(id: str, place: Place, output: Output) -> None:
    """Show one dead letter: why it is here, every attempt, the input, the stack.

    LETTER is the id of a letter or of its run, or a beginning that fits no other.

    \b
    Examples:
      redrive dlq show dl-01k9x7
      redrive dlq show 01k9x7 --json
    """
    from redrive.cli.ids import find_letter

    async def find(app: Redrive) -> DeadLetter:
        return await app.dlq.get(await find_letter(app, id))

    letter = ask(place, find)
    if output.json:
        output.object(letter)
    elif output.quiet:
        click.echo(letter.id)
    else:
        click.echo("\n".join(_story(letter)))


def _story(letter: DeadLetter) -> list[str]:
    from redrive.cli.output import ago, styled
    from redrive.cli.runs.story import facts, payload, width
    from redrive.cli.timeline import timeline

    when = f"{letter.failed_at:%Y-%m-%d %H:%M:%S} UTC, {ago(letter.failed_at)}"
    return [
        f"dead letter {letter.id}  {clean(letter.workflow)}  {styled(letter.status, fg='red', bold=True)}",
        *facts(
            reason=letter.reason,
            code=f"{letter.code}, at stage {letter.stage}",
            step=letter.step,
            error=f"{letter.error_type}: {letter.message}",
            category=letter.category,
            failed=when,
            attempts=letter.attempts,
            correlation=letter.correlation_id,
            tenant=None if letter.tenant == "default" else letter.tenant,
            owner=letter.owner,
            fingerprint=letter.fingerprint,
            kept_until=f"{letter.expires_at:%Y-%m-%d} UTC",
        ),
        "",
        *timeline(letter.steps, now=letter.failed_at, width=width()),
        "",
        *payload("input", letter.input),
        "  stack",
        *(f"    {clean(line)}" for line in letter.stack.splitlines()[-8:]),
        "",
        f"  the whole run:  redrive runs show {letter.run_id}",
    ]
