"""Conformance tests of messages that the worker claims in the commit that publishes them."""

from __future__ import annotations

from outbox_kit import DELIVERED, LEASE, PENDING, SKIPPED, Outbox, mark, say, sink
from store_kit import DAY, Kit, entry, noted, writes
from store_kit import LEASE as WORKER_LEASE

from redrive.core.outbox import INITIAL_FENCE, Bundle, DeliveredBundle, DeliveryResult, SinkLease
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import MessageWrite, TransitionResult
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.outbox import DeliveryAction, DeliveryDecision

S = SinkLease("s", LEASE)


async def commit(
    outbox: Outbox, *messages: MessageWrite, index: int = 0, carriers: tuple[SinkLease, ...] = (S,)
) -> TransitionResult:
    """Commit messages with a step, and claim what these carriers may deliver."""
    transition = writes(outbox.run, entry(index, done=index), messages=messages)
    (answer,) = await outbox.kit.store.apply([transition], worker=outbox.worker, carriers=carriers)
    assert answer.kept
    return answer


def arrived(answer: TransitionResult) -> DeliveredBundle:
    """Return the delivery report for all messages of the one bundle of a commit."""
    places = [place for place in answer.bundled if place is not None]
    assert len({bundle.id for _, bundle in places}) == 1
    return DeliveredBundle(places[0][1].id, tuple(id for id, _ in places))


def became(answer: TransitionResult, number: int, status: DeliveryStatus = DELIVERED, **more: object) -> DeliveryResult:
    place = answer.bundled[number]
    assert place is not None
    given = {"message": place[0], "tenant": "default", "fence": INITIAL_FENCE, "status": status, "attempt": 1}
    return DeliveryResult(**{**given, "bundle": place[1].id, **more})  # type: ignore[arg-type]


async def statuses(outbox: Outbox, *names: str) -> list[str]:
    return [(await outbox.status(name)).value for name in names]


async def pending(outbox: Outbox) -> int:
    (row,) = await outbox.kit.store.sinks()
    return row.pending


async def test_a_carrier_claims_its_messages_in_the_commit_and_records_them_as_a_whole(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"), say("m2"))
    assert await outbox.claimed() == []
    assert await statuses(outbox, "m1", "m2") == ["PENDING", "PENDING"]
    (delivery,) = (await outbox.message("m1")).deliveries
    assert (delivery.attempt, delivery.lease_until) == (0, kit.clock.now() + LEASE)
    assert await outbox.listed(status="PENDING", sink="s") == ["m2", "m1"]
    assert await pending(outbox) == 2
    (lag,) = (await kit.store.stats()).sinks
    assert (lag.pending, lag.due_since) == (2, kit.clock.now())

    await kit.store.record_deliveries("s", [], arrived=[arrived(answer)])
    (delivery,) = (await outbox.message("m2")).deliveries
    assert (delivery.status, delivery.attempt, delivery.finished_at) == (DELIVERED, 1, kit.clock.now())
    assert await outbox.listed(status="DELIVERED") == await outbox.listed(sink="s") == ["m2", "m1"]
    assert await outbox.listed(status="PENDING") == await outbox.listed(sink="other") == []
    assert await pending(outbox) == 0
    kit.clock.move(2 * LEASE)
    assert await outbox.claimed() == []


async def test_messages_without_a_key_are_bundled_by_topic_for_the_sinks_that_want_them(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "a.*"), sink("t", "a.*", "b"), sink("u", "b"))
    answer = await commit(
        outbox, say("m1", "a.x"), say("m2", "b"), say("m3", "a.x", key="k"), say("m4", "a.y"),
        say("m5", "a.x"), say("m6", "unwanted"), carriers=(S, SinkLease("t", LEASE)),
    )  # fmt: skip
    places = dict(zip(("m1", "m2", "m3", "m4", "m5", "m6"), answer.bundled, strict=True))
    ids = {name: (await outbox.message(name)).id for name in places}
    assert {name: place[0] for name, place in places.items() if place} == {
        name: ids[name] for name in ("m1", "m2", "m4", "m5")
    }
    bundles = {name: place[1] for name, place in places.items() if place}
    assert bundles["m1"] == bundles["m5"] != bundles["m4"]
    assert {name: (set(each.sinks), each.whole) for name, each in bundles.items()} == {
        "m1": ({"s", "t"}, True), "m2": ({"t"}, False), "m4": ({"s", "t"}, True), "m5": ({"s", "t"}, True),
    }  # fmt: skip
    assert [await outbox.claimed(name) for name in ("s", "t", "u")] == [["m3"], ["m3"], ["m2"]]
    assert [each.sink for each in (await outbox.message("m2")).deliveries] == ["t", "u"]


