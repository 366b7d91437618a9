"""Lists that are read page by page: their options, and printing one page or all."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
import msgspec

from redrive.cli.output import Column, Output, is_stdout_closed
from redrive.cli.target import Target, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.store.result_page import Page

Item = TypeVar("Item")
_MAX_PAGE_SIZE = 500
LIMIT_OPTION = click.option(
    "--limit", type=click.IntRange(1, _MAX_PAGE_SIZE), default=50, metavar="N", show_default=True, help="How many."
)
CURSOR_OPTION = click.option("--cursor", metavar="CURSOR", help="Continue where the last page ended.")


class Listing(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """Source, columns and ids of a list; on a terminal, `empty` is printed if it has no items.

    `also` names further fields of a page for `--json`.
    """

    fetch: Callable[[Redrive, int, str | None], Awaitable[Page[Item]]]
    columns: Sequence[Column[Item]]
    id: Callable[[Item], str]
    empty: str
    also: tuple[str, ...] = ()

    def show(self, page: Page[Item], items: Sequence[Item], output: Output, *, alone: bool) -> None:
        """Print items of a page; its cursors are printed if it is shown alone."""
        output.list(
            items,
            self.columns,
            id=self.id,
            empty=self.empty,
            next=page.next if alone else None,
            prev=page.prev if alone else None,
            **{name: getattr(page, name) for name in self.also},
        )


class PageOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Part of a list that the user chose."""

    limit: int
    cursor: str | None
    everything: bool

    def show(self, target: Target, listing: Listing[Item], output: Output) -> Page[Item]:
        """Print the part of the list, and return its last page."""

        async def show_all(app: Redrive) -> Page[Item]:
            collected: list[Item] = []  # with --json, all pages are printed as one object
            page = await listing.fetch(app, _MAX_PAGE_SIZE, self.cursor)
            while True:
                if output.json:
                    collected += page.items
                else:
                    listing.show(page, page.items, output, alone=False)
                if page.next is None or is_stdout_closed():
                    break
                page = await listing.fetch(app, _MAX_PAGE_SIZE, page.next)
            if output.json:
                listing.show(page, collected, output, alone=False)
            return page

        if self.everything:
            return run_on(target, show_all)
        page = run_on(target, lambda app: listing.fetch(app, self.limit, self.cursor))
        listing.show(page, page.items, output, alone=True)
        return page


def page_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--limit`, `--cursor` and `--all`; it receives them as `pages`."""

    @LIMIT_OPTION
    @CURSOR_OPTION
    @click.option("--all", "everything", is_flag=True, help="List all pages.")
    @functools.wraps(command)
    def with_pages(*args: Any, limit: int, cursor: str | None, everything: bool, **others: Any) -> Any:
        return command(*args, pages=PageOptions(limit=limit, cursor=cursor, everything=everything), **others)

    return with_pages
