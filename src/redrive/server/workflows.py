"""Which workflows somebody may know of, and how many runs of them wait in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from redrive.core.roles import Permission
from redrive.core.states import RunStatus
from redrive.desk.workflows import KnownWorkflow, Workflows
from redrive.server.asking import Asking
from redrive.store.pages import OLDEST
from redrive.store.selection import RunFilter
from redrive.store.workers import living

__all__ = ["desk_of", "known", "oldest"]

_LOOKED_AT = 100


def desk_of(asked: Asking) -> Workflows:
    """Handling workflows, which are of all tenants."""
    return Workflows(asked.whole, asked.clock, asked.runtime.ring)


async def known(asked: Asking) -> list[KnownWorkflow]:
    """The workflows that code registered, as far as somebody may know of them.

    How many due runs nobody can take is counted over all tenants for owners; for others, among the hundred
    of their own tenant that have waited longest.
    """
    mine = asked.principal.workflows
    shown = [one for one in await desk_of(asked).list() if mine is None or one.name in mine]
    if asked.principal.may(Permission.MANAGE_TENANTS):
        return shown
    stranded = await _stranded(asked)
    return [replace(one, unclaimable=stranded.get(one.name, 0)) for one in shown]


async def oldest(asked: Asking) -> list[tuple[str, int]]:
    """The runs that have waited longest to be taken and are due: their workflow, and since when."""
    page = await asked.view.runs(RunFilter(status=[RunStatus.PENDING]), limit=_LOOKED_AT, cursor=OLDEST)
    now, paused = asked.whole.now(), await asked.view.paused()
    due = [(run.workflow, run.available_at or now) for run in page.items if run.workflow not in paused]
    return [(workflow, since) for workflow, since in due if since <= now]


async def _stranded(asked: Asking) -> Mapping[str, int]:
    alive = living(await asked.whole.workers(), asked.whole.now())
    taken = {name for worker in alive for name in worker.workflows}
    return Counter(workflow for workflow, _ in await oldest(asked) if workflow not in taken)
