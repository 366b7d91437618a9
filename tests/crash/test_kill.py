"""Repeated SIGKILL of workers at any moment: no run is lost and no effect happens too often."""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter

import scenes
from fleet import Fleet, until

from redrive.core.states import RunStatus

SOAK = int(os.environ.get("REDRIVE_SOAK", "1"))
"""Factor by which a soak test is longer than an ordinary test run."""


async def test_runs_survive_repeated_kills_of_their_workers(fleet: Fleet) -> None:
    seed = int(os.environ.get("REDRIVE_SEED", secrets.randbelow(10**6)))
    print(f"REDRIVE_SEED={seed} repeats the choice of victims")
    chance = random.Random(seed)
    kills, per_kill = 10 * SOAK if SOAK > 1 else 6, 20
    app = fleet.app()
    async with app.client():
        fleet.execute(scenes.CREDITS)
        crew = [fleet.start() for _ in range(3)]
        accepted: dict[str, int] = {}
        for number in range(kills):
            batch = range(number * per_kill, (number + 1) * per_kill)
            handles = await app.find("order").start_many([(n,) for n in batch])
            accepted.update(zip((handle.id for handle in handles), batch, strict=True))
            _let_work_be_done(fleet, chance.randrange(1, 4 * per_kill))
            fleet.kill(crew.pop(chance.randrange(3)))
            crew.append(fleet.start(wait=False))
        fleet.all_ended()

        runs = {run_id: await app.runs.get(run_id) for run_id in accepted}
        letters = {letter.run_id: letter for letter in (await app.dlq.list(limit=1000)).items}

    ended = Counter(run.status for run in runs.values())
    print(f"{len(runs)} runs, {kills} kills: {dict(ended)}")
    assert ended.keys() <= {RunStatus.SUCCESS, RunStatus.DLQ_PENDING}
    assert ended[RunStatus.SUCCESS] > len(runs) / 2
    effects = Counter(number for (number,) in fleet.rows("SELECT number FROM credits"))
    begun = fleet.ledger.executions()
    died = fleet.killed | fleet.taken_for_dead()
    for run_id, number in accepted.items():
        run = runs[run_id]
        steps = {step.key: step for step in run.steps}
        assert effects[number] == 1, f"run {run_id} was credited {effects[number]} times"
        payers = begun.get((run_id, "pay", 1), [])
        assert steps["/reserve#0"].attempt == 2  # a death consumes no attempt, only a failure does
        assert {step.attempt for key, step in steps.items() if key != "/reserve#0"} == {1}
        if run.status is RunStatus.SUCCESS:
            assert len(payers) == 1
            assert run.output == [f"buyer {number}", f"seller {number}"]
            assert run_id not in letters
        else:
            letter = letters[run_id]
            assert (letter.code, letter.step) == ("infrastructure_failure", "pay")
            assert "may have happened" in letter.message
            assert len(payers) <= 1  # the worker may have been killed between the begin mark and the call
            assert set(payers) <= died
    assert len(letters) == ended[RunStatus.DLQ_PENDING]
    _every_repeat_is_explained_by_a_death(fleet)


def _let_work_be_done(fleet: Fleet, lines: int) -> None:
    """Wait until the ledger has `lines` more lines, or until all runs have ended."""
    enough = len(fleet.ledger.lines()) + lines
    until(lambda: len(fleet.ledger.lines()) >= enough or not fleet.unfinished(), "work is done")


def _every_repeat_is_explained_by_a_death(fleet: Fleet) -> None:
    """Assert that an attempt was repeated only by another worker, and only after the previous one died."""
    declared = {name for (name,) in fleet.rows("SELECT name FROM workers WHERE state = 'DEAD'")}
    dead = fleet.killed | {m.who for m in fleet.members if any(n.endswith(f":{m.pid}") for n in declared)}
    for (run_id, step, attempt), workers in fleet.ledger.executions().items():
        key = f"attempt {attempt} of {step} in {run_id}: {workers}"
        if step == "tell":  # a run calls this step twice
            assert max(Counter(workers).values()) <= 2, key
            assert len(set(workers[:-1]) - dead) <= 1, key
        else:
            assert len(workers) == len(set(workers)), key
            assert set(workers[:-1]) <= dead, key
