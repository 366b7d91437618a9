"""`redrive migrate` and `redrive reencrypt`: change a whole store."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import click

from redrive.cli.errors import CommandFailed, report_errors
from redrive.cli.options import name_or_current_user
from redrive.cli.output import Output, echo, echo_err
from redrive.cli.target import STORE_URL_HELP, Target, common_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.store.encryption.keyring import Keyring
    from redrive.store.encryption.reencryption import ReencryptReport, TextTable

_PROGRESS_INTERVAL = 10_000  # rows between two progress messages


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
    from redrive.store.sql_files import find_pending_migrations, load_migrations
    from redrive.store.sqlite.connection import connect, parse_url
    from redrive.store.sqlite.schema import load_applied_migrations, prepare_schema

    address, outstanding = parse_url(url), load_migrations(sqlite.__name__)
    # Connecting would create the file, which a plan must not do.
    if not plan or address.in_memory or Path(address.path).exists():
        con = connect(address)
        try:
            outstanding = find_pending_migrations(load_applied_migrations(con), outstanding)
            if outstanding and not plan:
                prepare_schema(con, address, SystemClock().now(), migrate=True)
        finally:
            con.close()
    return [f"{migration.version:04d}_{migration.name}" for migration in outstanding]


@click.command()
@click.option("--plain", is_flag=True, help="Write payloads in clear instead.")
@click.option("--by", metavar="NAME", help="Your name in the audit log.  [default: your user name]")
@functools.partial(
    common_options, url_help=STORE_URL_HELP, quiet_help="Print the number of rewritten rows and nothing else."
)
def reencrypt(plain: bool, by: str | None, target: Target, output: Output) -> None:
    """Rewrite all payloads with the first key of REDRIVE_ENCRYPTION_KEYS.

    Workers may keep running. If it is interrupted, call it again: it does the rest.

    \b
    Examples:
      redrive reencrypt
      redrive reencrypt --plain --url sqlite:////var/lib/orders.db
    """
    from redrive.core.secret_and_sealed_text import NO_KEY

    user = name_or_current_user(by, "--by")
    keys, report = run_on(target, lambda app: _reencrypt_store(app, plain, user))
    if output.json:
        counts = {name: getattr(report, name) for name in ("seen", "rewritten", "busy")}
        output.object({"key": keys.writes, **counts, "unreadable": report.unreadable, "audit": report.audit})
    elif output.quiet:
        echo(str(report.rewritten))
    else:
        how = f"with key {keys.writes}" if keys.writes else NO_KEY
        others = f"some of the others are not {how} yet" if report.unreadable or report.busy else "no other needs it"
        echo(f"{report.rewritten:,} of {report.seen:,} rows rewritten, {others}")
        for key, count in sorted(report.audit.items()):
            state = "in clear" if key == NO_KEY else f"encrypted with key {key}; keep that key as long as they exist"
            echo(f"{count:,} entries of the audit log, which is append-only, stay {state}")
    problems = [
        f"{count:,} texts encrypted with key {key} could not be read: add the key to REDRIVE_ENCRYPTION_KEYS"
        for key, count in sorted(report.unreadable.items())
    ]
    if report.busy:
        problems.append(f"{report.busy:,} rows were being written by other processes: run the command again")
    if problems:
        raise CommandFailed(f"some rows were not rewritten and are unchanged; {'; '.join(problems)}")


async def _reencrypt_store(app: Redrive, plain: bool, by: str) -> tuple[Keyring, ReencryptReport]:
    from redrive.clock import SystemClock
    from redrive.core.audit import AuditEvent
    from redrive.core.secret_and_sealed_text import NO_KEY
    from redrive.core.transitions import AuditWrite
    from redrive.errors import ConfigurationError
    from redrive.store.encryption.keyring import Keyring
    from redrive.store.encryption.reencryption import TextStore, reencrypt_store

    keys = Keyring.parse(app.settings.encryption_keys, app.settings.secret_key)
    if keys is None:
        raise ConfigurationError(
            "REDRIVE_ENCRYPTION_KEYS is not set, nor is REDRIVE_SECRET_KEY: set the keys to read and write with"
        )
    if plain:
        keys = keys.read_only()
    elif keys.writes is None:
        raise ConfigurationError(
            "the first of REDRIVE_ENCRYPTION_KEYS is 'plain': put a key first, or call with --plain to write "
            "everything in clear"
        )
    next_at = _PROGRESS_INTERVAL

    def print_progress(table: TextTable, report: ReencryptReport) -> None:
        nonlocal next_at
        if report.seen >= next_at:
            next_at = report.seen + _PROGRESS_INTERVAL
            echo_err(f"{table.name}: {report.seen:,} rows read, {report.rewritten:,} rewritten")

    url = app.settings.url
    texts: TextStore
    if url.startswith("sqlite:"):
        from redrive.store.sqlite.store import SqliteTextStore

        texts = SqliteTextStore(url)
    else:
        from redrive.store.postgres.store import PostgresTextStore

        texts = PostgresTextStore(url, SystemClock())
    try:
        report = await reencrypt_store(texts, keys, watch=print_progress)
    finally:
        await texts.close()
    # The entry is for all tenants, and has no field that would be encrypted.
    entry = AuditWrite(
        event=AuditEvent.PAYLOAD_REENCRYPTED.value,
        tenant="",
        by=by,
        subject=keys.writes or NO_KEY,
        token=app.runtime.clock.new_id(),
    )
    await app.runtime.store.note([entry])
    return keys, report
