"""Target of a command: the store or the server of `--url`, and the app of `--app module:app`.

Commands that change something or list pages of something share their options and their output here.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import click
import msgspec

from redrive.cli.errors import NOT_FOUND, CommandFailed, UsageError, report_errors
from redrive.cli.hints import hint, suggest_names
from redrive.cli.options import change_options
from redrive.cli.output import Column, Output, is_stdout_closed, output_options
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.remote.desk import Remote
    from redrive.store.result_page import Page


T = TypeVar("T")
ChangeResult: TypeAlias = tuple[str, Any, str]
"""Result of a change as `Output.done` prints it: the id, the value for JSON, and a line for people."""


class Target(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Store or server, named by its URL or by an app; the environment provides what is left out."""

    url: str | None
    app_name: str | None

    def server(self) -> Remote | None:
        """Return the server; None if the target is a store."""
        app = None if self.app_name is None else self.app()
        url = app.settings.url if app else self.url or os.environ.get("REDRIVE_URL", "")
        if not url.startswith(("http://", "https://")):
            return None
        from redrive.remote.desk import Remote
        from redrive.remote.sealing import read_sealing
        from redrive.settings import ENVIRONMENT_VARIABLES

        keys = app.settings.encryption_keys if app else os.environ.get(ENVIRONMENT_VARIABLES["encryption_keys"], "")
        with report_errors():
            return Remote(url, steps=app.registered_steps if app else None, sealing=read_sealing(keys))

    def app(self) -> Redrive:
        """Return the app that was named, else an app without workflows for the URL."""
        from dataclasses import replace

        from redrive.app import Redrive

        if self.app_name is None:
            return Redrive(self.url)
        app = load_app(self.app_name)
        if self.url is not None:
            app.settings = replace(app.settings, url=self.url)
        return app


_URL_HELP = "The store, or a server as https://host with its token in $REDRIVE_TOKEN."
STORE_URL_HELP = "The store; a server cannot do this."  # for commands that work on the store itself


def target_options(command: Callable[..., Any], url_help: str = _URL_HELP) -> Callable[..., Any]:
    """Give a command the options `--url` and `--app`; it receives them as `target`."""

    @click.option(
        "--url",
        metavar="URL",
        help=f"{url_help}  [default: the app's if --app names one, else $REDRIVE_URL, else sqlite:///redrive.db]",
    )
    @click.option(
        "--app",
        "app_name",
        metavar="MODULE:APP",
        envvar="REDRIVE_APP",
        help="The app whose store and workflows are used.  [default: $REDRIVE_APP]",
    )
    @functools.wraps(command)
    def with_target(*args: Any, url: str | None, app_name: str | None, **others: Any) -> Any:
        return command(*args, target=Target(url=url, app_name=app_name), **others)

    return with_target


def common_options(command: Callable[..., Any], *, url_help: str = _URL_HELP, **help_texts: str) -> Callable[..., Any]:
    """Give a command the options of every command; it receives them as `output` and `target`."""
    return output_options(target_options(command, url_help), **help_texts)


def decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a change: it receives `change`, `output` and `target`."""
    return change_options(common_options(command))


def change_command(
    group: click.Group, *options: Callable[..., Any], **attributes: Any
) -> Callable[[Callable[..., Awaitable[ChangeResult]]], click.Command]:
    """Return a decorator that makes a command of a coroutine which changes something through an open app.

    The command has the name of the coroutine. It opens the target, calls `work(app, change=..., **arguments)` and
    prints the result. Besides `options`, it has `decision_options`.
    """

    def decorate(work: Callable[..., Awaitable[ChangeResult]]) -> click.Command:
        @decision_options
        @functools.wraps(work)
        def command(*, target: Target, output: Output, **arguments: Any) -> None:
            output.done(*run_on(target, lambda app: work(app, **arguments)))

        for option in reversed(options):
            command = option(command)
        return group.command(work.__name__.rstrip("_"), **attributes)(command)

    return decorate


def run_on(target: Target, work: Callable[[Redrive], Awaitable[T]]) -> T:
    """Open the target without a worker, do the work and close it. A store that does not exist is not created.

    If the target is a server, `work` gets a client that has the same calls as the app.
    """
    import asyncio

    async def open_and_work() -> T:
        remote = target.server()
        if remote is not None:
            async with remote.client():
                return await work(cast("Redrive", remote))
        app = target.app()
        await _require_store(app.settings.url)
        async with app.client():
            return await work(app)

    with report_errors():
        return asyncio.run(open_and_work())


async def home_tenant(app: Redrive) -> str:
    """Return the tenant to use if the user named none: the token's on a server, else `default`."""
    home = getattr(app, "home", None)  # only the client of a server has it
    return str(await home()) if home else DEFAULT_TENANT


