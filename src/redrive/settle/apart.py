"""One bad row never fails its batch.

A batch that cannot be settled for what it contains is halved until the culprit is alone; the culprit is
replaced by what it amounts to, and the others are settled as if it had not been there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redrive.core.outcome import Outcome
from redrive.core.refusal import instead_of
from redrive.core.transition import Transition
from redrive.errors import DataRefused
from redrive.settle.settler import Settled, Settler

__all__ = ["not_kept", "settle_apart"]

log = logging.getLogger("redrive.worker")


async def settle_apart(settler: Settler, outcomes: Sequence[Outcome]) -> list[Settled]:
    """Settle all of them in one commit, or the good ones in several; an answer for each, in order."""
    try:
        return await settler.settle(outcomes)
    except Exception as refusal:
        if not isinstance(refusal, DataRefused):
            log.exception("a batch could not be settled")
        if len(outcomes) == 1:
            return [await _replaced(settler, outcomes[0], refusal)]
    half = len(outcomes) // 2
    return [*await settle_apart(settler, outcomes[:half]), *await settle_apart(settler, outcomes[half:])]


async def _replaced(settler: Settler, outcome: Outcome, refusal: Exception) -> Settled:
    """Settle what the refused outcome amounts to; if nothing less can be said, let go of the run."""
    log.error("the store refused what run %s recorded: %s", outcome.run.public_id, refusal)
    other = instead_of(outcome, str(refusal))
    if other == outcome:
        return not_kept(outcome)
    (settled,) = await settle_apart(settler, [other])
    return settled


def not_kept(outcome: Outcome) -> Settled:
    """What became of an outcome that was not written."""
    run = outcome.run
    return Settled(False, 0, Transition(run=run.id, tenant=run.tenant, fence=run.fence))
