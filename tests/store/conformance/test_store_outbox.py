"""Conformance tests of the outbox: committed messages go to each sink, in order for each key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from outbox_kit import DEAD, DELIVERED, LEASE, PENDING, SKIPPED, Outbox, mark, say, sink
from store_kit import DAY, SECOND, Kit, entry, noted, writes

from redrive.core.outbox import Suspects
from redrive.record_fields import replace
from redrive.store import outbox_claims
from redrive.store.chores import PurgeRequest
from redrive.store.filters import AuditFilter, OutboxFilter
from redrive.store.outbox import DeliveryAction, DeliveryDecision

PURGE = PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=500, messages=DAY)


def decision(message: str, choice: DeliveryAction, sink: str | None = None) -> DeliveryDecision:
    line = noted("outbox.retried", subject=message, token=f"{message}-{choice}-{sink}")
    return DeliveryDecision(message=message, choice=choice, sink=sink, audit=line)


# -- publishing -----------------------------------------------------------------------------------------


async def test_a_message_is_written_with_its_step_and_goes_to_every_sink_that_wants_it(kit: Kit) -> None:
    outbox = await Outbox.open(
        kit, sink("all", "*"), sink("orders", "orders.*", "orders.paid"), sink("mail", "mail.sent")
    )
    assert await outbox.publish(say("m1", "orders.paid", key="k"), say("m2", "mail.sent"), say("m3", "order"))
    sent = {name: [d.sink for d in (await outbox.message(name)).deliveries] for name in ("m1", "m2", "m3")}
    assert sent == {"m1": ["all", "orders"], "m2": ["all", "mail"], "m3": ["all"]}
    row = await outbox.message("m1")
    assert (row.topic, row.key, row.payload, row.run_id, row.correlation_id, row.tenant) == (
        "orders.paid", "k", '"m1"', "r1", "c1", "default",
    )  # fmt: skip
    assert row.created_at == kit.clock.now()


async def test_a_prefix_matches_whole_words(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "orders.*"))
    await outbox.publish(say("no", "ordersx.paid"), say("nor", "orders"), say("yes", "orders.paid.eu"))
    assert await outbox.claimed() == ["yes"]


async def test_messages_of_a_worker_that_lost_its_run_are_refused_with_its_step(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    kept = writes(outbox.run, entry(0, done=0), messages=(say("kept"),))
    lost = writes(outbox.run, entry(1, done=1), messages=(say("lost"),))
    stale = replace(lost, fence=lost.fence - 1)
    answers = await kit.store.apply([stale, kept], worker=outbox.worker)
    assert [answer.kept for answer in answers] == [False, True]
    assert await outbox.listed() == ["kept"]
    assert await outbox.claimed() == ["kept"]


async def test_a_commit_whose_reply_was_lost_publishes_once(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    transition = writes(outbox.run, entry(0, done=0), messages=(say("m1", key="k"), say("m2")))
    for _ in range(3):
        await kit.store.apply([transition], worker=outbox.worker)
    assert await outbox.deliver() == ["m1", "m2"]
    await kit.store.apply([transition], worker=outbox.worker)
    assert await outbox.claimed() == []


async def test_a_transactional_step_publishes_in_its_transaction(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    undone = kit.store.transaction(5.0)
    await undone.fetch(kit.sql("SELECT 1"))
    await undone.rollback()
    done = kit.store.transaction(5.0)
    answer = await done.commit(outbox.worker, writes(outbox.run, entry(done=0), messages=(say("m1"),)))
    assert answer.kept
    assert await outbox.claimed() == ["m1"]


async def test_a_sink_gets_messages_published_after_its_registration(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("first"))
    await outbox.say("m1")
    await kit.store.put_sinks([sink("later")])
    await outbox.say("m2")
    assert await outbox.claimed("later") == ["m2"]
    assert await outbox.claimed("first") == ["m1", "m2"]


async def test_a_sink_that_changes_its_topics_keeps_its_messages(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "orders.*"))
    await outbox.publish(say("m1", "orders.paid"))
    await kit.store.put_sinks([sink("s", "mail.*")])
    await outbox.publish(say("m2", "orders.paid"), say("m3", "mail.sent"))
    assert await outbox.claimed() == ["m1", "m3"]


# -- claiming -------------------------------------------------------------------------------------------


async def test_a_delivery_is_claimed_by_one_node_until_its_lease_expires(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1", "m2", "m3")
    other = await kit.beside()
    assert await outbox.claimed(limit=2) == ["m1", "m2"]
    assert await outbox.claimed(store=other) == ["m3"]
    assert await outbox.claimed(store=other) == []
    kit.clock.move(LEASE)
    assert await outbox.claimed(store=other) == ["m1", "m2", "m3"]


async def test_a_delivery_without_a_recorded_result_is_a_suspect_that_is_claimed_alone(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1", "k1", key="k")
    await outbox.say("m2", "m3")
    await outbox.claim()
    kit.clock.move(LEASE)
    await outbox.say("k2", key="k")
    await outbox.say("m4")
    healthy = await outbox.claim(suspects=Suspects.LEAVE)
    assert ([each.message.public_id for each in healthy.items], healthy.suspects) == (["m4"], True)
    few = await outbox.claim(limit=2, suspects=Suspects.LEAVE)
    assert (few.items, few.suspects) == ((), True)
    for name in ("m1", "k1", "m2", "m3"):
        (one,) = (await outbox.claim(limit=1, suspects=Suspects.TAKE_ONE)).items
        assert (one.message.public_id, one.deaths) == (name, 1)
        if name != "m3":
            await outbox.note(mark(one))
    assert (await outbox.claim(suspects=Suspects.TAKE_ONE)).items == ()
    kit.clock.move(LEASE)
    (again,) = (await outbox.claim(limit=1, suspects=Suspects.TAKE_ONE)).items
    assert (again.message.public_id, again.deaths) == ("m3", 2)
    await outbox.note(mark(again, PENDING, attempt=1, error="no answer"))
    later = await outbox.claim(suspects=Suspects.LEAVE)
    assert {each.message.public_id: each.deaths for each in later.items} == {"k2": 0, "m3": 0}


async def test_large_messages_are_claimed_in_small_numbers(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_claims, "MAX_CLAIM_BYTES", 20_000)
    limit_size, read = outbox_claims._limit_size, []

    def limited(rows: list[Any], limit: int) -> Any:
        read.append(len(rows))
        return limit_size(rows, limit)

    monkeypatch.setattr(outbox_claims, "_limit_size", limited)
    outbox = await Outbox.open(kit)
    for name, size in (("m1", 10_000), ("m2", 10_000), ("m3", 100_000), ("m4", 1)):
        await outbox.publish(say(name, payload=json.dumps("x" * size)))
    found = [await outbox.claim() for _ in range(3)]
    assert [[each.message.public_id for each in one.items] for one in found] == [["m1", "m2"], ["m3"], ["m4"]]
    assert [one.more for one in found] == [True, True, False]
    assert max(read) == 2, "the database returned more than a claim can take"


async def test_a_node_that_lost_its_claim_changes_nothing(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1")
    (late,) = (await outbox.claim()).items
    kit.clock.move(LEASE)
    (now,) = (await outbox.claim()).items
    await outbox.note(mark(late, DEAD, attempt=9, error="late"))
    assert await outbox.status("m1") is PENDING
    await outbox.note(mark(now))
    assert await outbox.status("m1") is DELIVERED
    await outbox.note(mark(now, DEAD))  # a repeat with a different result
    assert await outbox.status("m1") is DELIVERED


async def test_recording_no_results_changes_nothing(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1")
    await outbox.note()
    assert await outbox.claimed() == ["m1"]


async def test_a_failed_delivery_is_due_again_after_its_delay(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1")
    (claimed,) = (await outbox.claim()).items
    await outbox.note(mark(claimed, PENDING, attempt=1, wake_in=5 * SECOND, error="no answer"))
    nothing = await outbox.claim()
    assert (nothing.items, nothing.next_at) == ((), kit.clock.now() + 5 * SECOND)
    (row,) = (await outbox.message("m1")).deliveries
    assert (row.attempt, row.error, row.tried_at) == (1, "no answer", kit.clock.now())
    kit.clock.move(5 * SECOND)
    (again,) = (await outbox.claim()).items
    assert (again.attempt, again.message.payload) == (1, '"m1"')


async def test_a_claim_returns_the_time_at_which_a_dead_node_s_lease_expires(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("m1")
    assert await outbox.claimed() == ["m1"]
    assert (await outbox.claim(limit=1)).next_at == kit.clock.now() + LEASE


async def test_many_nodes_share_the_deliveries_and_none_is_claimed_twice(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.publish(*(say(f"m{n:03}") for n in range(200)))
    stores = [kit.store, *[await kit.beside() for _ in range(3)]]
    taken: list[str] = []

    async def node(store) -> None:
        while batch := await outbox.claimed(limit=7, store=store):
            taken.extend(batch)

    await asyncio.gather(*map(node, stores))
    assert sorted(taken) == [f"m{n:03}" for n in range(200)]


# -- order ----------------------------------------------------------------------------------------------


async def test_messages_of_one_key_are_claimed_together_in_order(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("a1", key="a")
    await outbox.say("b1", key="b")
    await outbox.say("a2", "a3", key="a")
    assert await outbox.claimed() == ["a1", "b1", "a2", "a3"]


async def test_a_key_is_claimed_by_one_node_at_a_time(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    other = await kit.beside()
    await outbox.say("a1", "a2", "a3", key="a")
    first = await outbox.claim(limit=1)
    assert await outbox.claimed(store=other) == []
    (row,) = (await outbox.message("a3")).deliveries
    assert row.behind == "a1"
    await outbox.note(*(mark(each) for each in first.items))
    assert await outbox.claimed(store=other) == ["a2", "a3"]


async def test_a_new_message_waits_while_its_key_is_claimed(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("a1", key="a")
    first = await outbox.claim()
    await outbox.say("a2", key="a")
    assert await outbox.claimed() == []
    await outbox.note(mark(first.items[0], PENDING, attempt=1, wake_in=SECOND))
    assert await outbox.claimed() == []
    kit.clock.move(SECOND)
    assert await outbox.deliver() == ["a1"]  # a2 is not due before a1 is delivered
    assert await outbox.deliver() == ["a2"]


async def test_a_failure_in_a_batch_releases_the_messages_behind_it(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("a1", "a2", "a3", key="a")
    a1, a2, a3 = (await outbox.claim()).items
    failed = mark(a2, PENDING, attempt=1, wake_in=SECOND)
    back = mark(a3, PENDING, behind=a2.message.id, tried=False)
    await outbox.note(mark(a1), failed, back)
    assert await outbox.claimed() == []
    kit.clock.move(SECOND)
    assert await outbox.deliver() == ["a2"]
    assert await outbox.deliver() == ["a3"]


async def test_a_message_does_not_wait_behind_one_that_is_already_finished(kit: Kit) -> None:
    """A user skipped the message that failed, while the relay released the rest of its batch."""
    outbox = await Outbox.open(kit)
    await outbox.say("a1", "a2", key="a")
    a1, a2 = (await outbox.claim()).items
    await kit.store.decide_deliveries(decision("a1", DeliveryAction.SKIP))
    await outbox.note(
        mark(a1, PENDING, attempt=1, wake_in=SECOND), mark(a2, PENDING, behind=a1.message.id, tried=False)
    )
    assert await outbox.status("a1") is SKIPPED
    assert await outbox.claimed() == ["a2"]


async def test_a_dead_message_blocks_its_key_at_its_sink_and_nothing_else(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s"), sink("other"))
    await outbox.say("a1", key="a")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD, attempt=3, error="gone"))
    await outbox.say("a2", "a3", key="a")
    await outbox.say("b1", key="b")
    await outbox.say("free")
    assert await outbox.deliver() == ["b1", "free"]
    assert await outbox.deliver("other") == ["a1", "a2", "a3", "b1", "free"]
    (blocked,) = await kit.store.blocked_keys(limit=10)
    assert (blocked.sink, blocked.key, blocked.message, blocked.waiting) == ("s", "a", "a1", 2)
    assert (blocked.error, blocked.attempt) == ("gone", 3)


async def test_blocked_messages_do_not_hide_those_behind_them(kit: Kit) -> None:
    """A thousand messages that wait for one dead message are read once, then skipped."""
    outbox = await Outbox.open(kit)
    await outbox.say("head", key="a")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD))
    await outbox.publish(*(say(f"a{n:04}", key="a") for n in range(1000)))
    await outbox.publish(*(say(f"b{n}", key="b") for n in range(3)))
    looks = 0
    while not (found := await outbox.claim(limit=100)).items:
        looks += 1
        assert found.more
        assert looks <= 10
    assert [each.message.public_id for each in found.items] == ["b0", "b1", "b2"]


async def test_two_tenants_may_use_the_same_key(kit: Kit) -> None:
    acme, globex = await Outbox.open(kit, tenant="acme"), await Outbox.open(kit, tenant="globex")
    await acme.say("a1", key="k")
    await acme.note(mark((await acme.claim()).items[0], DEAD))
    await globex.say("g1", key="k")
    assert await globex.deliver() == ["g1"]


# -- decisions of users ---------------------------------------------------------------------------------


async def test_retrying_a_dead_message_resets_its_attempts_and_unblocks_its_key(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("a1", key="a")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD, attempt=3))
    await outbox.say("a2", key="a")
    assert await outbox.claimed() == []
    assert await kit.store.decide_deliveries(decision("a1", DeliveryAction.RETRY)) == 1
    (again,) = (await outbox.claim()).items
    assert (again.message.public_id, again.attempt) == ("a1", 0)
    await outbox.note(mark(again))
    assert await outbox.deliver() == ["a2"]


async def test_skipping_a_dead_message_unblocks_its_key(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say("a1", key="a")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD))
    await outbox.say("a2", "a3", key="a")
    assert await outbox.claimed() == []
    assert await kit.store.decide_deliveries(decision("a1", DeliveryAction.SKIP, "s")) == 1
    assert await outbox.status("a1") is SKIPPED
    assert await outbox.claimed() == ["a2", "a3"]
    assert await kit.store.blocked_keys(limit=10) == []


async def test_a_repeated_decision_changes_nothing_and_is_recorded_once(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s"), sink("t"))
    await outbox.say("m1")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD))
    assert await kit.store.decide_deliveries(decision("m1", DeliveryAction.RETRY)) == 1
    assert await kit.store.decide_deliveries(decision("m1", DeliveryAction.RETRY)) == 0
    assert await kit.store.decide_deliveries(decision("m1", DeliveryAction.SKIP)) == 2
    assert await kit.store.decide_deliveries(decision("m1", DeliveryAction.SKIP)) == 0
    assert await kit.store.decide_deliveries(decision("none", DeliveryAction.SKIP)) == 0
    page = await kit.store.audit(AuditFilter(subject="m1"), limit=10, cursor=None)
    assert len(page.items) == 2


async def test_removing_a_sink_skips_its_waiting_messages(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "orders.*"), sink("t"))
    await outbox.say("m1", key="a")
    await outbox.note(mark((await outbox.claim()).items[0], DEAD))
    await outbox.say("m2", key="a")
    rows = {row.name: row for row in await kit.store.sinks()}
    assert (rows["s"].pending, rows["s"].dead, [str(t) for t in rows["s"].topics]) == (1, 1, ["orders.*"])
    assert await kit.store.remove_sink("s", noted("outbox.sink_removed"))
    assert not await kit.store.remove_sink("s", noted("outbox.sink_removed"))
    assert [await outbox.status(name) for name in ("m1", "m2")] == [SKIPPED, SKIPPED]
    await outbox.say("m3")
    assert [row.name for row in await kit.store.sinks()] == ["t"]
    assert await outbox.claimed("s") == []


# -- lists ----------------------------------------------------------------------------------------------


async def test_messages_are_listed_newest_first_by_each_filter(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "orders.*"), sink("t", "mail.*"))
    await outbox.publish(say("msg-r1-0-0", "orders.paid", key="k"), say("msg-r1-0-1", "orders.sent"))
    kit.clock.move(SECOND)
    await outbox.publish(say("msg-r10-0-0", "mail.sent", run_id="r10"), say("msg-r1-1-0", "other"))
    assert await outbox.listed() == ["msg-r1-1-0", "msg-r10-0-0", "msg-r1-0-1", "msg-r1-0-0"]
    assert await outbox.listed(topic="orders.*") == ["msg-r1-0-1", "msg-r1-0-0"]
    assert await outbox.listed(topic="orders.paid") == ["msg-r1-0-0"]
    assert await outbox.listed(topic="*", key="k") == ["msg-r1-0-0"]
    assert await outbox.listed(run_id="r1") == ["msg-r1-1-0", "msg-r1-0-1", "msg-r1-0-0"]
    assert await outbox.listed(tenant="other") == []
    assert await outbox.listed(sink="t") == ["msg-r10-0-0"]
    assert await outbox.listed(since=kit.clock.now()) == ["msg-r1-1-0", "msg-r10-0-0"]
    assert await outbox.listed(until=kit.clock.now()) == ["msg-r1-0-1", "msg-r1-0-0"]
    claimed = await outbox.claim()
    await outbox.note(mark(claimed.items[0], DEAD), mark(claimed.items[1]))
    assert await outbox.listed(status="DEAD") == ["msg-r1-0-0"]
    assert await outbox.listed(status="DELIVERED") == ["msg-r1-0-1"]
    assert await outbox.listed(status="DEAD", sink="t") == []
    assert await outbox.listed(status="DEAD", sink="s") == ["msg-r1-0-0"]


async def test_pages_of_messages_go_both_ways(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.say(*(f"m{n}" for n in range(5)))
    first = await kit.store.messages(OutboxFilter(), limit=2, cursor=None)
    second = await kit.store.messages(OutboxFilter(), limit=2, cursor=first.next)
    back = await kit.store.messages(OutboxFilter(), limit=2, cursor=second.prev)
    names = [[row.public_id for row in page.items] for page in (first, second, back)]
    assert names == [["m4", "m3"], ["m2", "m1"], ["m4", "m3"]]


async def test_a_message_is_shown_to_its_own_tenant_only(kit: Kit) -> None:
    outbox = await Outbox.open(kit, tenant="acme")
    await outbox.say("m1")
    assert await kit.store.message("m1", tenant="globex") is None
    assert await kit.store.message("m1", tenant="acme") is not None


async def test_texts_of_every_kind_are_returned_unchanged(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    payload = '{"a":"\\u0000\\ud800 \x1a \' \\" \\\\ ; -- {} % ż 😀"}'
    odd = say("m1", key="'; DROP TABLE messages; -- %_\\ 😀", payload=payload, correlation_id="a\0b")
    await outbox.publish(odd)
    (claimed,) = (await outbox.claim()).items
    assert (claimed.message.payload, claimed.message.key) == (payload, odd.key)
    assert claimed.message.correlation_id == "a\0b"
    await outbox.note(mark(claimed, DEAD, error="a\0b\x1a"))
    (row,) = (await outbox.message("m1")).deliveries
    assert row.error == "a\0b\x1a"


# -- purging --------------------------------------------------------------------------------------------


async def test_delivered_messages_are_purged_after_their_retention_and_others_stay(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s"), sink("t", "late.*"))
    await outbox.say("done", "dead", "waits")
    await outbox.publish(say("half", "late.one"), say("unwanted", "orders.x"))
    claims = {each.message.public_id: each for each in (await outbox.claim()).items}
    await outbox.note(*(mark(claims[name]) for name in ("done", "half", "unwanted")), mark(claims["dead"], DEAD))
    await kit.store.purge(PURGE)
    assert len(await outbox.listed()) == 5
    kit.clock.move(DAY)
    await kit.store.purge(PURGE)
    assert sorted(await outbox.listed()) == ["dead", "half", "waits"]
    assert await outbox.deliver("t") == ["half"]
    await kit.store.purge(PURGE)
    assert sorted(await outbox.listed()) == ["dead", "half", "waits"]  # it has just been delivered
    kit.clock.move(DAY)
    await kit.store.purge(PURGE)
    assert sorted(await outbox.listed()) == ["dead", "waits"]


async def test_a_message_keeps_its_trace(kit: Kit) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    outbox = await Outbox.open(kit)
    await outbox.publish(say("m1", trace=trace), say("m2"))
    assert [(each.message.public_id, each.message.trace) for each in (await outbox.claim()).items] == [
        ("m1", trace),
        ("m2", None),
    ]
    one = await kit.store.message("m1")
    assert one is not None
    assert one.trace == trace
