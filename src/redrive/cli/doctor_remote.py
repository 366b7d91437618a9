"""What `redrive doctor` finds about the ways out: the mail server and webhooks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from redrive.cli.doctor_checks import Finding, check_schedules
from redrive.cli.hardening import check_address
from redrive.cli.messages import circuit_hint, hint, worker_hint
from redrive.core.circuit import CircuitStatus
from redrive.core.notify_rules import NotifyRule, NotifyTarget
from redrive.core.states import LetterStatus
from redrive.desk.settings import KnownWorkflow
from redrive.errors import NotAllowed, NotSignedIn, RedriveError, StoreError
from redrive.remote.desk import Remote
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import CircuitFilter, LetterFilter

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.store.port import Store

# -- What `redrive doctor` can see of a server: whether it answers, to whom, and what waits for some -----


_MAX_NAMED = 5


async def check_server(server: Remote) -> list[Finding]:
    """All findings; what is wrong with the way there is the last one."""
    async with server.client():
        found: list[Finding] = []
        try:
            found += [finding async for finding in _run_checks(server)]
        except NotSignedIn as error:
            advice = "put a token that holds into REDRIVE_TOKEN"
            found.append(Finding(check="token", level="wrong", text=str(error), advice=advice))
        except StoreError as error:
            text = str(error).partition("; nothing is lost")[0]
            advice = "see that it runs, that its database does, and that the URL is right"
            found.append(Finding(check="server", level="wrong", text=text, advice=advice))
        return found


async def _run_checks(server: Remote) -> AsyncIterator[Finding]:
    me = await server.me()
    yield Finding(check="server", level="ok", text=f"{server.address} answers")
    yield check_address(server.address)
    yield Finding(check="token", level="ok", text=f"{me['who']}, {me['role']} of {me['tenant']}")
    for finding in _check_workflows(await server.workflows.list()):
        yield finding
    for finding in check_schedules(await server.schedules.list()):
        yield finding
    async for finding in _check_circuits(server):
        yield finding
    yield await _check_letters(server)


def _check_workflows(known: list[KnownWorkflow]) -> list[Finding]:
    able = [one.name for one in known if one.workers]
    if able:
        found = [Finding(check="workers", level="ok", text=f"live ones have {', '.join(able)}")]
    else:
        text = "none is alive"
        found = [Finding(check="workers", level="note", text=text, advice=f"start one: {worker_hint()}")]
    for one in known:
        if one.unclaimable:
            text = f"{one.unclaimable} due runs of {one.name!r}: no live worker has it registered"
            advice = f"start a worker whose app has this workflow: {worker_hint()}"
            found.append(Finding(check="claims", level="wrong", text=text, advice=advice))
        if one.paused_by is not None:
            advice = f"to go on: {hint('workflows', 'resume', one.name)}"
            text = f"{one.name!r}, by {one.paused_by}"
            found.append(Finding(check="paused", level="note", text=text, advice=advice))
    return found


async def _check_circuits(server: Remote) -> AsyncIterator[Finding]:
    """A token for some workflows sees no circuits, and is told nothing of them."""
    try:
        pages = [
            await server.circuits.list(CircuitFilter(status=status), limit=_MAX_NAMED)
            for status in (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN)
        ]
    except NotAllowed:
        return
    found = [one for page in pages for one in page.items]
    for one in found:
        text = f"{one.key!r} of tenant {one.tenant!r} is {one.status}, {one.parked:,} parked: {one.why}"
        advice = circuit_hint("show", one.key, one.tenant)
        yield Finding(check="circuits", level="note", text=text, advice=advice)
    if not found:
        yield Finding(check="circuits", level="ok", text="all closed")


async def _check_letters(server: Remote) -> Finding:
    count = await server.dlq.count(LetterFilter(status=LetterStatus.OPEN))
    if not count:
        return Finding(check="letters", level="ok", text="no dead letter waits for a person")
    text = f"{count:,} wait{'s' * (count == 1)} for a person"
    return Finding(check="letters", level="note", text=text, advice=hint("dlq", "list"))


# -- What `redrive doctor` finds about the ways out: the mail server and webhooks ------------------------


_TIMEOUT = 10.0
_MAX_HOSTS = 20  # places that are tried


async def check_notifications(app: Redrive) -> list[Finding]:
    """What an app and the rules in its store would find if they told somebody now. Nothing is sent."""
    from redrive.app.runtime import make_store
    from redrive.clock import SystemClock

    store = make_store(app.settings, SystemClock())
    await store.open(migrate=False)
    try:
        targets = [*_list_targets_in_code(app), *await _list_targets_in_store(store)]
        return [
            *[each async for each in _check_mail(app, targets)],
            *[each async for each in _check_webhooks(app, targets)],
        ]
    finally:
        await store.close()


def _list_targets_in_code(app: Redrive) -> list[NotifyTarget]:
    rules = [each.own_options.notify for each in app.registered_workflows.values()]
    named = [target for rule in rules if rule is not None for target in rule.targets]
    return [*(target for target in named if target.kind == "email"), *app.channels.all()]


async def _list_targets_in_store(store: Store) -> list[NotifyTarget]:
    rows = [row.rule for row in await store.notices.rules() if not isinstance(row.rule, Unreadable)]
    return [target for text in rows for target in NotifyRule.from_json(json.loads(text)).targets]


async def _check_mail(app: Redrive, targets: Iterable[NotifyTarget]) -> AsyncIterator[Finding]:
    from redrive.notify.senders import MailServer

    wanted = sorted({target.to for target in targets if target.kind == "email"})
    url, sender = app.settings.smtp_url, app.settings.smtp_from
    if not url and not wanted:
        return
    try:
        server = MailServer.read(url, sender)
        await server.check_connection(_TIMEOUT)
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


async def _check_webhooks(app: Redrive, targets: Iterable[NotifyTarget]) -> AsyncIterator[Finding]:
    """Each host once: whether its name may be called, leads somewhere, and is answered at."""
    from redrive.http.ssrf import check_url

    urls = [target.to for target in targets if target.kind in ("slack", "teams", "webhook")]
    urls += [url for each in app.registered_sinks.values() if (url := getattr(each.sink, "url", None))]
    places: dict[str, str] = {}
    for url in urls:
        places.setdefault(check_url(url, app.channels.allowed).origin, url)
    tried = list(places.items())[:_MAX_HOSTS]
    found = await asyncio.gather(*(_try_connect(url, app) for _, url in tried))
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


async def _try_connect(url: str, app: Redrive) -> str | None:
    """Why a host cannot be reached; None if it can. Nothing is sent to it."""
    from redrive.http.ssrf import resolve_url

    try:
        async with asyncio.timeout(_TIMEOUT):
            target = await resolve_url(url, app.channels.allowed)
            _, writer = await asyncio.open_connection(target.addresses[0], target.url.port)
            writer.close()
    except (RedriveError, OSError, TimeoutError) as error:
        return str(error) or type(error).__name__
    return None
