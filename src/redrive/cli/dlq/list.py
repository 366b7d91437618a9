"""`redrive dlq list` and `show`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.arguments import parse_index_values, parse_rate_option
from redrive.cli.messages import UsageError
from redrive.cli.options import TIME_TYPE
from redrive.cli.output import Column, Output, echo, on_terminal, output_options
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.store.filters import LetterFilter
    from redrive.store.list_query import Page

# -- Which letters are meant: the options of `dlq list`, and those of commands that take ids or a fi -----


_FILTER_OPTIONS = (
    click.option("--workflow", metavar="NAME", help="Only letters of this workflow."),
    click.option("--step", metavar="NAME", help="Only failures of this step."),
    click.option("--code", metavar="CODE", help="Only this code, such as timeout or exhausted_retries."),
    click.option("--category", metavar="NAME", help="Only this category of error, such as network."),
    click.option("--stage", metavar="NAME", help="Only failures at this stage, such as exec."),
    click.option("--fingerprint", metavar="TEXT", help="Only failures with this cause; `dlq groups` lists them."),
    click.option("--owner", metavar="NAME", help="Only letters that are assigned to this person."),
    click.option("--tag", metavar="WORD", help="Only letters with this tag."),
    click.option("--text", metavar="TEXT", help="Only letters whose reason contains this."),
    click.option(
        "--index",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Only letters with this value in a field that their workflow declared with index=[...]; may be repeated.",
    ),
    click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]"),
    click.option("--since", type=TIME_TYPE, metavar="TIME", help="Written at or after: 2h (ago), or an ISO time."),
    click.option("--until", type=TIME_TYPE, metavar="TIME", help="Written before."),
)
_FILTER_NAMES = (
    "workflow", "step", "code", "category", "stage", "fingerprint", "owner", "tag", "text", "index",
    "tenant", "since", "until",
)  # fmt: skip


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that filter letters; it receives them as `filters`."""

    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        filters = {name: options.pop(name) for name in _FILTER_NAMES}
        filters["index"] = parse_index_values(filters["index"], "--index")
        return command(*args, filters=filters, **options)

    for option in reversed(_FILTER_OPTIONS):
        with_filters = option(with_filters)
    return with_filters


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ids, or a filter in their place; it receives `ids`, and `where` if there are none.

    A filter makes a set, which can be given a `rate`.
    """

    @click.argument("ids", nargs=-1, metavar="[LETTER]...")
    @click.option("--all", "everything", is_flag=True, help="All open letters that match the filter, as a set.")
    @click.option("--rate", metavar="RATE", help="With --all: at most so many letters, such as 50/s, 600/m or 100/h.")
    @filter_options
    @functools.wraps(command)
    def with_choice(
        *args: Any, ids: tuple[str, ...], everything: bool, rate: str | None, filters: dict[str, Any], **others: Any
    ) -> Any:
        where = _build_selection(ids, everything, filters)
        if rate is not None and where is None:
            raise UsageError("--rate is for many letters: give --all and a filter with it")
        pace = None if rate is None else parse_rate_option(rate)
        return command(*args, ids=ids, where=where, rate=pace, **others)

    return with_choice


def _build_selection(ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> LetterFilter | None:
    """A filter without --all is more likely a slip than the wish to decide on many letters."""
    given = {name: value for name, value in filters.items() if value is not None}
    if ids and (everything or given):
        raise UsageError("name letters, or choose them with --all and a filter, but not both")
    if not ids and not everything:
        raise UsageError("name letters by their ids (- reads them from standard input), or give --all and a filter")
    if not everything:
        return None
    from redrive.store.filters import LetterFilter

    return LetterFilter(**given)


# -- `redrive dlq list` and `show` -----------------------------------------------------------------------


_MAX_MESSAGE_LENGTH = 300  # of a message in a table
_STATUSES = ("OPEN", "REPLAYING", "RESOLVED", "IGNORED", "EXPIRED", "ALL")


@click.command("list")
@click.option(
    "--status",
    type=click.Choice(_STATUSES, case_sensitive=False),
    help="Only letters that stand here.  [default: OPEN]",
)
@click.option("--view", metavar="NAME", help="As this saved view of the dashboard has it; other options go before it.")
@filter_options
@page_options
@output_options
@target_options
def list_(
    status: str | None, view: str | None, filters: dict[str, Any], pages: PageOptions, output: Output, place: Target
) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      redrive dlq list
      redrive dlq list --code timeout --since 1d
      redrive dlq list --index customer.email=ann@example.org
      redrive dlq list -q --step charge | redrive dlq replay -
      redrive dlq list --view "night shift"
    """
    given = {name: value for name, value in {**filters, "status": status}.items() if value is not None}

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[DeadLetter]:
        where = given if view is None else {**await _read_view(app, view, filters["tenant"]), **given}
        return await app.dlq.list(_build_filter(where), limit=limit, cursor=cursor)

    listing: Listing[DeadLetter] = Listing(
        fetch=fetch,
        columns=_terminal_columns() if on_terminal() else _piped_columns(),
        id=lambda letter: letter.id,
        empty="No dead letter matches." if given or view else "No dead letter here: nothing waits for a person.",
    )
    pages.show(place, listing, output)


