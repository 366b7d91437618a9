"""Failure groups on PostgreSQL, where nodes may fold a removal before its addition."""

from __future__ import annotations

from postgres_kit import Bench

from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import LetterStatusWrite, RunWrite, Transition
from redrive.store.chores import PurgeRequest


async def test_a_group_whose_changes_are_folded_in_the_wrong_order_is_deleted(bench: Bench) -> None:
    kit = bench.kit
    worker, run = await kit.held()
    await kit.fail(worker, run)
    held = await kit.look(run)
    closing = Transition(
        run=run.id,
        tenant=run.tenant,
        fence=held.fence,
        change=RunWrite(status=RunStatus.FAILED, take=True),
        move=LetterStatusWrite(letter=f"dl-{run.public_id}", status=LetterStatus.RESOLVED, by="ann"),
    )
    assert (await kit.store.apply([closing]))[0].kept
    await kit.store.purge(PurgeRequest(runs=0, letters=0, workers=10**15, limit=10))
    await bench.sql("UPDATE redrive.letter_feed SET id = 1000 WHERE total = 1")
    changes = 0
    while folded := await kit.store.fold(1):
        changes += folded
    assert changes == 3, "an addition, a closing and a removal"
    assert await bench.sql("SELECT * FROM redrive.groups") == []
    assert await bench.sql("SELECT seen FROM redrive.group_counts WHERE fingerprint <> ''") == []
    assert await bench.sql("SELECT seen FROM redrive.group_versions") == []