async def test_a_bundle_whose_lease_has_expired_can_be_claimed(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"), say("m2"))
    found = await outbox.claim()
    assert (found.items, found.next_at) == ((), kit.clock.now() + LEASE)
    kit.clock.move(LEASE)
    other = await kit.beside()
    claims = await outbox.claim(store=other)
    assert [(each.message.public_id, each.fence, each.deaths) for each in claims.items] == [
        ("m1", INITIAL_FENCE + 1, 1), ("m2", INITIAL_FENCE + 1, 1),
    ]  # fmt: skip
    await kit.store.record_deliveries("s", [], arrived=[arrived(answer)])  # too late: another node has claimed them
    assert await statuses(outbox, "m1", "m2") == ["PENDING", "PENDING"]
    await outbox.note(mark(claims.items[0]))
    assert await statuses(outbox, "m1", "m2") == ["DELIVERED", "PENDING"]


async def test_messages_of_a_dead_worker_can_be_claimed_when_its_lease_has_expired(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await outbox.publish(say("m1", key="k"))
    other = await kit.beside()
    claim = {"sink": "s", "limit": 10, "lease": DAY, "worker": outbox.worker}
    assert len((await kit.store.claim_deliveries(**claim)).items) == 1  # type: ignore[arg-type]
    await commit(outbox, say("m2"), index=1, carriers=(SinkLease("s", DAY),))
    kit.clock.move(WORKER_LEASE - 1)
    assert (await outbox.claim(store=other)).items == (), "the worker that holds them is alive"
    kit.clock.move(1)
    claims = await outbox.claim(store=other)
    assert [(each.message.public_id, each.deaths) for each in claims.items] == [("m1", 1), ("m2", 1)]


async def test_a_failure_splits_its_bundle_and_the_rest_is_recorded_one_by_one(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"), say("m2"), say("m3"))
    failed = became(answer, 1, PENDING, wake_in=5_000_000, error="no answer")
    await outbox.note(became(answer, 0), failed)
    assert await statuses(outbox, "m1", "m2", "m3") == ["DELIVERED", "PENDING", "PENDING"]
    (delivery,) = (await outbox.message("m2")).deliveries
    assert (delivery.attempt, delivery.error, delivery.lease_until) == (1, "no answer", 0)
    assert await outbox.claimed() == []  # one waits for its retry, one is still being delivered
    await outbox.note(became(answer, 2))
    assert await statuses(outbox, "m3") == ["DELIVERED"]
    kit.clock.move(5_000_000)
    assert await outbox.claimed() == ["m2"]


async def test_a_repeated_commit_releases_the_messages_of_the_first(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    await commit(outbox, say("m1"))
    assert await outbox.claimed() == []
    repeated = await commit(outbox, say("m1"))
    assert not any(repeated.bundled)
    claims = await outbox.claim()
    assert [(each.message.public_id, each.deaths) for each in claims.items] == [("m1", 0)]
    mixed = await commit(outbox, say("m1"), say("m2"), say("m3", key="k"), index=1)
    assert not any(mixed.bundled)
    claims = await outbox.claim()
    assert [(each.message.public_id, each.deaths) for each in claims.items] == [("m2", 0), ("m3", 0)]


async def test_messages_of_a_worker_that_lost_its_run_are_not_claimed(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    transition = writes(outbox.run, entry(0, done=0), messages=(say("lost"),))
    stale = replace(transition, fence=0)
    kept = writes(outbox.run, entry(1, done=1), messages=(say("kept"),))
    lost, answer = await kit.store.apply([stale, kept], worker=outbox.worker, carriers=[S])
    assert (lost.kept, lost.bundled) == (False, ())
    (place,) = answer.bundled
    assert place is not None
    assert place == ((await outbox.message("kept")).id, Bundle(place[1].id, ("s",), whole=True))


async def test_a_decision_about_one_message_does_not_release_the_others_of_its_bundle(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"), say("m2"))
    skip = DeliveryDecision(
        message="m1", choice=DeliveryAction.SKIP, audit=noted("outbox.skipped", subject="m1", token="t")
    )
    assert await kit.store.decide_deliveries(skip) == 1
    assert await outbox.claimed() == []
    await kit.store.record_deliveries("s", [], arrived=[arrived(answer)])
    assert await statuses(outbox, "m1", "m2") == ["SKIPPED", "DELIVERED"]
    assert await kit.store.decide_deliveries(skip) == 0


async def test_removing_a_sink_skips_its_bundles(kit: Kit) -> None:
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"))
    assert await kit.store.remove_sink("s", noted("sink.removed", subject="s", token="t"))
    await kit.store.record_deliveries("s", [], arrived=[arrived(answer)])
    assert [await outbox.status("m1")] == [SKIPPED]


async def test_messages_and_their_bundle_are_kept_until_the_bundle_is_finished(kit: Kit) -> None:
    purge = PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=500, messages=DAY)
    outbox = await Outbox.open(kit)
    answer = await commit(outbox, say("m1"), say("m2"))
    kit.clock.move(2 * DAY)
    await kit.store.purge(purge)
    assert await outbox.listed() == ["m2", "m1"]
    await kit.store.record_deliveries("s", [], arrived=[arrived(answer)])
    await kit.store.purge(purge)
    assert await outbox.listed() == ["m2", "m1"]
    kit.clock.move(2 * DAY)
    await kit.store.purge(purge)
    assert await outbox.listed() == []
    await kit.by_hand(  # proves that the bundle's id is free
        "INSERT INTO redrive.bundles (id, sink, tenant, first, last, size, lease_until)"
        " VALUES (?, 's', 'default', 1, 1, 1, 0)",
        arrived(answer).bundle,
    )