async def _read_view(app: Redrive, view: str, tenant: str | None) -> dict[str, Any]:
    from redrive.cli.dlq.views import load_view_filter

    return await load_view_filter(app, view, tenant)


def _build_filter(wanted: dict[str, Any]) -> LetterFilter:
    """Open letters, unless something else is said."""
    from redrive.store.filters import LetterFilter

    status = wanted.get("status", "OPEN")
    return LetterFilter(**{**wanted, "status": None if status == "ALL" else status})


def _terminal_columns() -> list[Column[DeadLetter]]:
    """What a letter is about comes early, and why it waits is one sentence."""
    return [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("ABOUT", _describe_subject),
        Column("STATUS", _format_status),
        Column("FAILED", lambda letter: letter.failed_at),
        Column("OWNER", lambda letter: letter.owner),
        Column("TAGS", lambda letter: " ".join(letter.tags)),
        Column("CODE", lambda letter: letter.code),
        Column("REASON", _format_reason, sentence=True),
    ]


def _piped_columns() -> list[Column[DeadLetter]]:
    """One line for each letter; a column keeps its place, and new ones come last."""
    return [
        Column("ID", lambda letter: letter.id),
        Column("WORKFLOW", lambda letter: letter.workflow),
        Column("STEP", lambda letter: letter.step),
        Column("CODE", lambda letter: letter.code),
        Column("FAILED", lambda letter: letter.failed_at),
        Column("REASON", lambda letter: letter.reason),
        Column("MESSAGE", _format_message),
        Column("OWNER", lambda letter: letter.owner),
        Column("TAGS", lambda letter: " ".join(letter.tags)),
        Column("ABOUT", _describe_subject),
        Column("STATUS", lambda letter: letter.status.value),
    ]


def _describe_subject(letter: DeadLetter) -> str:
    """What people know it by: its correlation id, and the fields that the workflow is searched by."""
    from redrive.core.new_run import get_field

    fields = (letter.config or {}).get("index", ())
    values = [letter.correlation_id, *(get_field(letter.input, field) for field in fields)]
    return " ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _format_reason(letter: DeadLetter) -> str:
    return join_error_and_reason(_format_message(letter), letter.reason)


def join_error_and_reason(error: str, reason: str) -> str:
    """What an error said, at some length, and the engine's reason, unless the one quotes the other."""
    said = error if len(error) <= _MAX_MESSAGE_LENGTH else f"{error[: _MAX_MESSAGE_LENGTH - 1]}…"
    return reason if said in reason else f"{said} ({reason})"


def _format_message(letter: DeadLetter) -> str:
    return " ".join(letter.message.split()) or letter.error_type


def _format_status(letter: DeadLetter) -> str | None:
    """Where it stands, unless it is open, as nearly all in a list are."""
    return None if letter.status.value == "OPEN" else letter.status.value


@click.command()
@click.argument("id", metavar="LETTER")
@click.option("--reveal", is_flag=True, help="Show hidden values, too; the audit log says that you looked.")
@click.option("--by", metavar="NAME", help="Who looks, for the record.  [default: your user name]")
@output_options
@target_options
def show(id: str, reveal: bool, by: str | None, place: Target, output: Output) -> None:
    """Show one dead letter: what happened, why it waits, what was tried, and what to do next.

    LETTER is the id of a letter or of its run, or a beginning that fits no other. Secrets are hidden.

    \b
    Examples:
      redrive dlq show dl-01k9x7
      redrive dlq show 01k9x7 --json
    """
    from redrive.cli.dlq.lookup import load_letter
    from redrive.cli.options import name_or_current_user

    who = name_or_current_user(by, "--by")

    async def find(app: Redrive) -> DeadLetter:
        letter = await load_letter(app, id)
        return await app.dlq.get(letter.id, reveal=True, by=who) if reveal else letter

    letter = run_on(place, find)
    if output.json:
        output.object(letter)
    elif output.quiet:
        echo(letter.id)
    else:
        from redrive.cli.dlq.show import render_letter

        echo("\n".join(render_letter(letter)))
