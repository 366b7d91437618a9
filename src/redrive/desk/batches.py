"""Deciding on a few letters of a set at a time: read them, decide on each, write what may be written.

One that is refused is marked with the reason, and the others go on. A replay carries the set's id as its
key, so a letter whose decision was written before a crash, and not marked, is found to be done. The worker
beside may take a while until it has room for the next runs: whether the set still goes on is asked before
each commit, so that a pause or another rate waits for one of them at the most.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from redrive.clock import Clock
from redrive.core.keys import letter_id
from redrive.core.outcome import Closed
from redrive.core.quick import quick
from redrive.core.replay import Mode, ReplayRequest
from redrive.core.states import LetterStatus
from redrive.core.transition import Answer
from redrive.desk.closing import closing
from redrive.desk.handing import Handing, Hands, Taker, Taking, as_claimed
from redrive.desk.replaying import Order, Prepared, Replayer
from redrive.errors import ConfigurationError, Conflict, DataRefused, RedriveError, StoreError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler
from redrive.store.port import Store
from redrive.store.records import Case
from redrive.store.seal import is_sealed, why_sealed
from redrive.store.sets import ItemMark, SetItemRow, SetItemStatus, SetRow, SetStatus
from redrive.store.workers import Claimed

__all__ = ["REPLAY", "Batches", "order_of", "why_not"]

log = logging.getLogger("redrive.desk")

REPLAY = "REPLAY"
CLOSINGS = {"RESOLVE": LetterStatus.RESOLVED, "IGNORE": LetterStatus.IGNORED}
_ItemMark = quick(ItemMark)
_BREATH = 25  # items between which others get their turn

_STARTS = (Mode.FULL, Mode.ROLLBACK)  # the run itself does not go on with its function

Cases = dict[str, Case]
_Decided = tuple[ItemMark, Claimed | None]


@dataclass(frozen=True, slots=True)
class _Work:
    """A set, what it asks to be done with each letter, and the letters of a batch."""

    row: SetRow
    order: Order
    cases: Cases


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to become of letters: of some it is known, for the others it is to be written."""

    items: Sequence[SetItemRow]
    taking: Taking | None
    known: list[_Decided]
    prepared: list[tuple[SetItemRow, Prepared]]

    @property
    def ahead(self) -> bool:
        """True if the worker has them in line first."""
        return self.taking is not None and self.taking.ahead


class _Given:
    """What became of letters whose runs the worker was to have, and whether the set still goes on."""

    def __init__(self) -> None:
        self.marks: list[ItemMark] = []
        self.goes_on = True


