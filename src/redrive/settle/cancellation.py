"""Cancelling a run, for users and for runs that end or give up their children."""

from __future__ import annotations

from redrive.core.outcomes import CancelRequested, RollbackRequested, RunView
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.errors import Conflict
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settle.settler import LocalSettler, make_open_steps, make_run_view
from redrive.store.children import AwaitedRun
from redrive.store.port import DeskStore, Store
from redrive.store.runs import RunRow

_OPEN_STEP_STATUSES = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})
_MAX_LOOKS = 100  # at a child that changes at the same moment


async def cancel_run(store: DeskStore, settler: LocalSettler, row: RunRow, by: str, reason: str) -> bool:
    """Cancel a run that is under way; raise Conflict if it cannot be cancelled.

    Return False if the run has changed since it was read.
    """
    run = row.public_id
    if row.status in FINAL_RUN_STATUSES:
        raise Conflict(Reason(ReasonCode.RUN_ENDED, run=run, status=row.status))
    if row.status is RunStatus.COMPENSATING:
        raise Conflict(Reason(ReasonCode.RUN_BEING_UNDONE, run=run))
    entries = await store.journal(row.id)
    if any(entry.kind is EntryKind.CONFIRM and not entry.superseded for entry in entries):
        raise Conflict(Reason(ReasonCode.RUN_CONFIRMING, run=run))
    still_open = make_open_steps(
        (e for e in entries if e.status in _OPEN_STEP_STATUSES and not e.superseded), store.now()
    )
    outcome = CancelRequested(run=make_run_view(row), by=by, reason=reason, open=still_open)
    (settled,) = await settler.settle([outcome])
    return settled.kept


async def end_child(
    store: Store, settler: LocalSettler, parent: RunView, run_id: str, *, undo: bool
) -> AwaitedRun | None:
    """Cancel a child that ends with its parent; with `undo`, begin its rollback if it has succeeded.

    Return its state after that. A run that does not end with this parent is returned without its end.
    """
    found: AwaitedRun | None = None
    for _ in range(_MAX_LOOKS):
        found = await store.awaited_run(parent.id, run_id)
        if found is None or found.end is None:
            return found
        end = found.end
        if end.owner != parent.public_id:
            return replace(found, end=None)
        succeeded = end.status is RunStatus.SUCCESS
        # A rollback that was to end so, and ended in success, found that nothing may be undone.
        refused = end.ends_as is RunStatus.COMPENSATED
        if end.status is RunStatus.COMPENSATING or (end.status in FINAL_RUN_STATUSES and not (undo and succeeded)):
            return found
        (row,) = await store.runs_by_id([end.run_id])
        if row.status is not end.status:
            continue
        if not succeeded:
            try:
                await cancel_run(store, settler, row, f"run:{parent.public_id}", "")
            except Conflict:  # it confirms its reservations, and ends by itself
                return found
            continue
        view = make_run_view(row)
        if refused or not view.options.rollback:
            return found
        await settler.settle([RollbackRequested(run=view, parent=parent.public_id)])
    return found
