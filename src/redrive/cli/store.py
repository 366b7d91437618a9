"""`redrive reencrypt`: rewrite what is sealed with the first key, or in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import CommandFailed, report_errors
from redrive.cli.options import name_or_current_user
from redrive.cli.output import Output, echo, echo_err, output_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.transitions import AuditWrite
    from redrive.settings import Settings
    from redrive.store.encryption.keyring import Keyring
    from redrive.store.encryption.reencrypt import ReencryptReport, TextStore, TextTable
    from redrive.store.sql_files import Migration

# -- `redrive migrate`: bring a store's schema up to date ------------------------------------------------


@click.command(short_help="Bring the schema of a store up to date.")
@click.option("--plan", is_flag=True, help="Say what would be applied, and apply nothing.")
@output_options
@target_options
def migrate(plan: bool, place: Target, output: Output) -> None:
    """Bring the schema of a store up to date; makes the store if there is none.

    \b
    Examples:
      redrive migrate --plan
      redrive migrate --url postgresql://shop@db/shop
    """
    import asyncio

    from redrive.core.redact import Redactor

    with report_errors():
        url = place.app().settings.url
        where = Redactor().text(url)
        if not plan:
            echo_err(f"bringing {where} up to date")
        done = asyncio.run(_migrate_store(url, plan=plan))
    if output.json:
        output.object({"store": where, "plan": plan, "migrations": done})
    elif output.quiet or done:
        for name in done:
            echo(name if output.quiet else f"{'would apply' if plan else 'applied'} {name}")
    else:
        echo("the schema is up to date")


async def _migrate_store(url: str, *, plan: bool) -> list[str]:
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
    from redrive.store.sql_files import load_migrations, outstanding_migrations
    from redrive.store.sqlite.connection import connect, parse_url
    from redrive.store.sqlite.schema import applied_migrations, prepare_schema

    address, ours = parse_url(url), load_migrations(sqlite.__name__)
    if plan and not address.in_memory and not Path(address.path).exists():
        return _format_migrations(ours)
    con = connect(address)
    try:
        behind = outstanding_migrations(applied_migrations(con), ours)
        if behind and not plan:
            prepare_schema(con, address, SystemClock().now(), migrate=True)
        return _format_migrations(behind)
    finally:
        con.close()


def _format_migrations(migrations: list[Migration]) -> list[str]:
    return [f"{migration.version:04d}_{migration.name}" for migration in migrations]


# -- `redrive reencrypt`: rewrite what is sealed with the first key, or in clear -------------------------


_PROGRESS_INTERVAL = 10_000  # rows between two words about the progress


@click.command(short_help="Rewrite payloads with the first encryption key.")
@click.option("--plain", is_flag=True, help="Write payloads back in clear instead.")
@click.option("--by", metavar="NAME", help="Who does it, for the record.  [default: your user name]")
@output_options
@target_options
def reencrypt(plain: bool, by: str | None, place: Target, output: Output) -> None:
    """Rewrite all payloads with the first key of REDRIVE_ENCRYPTION_KEYS.

    Workers may go on meanwhile. It may be stopped at any time and called again, and then does the rest.

    \b
    Examples:
      redrive reencrypt
      redrive reencrypt --plain --url sqlite:////var/lib/orders.db
    """
    who = name_or_current_user(by, "--by")
    keys, report = run_on(place, lambda app: _reencrypt_store(app, plain, who))
    _print_report(report, keys, output)
    if report.unreadable or report.busy:
        raise CommandFailed(_describe_unfinished(report))


async def _reencrypt_store(app: Redrive, plain: bool, by: str) -> tuple[Keyring, ReencryptReport]:
    from redrive.store.encryption.reencrypt import reencrypt_store

    keys = _read_keyring(app.settings, plain)
    texts = _open_texts(app.settings.url)
    try:
        report = await reencrypt_store(texts, keys, watch=_make_progress_printer())
    finally:
        await texts.close()
    await app.runtime.store.note([_make_audit_entry(app, keys, by)])
    return keys, report


def _make_audit_entry(app: Redrive, keys: Keyring, by: str) -> AuditWrite:
    """What the audit log says of it: about all tenants, and nothing that would be sealed with a key."""
    from redrive.core.audit import AuditEvent
    from redrive.core.transitions import AuditWrite
    from redrive.store.encryption.keyring import NO_KEY

    return AuditWrite(
        event=AuditEvent.PAYLOAD_REENCRYPTED.value,
        tenant="",
        by=by,
        subject=keys.writes or NO_KEY,
        token=app.runtime.clock.new_id(),
    )


def _read_keyring(settings: Settings, plain: bool) -> Keyring:
    from redrive.errors import ConfigurationError
    from redrive.store.encryption.keyring import Keyring

    keys = Keyring.parse(settings.encryption_keys)
    if keys is None:
        raise ConfigurationError("REDRIVE_ENCRYPTION_KEYS is not set, so there is no key to read or write with")
    if plain:
        return keys.read_only()
    if keys.writes is None:
        raise ConfigurationError(
            "the first of REDRIVE_ENCRYPTION_KEYS is 'plain': put a key first, or call with --plain to write "
            "everything in clear"
        )
    return keys


def _open_texts(url: str) -> TextStore:
    if url.startswith("sqlite:"):
        from redrive.store.sqlite.store import SqliteTextStore

        return SqliteTextStore(url)
    from redrive.clock import SystemClock
    from redrive.store.postgres.store import PostgresTextStore

    return PostgresTextStore(url, SystemClock())


def _make_progress_printer() -> Any:
    """Says, now and then, how far it is."""
    next_at = _PROGRESS_INTERVAL

    def watch(table: TextTable, report: ReencryptReport) -> None:
        nonlocal next_at
        if report.seen >= next_at:
            next_at = report.seen + _PROGRESS_INTERVAL
            echo_err(f"{table.name}: {report.seen:,} rows looked at, {report.rewritten:,} rewritten")

    return watch


def _print_report(report: ReencryptReport, keys: Keyring, output: Output) -> None:
    from redrive.store.encryption.keyring import NO_KEY

    target = keys.writes or NO_KEY
    if output.json:
        output.object(
            {
                "key": keys.writes,
                "seen": report.seen,
                "rewritten": report.rewritten,
                "busy": report.busy,
                "unreadable": dict(report.unreadable),
                "audit": dict(report.audit),
            }
        )
    elif output.quiet:
        echo(str(report.rewritten))
    else:
        how = f"with key {target}" if keys.writes else target
        left = report.unreadable or report.busy
        others = f"some of the others are not {how} yet" if left else "no other needs it"
        echo(f"{report.rewritten:,} of {report.seen:,} rows rewritten, {others}")
        for key, count in sorted(report.audit.items()):
            kept = "in clear" if key == NO_KEY else f"sealed with key {key}; keep that key as long as they"
            echo(f"{count:,} lines of the audit log, which is append-only, stay {kept}")


def _describe_unfinished(report: ReencryptReport) -> str:
    parts = [
        f"{count:,} texts sealed with key {key} could not be opened: add it to REDRIVE_ENCRYPTION_KEYS"
        for key, count in sorted(report.unreadable.items())
    ]
    if report.busy:
        parts.append(f"{report.busy:,} rows were being written by others: call it again")
    return "not everything could be rewritten, and what is left is untouched; " + "; ".join(parts)
