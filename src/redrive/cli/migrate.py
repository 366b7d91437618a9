"""`redrive migrate`: bring a store's schema up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.exits import explained
from redrive.cli.output import Output, echo, say, shown
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.store.migrate import Migration

__all__ = ["migrate"]


@click.command(short_help="Bring the schema of a store up to date.")
@click.option("--plan", is_flag=True, help="Say what would be applied, and apply nothing.")
@shown
@at_a_place
def migrate(plan: bool, place: Place, output: Output) -> None:
    """Bring the schema of a store up to date; makes the store if there is none.

    \b
    Examples:
      redrive migrate --plan
      redrive migrate --url postgresql://shop@db/shop
    """
    import asyncio

    from redrive.core.redact import Redactor

    with explained():
        url = place.app().settings.url
        where = Redactor().text(url)
        if not plan:
            say(f"bringing {where} up to date")
        done = asyncio.run(_migrate(url, plan=plan))
    if output.json:
        output.object({"store": where, "plan": plan, "migrations": done})
    elif output.quiet or done:
        for name in done:
            echo(name if output.quiet else f"{'would apply' if plan else 'applied'} {name}")
    else:
        echo("the schema is up to date")


async def _migrate(url: str, *, plan: bool) -> list[str]:
    import asyncio

    from redrive.clock import SystemClock
    from redrive.store import open_store

    open_store(url, SystemClock())  # an unknown kind or a missing driver is said by the one that knows
    if url.startswith("sqlite:"):
        return await asyncio.to_thread(_migrate_file, url, plan)
    from redrive.store.postgres import migrate as migrate_database

    return await migrate_database(url, plan=plan)


def _migrate_file(url: str, plan: bool) -> list[str]:
    """What is outstanding in a file, applied unless it is only planned. Planning makes no file."""
    from pathlib import Path

    from redrive.clock import SystemClock
    from redrive.store import sqlite
    from redrive.store.migrate import known, outstanding
    from redrive.store.sqlite.connection import connect, locate
    from redrive.store.sqlite.schema import applied, prepare

    address, ours = locate(url), known(sqlite.__name__)
    if plan and not address.in_memory and not Path(address.path).exists():
        return _names(ours)
    con = connect(address)
    try:
        behind = outstanding(applied(con), ours)
        if behind and not plan:
            prepare(con, address, SystemClock().now(), migrate=True)
        return _names(behind)
    finally:
        con.close()


def _names(migrations: list[Migration]) -> list[str]:
    return [f"{migration.version:04d}_{migration.name}" for migration in migrations]
