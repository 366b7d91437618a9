"""`redrive migrate`: bring the schema of a store up to date."""

from __future__ import annotations

import functools

import click

from redrive.cli.errors import report_errors
from redrive.cli.output import Output, echo, echo_err
from redrive.cli.target import STORE_URL_HELP, Target, common_options


@click.command()
@click.option("--plan", is_flag=True, help="Print the outstanding migrations, and apply none.")
@functools.partial(
    common_options, url_help=STORE_URL_HELP, quiet_help="Print the names of the migrations and nothing else."
)
def migrate(plan: bool, target: Target, output: Output) -> None:
    """Bring the schema of a store up to date. A store that does not exist is created.

    \b
    Examples:
      redrive migrate --plan
      redrive migrate --url postgresql://shop@db/shop
    """
    import asyncio

    from redrive.clock import SystemClock
    from redrive.core.redact import Redactor
    from redrive.store import open_store

    with report_errors():
        url = target.app().settings.url
        where = Redactor().text(url)
        if not plan:
            echo_err(f"bringing {where} up to date")
        open_store(url, SystemClock())  # raises if the kind of store is unknown or its driver is missing
        if url.startswith("sqlite:"):
            done = _migrate_file(url, plan)
        else:
            from redrive.store.postgres import migrate as migrate_database

            done = asyncio.run(migrate_database(url, plan=plan))
    if output.json:
        output.object({"store": where, "plan": plan, "migrations": done})
    elif output.quiet or done:
        for name in done:
            echo(name if output.quiet else f"{'would apply' if plan else 'applied'} {name}")
    else:
        echo("the schema is up to date")


def _migrate_file(url: str, plan: bool) -> list[str]:
    """Return the outstanding migrations of an SQLite file, and apply them unless they are only planned."""
    from pathlib import Path

    from redrive.clock import SystemClock
    from redrive.store import sqlite
    from redrive.store.migrations import find_pending_migrations, load_migrations
    from redrive.store.sqlite.connection import connect, parse_url
    from redrive.store.sqlite.schema import applied_migrations, prepare_schema

    address, outstanding = parse_url(url), load_migrations(sqlite.__name__)
    # Connecting would create the file, which a plan must not do.
    if not plan or address.in_memory or Path(address.path).exists():
        con = connect(address)
        try:
            outstanding = find_pending_migrations(applied_migrations(con), outstanding)
            if outstanding and not plan:
                prepare_schema(con, address, SystemClock().now(), migrate=True)
        finally:
            con.close()
    return [f"{migration.version:04d}_{migration.name}" for migration in outstanding]
