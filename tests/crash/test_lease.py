"""Leases: a worker keeps its runs while it lives, and loses them when it dies."""

from __future__ import annotations

import signal

import pytest
import scenes
from fleet import LEASE, Fleet, until

from redrive import RunFailed
from redrive.core.states import RunStatus


async def test_a_step_that_blocks_the_loop_longer_than_the_lease_keeps_its_run(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        rude = fleet.start()
        handle = await app.find("rude").start("door")
        until(lambda: fleet.ledger.lines("begin", step="block_at"), "the step blocks its worker")
        fleet.start()

        def beats_since_the_step_began() -> float:
            ((micros,),) = fleet.rows(
                "SELECT beat_at - runs.started_at FROM workers JOIN runs ON runs.worker = workers.id"
            )
            return float(micros) / 1e6

        until(lambda: beats_since_the_step_began() > 2 * LEASE, "two leases have passed")
        assert fleet.rows("SELECT fence FROM runs") == [(1,)]
        scenes.gate(fleet.folder, "door").touch()
        assert await handle.result("30s") == rude.who
        run = await handle.describe()
    assert [line.who for line in fleet.ledger.lines("begin")] == [rude.who]
    assert (run.status, run.crashes) == (RunStatus.SUCCESS, 0)
    assert [attempt.status for attempt in run.steps[0].attempts] == ["SUCCESS"]


async def test_a_step_that_blocks_the_loop_beyond_its_timeout_counts_as_timed_out(fleet: Fleet) -> None:
    """The blocked worker could not send the begin mark; another worker ends the attempt before the lease expires."""
    app = fleet.app()
    async with app.client():
        rude = fleet.start()
        handle = await app.find("ruder").start("door")
        until(lambda: fleet.ledger.lines("begin", step="hang_at"), "the step blocks its worker")
        fleet.start()
        with pytest.raises(RunFailed) as failed:
            await handle.result("30s")
        run = await handle.describe()
        scenes.gate(fleet.folder, "door").touch()
        until(lambda: fleet.ledger.lines("end", step="hang_at"), "the blocked worker continues")
        fleet.all_ended()
        assert await handle.describe() == run, "the late result changes nothing"
    assert failed.value.code == "timeout"
    assert [line.who for line in fleet.ledger.lines("begin")] == [rude.who]
    assert (run.status, run.crashes) == (RunStatus.DLQ_PENDING, 0)
    assert [attempt.status for attempt in run.steps[0].attempts] == ["TIMED_OUT"]


async def test_a_run_whose_worker_died_right_after_the_claim_is_claimed_again(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        handles = await app.find("quick").start_many([(number,) for number in range(5)])
        victim = fleet.start(wait=False, trick="dies_after_claim")
        assert victim.ended() == -signal.SIGKILL
        assert fleet.rows("SELECT DISTINCT status, fence FROM runs") == [("RUNNING", 1)]
        assert fleet.ledger.lines() == []

        fleet.start()
        results = [await handle.result("30s") for handle in handles]
    assert results == [f"anyone {number}" for number in range(5)]
    assert fleet.ledger.count() == {"tell": 5}


async def test_a_poison_run_does_not_affect_other_runs_of_its_worker(fleet: Fleet) -> None:
    app = fleet.app()
    poison, bystanders = 41, 99
    async with app.client():
        items = [(number, number == poison) for number in range(bystanders + 1)]
        handles = await app.find("maybe_deadly").start_many(items)
        fleet.start(concurrency=100)
        until(lambda: len(fleet.ledger.lines("begin")) == 100, "one worker has all of the runs in hand")
        scenes.gate(fleet.folder, "handle").touch()
        fleet.members[0].ended()
        later = await app.find("patient").start_many([("door",)] * 5)  # held by the worker at each further death
        deaths = 1
        while fleet.unfinished() > len(later):
            fleet.start(concurrency=100)
            until(lambda: fleet.members[-1].is_gone or fleet.unfinished() == len(later), "it dies, or is done")
            deaths += fleet.members[-1].is_gone
        scenes.gate(fleet.folder, "door").touch()
        fleet.all_ended()
        letters = (await app.dlq.list(limit=200)).items
        after = [await handle.describe() for handle in later]
        runs = [await handle.describe() for handle in handles]

    assert deaths == 3
    assert [(letter.run_id, letter.code) for letter in letters] == [(handles[poison].id, "infrastructure_failure")]
    assert "3 workers crashed" in letters[0].reason
    assert {run.status for n, run in enumerate(runs) if n != poison} == {RunStatus.SUCCESS}
    assert runs[poison].status is RunStatus.DLQ_PENDING
    assert {(run.status, run.crashes) for run in after} == {(RunStatus.SUCCESS, 0)}
    deadly = fleet.ledger.lines("begin", run=handles[poison].id)
    assert [line.attempt for line in deadly] == [1, 1, 1]


async def test_a_suspect_that_made_progress_does_not_delay_other_suspects(fleet: Fleet) -> None:
    """Suspects run one at a time, but only while they are suspects, not until their runs have ended."""
    app = fleet.app()
    async with app.client():
        handles = await app.find("patient_twice").start_many([("one", "two")] * 3)
        victim = fleet.start()
        until(lambda: len(fleet.ledger.lines("begin")) == 3, "one worker has all of the runs in hand")
        victim.kill()
        scenes.gate(fleet.folder, "one").touch()
        heir = fleet.start()
        until(lambda: len(fleet.ledger.lines("begin", who=heir.who)) == 6, "all of them wait at the second")
        assert fleet.unfinished() == 3
        scenes.gate(fleet.folder, "two").touch()
        assert [await handle.result("30s") for handle in handles] == [heir.who] * 3
