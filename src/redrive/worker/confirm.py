"""Confirming what a run reserved, when its function has returned: in order of completion, before it succeeds.

From the first of them on there is no way back: one that fails is a letter, and a replay goes on with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.core.outcome import Ended
from redrive.core.saga import to_confirm
from redrive.core.states import EntryKind, StepStatus
from redrive.worker.following import Following, Stuck

if TYPE_CHECKING:
    from redrive.worker.branch import Branch
    from redrive.worker.execution import Execution

__all__ = ["confirm_all"]

_DONE = frozenset({StepStatus.SUCCESS, StepStatus.SKIPPED})


async def confirm_all(execution: Execution, branch: Branch, ended: Ended) -> None:
    """Confirm what the function reserved, then end the run as it returned."""
    following = Following(execution, branch, EntryKind.CONFIRM)
    try:
        await _confirm(following)
    except Stuck as stuck:
        await execution.settle(stuck.outcome(execution))
    await execution.settle(replace(ended, run=execution.view))


async def _confirm(following: Following) -> None:
    pairs = to_confirm(await following.read(), following.options)
    steps = following.steps
    missing = [
        (row, confirm) for row, known in pairs if known is None and (confirm := steps[row.name].confirm)
    ]
    if missing:
        await following.plan((row, confirm, False, True) for row, confirm in missing)
        pairs = to_confirm(await following.read(), following.options)
    for row, entry in pairs:
        confirm = steps[row.name].confirm
        if entry is not None and confirm is not None and entry.status not in _DONE:
            await following.do(entry, confirm)
