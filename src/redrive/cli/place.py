"""Which store or server a command looks at, and opening it for as long as the command takes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from redrive.cli.messages import NOT_FOUND, CommandFailed, hint, report_errors
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.remote.desk import Remote

T = TypeVar("T")


class Target(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A store or a server, by its URL or by the app that names it.

    What is not given comes from the environment.
    """

    url: str | None
    target: str | None

    def server(self) -> Remote | None:
        """The server that is meant; None if it is a store."""
        import os

        app = None if self.target is None else self.app()
        url = app.settings.url if app else self.url or os.environ.get("REDRIVE_URL", "")
        if not url.startswith(("http://", "https://")):
            return None
        from redrive.remote.desk import Remote

        with report_errors():
            return Remote(url, steps=app.registered_steps if app else None)

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


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store is meant; it receives them as `place`."""

    @click.option(
        "--url",
        metavar="URL",
        help="The store, or a server as https://host with its token in $REDRIVE_TOKEN.  "
        "[default: the app's if --app names one, else $REDRIVE_URL, else sqlite:///redrive.db]",
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
        return command(*args, place=Target(url=url, target=target), **others)

    return with_place


def run_on(place: Target, work: Callable[[Redrive], Awaitable[T]]) -> T:
    """Open the store without a worker, do the work, close it. A store that is not there is not created.

    Where the place is a server, the work is done there: what stands for the app has the same calls.
    """

    import asyncio

    async def opened() -> T:
        remote = place.server()
        if remote is not None:
            async with remote.client():
                return await work(cast("Redrive", remote))
        app = place.app()
        await _require_store(app.settings.url)
        async with app.client():
            return await work(app)

    with report_errors():
        return asyncio.run(opened())


def default_tenant(place: Target) -> str:
    """The tenant that is meant where none is named: `default`, or that of the token for a server."""
    if place.server() is None:
        return DEFAULT_TENANT
    return run_on(place, lambda app: cast("Remote", app).home())


def resolve_tenant(place: Target, tenant: str | None) -> str | None:
    """The tenant that things are kept under, None for all: on a server, the token's where none is named."""
    if place.server() is None:
        return tenant
    found = tenant or default_tenant(place)
    return None if found == "*" else found


async def _require_store(url: str) -> None:
    """A worker waits for a server that is down and sets up an empty database; a command says so at once."""
    from redrive.clock import SystemClock
    from redrive.store import open_store

    if url.startswith("sqlite:"):
        _require_store_file(url)
        return
    store = open_store(url, SystemClock())
    try:
        await store.open(migrate=False)
    finally:
        await store.close()


def _require_store_file(url: str) -> None:
    """Looking at a file that is no store would make it one, and find nothing in it."""
    from redrive.store.sqlite.connection import parse_url
    from redrive.store.sqlite.schema import has_schema

    address = parse_url(url)
    if not address.in_memory and not has_schema(address):
        raise CommandFailed(
            f"there is no store at {url}: name it with --url, $REDRIVE_URL or --app module:app; "
            f"a worker makes it when it starts, and so does `{hint('migrate')}`",
            NOT_FOUND,
        )
