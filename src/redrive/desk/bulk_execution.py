"""Deciding on a few letters of a set at a time: read them, decide on each, write what may be written.

One that is refused is marked with the reason, and the others go on. A replay carries the set's id as its
key, so a letter whose decision was written before a crash, and not marked, is found to be done. A replayed
run becomes due, and any worker claims it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.audit import set_refused
from redrive.core.idempotency import letter_id
from redrive.core.outcomes import Closed
from redrive.core.quick import quick
from redrive.core.replay import Mode, ReplayRequest
from redrive.core.schedule import Rate
from redrive.core.states import LetterStatus
from redrive.desk.decisions import Order, Prepared, Replayer, closing
from redrive.errors import ConfigurationError, Conflict, DataRefused, InputError, RedriveError, StoreError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler
from redrive.store.bulk import ItemMark, SetChange, SetItemRow, SetItemStatus, SetRow, SetStatus, SetVerb
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import Store
from redrive.store.records import Case

__all__ = ["Batches", "REPLAY", "SetWorker", "order_of", "why_not"]


# -- Deciding on a few letters of a set at a time: read them, decide on each, write what may be writ -----


log = logging.getLogger("redrive.desk")
REPLAY = "REPLAY"
CLOSINGS = {"RESOLVE": LetterStatus.RESOLVED, "IGNORE": LetterStatus.IGNORED}
_ItemMark = quick(ItemMark)
_BREATH = 25  # items between which others get their turn
Cases = dict[str, Case]


class Batches:
    """Carries out what a set asks for."""

    def __init__(self, store: Store, clock: Clock, replayer: Replayer) -> None:
        self._store = store
        self._replayer = replayer
        self._settler = LocalSettler(store, clock)

    async def decide(self, row: SetRow, items: Sequence[SetItemRow]) -> list[ItemMark]:
        """Decide on these letters. One that changed meanwhile has no mark, and is looked at again."""
        cases = await self._cases(row.tenant, [item.letter for item in items])
        if row.action == REPLAY:
            return await self._replay(row, items, cases)
        return await self._close(row, items, cases)

    async def _cases(self, tenant: str, ids: Sequence[str]) -> Cases:
        """By the ids that were given: those of letters, or of the runs that letters were written for."""
        found = _by_id(await self._store.cases(ids), tenant)
        missing = [id for id in ids if id not in found]
        if missing:
            others = _by_id(await self._store.cases([letter_id(id) for id in missing]), tenant)
            found.update({id: others[letter_id(id)] for id in missing if letter_id(id) in others})
        return found

    # -- replays -----------------------------------------------------------------------------------------

    async def _replay(self, row: SetRow, items: Sequence[SetItemRow], cases: Cases) -> list[ItemMark]:
        order = order_of(row)
        marks: list[ItemMark] = []
        prepared: list[tuple[SetItemRow, Prepared]] = []
        for number, item in enumerate(items):
            found = await self._prepared(order, item, cases.get(item.letter))
            if isinstance(found, Prepared):
                prepared.append((item, found))
            else:
                marks.append(found)
            if number % _BREATH == 0:
                await asyncio.sleep(0)
        if not await self._goes_on(row):
            return []
        return marks + await self._apply(prepared)

    async def _goes_on(self, row: SetRow) -> bool:
        """Return False if the set was stopped, paused or given another rate, or another node has it."""
        now = await self._store.set_of(row.public_id)
        return now is not None and now.status is SetStatus.RUNNING and now.fence == row.fence

    async def _prepared(self, order: Order, item: SetItemRow, case: Case | None) -> Prepared | ItemMark:
        try:
            if case is None:
                return _refused(item, Reason(ReasonCode.LETTER_GONE, id=quote(item.letter)))
            before = await self._replayer.answered_before(case, order)
            if before is not None:
                return _done(item, before.run_id)
            prepared = await self._replayer.prepare(case, order)
            await self._replayer.refuse_unknown(case)
            return prepared
        except Exception as error:
            return _refused(item, why_not(error, item.letter))

    async def _apply(self, prepared: Sequence[tuple[SetItemRow, Prepared]]) -> list[ItemMark]:
        if not prepared:
            return []
        try:
            replays = await self._replayer.apply([each for _, each in prepared])
        except DataRefused as error:
            if len(prepared) == 1:
                return [_refused(prepared[0][0], Reason.of_error(error))]
            return [mark for each in prepared for mark in await self._apply([each])]
        pairs = zip(prepared, replays, strict=True)
        return [_done(item, replay.run_id) for (item, _), replay in pairs if replay is not None]

    # -- closing -----------------------------------------------------------------------------------------

    async def _close(self, row: SetRow, items: Sequence[SetItemRow], cases: Cases) -> list[ItemMark]:
        marks: list[ItemMark] = []
        closing: list[tuple[SetItemRow, Closed]] = []
        for item in items:
            found = _closing(row, item, cases.get(item.letter))
            if isinstance(found, Closed):
                closing.append((item, found))
            else:
                marks.append(found)
        settled = await self._settler.settle([each for _, each in closing]) if closing else []
        pairs = zip(closing, settled, strict=True)
        return marks + [_done(item, None) for (item, _), answer in pairs if answer.kept]


def order_of(row: SetRow) -> Order:
    """What the set asks to be done with each letter, under a key of its own."""
    if isinstance(row.request, Unreadable):
        reason = Reason(ReasonCode.SET_UNREADABLE, id=row.public_id, why=row.request.why)
        raise ConfigurationError(reason)
    said = json.loads(row.request or "{}")
    output = said.pop("output", {}).get("value")
    request = ReplayRequest(**{**said, "mode": Mode(said["mode"]), "output": output})
    return Order(request=request, by=row.by, reason=row.reason, key=row.public_id)


def why_not(error: Exception, letter: str) -> Reason:
    """Why a letter cannot be decided on; trouble with the store is no reason, and is raised again."""
    if isinstance(error, StoreError):
        raise error
    if isinstance(error, RedriveError):
        return Reason.of_error(error)
    log.error("letter %s of a set cannot be decided on", letter, exc_info=error)
    return Reason(ReasonCode.UNEXPECTED_ERROR, error_type=type(error).__name__, message=str(error))


def _by_id(cases: Sequence[Case], tenant: str) -> Cases:
    mine = [case for case in cases if case.letter is not None and tenant in ("", case.run.tenant)]
    return {id: case for case in mine for id in (case.run.public_id, case.subject)}


def _closing(row: SetRow, item: SetItemRow, case: Case | None) -> Closed | ItemMark:
    if case is None or case.letter is None:
        return _refused(item, Reason(ReasonCode.LETTER_GONE, id=quote(item.letter)))
    try:
        outcome = closing(case.run, case.letter, CLOSINGS[row.action], by=row.by, reason=row.reason)
    except Conflict as refused:
        return _refused(item, Reason.of_error(refused))
    return outcome or _done(item, None)


def _done(item: SetItemRow, run_id: str | None) -> ItemMark:
    return _ItemMark(id=item.id, status=SetItemStatus.DONE, run_id=run_id)


def _refused(item: SetItemRow, why: Reason) -> ItemMark:
    return ItemMark(id=item.id, status=SetItemStatus.FAILED, error=why.to_text())


# -- Sets: decide on many letters, a batch at a time, wherever a node has time for it --------------------


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
