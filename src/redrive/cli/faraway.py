"""What `redrive doctor` can see of a server: whether it answers, to whom, and what waits for somebody."""

from __future__ import annotations

from collections.abc import AsyncIterator

from redrive.cli.hardening import check_address
from redrive.cli.health import Finding, late_schedules
from redrive.cli.hints import circuit_hint, hint, worker_hint
from redrive.core.circuit import CircuitStatus
from redrive.core.states import LetterStatus
from redrive.desk.workflows import KnownWorkflow
from redrive.errors import NotAllowed, NotSignedIn, StoreError
from redrive.remote.place import Remote
from redrive.store.selection import CircuitFilter, LetterFilter

__all__ = ["examine_server"]

_NAMED = 5


async def examine_server(server: Remote) -> list[Finding]:
    """All findings; what is wrong with the way there is the last one."""
    async with server.client():
        found: list[Finding] = []
        try:
            found += [finding async for finding in _checks(server)]
        except NotSignedIn as error:
            advice = "put a token that holds into REDRIVE_TOKEN"
            found.append(Finding(check="token", level="wrong", text=str(error), advice=advice))
        except StoreError as error:
            text = str(error).partition("; nothing is lost")[0]
            advice = "see that it runs, that its database does, and that the URL is right"
            found.append(Finding(check="server", level="wrong", text=text, advice=advice))
        return found


async def _checks(server: Remote) -> AsyncIterator[Finding]:
    me = await server.me()
    yield Finding(check="server", level="ok", text=f"{server.address} answers")
    yield check_address(server.address)
    yield Finding(check="token", level="ok", text=f"{me['who']}, {me['role']} of {me['tenant']}")
    for finding in _workflows(await server.workflows.list()):
        yield finding
    for finding in late_schedules(await server.schedules.list()):
        yield finding
    async for finding in _circuits(server):
        yield finding
    yield await _letters(server)


def _workflows(known: list[KnownWorkflow]) -> list[Finding]:
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


async def _circuits(server: Remote) -> AsyncIterator[Finding]:
    """A token for some workflows sees no circuits, and is told nothing of them."""
    try:
        pages = [
            await server.circuits.list(CircuitFilter(status=status), limit=_NAMED)
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


async def _letters(server: Remote) -> Finding:
    count = await server.dlq.count(LetterFilter(status=LetterStatus.OPEN))
    if not count:
        return Finding(check="letters", level="ok", text="no dead letter waits for a person")
    text = f"{count:,} wait{'s' * (count == 1)} for a person"
    return Finding(check="letters", level="note", text=text, advice=hint("dlq", "list"))
