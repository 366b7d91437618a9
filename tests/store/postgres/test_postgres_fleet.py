"""Worker processes are killed and frozen while their database crashes: nothing is lost or done twice.

What happened is read from a ledger outside the engine and from the database itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import cluster
import postgres_crew
import pytest
from cluster import Cluster
from fleet import Member  # of tests/crash, which postgres_crew puts on the path
from ledger import Ledger
from postgres_kit import eventually

HERE = Path(__file__).parent


class Storm:
    """Three workers, their server, and everything that is done to them."""

    def __init__(self, server: Cluster, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.chance = random.Random(seed)
        self.members: list[Member] = []
        self.crew: list[Member] = []
        self.hurt: set[str] = set()  # whoever was killed or frozen: its work may have to be repeated
        self.frozen: set[str] = (
            set()
        )  # those who came back, as somebody new, and may meet their old work again

    def hire(self) -> None:
        """Start one more worker."""
        who = f"w{len(self.members)}"
        log = self.folder / f"{who}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "postgres_crew", self.server.url(), str(self.folder), who],
                cwd=HERE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.members.append(Member(who, process, log))
        self.crew.append(self.members[-1])

    async def kill(self) -> None:
        victim = self.crew.pop(self.chance.randrange(len(self.crew)))
        self.hurt.add(victim.who)
        victim.kill()
        self.hire()

    async def freeze(self) -> None:
        """Stop a worker until the others have declared it dead; then let it go on where it was."""
        zombie = self.chance.choice(self.crew)
        name = f"%:{zombie.pid}"
        before = await self.value("SELECT count(*) FROM redrive.workers WHERE name LIKE $1", name)
        if not before:
            return  # it has only just been hired
        self.hurt.add(zombie.who)
        self.frozen.add(zombie.who)
        await asyncio.to_thread(zombie.stop)

        async def buried() -> bool:
            dead = "SELECT bool_and(state = 'DEAD') FROM redrive.workers WHERE name LIKE $1"
            return bool(await self.value(dead, name))

        await eventually(buried, 60)
        zombie.thaw()

    async def crash(self) -> None:
        await asyncio.to_thread(self.server.stop, "immediate")
        await asyncio.to_thread(self.server.start)

    async def value(self, query: str, *params: Any) -> Any:
        con = await asyncpg.connect(self.server.url())
        try:
            return await con.fetchval(query, *params)
        finally:
            await con.close()

    async def progress(self, lines: int) -> None:
        """Wait for so many more lines in the ledger, or until there is nothing left to do."""
        ledger = self.folder / "ledger"
        enough = (ledger.read_bytes().count(b"\n") if ledger.exists() else 0) + lines

        async def done() -> bool:
            if ledger.exists() and ledger.read_bytes().count(b"\n") >= enough:
                return True
            return not await self.value("SELECT count(*) FROM redrive.runs WHERE finished_at IS NULL")

        await eventually(done, 60)

    async def blow(self, events: list[str], per_event: int) -> dict[str, int]:
        """Start runs, hurt somebody, again and again; then wait for the end. Returns the runs accepted."""
        accepted: dict[str, int] = {}
        app = postgres_crew.build(self.server.url(), self.folder)
        async with app.client():
            con = await asyncpg.connect(self.server.url())
            await con.execute(postgres_crew.CREDITS)
            await con.close()
            for _ in range(3):
                self.hire()
            for number, event in enumerate(events):
                batch = range(number * per_event, (number + 1) * per_event)
                handles = await app.find("order").start_many([(n,) for n in batch])
                accepted.update(zip((handle.id for handle in handles), batch, strict=True))
                await self.progress(self.chance.randrange(1, 3 * per_event))
                await {"kill": self.kill, "freeze": self.freeze, "crash": self.crash}[event]()

            async def over() -> bool:
                return not await self.value("SELECT count(*) FROM redrive.runs WHERE finished_at IS NULL")

            await eventually(over, 120)
        return accepted

    def calm(self) -> None:
        """End the processes of this storm and no others."""
        for member in self.members:
            if not member.is_gone:
                member.thaw()
                member.kill()


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


async def check(storm: Storm, accepted: dict[str, int]) -> None:
    con = await asyncpg.connect(storm.server.url())
    states = await con.fetch("SELECT status, count(*) FROM redrive.runs GROUP BY 1")
    assert [tuple(row) for row in states] == [("SUCCESS", len(accepted))]  # nothing is lost
    effects = Counter(row[0] for row in await con.fetch("SELECT number FROM credits"))
    assert effects == Counter(accepted.values())  # a transactional effect happens exactly once
    failed = "SELECT ending, failure FROM redrive.attempts WHERE ending NOT IN ('LOST', 'RELEASED')"
    assert await con.fetch(failed) == []
    rows = await con.fetch(
        "SELECT r.public_id, e.name, e.output, e.attempt "
        "FROM redrive.entries AS e JOIN redrive.runs AS r ON r.id = e.run"
    )
    outputs = {(row["public_id"], row["name"]): json.loads(row["output"]) for row in rows}
    assert {row["attempt"] for row in rows} == {1}  # no death, freeze or crash consumed an attempt
    await con.close()
    handed_over = {}
    for line in storm.ledger.lines():
        if line.what != "begin":
            given, token = json.loads(line.what)
            handed_over[line.run, line.step, token] = given
    for run in accepted:  # no result was replaced after somebody had read it
        credited = outputs[run, "credit"]
        assert handed_over[run, "credit", credited] == outputs[run, "reserve"]
        assert handed_over[run, "tell", outputs[run, "tell"]] == credited
    for (run, step, _), workers in storm.ledger.executions().items():
        if step == "credit":
            continue  # its body runs again when the database took its transaction along; the effect counts
        assert set(workers[:-1]) <= storm.hurt, f"{step} of {run} was repeated without need: {workers}"
        twice = [who for who, times in Counter(workers).items() if times > 1]
        assert set(twice) <= storm.frozen, f"{step} of {run} was repeated by one worker: {workers}"


def shuffled(storm: Storm, **events: int) -> list[str]:
    every = [name for name, count in events.items() for _ in range(count)]
    return storm.chance.sample(every, len(every))


async def test_a_fleet_in_a_storm(storm: Storm) -> None:
    events = shuffled(storm, kill=5, freeze=2, crash=2)
    await check(storm, await storm.blow(events, per_event=20))


@pytest.mark.slow
async def test_a_fleet_in_a_long_storm(storm: Storm) -> None:
    """Fifty deaths, ten zombies, five crashes of the database, two thousand runs."""
    events = shuffled(storm, kill=50, freeze=10, crash=5)
    await check(storm, await storm.blow(events, per_event=31))
