"""`redrive.publish`: messages that are committed once with a step or a workflow, and messages that are dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from outbox_apps import Box, new_app

import redrive
from redrive import NonRetryable, Redrive, RetryPolicy, step_info
from redrive.errors import InputError, MisusedStep, PayloadError, PayloadTooLarge
from redrive.testing import Crash, Engine, crash_everywhere, engine, faults

ONCE = RetryPolicy(max_retries=0)


async def test_a_step_publishes_when_it_succeeds() -> None:
    app, box = new_app()

    @app.step
    async def charge(order: int) -> int:
        redrive.publish("orders.paid", {"order": order}, key=str(order))
        return order

    @app.workflow
    async def fulfil(order: int) -> int:
        return await charge(order)

    async with engine(app) as e:
        report = await e.run(fulfil, 7, tenant="acme", correlation_id="c-9")
        (message,) = box.messages
        assert (message.topic, message.payload, message.key) == ("orders.paid", {"order": 7}, "7")
        assert (message.tenant, message.correlation_id) == ("acme", "c-9")
        assert message.run_id == report.described.id
        assert message.time == e.now


async def test_messages_of_a_failed_attempt_are_dropped() -> None:
    app, box = new_app()
    tries: list[int] = []

    @app.step(retry=RetryPolicy(max_retries=2, base_delay="1s"))
    async def charge() -> None:
        tries.append(1)
        redrive.publish("orders.tried", {"try": len(tries)})
        if len(tries) < 3:
            raise ConnectionError("no")

    @app.workflow
    async def fulfil() -> None:
        await charge()

    async with engine(app) as e:
        await e.run(fulfil)
        assert [message.payload for message in box.messages] == [{"try": 3}]


async def test_a_step_that_fails_for_good_publishes_nothing() -> None:
    app, box = new_app()

    @app.step
    async def charge() -> None:
        redrive.publish("orders.paid", 1)
        raise NonRetryable("declined")

    @app.workflow
    async def fulfil() -> None:
        redrive.publish("orders.begun", 1)
        await charge()

    async with engine(app) as e:
        report = await e.run(fulfil)
        assert report.letter is not None
        assert box.topics == ["orders.begun"]
        assert [message.topic for message in await e.published()] == ["orders.begun"]
        assert await e.published("orders.paid") == []


async def test_messages_of_a_step_whose_result_is_refused_are_dropped() -> None:
    app, box = new_app(max_payload=200)

    @app.step(retry=ONCE)
    async def charge() -> str:
        redrive.publish("orders.paid", 1)
        return "x" * 500

    @app.workflow
    async def fulfil() -> None:
        await charge()

    async with engine(app) as e:
        assert (await e.run(fulfil)).letter is not None
        assert box.messages == []


async def test_workflow_code_publishes_in_order_and_may_await_it() -> None:
    app, box = new_app()

    @app.step
    async def work() -> None: ...

    @app.workflow
    async def fulfil() -> str:
        first = redrive.publish("a", 1, key="k")
        await work()
        second = await redrive.publish("b", 2, key="k")
        await redrive.publish("c", 3, key="k")
        assert first != second
        return second

    async with engine(app) as e:
        report = await e.run(fulfil)
        assert box.topics == ["a", "b", "c"]
        assert report.value == box.messages[1].id


async def test_a_def_workflow_and_its_steps_publish() -> None:
    app, box = new_app()

    @app.step
    def work(n: int) -> None:
        redrive.publish("step", n)

    @app.workflow
    def fulfil() -> None:
        redrive.publish("before", 0)
        work(1)
        redrive.publish("after", 2)

    async with engine(app) as e:
        await e.run(fulfil)
        assert sorted(box.topics) == ["after", "before", "step"]


async def test_a_step_publishes_from_threads_that_it_started() -> None:
    app, box = new_app()

    @app.step
    async def work() -> None:
        info = step_info()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: info.publish("n", n), range(200)))
        await asyncio.to_thread(redrive.publish, "n", 200)

    @app.workflow
    async def fulfil() -> None:
        await work()

    async with engine(app) as e:
        await e.run(fulfil)
        assert sorted(message.payload for message in box.messages) == list(range(201))
        assert len({message.id for message in box.messages}) == 201


async def test_publishing_from_a_thread_that_outlives_its_attempt_is_an_error() -> None:
    app, box = new_app()
    told: list[BaseException] = []
    go = threading.Event()
    threads: list[threading.Thread] = []

    @app.step
    async def work() -> None:
        info = step_info()
        info.publish("in.time", 1)

        def later() -> None:
            go.wait(10)
            try:
                info.publish("too.late", 1)
            except BaseException as error:
                told.append(error)

        threads.append(threading.Thread(target=later))
        threads[0].start()

    @app.workflow
    async def fulfil() -> None:
        await work()

    async with engine(app) as e:
        await e.run(fulfil)
        go.set()
        threads[0].join(10)
        assert isinstance(told[0], MisusedStep)
        await e.settle()
        assert box.topics == ["in.time"]


async def test_a_transactional_step_publishes_with_its_transaction() -> None:
    app, box = new_app()
    fail = [True]

    @app.step(transactional=True, retry=RetryPolicy(max_retries=1, base_delay="1s"))
    async def debit(tx: Any) -> None:
        await tx.execute("CREATE TABLE IF NOT EXISTS account (n INTEGER)")
        await tx.execute("INSERT INTO account VALUES (1)")
        redrive.publish("account.debited", 1)
        if fail.pop() if fail else False:
            raise ConnectionError("no")

    @app.workflow
    async def pay() -> None:
        await debit()

    async with engine(app) as e:
        await e.run(pay)
        assert box.topics == ["account.debited"]
        assert await e.fetch("SELECT count(*) AS n FROM account") == [{"n": 1}]


async def test_a_run_that_is_resumed_does_not_publish_again() -> None:
    app, box = new_app()

    @app.step
    async def work(n: int) -> None:
        redrive.publish("step", n)

    @app.workflow
    async def fulfil() -> None:
        redrive.publish("a", 1)
        await work(1)
        await redrive.sleep("1h")
        redrive.publish("b", 2)
        await work(2)

    async with engine(app) as e:
        handle = await fulfil.start()
        await e.settle()
        await e.crash()
        await e.restart()
        await e.finish(handle)
        assert box.topics == ["a", "step", "b", "step"]
        assert len(box.ids) == 4


async def test_a_crash_at_every_point_publishes_each_message_once() -> None:
    """Deliveries may be repeated, but the same four messages are delivered whatever crashed."""

    app, box = new_app()

    @app.step
    async def work(n: int) -> int:
        redrive.publish("step", n, key="k")
        return n

    @app.workflow
    async def fulfil() -> int:
        redrive.publish("a", 1, key="k")
        total = await work(1)
        redrive.publish("b", 2, key="k")
        return total + await work(2)

    async def forget(e: Engine) -> None:
        box.messages.clear()

    async def check(e: Engine, run: Any) -> None:
        await e.advance("5m")
        assert [message.topic for message in await e.published()] == ["a", "step", "b", "step"]
        first_seen = {message.id: message for message in reversed(box.messages)}
        assert [m.topic for m in sorted(first_seen.values(), key=box.messages.index)] == [
            "a", "step", "b", "step",
        ]  # fmt: skip

    await crash_everywhere(fulfil, setup=forget, check=check)


@pytest.mark.parametrize(
    ("topic", "key", "error"),
    [
        ("", None, InputError),
        ("orders paid", None, InputError),
        ("orders/paid", None, InputError),
        ("orders#1", None, InputError),
        ("orders..paid", None, InputError),
        ("orders.*", None, InputError),
        ("*", None, InputError),
        ("'; DROP TABLE messages; --", None, InputError),
        ("zażółć", None, InputError),
        ("a\nb", None, InputError),
        ("x" * 201, None, InputError),
        (None, None, InputError),
        ("ok", "", InputError),
        ("ok", "a\0b", InputError),
        ("ok", "\ud800", InputError),
        ("ok", "x" * 501, InputError),
        ("ok", 7, InputError),
    ],
)
async def test_an_invalid_topic_or_key_is_refused(topic: Any, key: Any, error: type) -> None:
    app, box = new_app()
    raised: list[BaseException] = []

    @app.workflow
    async def fulfil() -> None:
        try:
            redrive.publish(topic, 1, key=key)
        except InputError as refused:
            raised.append(refused)

    async with engine(app) as e:
        report = await e.run(fulfil)
        assert report.letter is None
        assert isinstance(raised[0], error)
        assert box.messages == []


@pytest.mark.parametrize(
    ("payload", "error"), [(object(), PayloadError), ({"a": {1, object()}}, PayloadError), ("x" * 300, PayloadTooLarge)]
)
async def test_an_invalid_payload_is_refused(payload: Any, error: type) -> None:
    app, _ = new_app(max_payload=200)
    raised: list[BaseException] = []

    @app.step(retry=ONCE)
    async def work() -> None:
        try:
            redrive.publish("orders.paid", payload)
        except InputError as refused:
            raised.append(refused)

    @app.workflow
    async def fulfil() -> None:
        await work()

    async with engine(app) as e:
        await e.run(fulfil)
        assert isinstance(raised[0], error)


@pytest.mark.parametrize(
    "payload", [None, 0, "", [], {}, "\0", "\ud800", {"é": "😀"}, {"a": [1.5, None, True, {"b": "</script>"}]}]
)
async def test_payloads_arrive_unchanged(payload: Any) -> None:
    app, box = new_app()

    @app.workflow
    async def fulfil() -> None:
        redrive.publish("orders.paid", payload)

    async with engine(app) as e:
        await e.run(fulfil)
        assert [message.payload for message in box.messages] == [payload]


def test_publishing_outside_a_run_is_an_error_with_advice() -> None:
    with pytest.raises(MisusedStep, match="works only in workflows and steps"):
        redrive.publish("orders.paid", 1)


async def test_a_step_publishes_a_thousand_messages_and_no_more() -> None:
    app, box = new_app()

    @app.step(retry=ONCE)
    async def many(count: int) -> None:
        for n in range(count):
            redrive.publish("n", n)

    @app.workflow
    async def fulfil(count: int) -> None:
        await many(count)

    async with engine(app) as e:
        await e.run(fulfil, 1000)
        assert len(box.messages) == 1000
        assert "1,000" in str((await e.run(fulfil, 1001)).error)
        assert len(box.messages) == 1000


# -- replays ------------------------------------------------------------------------------------------


def failing_app() -> tuple[Redrive, Any, Box, Callable[[], None]]:
    app, box = new_app()
    broken = [True]

    @app.step
    async def first() -> None:
        redrive.publish("first", 1)

    @app.step(retry=ONCE)
    async def second() -> None:
        redrive.publish("second", 2)
        if broken:
            raise ValueError("no")

    @app.workflow
    async def fulfil() -> None:
        redrive.publish("begun", 0)
        await first()
        await second()
        redrive.publish("done", 3)

    return app, fulfil, box, broken.clear


async def test_a_replay_publishes_only_messages_that_were_not_published_before() -> None:
    app, fulfil, box, mend = failing_app()
    async with engine(app) as e:
        report = await e.run(fulfil)
        assert box.topics == ["begun", "first"]
        mend()
        await app.dlq.replay(report.letter.id, by="ann")
        await e.settle()
        assert box.topics == ["begun", "first", "second", "done"]


async def test_a_replay_from_a_step_publishes_the_messages_of_repeated_steps_again() -> None:
    app, fulfil, box, mend = failing_app()
    async with engine(app) as e:
        report = await e.run(fulfil)
        mend()
        await app.dlq.replay(report.letter.id, "FROM_STEP", from_step=1, by="ann")
        await e.settle()
        assert box.topics == ["begun", "first", "first", "second", "done"]
        assert len(box.ids) == 5  # a step that is executed again publishes again


async def test_a_replay_of_one_step_alone_stops_before_the_next_message() -> None:
    app, fulfil, box, mend = failing_app()
    async with engine(app) as e:
        report = await e.run(fulfil)
        mend()
        await app.dlq.replay(report.letter.id, "STEP_ONLY", by="ann")
        await e.settle()
        assert box.topics == ["begun", "first", "second"]
        run = await app.runs.get(report.described.id)
        assert run.status == "PARTIAL"
        await app.runs.retry(run.id, by="ann")
        await e.settle()
        assert box.topics == ["begun", "first", "second", "done"]


async def test_code_that_does_not_match_the_journal_publishes_nothing() -> None:
    """The code publishes before the journal shows the difference. Its message is dropped."""
    app, box = new_app(code_wait="1s")
    other = [False]

    @app.step
    async def a() -> None: ...

    @app.step
    async def b() -> None:
        await redrive_wait()

    async def redrive_wait() -> None: ...

    @app.step
    async def c() -> None: ...

    @app.workflow
    async def fulfil() -> None:
        if other[0]:
            redrive.publish("a.lie", 1)
            await c()
        await a()
        await redrive.sleep("1h")
        await b()

    async with engine(app) as e:
        handle = await fulfil.start()
        await e.settle()
        other[0] = True
        await e.finish(handle)
        assert box.messages == []


async def test_a_fault_in_a_step_drops_its_messages() -> None:
    app, box = new_app()

    @app.step
    async def work() -> None:
        redrive.publish("done", 1)

    @app.workflow
    async def fulfil() -> None:
        await work()

    async with engine(app) as e:
        with faults(step="work", fail=[TimeoutError, Crash]):
            await e.run(fulfil)
        assert box.topics == ["done"]
