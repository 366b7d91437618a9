"""Three worker processes, their server, and the faults injected into them."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import postgres_crew
from cluster import Cluster
from fleet import Member  # of tests/crash, which postgres_crew puts on the path
from ledger import Ledger
from postgres_kit import eventually

__all__ = ["Death", "Storm"]

HERE = Path(__file__).parent
UNFINISHED = "SELECT count(*) FROM redrive.runs WHERE finished_at IS NULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker that was killed or frozen: its last heartbeat, and the runs it held."""

    who: str
    worker: int
    beat_at: int
    held: frozenset[tuple[int, int]]  # runs, each with the fence of its claim


class Storm:
    """Kills and freezes workers, crashes their server, and records each fault with its victim."""

    def __init__(self, server: Cluster, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.chance = random.Random(seed)
        self.members: list[Member] = []
        self.crew: list[Member] = []
        self.deaths: list[Death] = []
        self.freezes: Counter[str] = Counter()  # a thawed worker registers as a new one and may meet its old runs again
        self.returns: list[int] = []  # the times when the server was up again

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
        """Kill a worker and start another one instead."""
        victim, worker = await self.victim()
        self.crew.remove(victim)
        victim.kill()
        await self.record_death(victim, worker)
        self.hire()

    async def freeze(self) -> None:
        """Stop a worker until the others have declared it dead; then let it continue."""
        zombie, worker = await self.victim()
        self.freezes[zombie.who] += 1
        await asyncio.to_thread(zombie.stop)
        await self.record_death(zombie, worker)

        async def is_declared_dead() -> bool:
            state = "SELECT 1 FROM redrive.workers WHERE id = $1 AND state = 'DEAD'"
            return bool(await self.rows(state, worker))

        await eventually(is_declared_dead, 60)
        zombie.thaw()

    async def crash(self) -> None:
        """Stop the server as in a crash, and start it again."""
        await asyncio.to_thread(self.server.stop, "immediate")
        await asyncio.to_thread(self.server.start)
        self.returns.append(await self.value("SELECT redrive.micros(pg_postmaster_start_time())"))

    async def victim(self) -> tuple[Member, int]:
        """Return a live process and its worker id, preferably one that holds runs."""
        alive = await self.alive()
        busy = {row["worker"] for row in await self.rows("SELECT DISTINCT worker FROM redrive.runs")}
        return self.chance.choice([each for each in alive if each[1] in busy] or alive)

    async def alive(self) -> list[tuple[Member, int]]:
        """Return the live processes with their worker ids."""
        live = await self.rows("SELECT id, name FROM redrive.workers WHERE state = 'LIVE'")
        ids = {row["name"].rpartition(":")[2]: row["id"] for row in live}
        return [(member, ids[str(member.pid)]) for member in self.crew if str(member.pid) in ids]

    async def muster(self) -> None:
        """Wait until all workers are live, so that a fault hits workers and not starting processes."""

        async def all_there() -> bool:
            return len(await self.alive()) == len(self.crew)

        await eventually(all_there, 60)

    async def record_death(self, member: Member, worker: int) -> None:
        """Record a worker's last heartbeat and the runs it held."""
        held = await self.rows("SELECT id, fence FROM redrive.runs WHERE worker = $1", worker)
        beat_at = await self.value("SELECT beat_at FROM redrive.workers WHERE id = $1", worker)
        runs = frozenset((row["id"], row["fence"]) for row in held)
        self.deaths.append(Death(who=member.who, worker=worker, beat_at=beat_at, held=runs))

    async def rows(self, query: str, *params: Any) -> list[Any]:
        """Run a query and return its rows."""
        con = await asyncpg.connect(self.server.url())
        try:
            return list(await con.fetch(query, *params))
        finally:
            await con.close()

    async def value(self, query: str, *params: Any) -> Any:
        return (await self.rows(query, *params))[0][0]

    async def progress(self, lines: int) -> None:
        """Wait for this many more lines in the ledger, or until nothing is left to do."""
        ledger = self.folder / "ledger"
        enough = (ledger.read_bytes().count(b"\n") if ledger.exists() else 0) + lines

        async def done() -> bool:
            if ledger.exists() and ledger.read_bytes().count(b"\n") >= enough:
                return True
            return not await self.value(UNFINISHED)

        await eventually(done, 60)

    async def blow(self, events: list[str], per_event: int) -> dict[str, int]:
        """Start runs and inject faults repeatedly, then wait for the end; return the accepted runs."""
        accepted: dict[str, int] = {}
        app = postgres_crew.build(self.server.url(), self.folder)
        async with app.client():
            await self.rows(postgres_crew.CREDITS)
            for _ in range(3):
                self.hire()
            for number, event in enumerate(events):
                await self.muster()
                batch = range(number * per_event, (number + 1) * per_event)
                handles = await app.find("order").start_many([(n,) for n in batch])
                accepted.update(zip((handle.id for handle in handles), batch, strict=True))
                await self.progress(self.chance.randrange(1, 3 * per_event))
                await {"kill": self.kill, "freeze": self.freeze, "crash": self.crash}[event]()

            async def over() -> bool:
                return not await self.value(UNFINISHED)

            await eventually(over, 120)
        return accepted

    def calm(self) -> None:
        """End the processes of this storm and no others."""
        for member in self.members:
            if not member.is_gone:
                member.thaw()
                member.kill()
