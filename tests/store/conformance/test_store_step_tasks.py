"""Conformance tests of tasks: steps that workers of a queue execute."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from store_kit import DAY, Kit, becomes, writes

from redrive.clock import MICROS
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, AttemptWrite, EntryWrite, RunWrite, Transition, WaitWrite
from redrive.errors import NotAllowed
from redrive.settle.step_tasks import TaskSettler
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.step_tasks import TaskCase, TaskClaim, TaskHeartbeat, TaskStatus, TaskWrite, find_last_in_turn
from redrive.store.workers import Catalogue, NewWorker


def begins(run: ClaimedRun, queue: str = "node", *, index: int = 0, sleeps: bool = True) -> Transition:
    """Return a transition that begins a remote step, and suspends its run."""
    entry = EntryWrite(
        index=index,
        key=f"/render#{index}",
        kind=EntryKind.STEP,
        name="render",
        status=StepStatus.PENDING,
        attempt=0,
        input='{"n":1}',
        options=StepOptions(remote=queue, timeout=60.0, heartbeat_timeout=10.0).to_json(),
    )
    change = RunWrite(status=RunStatus.SLEEPING, release=True, take=True, seen=0) if sleeps else None
    return writes(run, entry, waits=(WaitWrite(index=index, kind="step", subject=queue),), change=change)


async def step_worker(kit: Kit, lease: int = 30 * MICROS) -> int:
    new = NewWorker(name="node", version="", workflows=(), lease=lease, queues=("node",), token="t")
    return await kit.store.enlist(new, Catalogue(version="", workflows=(), steps=()))


async def waiting(kit: Kit, **more: Any) -> ClaimedRun:
    """Return a run that sleeps until its remote step has an answer."""
    await kit.start(options=RunOptions().to_json(), **more)
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    assert (await kit.store.apply([begins(run)], worker=worker))[0].kept
    return run


async def take(kit: Kit, worker: int, **more: Any) -> list[TaskCase]:
    given = {"queue": "node", "names": ("render",), "most": 10, **more}
    return await kit.store.take_tasks(TaskClaim(worker=worker, **given))


def answers(case: TaskCase, status: TaskStatus = TaskStatus.ANSWERED, **more: Any) -> TaskWrite:
    given: dict[str, Any] = {"attempt": case.attempt, "output": '"done"', "reply": "{}", **more}
    return TaskWrite(
        run=case.run,
        index=case.index,
        fence=case.fence,
        tenant=case.tenant,
        worker=case.worker,
        status=status,
        decided=Transition(run=case.run, tenant=case.tenant, fence=0, attempts=given.pop("attempts", ())),
        **given,
    )


async def test_a_task_begins_with_its_wait_and_wakes_its_run(kit: Kit) -> None:
    run, worker = await waiting(kit, tenant="acme"), await step_worker(kit)
    (row,) = await kit.store.open_tasks(run.id)
    assert (row.queue, row.name, row.status, row.attempt, row.tenant) == ("node", "render", "READY", 1, "acme")
    assert await take(kit, worker, queue="other") == []
    assert await take(kit, worker, names=("paint",)) == []
    assert await take(kit, worker, tenant="zoo") == []
    assert await take(kit, worker, workflows=("another",)) == []
    (case,) = await take(kit, worker, tenant="acme", workflows=(run.workflow,))
    assert (case.run_id, case.workflow, case.fence, case.attempt) == (run.public_id, run.workflow, 1, 1)
    assert (case.input, case.key, case.worker, case.begun) == ('{"n":1}', "/render#0", worker, True)
    assert await take(kit, worker) == []
    (entry,) = await kit.store.journal(run.id)
    assert (entry.status, entry.attempt) == ("RUNNING", 1)
    assert await kit.store.settle_tasks([answers(case)]) == {(case.run, case.index)}
    assert await kit.store.settle_tasks([answers(case)]) == set()
    mailbox = await kit.store.mailbox(run.id, tasks=True)
    assert mailbox is not None
    (answer,) = mailbox.tasks
    assert (mailbox.wakeups, answer.answered, answer.output, answer.attempt) == (1, True, '"done"', 1)
    (again,) = (await kit.claim(await kit.worker())).runs
    assert again.public_id == run.public_id
    done = EntryWrite(
        index=0, key="/render#0", kind=EntryKind.STEP, name="render", status=StepStatus.SUCCESS, done=0, output='"done"'
    )
    await kit.store.apply([writes(again, done, ended_waits=(0,))])
    (closed,) = await kit.store.task_cases([(run.id, 0)])
    assert (closed.status, closed.settled, closed.reply) == (TaskStatus.CLOSED, 1, "{}")
    assert await kit.store.open_tasks(run.id) == []


async def test_a_retry_wakes_no_run(kit: Kit) -> None:
    run, worker = await waiting(kit), await step_worker(kit)
    (case,) = await take(kit, worker)
    attempt = AttemptWrite(index=0, attempt=1, end=AttemptEnd.FAILED, category="network", failure="{}", next_in=50)
    write = answers(
        case, TaskStatus.READY, attempt=2, output=None, delay=5 * MICROS, shown=StepStatus.RETRYING, attempts=(attempt,)
    )
    assert await kit.store.settle_tasks([write]) == {(run.id, 0)}
    assert await kit.store.wakeups([run.id]) == {run.id: 0}
    (entry,) = await kit.store.journal(run.id)
    assert (entry.status, entry.attempt) == ("RETRYING", 1)
    (made,) = await kit.store.attempts(run.id)
    assert (made.attempt, made.end, made.category) == (1, "FAILED", "network")
    assert await take(kit, worker) == []
    kit.clock.move(5 * MICROS)
    (again,) = await take(kit, worker)
    assert (again.attempt, again.fence) == (2, 2)
    assert await kit.store.settle_tasks([answers(case)]) == set()


async def test_a_retry_can_be_taken_before_it_is_due_and_stays_due_then(kit: Kit) -> None:
    run, worker = await waiting(kit), await step_worker(kit)
    (case,) = await take(kit, worker)
    await kit.store.settle_tasks([answers(case, TaskStatus.READY, attempt=2, output=None, delay=600 * MICROS)])
    assert await take(kit, worker, ahead=500 * MICROS) == []
    (early,) = await take(kit, worker, names=None, begins=False, ahead=600 * MICROS)
    assert (early.attempt, early.begun, early.due_at - kit.store.now()) == (2, False, 600 * MICROS)
    assert early.limit_at == early.due_at + 10 * MICROS  # the first heartbeat is expected after the attempt began
    await kit.store.retire(worker)
    settler = TaskSettler(kit.store, kit.clock)
    assert await settler.settle_lost(await kit.store.lost_tasks(10)) == 1
    (back,) = await kit.store.task_cases([(run.id, 0)])
    assert (back.status, back.attempt, back.due_at) == (TaskStatus.READY, 2, early.due_at)
    other = await step_worker(kit)
    (again,) = await take(kit, other, begins=False, ahead=600 * MICROS)
    assert await settler.settle_late([again]) == 1  # a reservation that was not used
    (back,) = await kit.store.task_cases([(run.id, 0)])
    assert (back.status, back.attempt, back.due_at) == (TaskStatus.READY, 2, early.due_at)


async def test_the_end_of_a_run_closes_its_tasks(kit: Kit) -> None:
    run, worker = await waiting(kit), await step_worker(kit)
    (case,) = await take(kit, worker)
    beat = TaskHeartbeat(tenant="default", run=run.id, index=0, fence=1, heartbeat='{"n":1}')
    assert await kit.store.beat_tasks(worker, [beat]) == {(run.id, 0, 1)}
    (row,) = await kit.store.open_tasks(run.id)
    assert row.heartbeat == '{"n":1}'
    assert await kit.store.beat_tasks(worker + 1, [beat]) == set()
    now = await kit.look(run)
    end = Transition(
        run=run.id,
        tenant=run.tenant,
        fence=now.fence,
        closes=True,
        change=RunWrite(status=RunStatus.CANCELLED, take=True),
    )
    assert (await kit.store.apply([end]))[0].kept
    assert await kit.store.beat_tasks(worker, [beat]) == set()
    assert await kit.store.settle_tasks([answers(case)]) == set()
    assert await kit.store.begin_tasks(worker, [beat]) == set()
    kit.clock.move(DAY)
    await kit.store.purge(PurgeRequest(runs=0, letters=0, audit=DAY, workers=DAY, limit=100))
    assert await kit.store.task_cases([(run.id, 0)]) == []


async def test_a_task_of_a_run_that_ended_is_set_aside_and_begins_anew(kit: Kit) -> None:
    run, worker = await waiting(kit), await step_worker(kit)
    now = await kit.look(run)
    await kit.store.apply([becomes(now, RunStatus.FAILED, take=True)])
    assert await take(kit, worker) == []
    (case,) = await kit.store.task_cases([(run.id, 0)])
    assert case.status is TaskStatus.PARKED
    now = await kit.look(run)
    await kit.store.apply([becomes(now, RunStatus.PENDING, wake_in=0)])
    (again,) = (await kit.claim(await kit.worker())).runs
    mailbox = await kit.store.mailbox(run.id, tasks=True)
    assert mailbox is not None
    assert [answer.answered for answer in mailbox.tasks] == [False]
    await kit.store.apply([begins(again)])
    (case,) = await take(kit, worker)
    assert case.fence == 4


async def test_tenants_have_their_turn(kit: Kit) -> None:
    for tenant in ("acme", "acme", "acme", "zoo"):
        await waiting(kit, tenant=tenant)
    worker = await step_worker(kit)
    assert sorted(case.tenant for case in await take(kit, worker, most=2)) == ["acme", "zoo"]
    assert [case.tenant for case in await take(kit, worker, most=1)] == ["acme"]
    queues = await kit.store.task_queues()
    assert [(each.tenant, each.due, each.taken) for each in queues] == [("acme", 1, 2), ("zoo", 0, 1)]


async def test_tenants_are_served_equally_by_polls_smaller_than_their_number(kit: Kit) -> None:
    for tenant in ("acme", "moon", "zoo"):
        for _ in range(3):
            await waiting(kit, tenant=tenant)
    worker, after, served = await step_worker(kit), "", Counter[str]()
    for _ in range(3):
        tenants = [case.tenant for case in await take(kit, worker, most=2, after=after)]
        served.update(tenants)
        after = find_last_in_turn(tenants, after)
    assert served == {"acme": 2, "moon": 2, "zoo": 2}


async def test_tasks_of_dead_workers_and_late_ones_are_found(kit: Kit) -> None:
    run = await waiting(kit)
    worker = await step_worker(kit, lease=60 * MICROS)
    (case,) = await take(kit, worker, begins=False)
    tickets = [TaskHeartbeat(tenant="default", run=run.id, index=0, fence=fence) for fence in (1, 2)]
    assert await kit.store.begin_tasks(worker, tickets) == {(run.id, 0, 1)}
    assert await kit.store.late_tasks(MICROS, 10) == []
    kit.clock.move(12 * MICROS)
    assert [each.run for each in await kit.store.late_tasks(MICROS, 10)] == [run.id]
    assert await kit.store.lost_tasks(10) == []
    kit.clock.move(60 * MICROS)
    await kit.store.expire_workers()
    assert [(each.run, died) for each, died in await kit.store.lost_tasks(10)] == [(run.id, True)]
    suspect = answers(case, TaskStatus.READY, output=None, deaths=1)
    assert await kit.store.settle_tasks([suspect]) == {(run.id, 0)}
    other = await step_worker(kit)
    await waiting(kit)
    assert sorted(each.deaths for each in await take(kit, other)) == [0, 1]
    assert await take(kit, worker) == []  # a dead worker gets nothing


async def test_a_tenant_sees_and_settles_its_own_tasks_only(kit: Kit) -> None:
    run, worker = await waiting(kit, tenant="acme"), await step_worker(kit)
    own, other = kit.store.tenant_view("acme"), kit.store.tenant_view("zoo")
    assert await own.open_tasks(run.id) == []  # not shown yet
    await own.run(run.public_id)
    assert len(await own.open_tasks(run.id)) == 1
    assert [each.queue for each in await own.task_queues()] == ["node"]
    assert await other.task_queues() == await own.task_queues(tenant="zoo") == []
    (case,) = await take(kit, worker)
    with pytest.raises(NotAllowed):
        await other.settle_tasks([answers(case)])
    assert await own.settle_tasks([answers(case)]) == {(run.id, 0)}
