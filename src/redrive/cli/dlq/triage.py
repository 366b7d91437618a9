"""`redrive dlq assign`, `escalate`, `comment`, `tag`, `resolve`, `ignore` and `reopen`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.bulk import BulkDecision, run_bulk_decision
from redrive.cli.dlq.letter_selection import act_on_letter, describe_letters, load_letter, selection_options
from redrive.cli.errors import CONFLICT, CommandFailed, UsageError
from redrive.cli.options import ChangeOptions, check_assignee, exit_if_failed, for_each_id, read_ids
from redrive.cli.output import Output
from redrive.cli.target import Target, decision_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.store.filters import LetterFilter


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="LETTER...")
@click.option("--to", metavar="NAME", help="The new assignee.  [default: you]")
@click.option("--unassign", "unassign", is_flag=True, help="Leave the letters unassigned.")
@click.option("--nobody", "unassign", is_flag=True, hidden=True)  # language: the option's former name
@decision_options
def assign(
    ids: tuple[str, ...], to: str | None, unassign: bool, change: ChangeOptions, output: Output, target: Target
) -> None:
    """Assign dead letters to a user; without --to, to you. `-` reads ids from standard input.

    \b
    Examples:
      redrive dlq assign dl-01k9x7
      redrive dlq assign dl-01k9x7 --to kim
      redrive dlq assign dl-01k9x7 --unassign
    """
    check_assignee(to, unassign)
    assignee = None if unassign else change.by if to is None else to
    verb, details = ("assign", f" to {assignee}") if assignee else ("unassign", "")
    _change_letters(
        target, ids, change, output, "assign", {"to": assignee}, verb=verb, past=f"{verb}ed", details=details
    )


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
    """Escalate letters to a role, a user or a channel. It is notified. `-` reads ids from standard input.

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
        raise UsageError("no tags given: name the new tags, or use --none to remove all")
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


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="LETTER...")
@click.option("--reason", metavar="TEXT", help="Why it is reopened, for the audit log.")
@decision_options
def reopen(ids: tuple[str, ...], reason: str | None, change: ChangeOptions, output: Output, target: Target) -> None:
    """Reopen letters that were resolved or ignored. `-` reads ids from standard input.

    Their runs wait for a decision again. Nothing runs until you decide.

    \b
    Examples:
      redrive dlq reopen dl-01k9x7 --reason "the refund was returned"
    """
    _change_letters(target, ids, change, output, "reopen", {"reason": reason}, verb="reopen", past="reopened")
