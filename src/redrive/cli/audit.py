"""`redrive audit`: read and export the audit log."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.options import find_run_id, time_options
from redrive.cli.output import Column, Output, as_json, echo, field_columns, json_text, on_terminal
from redrive.cli.target import Listing, PageOptions, Target, common_options, page_options, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import AuditRecord
    from redrive.store.filters import AuditFilter
    from redrive.store.result_page import Page

_CSV_FIELDS = ("id", "at", "event", "label", "by", "tenant", "subject", "letter", "before", "after", "reason")
_FILTER_NAMES = ("event", "by", "people", "subject", "letter", "tenant", "since", "until")
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


@click.group()
def audit() -> None:
    """Read the audit log: changes that users made, and decisions of the engine. Entries never change.

    \b
    Examples:
      redrive audit list --by kim --since 7d
      redrive audit export --since 2026-01-01 > audit.csv
    """


def _audit_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose entries of the audit log; it receives them as `filters`."""

    @click.option(
        "--event", metavar="NAME", help="Only this event, such as dlq.retry; dlq. means all that begin with dlq."
    )
    @click.option("--by", metavar="NAME", help="Only entries of this user; redrive is the engine itself.")
    @click.option("--people", is_flag=True, help="Only what users and their programs did, not the engine.")
    @click.option("--run", "subject", metavar="RUN", help="Only entries about this run.")
    @click.option("--letter", metavar="LETTER", help="Only entries about this dead letter.")
    @click.option("--tenant", metavar="NAME", help="Only entries of this tenant.  [default: all]")
    @time_options
    @click.option(
        "--lang", type=click.Choice(("en", "pl")), default="en", show_default=True, help="Language of the labels."
    )
    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        return command(*args, filters={name: options.pop(name) for name in _FILTER_NAMES}, **options)

    return with_filters


@audit.command("list")
@_audit_filter_options
@page_options
@common_options
def list_(filters: dict[str, Any], lang: str, pages: PageOptions, output: Output, target: Target) -> None:
    """List entries of the audit log, newest first.

    \b
    Examples:
      redrive audit list
      redrive audit list --event dlq. --since 1d
      redrive audit list --letter dl-01k9x7 --lang pl
    """

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[AuditRecord]:
        where = await _build_filter(app, filters)
        return await app.audit.list(where, limit=limit, cursor=cursor, language=lang)

    columns: list[Column[AuditRecord]] = [
        *field_columns(WHEN="at", BY="by"),
        Column("ABOUT", lambda line: line.letter or line.subject),
    ]
    if on_terminal():
        columns.append(Column("WHAT", lambda line: ": ".join(filter(None, (line.label, _describe_change(line)))), True))
    else:
        columns += [Column("WHAT", lambda line: line.label), Column("DETAILS", _describe_change)]
    listing: Listing[AuditRecord] = Listing(
        fetch=fetch, columns=columns, id=lambda line: str(line.id), empty="No entry of the audit log matches."
    )
    pages.show(target, listing, output)


@audit.command()
@_audit_filter_options
@click.option(
    "--format",
    "form",
    type=click.Choice(("csv", "json")),
    default="csv",
    show_default=True,
    help="CSV for a spreadsheet, or one JSON object on each line.",
)
@target_options
def export(filters: dict[str, Any], lang: str, form: str, target: Target) -> None:
    """Print all matching entries, newest first, as CSV or JSON.

    In CSV, text that a spreadsheet would read as a formula has a ' in front.

    \b
    Examples:
      redrive audit export --since 30d > audit.csv
      redrive audit export --format json --event policy. > policies.jsonl
    """

    def format_cell(value: Any) -> str:
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        # Other users wrote this text, and a spreadsheet would execute a formula in it.
        return f"'{text}" if text.startswith(_FORMULA_PREFIXES) else text

    async def print_entries(app: Redrive) -> None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if form == "csv":
            writer.writerow(_CSV_FIELDS)
        async for line in app.audit.export(await _build_filter(app, filters), language=lang):
            if form == "csv":
                row = as_json(line)
                writer.writerow([format_cell(row[name]) for name in _CSV_FIELDS])
            else:
                echo(json_text(line))

    run_on(target, print_entries)


async def _build_filter(app: Redrive, filters: dict[str, Any]) -> AuditFilter:
    """Return the filter, with prefixes of ids replaced by whole ids."""
    from redrive.cli.dlq.letter_selection import load_letter
    from redrive.store.filters import AuditFilter

    whole = dict(filters)
    if whole["subject"]:
        whole["subject"] = await find_run_id(app, whole["subject"])
    # A whole id is not looked up: the letter may have been removed since.
    if whole["letter"] and len(whole["letter"]) < len("dl-") + 26:
        whole["letter"] = (await load_letter(app, whole["letter"])).id
    return AuditFilter(**whole)


def _describe_change(line: AuditRecord) -> str:
    """Return what an entry changed, and why, as one line."""
    change = _format_value(line.after)
    if line.before:
        change = f"{_format_value(line.before)} -> {change}"
    return "; ".join(filter(None, (change, f"because: {line.reason}" if line.reason else "")))


def _format_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(one) or 'none'}" for name, one in value.items()) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
