"""Which letters are meant: the options of `dlq list`, and those of commands that take ids or a filter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.dlq.values import a_rate, index_values
from redrive.cli.exits import Misused
from redrive.cli.moment import MOMENT

if TYPE_CHECKING:
    from redrive.store.selection import LetterFilter

__all__ = ["filtered", "ids_or_filter"]

_OPTIONS = (
    click.option("--workflow", metavar="NAME", help="Only letters of this workflow."),
    click.option("--step", metavar="NAME", help="Only failures of this step."),
    click.option("--code", metavar="CODE", help="Only this code, such as timeout or exhausted_retries."),
    click.option("--category", metavar="NAME", help="Only this category of error, such as network."),
    click.option("--stage", metavar="NAME", help="Only failures at this stage, such as exec."),
    click.option(
        "--fingerprint", metavar="TEXT", help="Only failures with this cause; `dlq groups` lists them."
    ),
    click.option("--owner", metavar="NAME", help="Only letters that are assigned to this person."),
    click.option("--tag", metavar="WORD", help="Only letters with this tag."),
    click.option("--text", metavar="TEXT", help="Only letters whose reason contains this."),
    click.option(
        "--index",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Only letters with this value in a field that their workflow declared with index=[...]; may be "
        "repeated.",
    ),
    click.option("--tenant", metavar="NAME", help="Only letters of this tenant.  [default: all]"),
    click.option(
        "--since", type=MOMENT, metavar="TIME", help="Written at or after: 2h (ago), or an ISO time."
    ),
    click.option("--until", type=MOMENT, metavar="TIME", help="Written before."),
)
_NAMES = (
    "workflow", "step", "code", "category", "stage", "fingerprint", "owner", "tag", "text", "index",
    "tenant", "since", "until",
)  # fmt: skip


def filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that filter letters; it receives them as `filters`."""

    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        filters = {name: options.pop(name) for name in _NAMES}
        filters["index"] = index_values(filters["index"], "--index")
        return command(*args, filters=filters, **options)

    for option in reversed(_OPTIONS):
        with_filters = option(with_filters)
    return with_filters


def ids_or_filter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ids, or a filter in their place; it receives `ids`, and `where` if there are none.

    A filter makes a set, which can be given a `rate`.
    """

    @click.argument("ids", nargs=-1, metavar="[LETTER]...")
    @click.option(
        "--all", "everything", is_flag=True, help="All open letters that match the filter, as a set."
    )
    @click.option(
        "--rate", metavar="RATE", help="With --all: at most so many letters, such as 50/s, 600/m or 100/h."
    )
    @filtered
    @functools.wraps(command)
    def with_choice(
        *args: Any,
        ids: tuple[str, ...],
        everything: bool,
        rate: str | None,
        filters: dict[str, Any],
        **others: Any,
    ) -> Any:
        where = _chosen(ids, everything, filters)
        if rate is not None and where is None:
            raise Misused("--rate is for many letters: give --all and a filter with it")
        pace = None if rate is None else a_rate(rate)
        return command(*args, ids=ids, where=where, rate=pace, **others)

    return with_choice


def _chosen(ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> LetterFilter | None:
    """A filter without --all is more likely a slip than the wish to decide on many letters."""
    given = {name: value for name, value in filters.items() if value is not None}
    if ids and (everything or given):
        raise Misused("name letters, or choose them with --all and a filter, but not both")
    if not ids and not everything:
        raise Misused(
            "name letters by their ids (- reads them from standard input), or give --all and a filter"
        )
    if not everything:
        return None
    from redrive.store.selection import LetterFilter

    return LetterFilter(**given)
