"""`redrive reencrypt`: rewrite what is sealed with the first key, or in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.change import named_or_user
from redrive.cli.exits import Stopped
from redrive.cli.output import Output, echo, say, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.transition import AuditWrite
    from redrive.settings import Settings
    from redrive.store.encryption.keyring import Keyring
    from redrive.store.reseal import Report, Table, Texts

__all__ = ["reencrypt"]

_EVERY = 10_000  # rows between two words about the progress


@click.command(short_help="Rewrite payloads with the first encryption key.")
@click.option("--plain", is_flag=True, help="Write payloads back in clear instead.")
@click.option("--by", metavar="NAME", help="Who does it, for the record.  [default: your user name]")
@shown
@at_a_place
def reencrypt(plain: bool, by: str | None, place: Place, output: Output) -> None:
    """Rewrite all payloads with the first key of REDRIVE_ENCRYPTION_KEYS.

    Workers may go on meanwhile. It may be stopped at any time and called again, and then does the rest.

    \b
    Examples:
      redrive reencrypt
      redrive reencrypt --plain --url sqlite:////var/lib/orders.db
    """
    who = named_or_user(by, "--by")
    keys, report = ask(place, lambda app: _rewrite(app, plain, who))
    _show(report, keys, output)
    if report.unreadable or report.busy:
        raise Stopped(_left(report))


async def _rewrite(app: Redrive, plain: bool, by: str) -> tuple[Keyring, Report]:
    from redrive.store.reseal import reseal

    keys = _keys(app.settings, plain)
    texts = _texts(app.settings.url)
    try:
        report = await reseal(texts, keys, watch=_progress())
    finally:
        await texts.close()
    await app.runtime.store.note([_line(app, keys, by)])
    return keys, report


def _line(app: Redrive, keys: Keyring, by: str) -> AuditWrite:
    """What the audit log says of it: about all tenants, and nothing that would be sealed with a key."""
    from redrive.core.events import Event
    from redrive.core.transition import AuditWrite
    from redrive.store.encryption.keyring import IN_CLEAR

    return AuditWrite(
        event=Event.PAYLOAD_REENCRYPTED.value,
        tenant="",
        by=by,
        subject=keys.writes or IN_CLEAR,
        token=app.runtime.clock.new_id(),
    )


def _keys(settings: Settings, plain: bool) -> Keyring:
    from redrive.errors import ConfigurationError
    from redrive.store.encryption.keyring import Keyring

    keys = Keyring.parse(settings.encryption_keys)
    if keys is None:
        raise ConfigurationError(
            "REDRIVE_ENCRYPTION_KEYS is not set, so there is no key to read or write with"
        )
    if plain:
        return keys.in_clear()
    if keys.writes is None:
        raise ConfigurationError(
            "the first of REDRIVE_ENCRYPTION_KEYS is 'plain': put a key first, or call with --plain to write "
            "everything in clear"
        )
    return keys


def _texts(url: str) -> Texts:
    if url.startswith("sqlite:"):
        from redrive.store.sqlite.reseal import SqliteTexts

        return SqliteTexts(url)
    from redrive.clock import SystemClock
    from redrive.store.postgres.reseal import PostgresTexts

    return PostgresTexts(url, SystemClock())


def _progress() -> Any:
    """Says, now and then, how far it is."""
    next_at = _EVERY

    def watch(table: Table, report: Report) -> None:
        nonlocal next_at
        if report.seen >= next_at:
            next_at = report.seen + _EVERY
            say(f"{table.name}: {report.seen:,} rows looked at, {report.rewritten:,} rewritten")

    return watch


def _show(report: Report, keys: Keyring, output: Output) -> None:
    from redrive.store.encryption.keyring import IN_CLEAR

    target = keys.writes or IN_CLEAR
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
            kept = "in clear" if key == IN_CLEAR else f"sealed with key {key}; keep that key as long as they"
            echo(f"{count:,} lines of the audit log, which is append-only, stay {kept}")


def _left(report: Report) -> str:
    parts = [
        f"{count:,} texts sealed with key {key} could not be opened: add it to REDRIVE_ENCRYPTION_KEYS"
        for key, count in sorted(report.unreadable.items())
    ]
    if report.busy:
        parts.append(f"{report.busy:,} rows were being written by others: call it again")
    return "not everything could be rewritten, and what is left is untouched; " + "; ".join(parts)