def default_tenant(target: Target) -> str:
    """Return the same tenant as `home_tenant`, without opening a store that may not exist yet."""
    return DEFAULT_TENANT if target.server() is None else run_on(target, home_tenant)


async def _require_store(url: str) -> None:
    """Fail at once if the store does not exist or is down. A worker would create it, or wait for it."""
    from redrive.clock import SystemClock
    from redrive.store import open_store

    if not url.startswith("sqlite:"):
        store = open_store(url, SystemClock())
        try:
            await store.open(migrate=False)
        finally:
            await store.close()
        return
    from redrive.store.sqlite.connection import parse_url
    from redrive.store.sqlite.schema import has_schema

    address = parse_url(url)
    # Opening a file that is not a store would turn it into an empty one.
    if not address.in_memory and not has_schema(address):
        raise CommandFailed(
            f"no store exists at {url}: name it with --url, $REDRIVE_URL or --app module:app, or create it with "
            f"`{hint('migrate')}`. A worker creates it when it starts",
            NOT_FOUND,
        )


def load_app(app_name: str) -> Redrive:
    """Import the module of `module:app` and return its app. The current folder is on the path as well.

    UsageError: the name is wrong. ClickException: the name is right, but the app cannot be used.
    """
    from redrive.app import Redrive

    module_name, colon, attribute = app_name.partition(":")
    mistake = None
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        mistake = f"a module is named with dots and without .py: {dotted}:{attribute or 'app'}"
    elif not colon or not attribute:
        mistake = f"name the app inside the module as well: {module_name or 'module'}:app"
    elif not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        mistake = "write module:app, such as shop:app or company.shop:app"
    if mistake is not None:
        raise UsageError(f"{app_name!r} does not name an app: {mistake}")
    module = _import_module(module_name)
    apps = [name for name, value in vars(module).items() if isinstance(value, Redrive)]
    advice = f"; the module has the app{'s' * (len(apps) > 1)} {', '.join(map(repr, apps))}" if apps else ""
    value: Any = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            advice = advice or suggest_names(name, [known for known in vars(module) if known[0] != "_"])
            raise UsageError(f"module {module_name!r} has no {attribute!r}{advice}") from None
    if not isinstance(value, Redrive):
        if callable(value) and not advice:
            advice = f". If it makes one, call it in the module and name the result: app = {attribute}()"
        kind = type(value).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise UsageError(f"{module_name}:{attribute} is {article} {kind}, not a Redrive app{advice}")
    if not value.registered_workflows:
        raise CommandFailed(
            f"{module_name}:{attribute} has no workflows to run: decorate a function with @app.workflow, or import the "
            f"modules with your workflows in {module_name}"
        )
    return value


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise _import_failure(name, error) from error  # the module exists and imports one that does not
        package, _, last = missing.rpartition(".")
        folders = sys.modules[package].__path__ if package in sys.modules else [here]
        siblings: list[str] = []
        for folder in map(Path, folders):
            siblings += (path.stem for path in folder.glob("*.py") if path.stem.isidentifier())
            siblings += (path.parent.name for path in folder.glob("*/__init__.py"))
        where = package or f"the current folder ({here}) and on Python's path"
        full_name = "" if missing == name else f" (looking for {name!r})"
        advice = suggest_names(last, siblings)
        raise UsageError(f"module {missing!r} was not found in {where}{advice}{full_name}") from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: BaseException) -> click.ClickException:
    """Return the error of the user's module with the innermost line of the user's code."""
    import sysconfig
    import traceback

    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parents[1])]
    foreign = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not os.path.realpath(frame.filename).startswith(foreign)
    ]
    lines = [f"module {name!r} could not be imported:"]
    if frames and not isinstance(error, SyntaxError):  # a SyntaxError names its line itself
        lines += traceback.format_list(frames[-1:])[0].rstrip().splitlines()
    lines += "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return click.ClickException("\n".join(lines))


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
