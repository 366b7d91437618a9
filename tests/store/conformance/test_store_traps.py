"""Known defects of other engines, tested on every store with the engine's own code."""

from __future__ import annotations

import asyncio

import pytest
from letter_kit import audited, closes
from list_cases import NO_TEXTS, TEXTS
from store_kit import DAY, LEASE, Kit, entry, writes

from redrive.chores.maintenance import Purger
from redrive.chores.reaper import Reaper
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.outcomes import WorkflowFailed
from redrive.core.run_options import RunOptions
from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings
from redrive.settle.settler import LocalSettler, make_run_view
from redrive.store.claims import ClaimedRun
from redrive.store.filters import LetterFilter
from redrive.testing.faulty_store import FAIL, LOSE, Fault, FaultyStore, crash_after, crash_before, inject_faults, nth

OPTIONS = RunOptions().to_json()
BROKEN = Failure.of(Category.SERVER_ERROR, "the bank is down", error_type="shop.BankDown")
ENDING = FailureReason(failure=BROKEN, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.RUN_ENDING))


THEIRS = """
INSERT INTO redrive.letters
    (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, fingerprint,
     payload_hash, attempts, version, created_at, failed_at, expires_at{texts})
WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10000)
SELECT 'l' || n, 'b', 1000 + n, 'r' || n, 'w', 'OPEN', 'timeout', 'exec', 'timeout', '', 'f', '',
       1, '', 1, 1, 9000000000000000000{none} FROM n
"""


class Killed(BaseException):
    """The death of a process, simulated by an exception."""


async def fails(kit: Kit, store: FaultyStore, worker: int, run: ClaimedRun) -> None:
    """Report the failure of the run, as the worker does."""
    view = make_run_view(await kit.look(run))
    await LocalSettler(store, kit.clock, worker).settle([WorkflowFailed(run=view, ending=ENDING)])


@pytest.mark.parametrize(
    "fault", [FAIL, LOSE, crash_before(Killed()), crash_after(Killed())], ids=["fail", "lose", "before", "after"]
)
async def test_a_failed_run_has_one_letter_wherever_its_worker_dies(kit: Kit, fault: Fault) -> None:
    """A8: the end, the letter and its audit lines are one call, and a repeat adds nothing."""
    worker, run = await kit.held(options=OPTIONS)
    store = inject_faults(kit.store, nth(1, fault))
    try:
        await fails(kit, store, worker, run)
    except Killed:
        kit.clock.move(LEASE + 1)
        await Reaper(kit.store, kit.clock).run_once()
        kit.clock.move(DAY)
        heir = await kit.worker()
        for again in (await kit.claim(heir)).runs:
            await fails(kit, inject_faults(kit.store), heir, again)
    (letter,) = (await kit.store.letters(LetterFilter(), limit=9, cursor=None)).items
    assert (letter.run, letter.status, letter.replay_count) == (run.id, LetterStatus.OPEN, 0)
    assert (await kit.look(run)).status is RunStatus.DLQ_PENDING
    assert len(await audited(kit, event="dlq.created")) == 1


async def test_another_tenant_s_newer_letters_do_not_empty_the_first_page(kit: Kit) -> None:
    """A9: of 10,000 newer letters none belongs to the tenant, and the tenant's page is full."""
    mine = []
    for _ in range(3):
        worker, run = await kit.held(tenant="a")
        await kit.fail(worker, run)
        mine.append(f"dl-{run.public_id}")
    await kit.by_hand(THEIRS.format(**(NO_TEXTS if kit.kind.startswith("sqlite") else TEXTS)))
    for where in (LetterFilter(tenant="a"), LetterFilter(tenant="a", status="OPEN")):
        page = await kit.store.letters(where, limit=2, cursor=None)
        assert [row.public_id for row in page.items] == [mine[2], mine[1]]
        rest = await kit.store.letters(where, limit=2, cursor=page.next)
        assert [row.public_id for row in rest.items] == [mine[0]]


async def test_a_purge_keeps_the_letter_of_a_purged_run_and_is_not_blocked_by_it(kit: Kit) -> None:
    """A13: runs and letters have separate retention times."""
    worker, run = await kit.held(options=OPTIONS, input='{"n":1}')
    await kit.fail(worker, run, expires_in=900 * DAY)
    await kit.store.apply([closes(await kit.look(run))])
    other = await kit.held(options=OPTIONS)
    await kit.fail(*other, expires_in=900 * DAY)
    purger = Purger(kit.store, kit.clock, Settings())
    kit.clock.move(8 * DAY)
    await purger.run_once()
    assert await kit.store.run(run.public_id) is None
    assert (await kit.letter(run)).input == '{"n":1}'
    kit.clock.move(30 * DAY)
    await purger.run_once()
    assert await kit.store.letter_of(run.id) is None
    assert (await kit.look(other[1])).status is RunStatus.DLQ_PENDING


async def test_an_undecided_letter_expires_once(kit: Kit) -> None:
    """Two nodes purge at the same time: one letter is closed, with one audit line, and the run has failed."""
    worker, run = await kit.held(options=OPTIONS)
    await kit.fail(worker, run, expires_in=DAY)
    kit.clock.move(DAY)
    purgers = [Purger(store, kit.clock, Settings()) for store in (kit.store, await kit.beside())]
    await asyncio.gather(*(purger.run_once() for purger in purgers))
    found = await kit.letter(run)
    assert (found.status, found.closed_at, found.closed_by) == (LetterStatus.EXPIRED, kit.clock.now(), "redrive")
    assert (await kit.look(run)).status is RunStatus.FAILED
    assert len(await audited(kit, event="dlq.expired")) == 1


async def test_two_concurrent_reapers_recover_a_run_once(kit: Kit) -> None:
    """A15, A16: one death counts as one death and one lost attempt, whichever reaper finds it."""
    worker, run = await kit.held(options=OPTIONS)
    await kit.store.apply([writes(run, entry(0, StepStatus.RUNNING, options="{}"))], worker=worker)
    kit.clock.move(LEASE + 1)
    reapers = [Reaper(store, kit.clock) for store in (kit.store, await kit.beside(), kit.store)]
    await asyncio.gather(*(reaper.run_once() for reaper in reapers))
    found = await kit.look(run)
    assert (found.worker, found.fence, found.deaths) == (None, run.fence + 1, 1)
    (lost,) = await kit.store.attempts(run.id)
    assert (lost.end, lost.attempt) == (AttemptEnd.LOST, 1)
