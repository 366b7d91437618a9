"""The store that fails on purpose, for tests."""

from __future__ import annotations

import pytest
from store_kit import DAY, Kit, catalogue, entry, noted, writes

from redrive.errors import StoreUnavailable
from redrive.store.accounts import AccountStore
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimRequest
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.letters import Triage
from redrive.store.notifications import NotificationStore
from redrive.store.port import Store
from redrive.store.settings import PolicyRow, SavedViewStore, ScheduleStore
from redrive.store.workers import NewWorker
from redrive.testing.faulty_store import (
    FAIL,
    LOSE,
    Call,
    Fault,
    crash_after,
    crash_before,
    delay,
    either,
    inject_faults,
    no_faults,
    nth,
)


class Killed(BaseException):
    """The death of a process, simulated by an exception."""


async def count(store: Store) -> int:
    return len((await store.runs(RunFilter(), limit=500, cursor=None)).items)


async def test_without_a_plan_the_store_works_normally(kit: Kit) -> None:
    store: Store = inject_faults(kit.store)
    await store.start([kit.new()])
    worker = await kit.worker()
    assert await count(store) == 1
    assert store.now() == kit.clock.now()
    line = store.lease_connection()
    assert line.beat({worker: {}})[worker].alive
    line.close()
    assert store.calls == ["start", "runs", "lease.beat"]


async def test_every_call_of_the_port_can_fail(kit: Kit) -> None:
    free = {
        "now",
        "fingerprint_key",
        "close",
        "changed",
        "tenant_view",
        "lease_connection",
        "transaction",
        "in_process",
    }
    groups = {
        "accounts": AccountStore,
        "notifications": NotificationStore,
        "schedules": ScheduleStore,
        "views": SavedViewStore,
    }
    port = [("", name) for part in Store.__mro__ for name in vars(part) if name[0] != "_"]
    assert len(port) > 60
    port += [(f"{group}.", name) for group, part in groups.items() for name in vars(part) if name[0] != "_"]
    for group, name in port:
        if name in free | groups.keys():
            continue
        store = inject_faults(kit.store, nth(1, FAIL))
        called = getattr(store, group[:-1]) if group else store
        with pytest.raises(StoreUnavailable, match="on purpose"):
            await getattr(called, name)()
        assert store.calls == [group + name]


async def test_calls_about_users_and_calls_of_a_view_can_fail(kit: Kit) -> None:
    store = inject_faults(kit.store, nth(2, FAIL))
    assert await store.accounts.tenants() == []
    with pytest.raises(StoreUnavailable):
        await store.accounts.tenants()
    assert (await store.tenant_view("a").runs(RunFilter(), limit=1, cursor=None)).items == []
    assert store.calls == ["accounts.tenants", "accounts.tenants", "runs"]


async def test_every_call_is_forwarded_and_its_answer_returned(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.fail(worker, run)
    store = inject_faults(kit.store)
    policy = PolicyRow(tenant="", workflow="", step="", policy="{}", updated_at=0, updated_by="ann")
    await store.set_policy(policy, noted("policy.set"))
    await store.pause("w", noted("workflow.paused"))
    assert await store.paused() == {"w": "ann"}
    await store.resume("w", noted("workflow.resumed"))
    await store.note([noted("dlq.revealed")])
    letter = f"dl-{run.public_id}"
    assert await store.triage(Triage(letter=letter, owner="bob", audit=noted("dlq.assigned")))
    assert (await kit.letter(run)).owner == "bob"
    reads = [
        ("run", (run.public_id,), {}),
        ("runs_by_id", ([run.public_id],), {}),
        ("runs", (RunFilter(),), {"limit": 5, "cursor": None}),
        ("journal", (run.id,), {}),
        ("attempts", (run.id,), {}),
        ("letter", (letter,), {"tenant": "default"}),
        ("letter_of", (run.id,), {}),
        ("letters", (LetterFilter(),), {"limit": 5, "cursor": None}),
        ("cases", ([letter],), {}),
        ("audit", (AuditFilter(),), {"limit": 5, "cursor": None}),
        ("known", (["w"],), {}),
        ("runs_with_expired_letters", (5,), {}),
        ("unclaimable", ([],), {}),
        ("stats", (), {}),
        ("workers", (), {}),
        ("policies", (), {}),
        ("expire_workers", (), {}),
        ("held", (worker,), {}),
        ("hung", (0, 5), {}),
        ("overdue", (0, 5), {}),
    ]
    for name, args, more in reads:
        expected = await getattr(kit.store, name)(*args, **more)
        assert await getattr(store, name)(*args, **more) == expected, name
        assert store.calls[-1] == name
    assert len((await store.audit(AuditFilter(), limit=9, cursor=None)).items) == 5
    assert await store.delete_policy("", "", "", noted("policy.deleted"))
    assert await store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=1)) == 0
    await store.apply([writes(run, entry(0))], worker=worker)
    await store.retire(worker)
    other = await store.enlist(NewWorker(name="n", version="v", workflows=("w",), lease=DAY), catalogue("v", "w"))
    claims = await store.claim(ClaimRequest(worker=other, workflows=("w",), capacity=1, suspect=True))
    assert claims.runs == []
    tx = store.transaction(5.0)
    assert await tx.fetch("SELECT 1 AS one") == [{"one": 1}]
    assert await tx.fetchrow("SELECT 1 AS one") == {"one": 1}
    await tx.rollback()
    assert store.plan is no_faults


