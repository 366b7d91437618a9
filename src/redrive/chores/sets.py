"""Sets: decide on many letters, a batch at a time, wherever a node has time for it.

    claim a set      for a short while, so that one node at a time works on it
    note and fetch   what became of the last batch, and the next one, in one commit
    decide           on each letter of the batch

A node that dies leaves its set to another when the lease has passed. What it decided and did not note is
found to be decided. A set that the store cannot be asked for is stopped, and the audit log says why: it would
come back for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS
from redrive.core.auditing import set_refused
from redrive.errors import DataRefused, InputError
from redrive.store.port import Store
from redrive.store.records import ItemMark, SetItemRow, SetRow

__all__ = ["SetWorker"]

_BATCH = 300  # what a worker for a hundred runs, which is the usual size, executes in three goes
_TURN = 20  # batches until another set may have its turn
_LEASE = 15 * MICROS

Decide = Callable[[SetRow, Sequence[SetItemRow]], Awaitable[list[ItemMark]]]


class SetWorker:
    """Works off sets. `decide` is what the desk does with a few letters of one."""

    def __init__(self, store: Store, decide: Decide, *, batch: int = _BATCH) -> None:
        self._store = store
        self._decide = decide
        self._batch = batch

    async def run_once(self) -> int:
        """Work on sets in turn until there are none; returns how many letters were decided on."""
        total = 0
        while (row := await self._store.claim_set(_LEASE)) is not None:
            total += await self._turn(row)
        return total

    async def _turn(self, row: SetRow) -> int:
        marks: list[ItemMark] = []
        count = 0
        for _ in range(_TURN):
            items = await self._next(row, marks)
            if items is None:
                return count
            marks = await self._decide(row, items) if items else []
            count += len(marks)
        await self._store.advance(row, marks, limit=0, lease=0)
        return count

    async def _next(self, row: SetRow, marks: Sequence[ItemMark]) -> list[SetItemRow] | None:
        try:
            return await self._store.advance(row, marks, limit=self._batch, lease=_LEASE)
        except (DataRefused, InputError) as error:
            await self._store.stop_set(row.public_id, set_refused(row.public_id, row.tenant, str(error)))
            return None