class Batches:
    """Carries out what a set asks for."""

    def __init__(self, store: Store, clock: Clock, replayer: Replayer, hands: Hands = lambda: None) -> None:
        self._store = store
        self._handing = Handing(store, clock, hands)
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
        work = _Work(row, order_of(row), cases)
        marks, left = await self._hand_over(work, items)
        plan = await self._plan(work, left, None)
        rest = await self._carry_out(plan) if left and await self._goes_on(row) else []
        return marks + [mark for mark, _ in rest]

    async def _hand_over(
        self, work: _Work, items: Sequence[SetItemRow]
    ) -> tuple[list[ItemMark], Sequence[SetItemRow]]:
        """Let the worker beside go on with runs, as many as it has time for; returns what is left, too.

        While it is busy with some of them, the next ones are planned, for what it could have at first.
        """
        given = _Given()
        taker = None if work.order.request.mode in _STARTS else await self._handing.taker()
        if taker is None:
            return given.marks, items
        taking = await self._handing.taking(taker, taker.id)
        while items and given.goes_on:
            share = self._handing.share(taker)
            plan = await self._plan(work, items[: share.count], replace(taking, ahead=share.ahead))
            give = partial(self._give, taker, work, plan, given)
            if not await self._handing.took(taker, replace(share, count=len(plan.items)), give):
                break
            items = items[share.count :]
        return given.marks, items if given.goes_on else ()

    async def _give(
        self, taker: Taker, work: _Work, plan: _Plan, given: _Given, worker: int
    ) -> tuple[list[Claimed], int]:
        """Decide on letters whose runs are the worker's then; they are marked, too."""
        asked = self._handing.taking(taker, worker), self._goes_on(work.row)
        taking, given.goes_on = await asyncio.gather(*asked)
        taking = replace(taking, ahead=plan.ahead)
        if taking != plan.taking:  # it has another id, or a workflow was paused or goes on
            plan = await self._plan(work, plan.items, taking)
        decided = await self._carry_out(plan) if given.goes_on else []
        given.marks += [mark for mark, _ in decided]
        claimed = [each for _, each in decided if each is not None]
        return claimed, self._store.now()

    async def _plan(self, work: _Work, items: Sequence[SetItemRow], taking: Taking | None) -> _Plan:
        """What is to become of each, as far as can be said before it is written."""
        known: list[_Decided] = []
        prepared: list[tuple[SetItemRow, Prepared]] = []
        for number, item in enumerate(items):
            found = await self._prepared(work.order, item, work.cases.get(item.letter), taking)
            if isinstance(found, Prepared):
                prepared.append((item, found))
            else:
                known.append((found, None))
            if number % _BREATH == 0:
                await asyncio.sleep(0)
        return _Plan(items, taking, known, prepared)

    async def _carry_out(self, plan: _Plan) -> list[_Decided]:
        """What became of each, with the run where that is the taker's now."""
        worker = None if plan.taking is None else plan.taking.worker
        return plan.known + await self._apply(plan.prepared, worker)

    async def _goes_on(self, row: SetRow) -> bool:
        """False once somebody stopped the set, paused it or gave it another rate, or another node has it."""
        now = await self._store.set_of(row.public_id)
        return now is not None and now.status is SetStatus.RUNNING and now.fence == row.fence

    async def _prepared(
        self, order: Order, item: SetItemRow, case: Case | None, taking: Taking | None
    ) -> Prepared | ItemMark:
        try:
            if case is None:
                return _refused(item, Reason(ReasonCode.LETTER_GONE, id=quote(item.letter)))
            before = await self._replayer.answered_before(case, order)
            if before is not None:
                return _done(item, before.run_id)
            worker = taking.worker if taking is not None and taking.may_have(case) else None
            ahead = taking is not None and taking.ahead
            prepared = await self._replayer.prepare(case, order, worker=worker, ahead=ahead)
            if worker is None:
                await self._replayer.refuse_unknown(case)
            return prepared
        except Exception as error:
            return _refused(item, why_not(error, item.letter))

    async def _apply(
        self, prepared: Sequence[tuple[SetItemRow, Prepared]], worker: int | None
    ) -> list[_Decided]:
        if not prepared:
            return []
        try:
            answers = await self._replayer.write([each for _, each in prepared], worker=worker)
        except DataRefused as error:
            if len(prepared) == 1:
                return [(_refused(prepared[0][0], Reason.of_error(error)), None)]
            return [one for each in prepared for one in await self._apply([each], worker)]
        pairs = zip(prepared, answers, strict=True)
        return [_written(item, each, answer) for (item, each), answer in pairs if answer.kept]

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
    if is_sealed(row.request or ""):
        why = why_sealed(row.request or "")
        raise ConfigurationError(Reason(ReasonCode.SET_UNREADABLE, id=row.public_id, why=why))
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


def _written(item: SetItemRow, prepared: Prepared, answer: Answer) -> _Decided:
    """A decision that the store kept."""
    transition = prepared.transition
    assert transition.replay is not None
    taken = transition.reopens is not None and transition.reopens.worker is not None
    claimed = as_claimed(prepared.case, transition, answer.now) if taken else None
    return _done(item, transition.replay.run_id), claimed


def _done(item: SetItemRow, run_id: str | None) -> ItemMark:
    return _ItemMark(id=item.id, status=SetItemStatus.DONE, run_id=run_id)


def _refused(item: SetItemRow, why: Reason) -> ItemMark:
    return ItemMark(id=item.id, status=SetItemStatus.FAILED, error=why.to_text())
