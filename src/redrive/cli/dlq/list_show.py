"""`redrive dlq list` and `show`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.letter_selection import build_filter, filter_options, load_letter
from redrive.cli.errors import NOT_FOUND, CommandFailed
from redrive.cli.options import TIME_TYPE, current_user, name_or_current_user
from redrive.cli.output import Column, Output, on_terminal
from redrive.cli.target import Listing, PageOptions, Target, common_options, page_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter, Run
    from redrive.store.result_page import Page

_MAX_MESSAGE_LENGTH = 300  # of a message in a table
_MAX_WAITING = 10  # runs that wait for the run of a letter
_STATUSES = ("OPEN", "REPLAYING", "RESOLVED", "IGNORED", "EXPIRED", "ALL")


@click.command("list")
@click.option(
    "--status", type=click.Choice(_STATUSES, case_sensitive=False), help="Only letters in this state.  [default: OPEN]"
)
@click.option("--view", metavar="NAME", help="Use a saved view of the dashboard; other options override it.")
@filter_options
@page_options
@common_options
def list_(
    status: str | None, view: str | None, filters: dict[str, Any], pages: PageOptions, output: Output, target: Target
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
        fields = given if view is None else {**await _load_view_filter(app, view, filters["tenant"]), **given}
        status = fields.get("status", "OPEN")
        where = build_filter({**fields, "status": None if status == "ALL" else status})
        return await app.dlq.list(where, limit=limit, cursor=cursor)

    listing: Listing[DeadLetter] = Listing(
        fetch=fetch,
        columns=_make_columns(),
        id=lambda letter: letter.id,
        empty="No dead letter matches." if given or view else "No open dead letters. All clear.",
    )
    pages.show(target, listing, output)


async def _load_view_filter(app: Redrive, name: str, tenant: str | None) -> dict[str, Any]:
    """Load the filter of a saved view and its tenant; a view of the user precedes a shared one."""
    from redrive.desk.saved_views import ListName, normalize_name

    views = await app.views.list(ListName.LETTERS, reader=current_user(), tenant=tenant)
    found = [view for view in views if view.name == normalize_name(name)]
    if not found:
        names = ", ".join(repr(known) for known in dict.fromkeys(view.name for view in views))
        advice = f"choose one of {names}" if names else "save one in the dashboard, and give its --tenant"
        raise CommandFailed(f"view {name!r} of dead letters not found: {advice}", NOT_FOUND)
    view = min(found, key=lambda view: view.shared)
    fields: dict[str, Any] = {**view.wanted, "tenant": view.tenant}
    for moment in fields.keys() & {"since", "until"}:
        fields[moment] = TIME_TYPE.convert(fields[moment], None, None)
    if "index" in fields:
        field, _, value = fields["index"].partition(":")
        fields["index"] = {field: value}
    return fields


def _make_columns() -> list[Column[DeadLetter]]:
    values: dict[str, Callable[[DeadLetter], Any]] = {
        "ID": lambda letter: letter.id,
        "WORKFLOW": lambda letter: letter.workflow,
        "STEP": lambda letter: letter.step,
        "CODE": lambda letter: letter.code,
        "FAILED": lambda letter: letter.failed_at,
        "REASON": lambda letter: letter.reason,
        "MESSAGE": _format_message,
        "OWNER": lambda letter: letter.owner,
        "TAGS": lambda letter: " ".join(letter.tags),
        "ABOUT": _describe_subject,
        "STATUS": lambda letter: letter.status.value,
        "ESCALATED": lambda letter: letter.escalated_to,
    }
    # Programs find a column by its position: append new ones at the end.
    titles = list(values)
    if on_terminal():
        titles = ["ID", "WORKFLOW", "STEP", "ABOUT", "STATUS", "FAILED", "OWNER", "TAGS", "CODE", "REASON"]
        # Nearly all letters in a list are open: the table names other states only.
        values["STATUS"] = lambda letter: None if letter.status.value == "OPEN" else letter.status.value
        values["REASON"] = lambda letter: join_error_and_reason(_format_message(letter), letter.reason)
    return [Column(title, values[title], sentence=title == "REASON") for title in titles]


def _describe_subject(letter: DeadLetter) -> str:
    """Return the correlation id and the indexed fields, by which users know a letter."""
    from redrive.core.new_run import get_field

    fields = (letter.config or {}).get("index", ())
    values = [letter.correlation_id, *(get_field(letter.input, field) for field in fields)]
    return " ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _format_message(letter: DeadLetter) -> str:
    return " ".join(letter.message.split()) or letter.error_type


def join_error_and_reason(error: str, reason: str) -> str:
    """Join the error, shortened, and the reason of the engine, unless the reason quotes the error."""
    shown = error if len(error) <= _MAX_MESSAGE_LENGTH else f"{error[: _MAX_MESSAGE_LENGTH - 1]}…"
    return reason if shown in reason else f"{shown} ({reason})"


@click.command(short_help="Show one dead letter and the next commands.")
@click.argument("id", metavar="LETTER")
@click.option("--reveal", is_flag=True, help="Show hidden values too; the audit log records it.")
@click.option("--by", metavar="NAME", help="Your name for the audit log.  [default: your user name]")
@common_options
def show(id: str, reveal: bool, by: str | None, target: Target, output: Output) -> None:
    """Show one dead letter: what happened, its attempts, its activity, and the next commands.

    LETTER is the id of a letter or of its run, or the start of an id, if no other id starts like it.
    Secrets are hidden.

    \b
    Examples:
      redrive dlq show dl-01k9x7
      redrive dlq show 01k9x7 --json
    """
    from redrive.cli.dlq.letter_page import render_letter
    from redrive.store.filters import RunFilter

    user = name_or_current_user(by, "--by")

    async def load(app: Redrive) -> tuple[DeadLetter, list[Run]]:
        letter = await load_letter(app, id)
        if reveal:
            letter = await app.dlq.get(letter.id, reveal=True, by=user)
        return letter, (await app.runs.list(RunFilter(waits_for=letter.run_id), limit=_MAX_WAITING)).items

    letter, waiting = run_on(target, load)
    output.record(letter.id, letter, "\n".join(render_letter(letter, waiting)))
