"""The relay: delivery at least once, in order per key, with backoff, despite failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from outbox_apps import new_app

import redrive
from redrive import Message, NonRetryable, OutboxFilter, Redrive, RetryAfter, RetryPolicy
from redrive.errors import Conflict, NotFound, RegistrationError
from redrive.testing import Crash, Engine, engine
from redrive.testing.faulty_store import LOSE, Call, Fault, crash_before

SOON = RetryPolicy(max_retries=3, base_delay="1s", factor=1, jitter=0)


class Picky:
    """A sink that refuses the messages named by a test."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.got: list[str] = []
        self.refuses: dict[Any, BaseException] = {}
        self.closed = 0

    async def deliver(self, message: Message) -> None:
        self.tried.append(str(message.payload))
        if message.payload in self.refuses:
            raise self.refuses[message.payload]
        self.got.append(str(message.payload))

    async def close(self) -> None:
        self.closed += 1


def picky_app(retry: RetryPolicy = SOON, **settings: Any) -> tuple[Redrive, Any, Picky]:
    """Return an app, a workflow that publishes texts, and its sink; the letters of a text are its key."""
    app, sink = Redrive(**settings), Picky()
    app.sink("picky", "*", sink, retry=retry)

    @app.workflow
    async def say(texts: str) -> None:
        for text in texts.split():
            redrive.publish("said", text, key=text.rstrip("0123456789") or None)

    return app, say, sink


async def test_a_failed_delivery_is_repeated_with_backoff_until_it_arrives() -> None:
    app, say, sink = picky_app()
    sink.refuses["7"] = ConnectionError("no answer")
    async with engine(app) as e:
        await e.run(say, "7 8")
        assert (sink.tried, sink.got) == (["7", "8"], ["8"])
        (message,) = (await app.outbox.list(OutboxFilter(status="PENDING"))).items
        (delivery,) = message.deliveries
        assert (delivery.attempt, delivery.error) == (1, "ConnectionError: no answer")
        assert (delivery.next_at - e.now).total_seconds() == 1
        await e.advance("0.9s")
        assert len(sink.tried) == 2
        sink.refuses.clear()
        await e.advance("0.2s")
        assert sink.got == ["8", "7"]


