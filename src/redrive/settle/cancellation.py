"""Cancelling a run, for users and for the chore that cancels children."""

from __future__ import annotations

from redrive.core.outcomes import CancelRequested
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.errors import Conflict
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import LocalSettler, make_open_steps, make_run_view
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow

_OPEN_STEP_STATUSES = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})


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
