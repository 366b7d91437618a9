"""Batches of starts survive the death of any process, and several processes may open a new file at once."""

from __future__ import annotations

from pathlib import Path

import scenes
from fleet import Fleet, Member, until
from ledger import Ledger

BATCH = 40


async def test_batches_accepted_from_a_killed_client_are_complete_and_all_run(fleet: Fleet) -> None:
    accepted = Ledger(fleet.folder / "accepted")
    client = fleet.run("clients", fleet.url, str(fleet.folder), str(BATCH))
    until(lambda: len(accepted.lines()) > 5 * BATCH, "the client has started batches")
    client.kill()

    app = fleet.app()
    async with app.client():
        there = {run_id for (run_id,) in fleet.rows("SELECT public_id FROM runs")}
        known = {line.run for line in accepted.lines()}
        assert known <= there
        assert len(there) % BATCH == 0  # a batch is accepted as a whole or not at all
        assert fleet.rows(
            "SELECT count(*) FROM runs JOIN inputs ON inputs.run = runs.id"
            " JOIN idempotency ON idempotency.run = runs.id AND idempotency.run_id = runs.public_id"
        ) == [(len(there),)]

        fleet.start(concurrency=100)
        fleet.all_ended()
    assert fleet.rows("SELECT DISTINCT status FROM runs") == [("SUCCESS",)]
    begun = [line.run for line in fleet.ledger.lines("begin")]
    assert sorted(begun) == sorted(there)


def _stands_before(sign: Path, opener: Member) -> None:
    until(lambda: sign.exists() or opener.is_gone, f"there is {sign.name}")


async def test_several_processes_may_open_an_empty_file_at_the_same_moment(fleet: Fleet) -> None:
    rounds, names = 6, ("one", "two", "three")
    openers = [fleet.run("openers", str(fleet.folder), str(rounds), name) for name in names]
    for number in range(rounds):
        for name, opener in zip(names, openers, strict=True):
            _stands_before(fleet.folder / f"waits-{number}-{name}", opener)
        scenes.gate(fleet.folder, str(number)).touch()
    for opener in openers:
        assert opener.ended() == 0, opener.log
    assert fleet.ledger.count() == {"tell": rounds * len(names)}