async def test_the_relay_continues_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    app, say, sink = picky_app()
    broken = [RuntimeError("unexpected")]
    async with engine(app) as e:
        claim = e.store.claim_deliveries

        async def stumbles(*args: Any, **options: Any) -> Any:
            if broken:
                raise broken.pop()
            return await claim(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(e.store, "claim_deliveries", stumbles)
            await e.run(say, "a1")
            await e.advance("5s")
        assert (broken, sink.got) == ([], ["a1"])
    assert "unexpected error in the relay to 'picky'" in caplog.text


async def test_exhausted_messages_are_dead_and_block_their_key_until_a_user_decides() -> None:
    app, say, sink = picky_app()
    sink.refuses["a1"] = sink.refuses["b1"] = ConnectionError("no answer")
    async with engine(app) as e:
        await e.run(say, "a1 a2 b1 b2 c1 9")
        await e.advance("1m")
        assert sink.tried.count("a1") == 4
        assert sorted(sink.got) == ["9", "c1"]
        blocked = {one.key: one for one in await app.outbox.blocked()}
        assert {key: one.waiting for key, one in blocked.items()} == {"a": 1, "b": 1}
        sink.refuses.clear()
        await app.outbox.retry(blocked["a"].message_id, by="ann", reason="they are back")
        await app.outbox.skip(blocked["b"].message_id, by="ann")
        await e.settle()
        assert sink.got[2:] in (["a1", "a2", "b2"], ["b2", "a1", "a2"], ["a1", "b2", "a2"])
        assert await app.outbox.blocked() == ()
        events = [(line.event, line.by) for line in (await app.audit.list()).items]
        assert events[:2] == [("outbox.skipped", "ann"), ("outbox.retried", "ann")]
        assert events.count(("outbox.dead", "redrive")) == 2


@pytest.mark.parametrize("error", [NonRetryable("never"), ValueError("a bug")])
async def test_only_a_non_retryable_error_makes_a_message_dead_at_once(error: Exception) -> None:
    app, say, sink = picky_app()
    sink.refuses["1"] = error
    async with engine(app) as e:
        await e.run(say, "1")
        dead = (await app.outbox.list(OutboxFilter(status="DEAD"))).items
        assert bool(dead) == isinstance(error, NonRetryable)


async def test_the_retry_time_requested_by_a_sink_is_respected() -> None:
    app, say, sink = picky_app()
    sink.refuses["1"] = RetryAfter("10m")
    async with engine(app) as e:
        await e.run(say, "1")
        await e.advance("9m")
        assert len(sink.tried) == 1
        sink.refuses.clear()
        await e.advance("2m")
        assert sink.got == ["1"]


async def test_messages_with_one_key_arrive_in_order_although_some_fail() -> None:
    app, say, sink = picky_app(RetryPolicy(max_retries=50, base_delay="1s", jitter=0, factor=1))
    texts = [f"{key}{n}" for n in range(20) for key in "abc"]
    async with engine(app) as e:
        handle = await say.start(" ".join(texts))
        await e.finish(handle)
        for n in range(60):
            sink.refuses = {text: ConnectionError() for text in texts if (int(text[1:]) + n) % 3 == 0}
            await e.advance("1s")
        sink.refuses = {}
        await e.advance("5s")
        assert sorted(sink.got) == sorted(texts)
        for key in "abc":
            mine = [text for text in sink.got if text[0] == key]
            assert mine == [f"{key}{n}" for n in range(20)]


async def test_runs_that_follow_each_other_keep_the_order_of_their_key() -> None:
    app, say, sink = picky_app()
    async with engine(app) as e:
        for n in range(10):
            await e.run(say, f"k{n}")
        assert sink.got == [f"k{n}" for n in range(10)]


async def test_a_subscriber_may_start_runs_that_publish_messages() -> None:
    app, box = new_app("done.*")

    @app.workflow
    async def pack(order: int) -> None:
        redrive.publish("done.packed", order)

    @app.subscribe("orders.paid")
    async def on_paid(message: Message) -> None:
        await pack.start(message.payload["order"], idempotency_key=message.id)

    @app.workflow
    async def pay(order: int) -> None:
        redrive.publish("orders.paid", {"order": order})

    async with engine(app) as e:
        await e.run(pay, 7)
        await e.settle()
        assert [(m.topic, m.payload) for m in box.messages] == [("done.packed", 7)]


async def test_def_subscribers_run_in_threads() -> None:
    app = Redrive()
    got: list[Any] = []

    @app.subscribe(["a", "b.*"], name="keeper")
    def keep(message: Message) -> None:
        got.append(message.payload)

    @app.workflow
    async def say() -> None:
        redrive.publish("a", 1)
        redrive.publish("b.c", 2)
        redrive.publish("c", 3)

    async with engine(app) as e:
        await e.run(say)
        assert sorted(got) == [1, 2]
        assert [sink.name for sink in await app.sinks.list()] == ["keeper", "redrive.notices"]


async def test_a_sink_that_hangs_times_out_and_does_not_delay_other_sinks() -> None:
    app, box = new_app()
    hung: list[str] = []

    @app.subscribe("*", timeout="0.05s", retry=SOON)
    async def hangs(message: Message) -> None:
        hung.append(message.id)
        await asyncio.Event().wait()

    @app.workflow
    async def say() -> None:
        redrive.publish("a", 1)

    async with engine(app) as e:
        await e.run(say)
        assert box.topics == ["a"]
        (message,) = (await app.outbox.list(OutboxFilter(status="PENDING"))).items
        (delivery,) = [each for each in message.deliveries if each.sink == "hangs"]
        assert (delivery.attempt, delivery.error) == (1, "TimeoutError")


# -- crashes ------------------------------------------------------------------------------------------


async def delivered_despite(plan: Any) -> tuple[Picky, Engine]:
    app, _, sink = picky_app()

    @app.workflow
    async def slowly() -> None:
        for text in ("a1", "a2", "b1", "7"):
            redrive.publish("said", text, key=text.rstrip("0123456789") or None)
            await redrive.sleep("1m")

    async with engine(app, plan=plan) as e:
        handle = await slowly.start()
        await e.finish(handle)
        await e.advance("5m")
        assert {row.status for m in (await app.outbox.list()).items for row in m.deliveries} == {"DELIVERED"}
        assert len(await e.published()) == 4
    return sink, e


@pytest.mark.parametrize("call", ["apply", "claim_deliveries", "record_deliveries"])
@pytest.mark.parametrize("fault", ["lose", "before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_all_messages_arrive_in_order_despite_crashes_and_lost_answers(call: str, fault: str, nth: int) -> None:
    """Faults happen between commit and delivery, and between delivery and its record, at each store call."""
    from redrive.testing.faulty_store import crash_after

    kinds = {"lose": LOSE, "before": crash_before(Crash()), "after": crash_after(Crash())}
    fired: list[Call] = []

    def plan(asked: Call) -> Fault | None:
        if asked.name == call and not fired and seen(asked):
            fired.append(asked)
            return kinds[fault]
        return None

    counts: list[str] = []

    def seen(asked: Call) -> bool:
        counts.append(asked.name)
        return len(counts) == nth

    sink, _ = await delivered_despite(plan)
    assert fired
    assert set(sink.got) == {"a1", "a2", "b1", "7"}
    assert [text for text in dict.fromkeys(sink.got) if text[0] == "a"] == ["a1", "a2"]


async def test_a_delivered_but_unrecorded_message_arrives_again_with_the_same_id() -> None:
    app, box = new_app()

    @app.workflow
    async def say() -> None:
        redrive.publish("a", 1)

    died: list[int] = []

    def plan(call: Call) -> Fault | None:
        if call.name == "record_deliveries" and not died:
            died.append(1)
            return crash_before(Crash())
        return None

    async with engine(app, plan=plan) as e:
        handle = await say.start()
        await e.finish(handle)
        await e.advance("5m")
        assert len(box.messages) == 2
        assert len(box.ids) == 1


async def test_a_message_that_a_dead_process_had_claimed_is_delivered_within_the_lease_of_its_worker() -> None:
    """The claim itself lasts 90 s, as an attempt may take 30 s."""
    app, attempts = Redrive("sqlite:///:memory:"), list[int]()

    @app.subscribe("a")
    async def hear(message: Message) -> None:
        attempts.append(e.clock.now())
        if len(attempts) == 1:
            raise ConnectionError  # its second attempt is claimed from the store

    @app.workflow
    async def say() -> None:
        redrive.publish("a", 1)

    def plan(call: Call) -> Fault | None:
        return crash_before(Crash()) if call.name == "record_deliveries" and len(attempts) == 2 else None

    async with engine(app, plan=plan) as e:
        await e.run(say)
        await e.advance("3m")
    _, second, third, *_ = attempts
    assert third - second <= 40_000_000


async def test_a_message_that_kills_three_processes_is_dead_and_other_messages_are_delivered() -> None:
    app, say, sink = picky_app()
    deadly: set[str] = {"7", "k2"}
    doomed: list[str] = []
    heard: list[str] = []

    @app.subscribe("said")
    async def fatal(message: Message) -> None:
        heard.append(str(message.payload))
        if message.payload in deadly:
            doomed.append(str(message.payload))

    def plan(call: Call) -> Fault | None:
        if call.name == "record_deliveries" and doomed:
            doomed.clear()
            return crash_before(Crash())
        return None

    async with engine(app, plan=plan) as e:
        await say.start("1 2 7 k1 k2 k3 8")
        await e.advance("1h")
        dead = (await app.outbox.list(OutboxFilter(status="DEAD"))).items
        said = {one.payload: row.error for one in dead for row in one.deliveries if row.sink == "fatal"}
        why = "ProcessDied: 3 processes ended while they delivered this message"
        assert said == {"7": why, "k2": why}
        assert [heard.count(text) for text in ("7", "k2")] == [3, 3]
        waiting = (await app.outbox.list(OutboxFilter(status="PENDING"))).items
        assert [one.payload for one in waiting] == ["k3"]
        assert set(sink.got) == {"1", "2", "7", "k1", "k2", "k3", "8"}
        deadly.clear()
        for one in dead:
            await app.outbox.retry(one.id, by="ann", reason="fixed")
        await e.advance("1m")
        assert set(heard[-3:]) == {"7", "k2", "k3"}
        assert {row.status for m in (await app.outbox.list()).items for row in m.deliveries} == {"DELIVERED"}


# -- the desk -----------------------------------------------------------------------------------------


async def test_the_desk_shows_messages_redacted() -> None:
    app, _ = new_app()

    @app.workflow
    async def say() -> None:
        redrive.publish("a", {"password": "hunter2", "order": 1})

    async with engine(app) as e:
        report = await e.run(say)
        (message,) = (await app.outbox.list(OutboxFilter(run_id=report.described.id))).items
        assert message.payload["order"] == 1
        assert "hunter2" not in str(message)
        assert (await app.outbox.get(message.id)) == message


async def test_invalid_decisions_on_messages_are_refused() -> None:
    app, say, sink = picky_app()
    sink.refuses["2"] = NonRetryable("no")
    async with engine(app) as e:
        await e.run(say, "1 2")
        done = (await app.outbox.list(OutboxFilter(status="DELIVERED"))).items[0]
        dead = (await app.outbox.list(OutboxFilter(status="DEAD"))).items[0]
        with pytest.raises(Conflict, match="is finished"):
            await app.outbox.skip(done.id, by="ann")
        with pytest.raises(Conflict, match="its sinks are: picky"):
            await app.outbox.skip(dead.id, sink="other", by="ann")
        with pytest.raises(NotFound):
            await app.outbox.retry("msg-none", by="ann")
        with pytest.raises(NotFound):
            await app.outbox.retry(dead.id, by="ann", tenant="other")
        with pytest.raises(NotFound, match="the sinks are: picky"):
            await app.sinks.remove("other", by="ann")
        first = await app.outbox.skip(dead.id, by="ann")
        assert first.deliveries[0].status == "SKIPPED"
        assert await app.outbox.skip(dead.id, by="bob") == first


# -- registration -------------------------------------------------------------------------------------


def test_sinks_are_checked_when_they_are_registered() -> None:
    app = Redrive()
    with pytest.raises(RegistrationError, match="is not a topic pattern"):
        app.sink("s", "orders paid", Picky())
    with pytest.raises(RegistrationError, match="no topic was given"):
        app.sink("s", [], Picky())
    with pytest.raises(RegistrationError, match="lacks"):
        app.sink("s", "*", object())  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="concurrency"):
        app.sink("s", "*", Picky(), concurrency=0)
    with pytest.raises(RegistrationError, match="timeout"):
        app.sink("s", "*", Picky(), timeout=0)
    with pytest.raises(RegistrationError, match="RetryPolicy"):
        app.sink("s", "*", Picky(), retry=3)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="cannot name a sink"):
        app.sink("a\nb", "*", Picky())
    app.sink("s", "*", Picky())
    with pytest.raises(RegistrationError, match="two sinks"):
        app.sink("s", "*", Picky())
    with pytest.raises(RegistrationError, match="names topics"):
        app.subscribe(lambda message: None)  # type: ignore[arg-type]
