"""Execution of bulk actions, a batch of letters at a time: read them, decide on each, write the decisions.

A letter that is refused is marked with the reason, and the others continue. A replay has the id of the bulk action
as its key: a letter whose decision was written before a crash, and not marked, is recognised as done. A replayed
run becomes due, and any worker claims it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.audit import audit_bulk_refused
from redrive.core.bulk_rate import Rate
from redrive.core.keys_and_ids import letter_id
from redrive.core.outcomes import LetterClosed
from redrive.core.replay_plan import ReplayMode, ReplayRequest
from redrive.core.states import LetterStatus
from redrive.desk.actor import Actor
from redrive.desk.letter_status import close_letter
from redrive.desk.replays import PreparedReplay, Replayer, ReplayOrder
from redrive.errors import ConfigurationError, Conflict, DataRefused, InputError, RedriveError, StoreError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler
from redrive.store.bulk import BulkChange, BulkItemResult, BulkItemRow, BulkItemStatus, BulkRow, BulkStatus, BulkVerb
from redrive.store.encryption.keyring import Unreadable
from redrive.store.letters import DecisionCase
from redrive.store.port import Store

log = logging.getLogger("redrive.desk")
REPLAY = "REPLAY"
CLOSED_STATUSES = {"RESOLVE": LetterStatus.RESOLVED, "IGNORE": LetterStatus.IGNORED}
_YIELD_EVERY = 25  # items after which other tasks of the event loop run
_BATCH_SIZE = 300  # three times the runs that a worker of the usual concurrency executes at once
_BATCHES_PER_CLAIM = 20  # after so many batches another bulk action may be claimed
_LEASE = 15 * MICROS
CasesById = dict[str, DecisionCase]
DecideItems = Callable[[BulkRow, Sequence[BulkItemRow]], Awaitable[list[BulkItemResult]]]


class BulkExecutor:
    """Decides on letters of a bulk action."""

    def __init__(self, store: Store, clock: Clock, replayer: Replayer) -> None:
        self._store = store
        self._replayer = replayer
        self._settler = LocalSettler(store, clock)

    async def decide(self, row: BulkRow, items: Sequence[BulkItemRow]) -> list[BulkItemResult]:
        """Decide on these letters. A letter that changed meanwhile gets no result, and is tried again."""
        # The ids are those of letters, or of the runs that letters were written for.
        ids = [item.letter for item in items]
        cases = _index_cases(await self._store.cases(ids), row.tenant)
        missing = [id for id in ids if id not in cases]
        if missing:
            others = _index_cases(await self._store.cases([letter_id(id) for id in missing]), row.tenant)
            cases.update({id: others[letter_id(id)] for id in missing if letter_id(id) in others})
        return await (self._replay_items if row.action == REPLAY else self._close_items)(row, items, cases)

    async def _replay_items(self, row: BulkRow, items: Sequence[BulkItemRow], cases: CasesById) -> list[BulkItemResult]:
        order = make_order(row)
        results: list[BulkItemResult] = []
        prepared: list[tuple[BulkItemRow, PreparedReplay]] = []
        for number, item in enumerate(items):
            found = await self._prepare_item(order, item, cases.get(item.letter))
            if isinstance(found, PreparedReplay):
                prepared.append((item, found))
            else:
                results.append(found)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
        # Preparing takes a while. Meanwhile a user may have stopped or paused the bulk action or changed its rate,
        # or another node may have claimed it: then nothing more is written.
        now = await self._store.bulk_by_id(row.public_id)
        if now is None or now.status is not BulkStatus.RUNNING or now.fence != row.fence:
            return []
        return results + await self._apply_replays(prepared)

    async def _prepare_item(
        self, order: ReplayOrder, item: BulkItemRow, case: DecisionCase | None
    ) -> PreparedReplay | BulkItemResult:
        try:
            if case is None:
                return _make_refused_result(item, Reason(ReasonCode.LETTER_GONE, id=quote(item.letter)))
            before = await self._replayer.find_earlier_answer(case, order)
            if before is not None:
                return _make_done_result(item, before.run_id)
            prepared = await self._replayer.prepare(case, order)
            await self._replayer.require_registered_workflow(case)
            return prepared
        except Exception as error:
            return _make_refused_result(item, explain_refusal(error, item.letter))

    async def _apply_replays(self, prepared: Sequence[tuple[BulkItemRow, PreparedReplay]]) -> list[BulkItemResult]:
        if not prepared:
            return []
        try:
            replays = await self._replayer.apply([each for _, each in prepared])
        except DataRefused as error:
            if len(prepared) == 1:
                return [_make_refused_result(prepared[0][0], Reason.of_error(error))]
            return [result for each in prepared for result in await self._apply_replays([each])]
        pairs = zip(prepared, replays, strict=True)
        return [_make_done_result(item, replay.run_id) for (item, _), replay in pairs if replay is not None]

    async def _close_items(self, row: BulkRow, items: Sequence[BulkItemRow], cases: CasesById) -> list[BulkItemResult]:
        results: list[BulkItemResult] = []
        closing: list[tuple[BulkItemRow, LetterClosed]] = []
        actor = Actor(row.by, row.reason)
        for item in items:
            case = cases.get(item.letter)
            if case is None or case.letter is None:
                results.append(_make_refused_result(item, Reason(ReasonCode.LETTER_GONE, id=quote(item.letter))))
                continue
            try:
                outcome = close_letter(case.run, case.letter, CLOSED_STATUSES[row.action], actor)
            except Conflict as refused:
                results.append(_make_refused_result(item, Reason.of_error(refused)))
                continue
            if outcome is None:
                results.append(_make_done_result(item, None))
            else:
                closing.append((item, outcome))
        settled = await self._settler.settle([each for _, each in closing]) if closing else []
        pairs = zip(closing, settled, strict=True)
        return results + [_make_done_result(item, None) for (item, _), answer in pairs if answer.kept]


def make_order(row: BulkRow) -> ReplayOrder:
    """Return the decision of a bulk action on each letter; its id is the key."""
    if isinstance(row.request, Unreadable):
        reason = Reason(ReasonCode.BULK_UNREADABLE, id=row.public_id, why=row.request.why)
        raise ConfigurationError(reason)
    stored = json.loads(row.request or "{}")
    output = stored.pop("output", {}).get("value")
    request = ReplayRequest(**{**stored, "mode": ReplayMode(stored["mode"]), "output": output})
    return ReplayOrder(request=request, actor=Actor(row.by, row.reason), key=row.public_id)


def explain_refusal(error: Exception, letter: str) -> Reason:
    """Return why a letter cannot be decided on. An error of the store says nothing about it, and is raised again."""
    if isinstance(error, StoreError):
        raise error
    if isinstance(error, RedriveError):
        return Reason.of_error(error)
    log.error("unexpected error while deciding on letter %s", letter, exc_info=error)
    return Reason(ReasonCode.UNEXPECTED_ERROR, error_type=type(error).__name__, message=str(error))


def _index_cases(cases: Sequence[DecisionCase], tenant: str) -> CasesById:
    mine = [case for case in cases if case.letter is not None and tenant in ("", case.run.tenant)]
    return {id: case for case in mine for id in (case.run.public_id, case.subject)}


def _make_done_result(item: BulkItemRow, run_id: str | None) -> BulkItemResult:
    return BulkItemResult(id=item.id, status=BulkItemStatus.DONE, run_id=run_id)


def _make_refused_result(item: BulkItemRow, why: Reason) -> BulkItemResult:
    return BulkItemResult(id=item.id, status=BulkItemStatus.FAILED, error=why.to_text())


class BulkWorker:
    """Claims bulk actions and executes them. `decide` decides on a batch of letters."""

    def __init__(self, store: Store, decide: DecideItems, *, batch: int = _BATCH_SIZE) -> None:
        self._store = store
        self._decide = decide
        self._batch = batch
        self._due: dict[int, int] = {}  # when bulk actions that wait for their rate are due, by id

    @property
    def next_at(self) -> int | None:
        """The time when the next bulk action that waits for its rate is due, as far as this node knows."""
        return min(self._due.values(), default=None)

    def pause(self, most: float) -> float:
        """Return the seconds until there is something to do, at most `most`."""
        if self.next_at is None:
            return most
        return min(most, max(0.0, (self.next_at - self._store.now()) / MICROS))

    async def run_once(self) -> int:
        """Execute all due bulk actions; return how many letters were decided on."""
        # Forget passed times before asking the store: if it does not answer, they would make `pause` return 0.
        now = self._store.now()
        self._due = {id: due for id, due in self._due.items() if due > now}
        total = 0
        while (row := await self._store.claim_bulk(_LEASE)) is not None:
            total += await (self._work_unlimited(row) if row.rate is None else self._work_at_rate(row, row.rate))
        return total

    async def _work_at_rate(self, row: BulkRow, rate: Rate) -> int:
        """Decide on as many letters as the rate allows at once, and release the bulk action until the next portion."""
        portion = rate.portion(self._batch)
        items = await self._advance_or_stop(row, (), portion.count, _LEASE)
        if items is None:
            return 0
        results = await self._decide(row, items) if items else []
        # The gap counts from the release: measured from the claim, a slow portion and the next would be one.
        wait = portion.gap if items else 0
        if await self._advance_or_stop(row, results, 1, wait):
            self._due[row.id] = self._store.now() + wait
        return len(results)

    async def _work_unlimited(self, row: BulkRow) -> int:
        results: list[BulkItemResult] = []
        count = 0
        for _ in range(_BATCHES_PER_CLAIM):
            items = await self._advance_or_stop(row, results, self._batch, _LEASE)
            if items is None:
                return count
            results = await self._decide(row, items) if items else []
            count += len(results)
        await self._store.advance(row, results, limit=0, lease=0)
        return count

    async def _advance_or_stop(
        self, row: BulkRow, results: Sequence[BulkItemResult], limit: int, lease: int
    ) -> list[BulkItemRow] | None:
        try:
            return await self._store.advance(row, results, limit=limit, lease=lease)
        except (DataRefused, InputError) as error:
            line = audit_bulk_refused(row.public_id, row.tenant, Reason.of_error(error))
            await self._store.change_bulk(row.public_id, BulkChange(BulkVerb.STOP), line)
            return None
