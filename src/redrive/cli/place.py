"""Which store a command looks at, and opening it for as long as the command takes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.exits import NOT_FOUND, Stopped, explained
from redrive.cli.hints import hint

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["Place", "ask", "at_a_place"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store, by its URL or by the app that names it. What is not given comes from the environment."""

    url: str | None
    target: str | None

    def app(self) -> Redrive:
        """The app to ask: the one that was named, else one without workflows on the store's URL."""
        from dataclasses import replace

        from redrive.app import Redrive
        from redrive.cli.target import load_app

        if self.target is None:
            return Redrive(self.url)
        app = load_app(self.target)
        if self.url is not None:
            app.settings = replace(app.settings, url=self.url)
        return app


def at_a_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store is meant; it receives them as `place`."""

    @click.option(
        "--url",
        metavar="URL",
        help="The store.  [default: the app's if --app names one, else $REDRIVE_URL, else sqlite:///redrive.db]",
    )
    @click.option(
        "--app",
        "target",
        metavar="MODULE:APP",
        envvar="REDRIVE_APP",
        help="The app whose store and workflows are meant.  [default: $REDRIVE_APP]",
    )
    @functools.wraps(command)
    def with_place(*args: Any, url: str | None, target: str | None, **others: Any) -> Any:
        return command(*args, place=Place(url=url, target=target), **others)

    return with_place


def ask(place: Place, work: Callable[[Redrive], Awaitable[T]]) -> T:
    """Open the store without a worker, do the work, close it. A store that is not there is not created."""

    import asyncio

    async def opened(app: Redrive) -> T:
        await _must_be_there(app.settings.url)
        async with app.client():
            return await work(app)

    with explained():
        return asyncio.run(opened(place.app()))


async def _must_be_there(url: str) -> None:
    """A worker waits for a server that is down and sets up an empty database; a command says so at once."""
    from redrive.clock import SystemClock
    from redrive.store import open_store

    if url.startswith("sqlite:"):
        _must_exist(url)
        return
    store = open_store(url, SystemClock())
    try:
        await store.open(migrate=False)
    finally:
        await store.close()


def _must_exist(url: str) -> None:
    """Looking at a file that does not exist would make an empty one, and find nothing in it."""
    from pathlib import Path

    from redrive.store.sqlite.connection import locate

    address = locate(url)
    if not address.in_memory and not Path(address.path).exists():
        raise Stopped(
            f"there is no store at {url}: name it with --url, $REDRIVE_URL or --app module:app; "
            f"a worker makes it when it starts, and so does `{hint('migrate')}`",
            NOT_FOUND,
        )
