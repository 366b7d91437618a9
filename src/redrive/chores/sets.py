"""Sets: decide on many letters, a batch at a time, wherever a node has time for it.

    claim a set      for a short while, so that one node at a time works on it
    note and fetch   what became of the last batch, and the next one, in one commit
    decide           on each letter of the batch

Of a set with a rate a batch is one portion, and then the set is nobody's until its next one is due: so the
rate holds for all nodes together, and survives any of them. A paused set is claimed by nobody.

A node that dies leaves its set to another when the lease has passed. What it decided and did not note is
found to be decided. A set that the store cannot be asked for is stopped, and the audit log says why: it would
come back for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS
from redrive.core.auditing import set_refused
from redrive.core.rate import Rate
from redrive.errors import DataRefused, InputError
from redrive.reasons import Reason
from redrive.store.bulk import ItemMark, SetChange, SetItemRow, SetRow, SetVerb
from redrive.store.port import Store

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
        self._due: dict[int, int] = {}  # when sets may go on that had to wait for their rate, as far as known

    @property
    def next_at(self) -> int | None:
        """When the next set may go on that this node left alone because of its rate."""
        return min(self._due.values(), default=None)

    def pause(self, most: float) -> float:
        """For how many seconds there is nothing to do, and `most` where that is not known."""
        if self.next_at is None:
            return most
        return min(most, max(0.0, (self.next_at - self._store.now()) / MICROS))

    async def run_once(self) -> int:
        """Work on sets in turn until there are none; returns how many letters were decided on."""
        now = self._store.now()  # before: a store that does not answer is not asked again at once
        self._due = {set: due for set, due in self._due.items() if due > now}
        total = 0
        while (row := await self._store.claim_set(_LEASE)) is not None:
            total += await (self._turn(row) if row.rate is None else self._portion(row, row.rate))
        return total

    async def _portion(self, row: SetRow, rate: Rate) -> int:
        """Decide on as many letters as may go at once, and leave the set alone until the next ones may."""
        portion = rate.portion(self._batch)
        items = await self._next(row, (), portion.count, _LEASE)
        if items is None:
            return 0
        marks = await self._decide(row, items) if items else []
        wait = portion.gap if items else 0  # from when it was let go, or a slow portion and the next are one
        if await self._next(row, marks, 1, wait):
            self._due[row.id] = self._store.now() + wait
        return len(marks)

    async def _turn(self, row: SetRow) -> int:
        marks: list[ItemMark] = []
        count = 0
        for _ in range(_TURN):
            items = await self._next(row, marks, self._batch, _LEASE)
            if items is None:
                return count
            marks = await self._decide(row, items) if items else []
            count += len(marks)
        await self._store.advance(row, marks, limit=0, lease=0)
        return count

    async def _next(
        self, row: SetRow, marks: Sequence[ItemMark], limit: int, lease: int
    ) -> list[SetItemRow] | None:
        try:
            return await self._store.advance(row, marks, limit=limit, lease=lease)
        except (DataRefused, InputError) as error:
            line = set_refused(row.public_id, row.tenant, Reason.of_error(error))
            await self._store.change_set(row.public_id, SetChange(SetVerb.STOP), line)
            return None
