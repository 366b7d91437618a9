"""Workers are killed with SIGKILL while runs wait for events, children and people, are sent to, and continue.

Runs and their children are executed by different workers, which take different queues.
"""

from __future__ import annotations

import random
from collections import Counter

import kit
import work

from redrive import AuditFilter, RunFilter, TaskFilter
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import Conflict

RUNS, KILLS = (200, 50) if kit.FULL else (20, 4)
QUEUES = (["default"], ["children"])
EACH = 2  # workers of each queue


async def answer_tasks() -> None:
    """Answer all open tasks twice: the second person is too late."""
    for task in (await work.app.tasks.list(TaskFilter(status="OPEN"), limit=200)).items:
        assert (await work.app.tasks.answer(task.id, "yes", by="ann")).answered_by == "ann"
        try:
            await work.app.tasks.answer(task.id, "no", by="bob")
        except Conflict:
            continue
        raise AssertionError(f"task {task.id} took two answers")


async def find_workers(workers: kit.Workers, queues: list[str]) -> list[kit.Worker]:
    """Wait until workers of these queues execute runs, and return them."""

    async def one_works() -> bool:
        await answer_tasks()
        return bool(workers.at_work(queues))

    await kit.until(one_works, f"a worker of {queues} executes runs")
    return workers.at_work(queues)


async def check(workers: kit.Workers) -> str:
    chance = random.Random(7)
    workers.stop()
    for queue in QUEUES:
        workers.start(EACH, queues=queue)
    handles = await work.expect.start_many([(n,) for n in range(RUNS)])
    sends = [(handle, name, n) for n, handle in enumerate(handles) for name in ("first", "second")]
    chance.shuffle(sends)
    for number in range(KILLS):
        for handle, name, payload in sends[number::KILLS]:
            sent = await handle.send(name, payload, key=name)
            assert (await handle.send(name, payload, key=name)).seq == sent.seq
        victim = chance.choice(await find_workers(workers, QUEUES[number % len(QUEUES)]))
        workers.kill(victim)
        workers.start(queues=victim.queues)

    async def all_succeeded() -> bool:
        await answer_tasks()
        return not (await work.app.runs.list(RunFilter(status=["PENDING", "RUNNING", "SLEEPING"]), limit=1)).items

    await kit.until(all_succeeded, "all runs have ended")
    for n, handle in enumerate(handles):
        assert await handle.result(timeout=kit.PATIENCE) == [n, 2 * n, "yes", n]
        run = await handle.describe()
        taken = Counter(event.step for event in await work.app.runs.events(run.id))
        waits = [step for step in run.steps if step.kind is EntryKind.WAIT]
        assert [step.status for step in waits] == [StepStatus.SUCCESS] * 4
        assert taken == dict.fromkeys((step.index for step in waits if "wait_for" in step.name), 1), run.id
        (child,) = (await work.app.runs.list(RunFilter(parent=run.id))).items
        assert child.status is RunStatus.SUCCESS
        (task,) = (await work.app.tasks.list(TaskFilter(run_id=run.id))).items
        answered = work.app.audit.export(AuditFilter(subject=task.id, event="task.answered"))
        assert len([line async for line in answered]) == 1
    workers.stop()
    return f"{KILLS} kills, {RUNS} successes, each event taken once, one child and one answer each"


check.starts_workers = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    kit.main(check)
