"""The outbox on PostgreSQL, where messages may commit in another order than their numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import cluster
import pytest
from outbox_kit import LEASE, Outbox, mark, say, sink
from store_kit import HandClock, Kit, entry, writes

from redrive.core.outbox import SinkLease
from redrive.core.transitions import AuditWrite
from redrive.store import open_store
from redrive.store.outbox import DeliveryAction, DeliveryDecision
from redrive.store.postgres.connection import parse_url

pytestmark = pytest.mark.parametrize("ready_url", cluster.ENOUGH, indirect=True)


@pytest.fixture
async def two(ready_url: str) -> Any:
    """Open two stores on one database, as two processes do."""
    clock = HandClock()
    stores = [open_store(ready_url, clock) for _ in range(2)]
    for store in stores:
        await store.open()
    yield Kit(store=stores[0], clock=clock, beside=lambda: None, shared=True, kind="postgres"), stores[1]
    for store in stores:
        await store.close()


async def test_two_writers_that_commit_in_reverse_order_lose_nothing(two: Any, ready_url: str) -> None:
    """The first writer draws its number and commits last. A relay that remembered the highest number would skip it."""
    kit, other = two
    first, second = await Outbox.open(kit, sink()), await Outbox.open(kit, sink())
    slow = kit.store.transaction(30.0)
    gate = await asyncpg.connect(ready_url.partition("?")[0])
    await gate.execute("CREATE TABLE gate (n integer); INSERT INTO gate VALUES (1)")
    # The commit waits for a deferred constraint, which waits for this lock: by then the message has its number.
    await gate.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
        "$$ BEGIN PERFORM 1 FROM gate FOR UPDATE; RETURN NULL; END $$; CREATE TABLE held (n integer); "
        "CREATE CONSTRAINT TRIGGER holds AFTER INSERT ON held DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION hold()"
    )
    held = gate.transaction()
    await held.start()
    await gate.execute("SELECT 1 FROM gate FOR UPDATE")
    await slow.execute("INSERT INTO held VALUES (1)")
    late = asyncio.create_task(
        slow.commit(first.worker, writes(first.run, entry(0, done=0), messages=(say("late", key="k"),)))
    )
    await _until_waiting(gate)
    await second.publish(say("early", key="k"), store=other)
    assert await second.deliver() == ["early"]
    await held.rollback()
    assert (await late).kept
    assert await second.deliver() == ["late"]
    numbers = {name: (await second.message(name)).id for name in ("late", "early")}
    assert numbers["late"] < numbers["early"]  # otherwise the test has shown nothing
    await gate.close()


async def _until_waiting(con: asyncpg.Connection, processes: int = 1) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(20):
        while await con.fetchval(waiting) < processes:  # noqa: ASYNC110 - no event is set when a lock is waited for
            await asyncio.sleep(0.01)


async def test_concurrent_claims_results_and_decisions_keep_every_key_in_order(two: Any) -> None:
    """Four relays and a user who skips: nothing is lost, nothing waits without end, every key is in order."""
    kit, other = two
    outbox = await Outbox.open(kit, sink())
    names = [f"k{n % 7}-{n:03}" for n in range(280)]
    for start in range(0, 280, 20):
        await outbox.publish(*(say(name, key=name[:2]) for name in names[start : start + 20]))
    got: list[str] = []
    under_way: set[str] = set()

    async def relay(store: Any, number: int) -> None:
        for turn in range(200):
            claims = await store.claim_deliveries("s", limit=5 + number, lease=LEASE)
            keys = {each.message.key for each in claims.items}
            assert not keys & under_way, "two relays hold the same key"
            under_way.update(keys)  # type: ignore[arg-type]
            await asyncio.sleep(0.001 * (turn % 3))
            got.extend(each.message.public_id for each in claims.items)
            under_way.difference_update(keys)  # type: ignore[arg-type]
            await store.record_deliveries("s", [mark(each) for each in claims.items])
            if len(got) + len(skipped) >= 280 and not claims.items:
                return

    skipped: list[str] = []

    async def person() -> None:
        for name in names[40:280:40]:
            audit = AuditWrite(event="outbox.skipped", tenant="default", by="ann", subject=name, token=name)
            wish = DeliveryDecision(message=name, choice=DeliveryAction.SKIP, audit=audit)
            skipped.extend([name] * await other.decide_deliveries(wish))

    await asyncio.gather(
        *(relay(store, number) for number, store in enumerate([kit.store, other, kit.store, other])), person()
    )
    while more := await outbox.deliver():
        got.extend(more)
    assert set(got) | set(skipped) == set(names)
    for key in {name[:2] for name in names}:
        mine = [name for name in dict.fromkeys(got) if name.startswith(key)]
        assert mine == sorted(mine)


async def test_a_late_commit_is_found_while_other_deliveries_are_due(two: Any) -> None:
    """A claim begins where the last one found something. That must not hide a delivery for long."""
    kit, _ = two
    outbox = await Outbox.open(kit, sink())
    await outbox.publish(*(say(f"m{n:03}") for n in range(100)))
    assert len(await outbox.deliver(limit=2)) == 2
    await outbox.publish(say("late"))
    earlier = kit.clock.now() - 60_000_000
    await kit.by_hand(
        "UPDATE redrive.deliveries SET available_at = ? WHERE message = (SELECT max(id) FROM redrive.messages)", earlier
    )
    seen: list[str] = []
    for _ in range(25):
        seen += await outbox.deliver(limit=2)
    assert "late" in seen
    assert len(seen) == 50, "other deliveries were always due"
    assert kit.store.delivery_floors.since("s") > 0, "claims begin at the oldest row each time"


async def test_two_relays_that_split_one_expired_bundle_deliver_each_message_once(two: Any, ready_url: str) -> None:
    kit, other = two
    outbox = await Outbox.open(kit, sink())
    written = writes(outbox.run, entry(0, done=0), messages=(say("m1"), say("m2")))
    await kit.store.apply([written], worker=outbox.worker, carriers=[SinkLease("s", LEASE)])
    kit.clock.move(2 * LEASE)
    gate = await asyncpg.connect(ready_url.partition("?")[0])
    held = gate.transaction()
    await held.start()
    await gate.execute(f"SELECT 1 FROM {parse_url(ready_url).schema}.bundles FOR UPDATE")
    claims = [asyncio.create_task(outbox.claim(store=store)) for store in (kit.store, other)]
    await _until_waiting(gate, 2)  # both have found the bundle
    await held.rollback()
    found = [each.message.public_id for claim in await asyncio.gather(*claims) for each in claim.items]
    assert sorted(found) == ["m1", "m2"]
    await gate.close()
