"""Graceful stop on SIGTERM: no run is lost and no attempt is consumed."""

from __future__ import annotations

import signal

import scenes
from fleet import Fleet, until

from redrive.core.states import RunStatus
from redrive.core.transitions import AttemptEnd


async def test_sigterm_under_load_releases_the_runs_that_it_cannot_finish(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        fleet.execute(scenes.CREDITS)
        stopping = fleet.start(grace=0.5, concurrency=20)
        stuck = await app.find("patient").start_many([("door",)] * 8)
        until(lambda: len(fleet.ledger.lines("begin", step="wait_at")) == 8, "eight steps wait at the door")
        orders = await app.find("order").start_many([(number,) for number in range(60)])
        until(lambda: len(fleet.ledger.lines("end", step="tell")) > 20, "there is other work under way")

        stopping.signal(signal.SIGTERM)
        assert stopping.ended() == 0
        assert fleet.rows("SELECT state FROM workers") == [("STOPPED",)]
        assert fleet.rows("SELECT count(*) FROM runs WHERE worker IS NOT NULL") == [(0,)]
        scenes.gate(fleet.folder, "door").touch()
        heir = fleet.start()

        assert [await handle.result("30s") for handle in stuck] == [heir.who] * 8
        fleet.all_ended()
        waited = [await handle.describe() for handle in stuck]
        ordered = [await handle.describe() for handle in orders]

    for run in waited:
        assert run.crashes == 0
        tries = [(a.attempt, a.status) for a in run.steps[-1].attempts]
        assert tries == [(1, AttemptEnd.RELEASED.value), (1, "SUCCESS")]
    assert {run.status for run in ordered} == {RunStatus.SUCCESS}  # at-most-once steps were allowed to finish
    assert {step.attempt for run in ordered for step in run.steps if step.name != "reserve"} == {1}
    assert {run.steps[0].attempt for run in ordered} == {2}
    assert fleet.rows("SELECT count(*) FROM credits") == [(60,)]
    assert fleet.rows("SELECT count(*) FROM attempts WHERE ending = 'LOST'") == [(0,)]


async def test_a_second_sigterm_cuts_the_grace_period_short(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        worker = fleet.start(grace=600)
        handle = await app.find("patient").start("door")
        until(lambda: fleet.ledger.lines("begin", step="wait_at"), "a step waits at the door")
        worker.signal(signal.SIGTERM)
        worker.says("stopping: ")
        assert not worker.is_gone
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0

        scenes.gate(fleet.folder, "door").touch()
        heir = fleet.start()
        assert await handle.result("30s") == heir.who
        run = await handle.describe()
    assert run.crashes == 0
    tries = [(a.attempt, a.status) for a in run.steps[-1].attempts]
    assert tries == [(1, AttemptEnd.RELEASED.value), (1, "SUCCESS")]


async def test_a_thread_that_does_not_end_does_not_keep_the_process_alive(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        worker = fleet.start(grace=0.2)
        handle = await app.find("threaded").start("door")
        until(lambda: fleet.ledger.lines("begin", step="stand_at"), "a thread waits at the door")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0

        scenes.gate(fleet.folder, "door").touch()
        heir = fleet.start()
        assert await handle.result("30s") == heir.who
    assert fleet.ledger.executions() == {(handle.id, "stand_at", 1): [worker.who, heir.who]}
