"""`redrive audit`: who did what, and what the engine decided by itself."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.moment import MOMENT
from redrive.cli.output import Column, Output, as_json, echo, json_text, on_terminal, shown
from redrive.cli.paging import Listing, Pages, paged
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import AuditRecord
    from redrive.store.records import Page
    from redrive.store.selection import AuditFilter

__all__ = ["audit"]

_FIELDS = ("id", "at", "event", "label", "by", "tenant", "subject", "letter", "before", "after", "reason")
_WHOLE = len("dl-") + 26
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@click.group(short_help="See who did what.")
def audit() -> None:
    """See who did what, and what the engine decided by itself. Nothing in the log is ever changed.

    \b
    Examples:
      redrive audit list --by kim --since 7d
      redrive audit export --since 2026-01-01 > audit.csv
    """


def _chosen(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which lines are meant; it receives them as `filters`."""

    @click.option(
        "--event", metavar="NAME", help="Only this event, such as dlq.retry; dlq. means all that begin so."
    )
    @click.option("--by", metavar="NAME", help="Only what this person did; redrive is the engine itself.")
    @click.option("--run", "subject", metavar="RUN", help="Only lines about this run.")
    @click.option("--letter", metavar="LETTER", help="Only lines about this dead letter.")
    @click.option("--tenant", metavar="NAME", help="Only lines of this tenant.  [default: all]")
    @click.option("--since", type=MOMENT, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
    @click.option("--until", type=MOMENT, metavar="TIME", help="Before.")
    @click.option(
        "--lang",
        type=click.Choice(("en", "pl")),
        default="en",
        show_default=True,
        help="Language of the labels.",
    )
    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        names = ("event", "by", "subject", "letter", "tenant", "since", "until")
        filters = {name: options.pop(name) for name in names}
        return command(*args, filters=filters, **options)

    return with_filters


@audit.command("list")
@_chosen
@paged
@shown
@at_a_place
def list_(filters: dict[str, Any], lang: str, pages: Pages, output: Output, place: Place) -> None:
    """List lines of the audit log, newest first.

    \b
    Examples:
      redrive audit list
      redrive audit list --event dlq. --since 1d
      redrive audit list --letter dl-01k9x7 --lang pl
    """

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[AuditRecord]:
        where = await _where(app, filters)
        return await app.audit.list(where, limit=limit, cursor=cursor, language=lang)

    listing: Listing[AuditRecord] = Listing(
        fetch=fetch,
        columns=_columns(),
        id=lambda line: str(line.id),
        empty="Nothing of this kind is in the log.",
    )
    pages.show(place, listing, output)


def _columns() -> list[Column[AuditRecord]]:
    first: list[Column[AuditRecord]] = [
        Column("WHEN", lambda line: line.at),
        Column("BY", lambda line: line.by),
        Column("ABOUT", lambda line: line.letter or line.subject),
    ]
    if on_terminal():
        return [*first, Column("WHAT", _told, sentence=True)]
    return [*first, Column("WHAT", lambda line: line.label), Column("DETAILS", _details)]


@audit.command()
@_chosen
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json")),
    default="csv",
    show_default=True,
    help="A table for a spreadsheet, or one JSON object on each line.",
)
@at_a_place
def export(filters: dict[str, Any], lang: str, form: str, place: Place) -> None:
    """Print every line that matches, newest first, as CSV or JSON.

    In CSV, a text that a spreadsheet would take for a formula has a ' in front.

    \b
    Examples:
      redrive audit export --since 30d > audit.csv
      redrive audit export --format json --event policy. > policies.jsonl
    """

    async def work(app: Redrive) -> None:
        lines = app.audit.export(await _where(app, filters), language=lang)
        await (_as_csv(lines) if form == "csv" else _as_json(lines))

    ask(place, work)


async def _where(app: Redrive, filters: dict[str, Any]) -> AuditFilter:
    """The filter, with ids that were given by a beginning made whole."""
    from redrive.cli.dlq.finding import found_letter
    from redrive.cli.ids import find_run
    from redrive.store.selection import AuditFilter

    whole = dict(filters)
    if whole["subject"]:
        whole["subject"] = await find_run(app, whole["subject"])
    if whole["letter"] and len(whole["letter"]) < _WHOLE:  # a whole id may be of a letter that is gone
        whole["letter"] = (await found_letter(app, whole["letter"])).id
    return AuditFilter(**whole)


async def _as_csv(lines: AsyncIterator[AuditRecord]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_FIELDS)
    async for line in lines:
        row = as_json(line)
        writer.writerow([_cell(row[name]) for name in _FIELDS])


async def _as_json(lines: AsyncIterator[AuditRecord]) -> None:
    async for line in lines:
        echo(json_text(line))


def _cell(value: Any) -> str:
    """A cell of a spreadsheet; none is a formula, whoever wrote it."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _told(line: AuditRecord) -> str:
    return ": ".join(part for part in (line.label, _details(line)) if part)


def _details(line: AuditRecord) -> str:
    """What changed and why, in one line."""
    said = [f"{_short(line.before)} -> {_short(line.after)}" if line.before else _short(line.after)]
    if line.reason:
        said.append(f"because: {line.reason}")
    return "; ".join(part for part in said if part)


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
