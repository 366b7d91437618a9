"""Workers that are paused for longer than their lease: after they continue, they cannot change anything."""

from __future__ import annotations

import pytest
import scenes
from fleet import Fleet, Member, until

from redrive.core.states import RunStatus
from redrive.core.transitions import AttemptEnd


def declared_dead(fleet: Fleet, member: Member) -> bool:
    """Return True if the first worker that this process enlisted is recorded as dead."""
    (state,) = fleet.rows("SELECT state FROM workers WHERE name LIKE ? ORDER BY id", f"%:{member.pid}")[0]
    return bool(state == "DEAD")


@pytest.mark.parametrize("trick", [None, "deaf"], ids=["that hears it died", "that only the store can stop"])
@pytest.mark.parametrize("workflow", ["patient", "rude"])
async def test_the_late_write_of_a_zombie_changes_no_row(fleet: Fleet, workflow: str, trick: str | None) -> None:
    app = fleet.app()
    step = {"patient": "wait_at", "rude": "block_at"}[workflow]
    async with app.client():
        zombie = fleet.start(trick=trick)
        handle = await app.find(workflow).start("door")
        until(lambda: fleet.ledger.lines("begin", step=step), "the slow step has begun")
        if workflow == "patient":
            until(lambda: fleet.rows("SELECT 1 FROM entries WHERE name = ?", step), "that is recorded")
        fleet.freeze(zombie)
        scenes.gate(fleet.folder, "door").touch()
        heir = fleet.start()

        assert await handle.result("30s") == heir.who
        before = fleet.everything_about(handle.id)
        zombie.thaw()
        zombie.says(
            "was taken from this worker" if trick else "was declared dead"
        )  # the worker knows that it lost the run
        if trick or workflow == "rude":
            until(lambda: fleet.ledger.lines("end", step=step, who=zombie.who), "the late step has ended")
        if trick is None:
            zombie.says("detaching its runs and registering again")
        assert fleet.everything_about(handle.id) == before

        run = await handle.describe()
    begun = [line.who for line in fleet.ledger.lines("begin", step=step)]
    assert begun == [zombie.who, heir.who]
    assert run.status is RunStatus.SUCCESS
    tries = [(a.attempt, a.status) for a in run.steps[-1].attempts]
    # A loop that is blocked at once sends no begin mark: a death is recorded, and no attempt.
    lost = [(1, AttemptEnd.LOST.value)] if workflow == "patient" else []
    assert tries == [*lost, (1, "SUCCESS")]


async def test_a_worker_that_was_declared_dead_enlists_again_and_continues(fleet: Fleet) -> None:
    app = fleet.app()
    async with app.client():
        worker = fleet.start()
        assert await (await app.find("quick").start(1)).result("30s") == "anyone 1"
        fleet.freeze(worker)
        reaper = fleet.start()
        until(lambda: declared_dead(fleet, worker), "the paused worker was declared dead")
        reaper.kill()
        worker.thaw()
        worker.says("registering again")

        assert await (await app.find("quick").start(2)).result("30s") == "anyone 2"
    assert [line.who for line in fleet.ledger.lines("end")] == [worker.who, worker.who]
    states = fleet.rows("SELECT state FROM workers WHERE name LIKE ? ORDER BY id", f"%:{worker.pid}")
    assert states == [("DEAD",), ("LIVE",)]
