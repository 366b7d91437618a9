"""Conformance tests of statistics: the figures for metrics and for `redrive doctor`."""

from __future__ import annotations

from letter_kit import moved
from outbox_kit import DEAD, PENDING, Outbox, sink
from store_kit import SECOND, Kit, becomes, noted, writes

from redrive.core.circuit import CircuitState, CircuitStatus
from redrive.core.decide_run import ROLLBACK_HEAD_START
from redrive.core.outbox import DeliveryResult
from redrive.core.states import LetterStatus, RunStatus
from redrive.store.circuits import CircuitUpdate
from redrive.store.stats import Attention, CircuitCount, LaneCount, SinkLag

MINUTE = 60 * SECOND


async def test_an_empty_store_has_only_zeros(kit: Kit) -> None:
    found = await kit.store.stats()
    assert (found.letters, found.due, found.overdue, found.workers) == ({}, {}, {}, {})
    assert (found.oldest_letter, found.due_since, found.suspects, found.parked) == (None, None, 0, 0)
    assert (found.circuits, found.sinks) == ((), ())


async def test_due_runs_and_runs_late_by_a_minute_are_counted(kit: Kit) -> None:
    begun = kit.clock.now()
    await kit.start(3)
    await kit.start(2, workflow="other", tenant="t2", priority=5)
    await kit.start(1, workflow="later", delay=10 * MINUTE)
    first = await kit.store.stats()
    assert first.due == {"w": 3, "other": 2}
    assert first.overdue == {}
    kit.clock.move(2 * MINUTE)
    await kit.start(1)
    await kit.store.pause("other", noted("workflow.paused"))
    then = await kit.store.stats()
    assert then.due == {"w": 4, "other": 2}
    assert then.overdue == {"w": 3}
    assert then.due_since == begun


async def test_queues_with_due_runs_are_counted_for_their_tenant_only(kit: Kit) -> None:
    begun = kit.clock.now()
    await kit.start(2)
    await kit.start(1, workflow="other", tenant="t2")
    await kit.start(1, tenant="t3")
    kit.clock.move(2 * MINUTE)
    await kit.start(1, queue="slow", tenant="t2")
    mine = [LaneCount("t2", "default", "other", 1, 1, begun), LaneCount("t2", "slow", "w", 1, 0, kit.clock.now())]
    assert await kit.store.due_lanes(tenant="t2") == mine
    assert len(await kit.store.due_lanes()) == 4
    assert await kit.store.tenant_view("t2").due_lanes() == mine
    assert await kit.store.tenant_view("t2").due_lanes(tenant="t3") == []
    assert await kit.store.tenant_view("t2", {"w"}).due_lanes() == mine[1:]


async def test_a_rollback_with_a_head_start_is_not_late(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply(
        [becomes(run, RunStatus.COMPENSATING, wake_in=-ROLLBACK_HEAD_START, take=True)], worker=worker
    )
    at = kit.clock.now()
    found = await kit.store.stats()
    assert (found.due, found.overdue, found.due_since) == ({"w": 1}, {}, at)
    kit.clock.move(2 * MINUTE)
    found = await kit.store.stats()
    assert (found.overdue, found.due_since) == ({"w": 1}, at)


async def test_open_letters_are_counted_whether_folded_or_not(kit: Kit) -> None:
    worker, run = await kit.held()
    at = kit.clock.now()
    await kit.fail(worker, run)
    kit.clock.move(MINUTE)
    await kit.fail(*await kit.held())
    views = (kit.store, kit.store.tenant_view("default"), kit.store.tenant_view("other"))
    assert [(await view.attention()).letters for view in views] == [2, 2, 0]
    for _ in range(2):
        found = await kit.store.stats()
        assert (found.letters, found.oldest_letter) == ({"w": 2}, at)
        await kit.store.fold(100)
    ignored = writes(await kit.look(run), move=moved(run, LetterStatus.IGNORED, by="ann"))
    await kit.store.apply([ignored])
    found = await kit.store.stats()
    assert (found.letters, found.oldest_letter) == ({"w": 1}, at + MINUTE)
    assert (await kit.store.attention()).letters == 1


async def test_suspects_parked_runs_and_workers_are_counted(kit: Kit) -> None:
    other, parked = await kit.held()
    waits = becomes(parked, RunStatus.SLEEPING, take=True, parked_on="payments")
    await kit.store.apply([waits], worker=other)
    await kit.store.retire(other)
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True, deaths=1)], worker=worker)
    found = await kit.store.stats()
    assert (found.suspects, found.parked) == (1, 1)
    assert found.workers == {"LIVE": 1, "STOPPED": 1}
    kit.clock.move(10 * MINUTE)  # the lease has expired, but the worker is not declared dead yet
    assert (await kit.store.stats()).workers == {"DEAD": 1, "STOPPED": 1}


async def test_circuits_that_are_not_closed_are_counted_by_name(kit: Kit) -> None:
    for tenant in ("a", "b"):
        case = await kit.store.circuit(tenant, "payments")
        turn = CircuitUpdate(
            tenant=tenant,
            key="payments",
            version=case.row.version,
            state=CircuitState(status=CircuitStatus.OPEN, generation=1, until=kit.clock.now() + MINUTE),
            next_wave_at=0,
            settings=None,
            override=None,
            why="it failed",
            by="engine",
            changed=True,
        )
        assert (await kit.store.update_circuit(turn)).kept
    assert (await kit.store.stats()).circuits == (CircuitCount("payments", CircuitStatus.OPEN, 2),)
    assert (await kit.store.attention()).circuits == 2
    assert (await kit.store.tenant_view("a").attention()).circuits == 1
    assert await kit.store.tenant_view("a").attention(tenant="b") == Attention()
    assert await kit.store.tenant_view("a", {"w"}).attention() == Attention()


async def test_the_lag_of_each_sink_is_reported(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("slow"), sink("quick"))
    at = kit.clock.now()
    await outbox.say("m1", "m2", "m3")
    kit.clock.move(SECOND)
    slow, dead, *_ = (await outbox.claim("slow")).items
    later = DeliveryResult(
        message=slow.message.id, tenant="default", fence=slow.fence, status=PENDING, attempt=1, wake_in=MINUTE
    )
    gone = DeliveryResult(message=dead.message.id, tenant="default", fence=dead.fence, status=DEAD, attempt=1)
    await kit.store.record_deliveries("slow", [later, gone])
    found = await kit.store.stats()
    assert found.sinks == (SinkLag("quick", 3, 0, at), SinkLag("slow", 2, 1, at))
    views = (kit.store, kit.store.tenant_view("default"), kit.store.tenant_view("other"))
    assert [(await view.attention()).deliveries for view in views] == [1, 1, 0]
