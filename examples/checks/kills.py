"""Worker processes are killed with SIGKILL while runs wait for events and children, are sent to, and continue."""

from __future__ import annotations

import random
from collections import Counter

import kit
import work

from redrive import RunFilter
from redrive.core.states import EntryKind, RunStatus

RUNS, KILLS = (200, 50) if kit.FULL else (30, 4)


async def check(workers: kit.Workers) -> str:
    chance = random.Random(7)
    workers.start(3 - len(workers.processes))
    handles = await work.expect.start_many([(n,) for n in range(RUNS)])
    sends = [(handle, name, n) for n, handle in enumerate(handles) for name in ("first", "second")]
    chance.shuffle(sends)
    for number in range(KILLS):
        for handle, name, payload in sends[number::KILLS]:
            await handle.send(name, payload, key=name)
        workers.kill(chance.randrange(3))
        workers.start()
    for n, handle in enumerate(handles):
        assert await handle.result(timeout=kit.PATIENCE) == [n, 2 * n, n]
        run = await handle.describe()
        taken = Counter(event.step for event in await work.app.runs.events(run.id))
        waits = [step for step in run.steps if step.kind is EntryKind.WAIT and "wait_for" in step.name]
        assert taken == dict.fromkeys((step.index for step in waits), 1), run.id
        (child,) = (await work.app.runs.list(RunFilter(parent=run.id))).items
        assert child.status is RunStatus.SUCCESS
    return f"{KILLS} kills, {RUNS} successes, each event taken once, one child each"


if __name__ == "__main__":
    kit.main(check)