async def test_a_failed_call_changes_nothing(kit: Kit) -> None:
    store = inject_faults(kit.store, nth(1, FAIL))
    with pytest.raises(StoreUnavailable, match="it was not executed"):
        await store.start([kit.new()])
    assert await count(kit.store) == 0
    await store.start([kit.new()])
    assert await count(kit.store) == 1


async def test_a_call_with_a_lost_reply_has_its_full_effect(kit: Kit) -> None:
    store = inject_faults(kit.store, nth(1, LOSE))
    run = kit.new()
    with pytest.raises(StoreUnavailable, match="lost"):
        await store.start([run])
    assert await count(kit.store) == 1
    (again,) = await store.start([run])
    assert again.public_id == run.public_id
    assert await count(kit.store) == 1


async def test_calls_can_be_counted_by_name(kit: Kit) -> None:
    store = inject_faults(kit.store, nth(2, FAIL, of="start"))
    await store.start([kit.new()])
    await count(store)
    with pytest.raises(StoreUnavailable):
        await store.start([kit.new()])


@pytest.mark.parametrize(("fault", "rows"), [(crash_before(Killed()), 0), (crash_after(Killed()), 1)])
async def test_after_a_crash_every_call_fails(kit: Kit, fault: Fault, rows: int) -> None:
    store = inject_faults(kit.store, nth(1, fault))
    worker = await kit.worker()
    line = store.lease_connection()
    for _ in range(2):
        with pytest.raises(Killed):
            await store.start([kit.new()])
    with pytest.raises(Killed):
        line.beat({worker: {}})
    assert store.dead
    assert store.calls == ["start"]
    assert await count(kit.store) == rows


@pytest.mark.parametrize("point", [1, 2, 3])
@pytest.mark.parametrize("crash", [crash_before, crash_after])
async def test_a_crash_in_a_transaction_is_all_or_nothing(kit: Kit, point: int, crash) -> None:
    worker, run = await kit.held()
    store = inject_faults(kit.store, nth(point, crash(Killed())))
    tx = store.transaction(5.0)

    async def step() -> None:
        await tx.execute("CREATE TABLE mine (a INTEGER)")
        await tx.execute("INSERT INTO mine VALUES (1)")
        await tx.commit(worker, writes(run, entry(0)))

    with pytest.raises(Killed):
        await step()
    with pytest.raises(Killed):
        await tx.rollback()
    committed = point == 3 and crash is crash_after
    assert len(await kit.store.journal(run.id)) == committed
    assert await kit.has_table("mine") == committed


async def test_plans_can_be_joined_replaced_and_written_as_functions(kit: Kit) -> None:
    store = inject_faults(kit.store, either(nth(1, FAIL), nth(2, LOSE)))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.start([kit.new()])

    def second_of_all(call: Call) -> Fault | None:
        return FAIL if (call.name, call.of_name) == ("start", 4) else None

    store.plan = second_of_all
    await store.start([kit.new()])
    with pytest.raises(StoreUnavailable):
        await store.start([kit.new()])


async def test_a_delayed_call_sleeps_first(kit: Kit) -> None:
    waits = []

    class Patient:
        def __getattr__(self, name: str):
            return getattr(kit.clock, name)

        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    store = inject_faults(kit.store, nth(1, delay(7.0)), clock=Patient())
    await store.start([kit.new()])
    assert (waits, await count(kit.store)) == ([7.0], 1)


async def test_a_heartbeat_can_fail(kit: Kit) -> None:
    worker = await kit.worker()
    store = inject_faults(kit.store, either(nth(1, FAIL), nth(2, delay(0.0))))
    line = store.lease_connection()
    with pytest.raises(StoreUnavailable):
        line.beat({worker: {}})
    assert line.beat({worker: {}})[worker].alive
    line.close()
