"""Fleets of worker processes that are killed and frozen while their database crashes: nothing is lost or done twice.

The evidence is a ledger outside the engine and the database itself.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cluster
import pytest
from postgres_crew import LEASE
from postgres_storm import Death, Storm

from redrive.store.postgres.store import OUTAGE_GRACE

Outputs = dict[tuple[str, str], str]


@pytest.fixture(params=cluster.POSTGRES[:1])
def storm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storm]:
    seed = int(os.environ.get("REDRIVE_SEED", secrets.randbelow(10**6)))
    print(f"REDRIVE_SEED={seed} repeats the choice of victims")
    with cluster.private(request.param) as server:
        server.start()
        storm = Storm(server, tmp_path, seed)
        try:
            yield storm
        finally:
            storm.calm()
            for member in storm.members:
                print(f"----- {member.who}\n{member.log[-2000:]}")  # shown if the test fails


# -- evidence in the database --------------------------------------------------------------------------


async def nothing_is_lost(storm: Storm, accepted: dict[str, int]) -> None:
    assert [row["reason"] for row in await storm.rows("SELECT reason FROM redrive.letters")] == []
    states = await storm.rows("SELECT public_id, status FROM redrive.runs")
    assert {row["public_id"]: row["status"] for row in states} == dict.fromkeys(accepted, "SUCCESS")


async def transactional_effects_happened_once(storm: Storm, accepted: dict[str, int]) -> None:
    effects = Counter(row["number"] for row in await storm.rows("SELECT number FROM credits"))
    assert effects == Counter(accepted.values())


async def no_attempt_was_used_up(storm: Storm) -> None:
    """Check that no death, freeze or crash counted as a failed attempt."""
    failed = "SELECT ending, failure FROM redrive.attempts WHERE ending NOT IN ('LOST', 'RELEASED')"
    assert await storm.rows(failed) == []
    assert {row["attempt"] for row in await storm.rows("SELECT attempt FROM redrive.entries")} == {1}


async def no_entry_is_older_than_a_loss(storm: Storm) -> None:
    """Check that nothing was recorded under a claim after the claim was declared lost."""
    stale = (
        "SELECT e.run, e.name, e.fence FROM redrive.entries AS e JOIN redrive.attempts AS a USING (run, idx) "
        "WHERE a.ending = 'LOST' AND e.fence <= a.fence"
    )
    assert await storm.rows(stale) == []


async def recorded(storm: Storm) -> Outputs:
    rows = await storm.rows(
        "SELECT r.public_id, e.name, e.output FROM redrive.entries AS e JOIN redrive.runs AS r ON r.id = e.run"
    )
    return {(row["public_id"], row["name"]): json.loads(row["output"]) for row in rows}


# -- evidence in the ledger ----------------------------------------------------------------------------


def no_result_was_replaced(storm: Storm, accepted: dict[str, int], outputs: Outputs) -> None:
    """Check that every input of a step is still the recorded result of the step before it."""
    inputs = {}
    for line in storm.ledger.lines():
        if line.what != "begin":
            given, token = json.loads(line.what)
            inputs[line.run, line.step, token] = given
    for run in accepted:
        credited = outputs[run, "credit"]
        assert inputs[run, "credit", credited] == outputs[run, "reserve"]
        assert inputs[run, "tell", outputs[run, "tell"]] == credited


def every_repeat_is_explained(storm: Storm) -> int:
    """Check that each repeat of a step follows a fault of its worker, once per fault; return the repeats."""
    hurt = {death.who for death in storm.deaths}
    repeats = 0
    for (run, step, _), workers in storm.ledger.executions().items():
        if step == "credit":
            continue  # its body runs again when the database has aborted its transaction; the effect counts
        repeats += len(workers) - 1
        assert set(workers[:-1]) <= hurt, f"{step} of {run} was repeated without need: {workers}"
        for who, times in Counter(workers).items():
            assert times <= 1 + storm.freezes[who], f"{step} of {run} was repeated by one worker: {workers}"
    return repeats


# -- time until other workers took over ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Takeover:
    """A step of a dead worker: seconds until it was declared lost, and until it was begun again.

    They count from the worker's last heartbeat, or from the server's return if that was later.
    """

    run: int
    index: int
    lost: float
    anew: float
    outage: bool

    @property
    def late(self) -> bool:
        """True after the lease and two seconds; after an outage, deaths are declared later."""
        return max(self.lost, self.anew) > LEASE + 2.0 + (OUTAGE_GRACE if self.outage else 0.0)


async def takeovers(storm: Storm, death: Death) -> list[Takeover]:
    """Return the takeovers of the steps that were running.

    A step that ended before its second beginning was recorded counts until its end.
    """
    rows = await storm.rows(
        "SELECT a.run, a.idx, a.fence, a.ended_at AS lost_at, COALESCE("
        "  (SELECT min(b.began_at) FROM redrive.attempts AS b"
        "   WHERE b.run = a.run AND b.idx = a.idx AND b.fence > a.fence),"
        "  CASE WHEN e.began_at >= a.ended_at THEN e.began_at ELSE e.ended_at END) AS anew_at "
        "FROM redrive.attempts AS a JOIN redrive.entries AS e USING (run, idx) "
        "WHERE a.ending = 'LOST' AND a.run = ANY ($1)",
        [run for run, _ in death.held],
    )
    return [takeover(storm, death, row) for row in rows if (row["run"], row["fence"]) in death.held]


def takeover(storm: Storm, death: Death, row: Any) -> Takeover:
    returns = [at for at in storm.returns if death.beat_at <= at <= row["anew_at"]]
    before = max((at for at in returns if at <= row["lost_at"]), default=death.beat_at)
    return Takeover(
        run=row["run"],
        index=row["idx"],
        lost=(row["lost_at"] - before) / 1e6,
        anew=(row["anew_at"] - max(returns, default=death.beat_at)) / 1e6,
        outage=bool(returns),
    )


async def measure(storm: Storm, accepted: dict[str, int], repeats: int) -> list[Takeover]:
    """Print the figures of the storm; return the takeovers."""
    found = [each for death in storm.deaths for each in await takeovers(storm, death)]
    lost, anew = [each.lost for each in found] or [0.0], [each.anew for each in found] or [0.0]
    busy = sum(bool(death.held) for death in storm.deaths)
    print(
        f"{len(accepted)} runs; {len(storm.deaths)} workers killed or frozen, {busy} with runs in hand, "
        f"{sum(storm.freezes.values())} came back; {len(storm.returns)} crashes of the server; "
        f"{repeats} steps repeated; {len(found)} steps left behind\n"
        f"seconds from the last sign of life (lease {LEASE:g} s) until declared lost: "
        f"median {median(lost):.2f}, longest {max(lost):.2f}; "
        f"until begun anew: median {median(anew):.2f}, longest {max(anew):.2f}"
    )
    return found


async def check(storm: Storm, accepted: dict[str, int]) -> list[Takeover]:
    await nothing_is_lost(storm, accepted)
    await transactional_effects_happened_once(storm, accepted)
    await no_attempt_was_used_up(storm)
    await no_entry_is_older_than_a_loss(storm)
    no_result_was_replaced(storm, accepted, await recorded(storm))
    return await measure(storm, accepted, every_repeat_is_explained(storm))


def shuffled(storm: Storm, **events: int) -> list[str]:
    every = [name for name, count in events.items() for _ in range(count)]
    return storm.chance.sample(every, len(every))


async def test_a_fleet_survives_a_storm(storm: Storm) -> None:
    events = shuffled(storm, kill=3, freeze=1, crash=1)
    await check(storm, await storm.blow(events, per_event=20))
    assert len(storm.deaths) == 4


@pytest.mark.slow
async def test_a_fleet_survives_a_long_storm(storm: Storm) -> None:
    """Fifty deaths, ten zombies, five crashes of the database, two thousand runs."""
    events = shuffled(storm, kill=50, freeze=10, crash=5)
    found = await check(storm, await storm.blow(events, per_event=31))
    assert (len(storm.deaths), len(storm.returns)) == (60, 5)
    assert found
    assert [each for each in found if each.late] == []
