"""From a failed run to the runs that handle its failure."""

from __future__ import annotations

from redrive.store.port import People
from redrive.store.selection import RunFilter

__all__ = ["handled_by"]

_MOST = 100


async def handled_by(store: People, *run_ids: str) -> list[str]:
    """The ids of the handlers of these runs' failures, oldest first; what a handler started is left out."""
    found: list[tuple[int, str]] = []
    for run_id in dict.fromkeys(run_ids):
        page = await store.runs(RunFilter(handler_for=run_id), limit=_MOST, cursor=None)
        found += [(run.id, run.public_id) for run in page.items if run.parent == run_id]
    return [public_id for _, public_id in sorted(found)]
