"""What `redrive doctor` finds about the ways out: the mail server and webhooks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from redrive.cli.health import Finding
from redrive.core.notify import NotifyRule, Target
from redrive.errors import RedriveError
from redrive.store.encryption.keyring import Unreadable

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.store.port import Store

__all__ = ["examine_telling"]

_PATIENCE = 10.0
_MOST = 20  # places that are tried


async def examine_telling(app: Redrive) -> list[Finding]:
    """What an app and the rules in its store would find if they told somebody now. Nothing is sent."""
    from redrive.app.opening import make_store
    from redrive.clock import SystemClock

    store = make_store(app.settings, SystemClock())
    await store.open(migrate=False)
    try:
        targets = [*_of_code(app), *await _stored(store)]
        return [
            *[each async for each in _mail(app, targets)],
            *[each async for each in _webhooks(app, targets)],
        ]
    finally:
        await store.close()


def _of_code(app: Redrive) -> list[Target]:
    rules = [each.own_options.notify for each in app.registered_workflows.values()]
    named = [target for rule in rules if rule is not None for target in rule.targets]
    return [*(target for target in named if target.kind == "email"), *app.channels.all()]


async def _stored(store: Store) -> list[Target]:
    rows = [row.rule for row in await store.notices.rules() if not isinstance(row.rule, Unreadable)]
    return [target for text in rows for target in NotifyRule.from_json(json.loads(text)).targets]


async def _mail(app: Redrive, targets: Iterable[Target]) -> AsyncIterator[Finding]:
    from redrive.notify.senders import MailServer

    wanted = sorted({target.to for target in targets if target.kind == "email"})
    url, sender = app.settings.smtp_url, app.settings.smtp_from
    if not url and not wanted:
        return
    try:
        server = MailServer.read(url, sender)
        await server.try_out(_PATIENCE)
    except (RedriveError, OSError, TimeoutError) as error:
        who = f", so nobody writes to {wanted[0]}" if wanted else ""
        yield Finding(
            check="mail",
            level="wrong",
            text=f"{str(error) or type(error).__name__}{who}",
            advice="see that $REDRIVE_SMTP_URL is right where the workers run; what waits is sent then",
        )
    else:
        yield Finding(check="mail", level="ok", text=f"{server.host}:{server.port} takes mails")


async def _webhooks(app: Redrive, targets: Iterable[Target]) -> AsyncIterator[Finding]:
    """Each host once: whether its name may be called, leads somewhere, and is answered at."""
    from redrive.http.ssrf import check_url

    urls = [target.to for target in targets if target.kind in ("slack", "teams", "webhook")]
    urls += [url for each in app.registered_sinks.values() if (url := getattr(each.sink, "url", None))]
    places: dict[str, str] = {}
    for url in urls:
        places.setdefault(check_url(url, app.channels.allowed).origin, url)
    tried = list(places.items())[:_MOST]
    found = await asyncio.gather(*(_reached(url, app) for _, url in tried))
    for (origin, _), wrong in zip(tried, found, strict=True):
        if wrong is not None:
            yield Finding(
                check="webhooks",
                level="wrong",
                text=f"{origin} cannot be reached: {wrong}",
                advice="see that the URL is right; what waits is tried again by itself",
            )
    if tried and not any(found):
        yield Finding(check="webhooks", level="ok", text=f"{len(tried)} can be reached")


async def _reached(url: str, app: Redrive) -> str | None:
    """Why a host cannot be reached; None if it can. Nothing is sent to it."""
    from redrive.http.ssrf import resolve_url

    try:
        async with asyncio.timeout(_PATIENCE):
            target = await resolve_url(url, app.channels.allowed)
            _, writer = await asyncio.open_connection(target.addresses[0], target.url.port)
            writer.close()
    except (RedriveError, OSError, TimeoutError) as error:
        return str(error) or type(error).__name__
    return None
