"""`redrive dlq assign`, `escalate`, `comment`, `tag`, `resolve`, `ignore` and `groups`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.arguments import act_on_letter, describe_letters, load_letter
from redrive.cli.dlq.bulk import BulkDecision, run_bulk_decision
from redrive.cli.dlq.list import join_error_and_reason, selection_options
from redrive.cli.messages import CONFLICT, CommandFailed, UsageError, hint
from redrive.cli.options import ChangeOptions, exit_if_failed, for_each_id, read_ids
from redrive.cli.output import Column, Output, display_tenant, echo, field_columns, format_age, on_terminal
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.target import Target, common_options, decision_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.desk.presenter import FailureGroup, GroupList
    from redrive.store.filters import LetterFilter

_BAR_CHARACTERS = "▁▂▃▄▅▆▇█"


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="LETTER...")
@click.option("--to", metavar="NAME", help="The new owner.  [default: you]")
@click.option("--nobody", is_flag=True, help="Leave the letters unassigned.")  # language: the option's name
@decision_options
def assign(
    ids: tuple[str, ...], to: str | None, nobody: bool, change: ChangeOptions, output: Output, target: Target
) -> None:
    """Assign letters to a person. `-` reads ids from standard input.

    \b
    Examples:
      redrive dlq assign dl-01k9x7
      redrive dlq assign dl-01k9x7 --to kim
    """
    if to is not None and nobody:
        raise UsageError("--to and --nobody exclude each other")  # language: the option's name
    if to is not None and not to.strip():  # a script gives this when its variable is not set
        raise UsageError(
            "--to is empty: give a name, leave --to out to take it yourself, or give --nobody"  # language: the option
        )
    owner = None if nobody else change.by if to is None else to
    verb, details = ("assign", f" to {owner}") if owner else ("unassign", "")
    _change_letters(target, ids, change, output, "assign", {"to": owner}, verb=verb, past=f"{verb}ed", details=details)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="LETTER...")
@click.option("--to", metavar="NAME", help="A role such as ADMIN, a user, or #NAME for a channel.")
@click.option("--none", is_flag=True, help="Take the escalation back.")
@click.option("--reason", metavar="TEXT", help="Why, for the audit log.")
@decision_options
def escalate(
    ids: tuple[str, ...],
    to: str | None,
    none: bool,
    reason: str | None,
    change: ChangeOptions,
    output: Output,
    target: Target,
) -> None:
    """Escalate letters and notify. `-` reads ids from standard input.

    \b
    Examples:
      redrive dlq escalate dl-01k9x7 --to ADMIN --reason "the customer calls again"
      redrive dlq escalate dl-01k9x7 --to "#ops"
      redrive dlq list --escalated "*"
    """
    if (to is None) != none or (to is not None and not to.strip()):
        raise UsageError("give --to with a role, a user or #CHANNEL, or --none to take the escalation back")
    verb, past, details = ("escalate", "escalated", f" to {to}") if to else ("take back", "took back", "")
    call = {"to": to, "reason": reason}
    _change_letters(target, ids, change, output, "escalate", call, verb=verb, past=past, details=details)


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("text", metavar="TEXT")
@decision_options
def comment(id: str, text: str, change: ChangeOptions, output: Output, target: Target) -> None:
    """Add a comment to a letter.

    \b
    Examples:
      redrive dlq comment dl-01k9x7 "asked the bank, they answer tomorrow"
    """
    _change_letters(target, [id], change, output, "comment", {"text": text}, verb="comment on", past="commented on")


@click.command()
@click.argument("id", metavar="LETTER")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@click.option("--none", is_flag=True, help="Remove all tags.")
@decision_options
def tag(id: str, tags: tuple[str, ...], none: bool, change: ChangeOptions, output: Output, target: Target) -> None:
    """Replace the tags of a letter. `-` as LETTER reads ids from standard input.

    \b
    Examples:
      redrive dlq tag dl-01k9x7 refunded urgent
      redrive dlq tag dl-01k9x7 --none
    """
    if bool(tags) == none:
        raise UsageError("give the new tags of the letter, or --none to remove them")
    details = f": {' '.join(tags) or 'no tags'}"
    _change_letters(target, [id], change, output, "tag", {"tags": tags}, verb="tag", past="tagged", details=details)


def _change_letters(
    target: Target,
    ids: Sequence[str],
    change: ChangeOptions,
    output: Output,
    method: str,
    arguments: dict[str, Any],
    *,
    verb: str,
    past: str,
    details: str = "",
    closes: bool = False,
) -> None:
    """Call a method of `app.dlq` on each letter; an error of one does not stop the others.

    `closes`: the change closes the letters, so the user confirms it.
    """
    from redrive.core.states import LetterStatus

    found: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> None:
        letter = await load_letter(app, id)
        found[letter.id] = letter

    async def apply(app: Redrive, id: str) -> None:
        letter = found[id]
        if change.dry_run:
            if closes and letter.status is not LetterStatus.OPEN:
                raise CommandFailed(f"{id} is {letter.status} already, so it cannot be closed", CONFLICT)
            output.done(id, letter, f"would {verb} {id}{details}")
            return
        call = functools.partial(getattr(app.dlq, method), id, by=change.by, **arguments)
        output.done(id, await act_on_letter(letter, call), f"{past} {id}{details}")

    async def work(app: Redrive) -> int:
        missing = await for_each_id(read_ids(ids), lambda id: find(app, id))
        if closes and any(letter.status is LetterStatus.OPEN for letter in found.values()):
            change.confirm(f"{verb.capitalize()} {describe_letters(list(found.values()))} without running it again")
        return max(missing, await for_each_id(list(found), lambda id: apply(app, id)))

    exit_if_failed(run_on(target, work))


def _make_close_command(verb: str, help: str, reason_help: str) -> click.Command:
    """Make a command that closes letters without running them again."""

    @click.command(verb, help=help)
    @selection_options
    @click.option("--reason", metavar="TEXT", help=reason_help)
    @click.option(
        "--wait",
        is_flag=True,
        help="With --all: wait until all letters are processed; exit code 1 if some were refused or it was stopped.",
    )
    @decision_options
    def close(
        ids: tuple[str, ...],
        where: LetterFilter | None,
        rate: str | None,
        reason: str | None,
        wait: bool,
        change: ChangeOptions,
        output: Output,
        target: Target,
    ) -> None:
        if where is None:
            record = {"reason": reason}
            _change_letters(target, ids, change, output, verb, record, verb=verb, past=f"{verb}d", closes=True)
            return
        call = {"rate": rate, "by": change.by, "reason": reason}
        bulk = BulkDecision(verb=verb, begin=lambda app: getattr(app.dlq, f"{verb}_many")(where, **call))
        run_bulk_decision(target, where, bulk, change, output, wait=wait)

    return close


resolve = _make_close_command(
    "resolve",
    """Mark letters as resolved. `-` reads ids from standard input.

    For failures that were handled elsewhere. Nothing runs again, and the run stays failed. --all takes all
    open letters that match a filter.

    \b
    Examples:
      redrive dlq resolve dl-01k9x7 --reason "refunded by hand"
      redrive dlq resolve --all --tag refunded --reason "refunded by hand"
    """,
    "How it was resolved, for the audit log.",
)
ignore = _make_close_command(
    "ignore",
    """Close letters that need no action. `-` reads ids from standard input.

    Nothing runs again, and the run stays failed. --all takes all open letters that match a filter.

    \b
    Examples:
      redrive dlq ignore dl-01k9x7 --reason "a test order"
      redrive dlq ignore --all --tenant sandbox --reason "test orders"
    """,
    "Why nothing needs to be done, for the audit log.",
)


@click.command(short_help="List failures by their cause.")
@click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]")
@click.option("--closed", is_flag=True, help="Also causes without open letters.")
@page_options
@common_options
def groups(tenant: str | None, closed: bool, pages: PageOptions, output: Output, target: Target) -> None:
    """List failures by their cause, with the number of open letters and the trend; last seen first.

    Workers count them, with a delay of a few seconds. --quiet prints fingerprints.

    \b
    Examples:
      redrive dlq groups
      redrive dlq list --fingerprint daf56cff46003d07
      redrive dlq replay --all --fingerprint daf56cff46003d07
    """
    status = None if closed else "OPEN"
    columns: list[Column[FailureGroup]] = [
        *field_columns(FINGERPRINT="fingerprint", OPEN="open"),
        Column("WORKFLOW", lambda group: ", ".join(group.workflows)),
        Column("STEP", lambda group: ", ".join(group.steps)),
        Column("LAST SEEN", lambda group: group.last_seen),
        Column("LAST 24 H", _format_trend, ends=True),
        Column("REASON", _format_reason, sentence=True),
        *field_columns(FIRST_SEEN="first_seen", TOTAL="total", CODE="code", SAMPLE="sample_id"),
        Column("TENANT", lambda group: display_tenant(group.tenant)),
    ]
    if not on_terminal():  # on a terminal, the reason contains it
        columns.append(Column("ERROR", lambda group: group.error))
    listing: Listing[FailureGroup] = Listing(
        # A page of groups has the fields of other pages, and `as_of`.
        fetch=lambda app, limit, cursor: cast("Any", app.dlq.groups(tenant, status=status, limit=limit, cursor=cursor)),
        columns=columns,
        id=lambda group: group.fingerprint,
        empty="No open failures. All clear.",
        also=("as_of",),
    )
    page: GroupList = cast("Any", pages.show(target, listing, output))
    if not on_terminal() or output.quiet or output.json:
        return
    echo(f"Counted up to {format_age(page.as_of)}.")
    if page.items:
        first = ["--fingerprint", page.items[0].fingerprint]
        echo(f"Letters of the first: {hint('dlq', 'list', *first)}")
        echo(f"Run them again:       {hint('dlq', 'replay', '--all', *first)}")


def _format_reason(group: FailureGroup) -> str | None:
    if group.message is None or not on_terminal():
        return group.message
    return join_error_and_reason(" ".join((group.error or "").split()), group.message)


def _format_trend(group: FailureGroup) -> str:
    """Format failures by hour: as bars on a terminal, as numbers for programs."""
    if not on_terminal():
        return ",".join(map(str, group.trend))
    most = max(group.trend, default=0)
    if not most:
        return ""
    return "".join(_BAR_CHARACTERS[-(-count * 7 // most)] for count in group.trend)
