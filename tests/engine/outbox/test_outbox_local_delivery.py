"""Local delivery: the process that committed messages delivers them without a claim."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import redrive
from redrive import Message, OutboxFilter, Redrive, RetryPolicy
from redrive.testing import Crash, Engine, engine
from redrive.testing.faulty_store import Call, Fault, crash_after, crash_before

SOON = RetryPolicy(max_retries=3, base_delay="1s", factor=1, jitter=0)


class Ears:
    """A subscriber that may refuse messages or be slow."""

    def __init__(self) -> None:
        self.heard: Counter[str] = Counter()
        self.refuses: set[str] = set()
        self.slow: set[str] = set()
        self.clock: Any = None

    async def __call__(self, message: Message) -> None:
        self.heard[message.payload] += 1
        if message.payload in self.slow:
            await self.clock.sleep(5.0)
        if message.payload in self.refuses:
            raise ConnectionError("no answer")


def new_app() -> tuple[Redrive, Any, Ears]:
    """Return an app, a workflow that publishes texts, and its subscriber; texts with a digit have no key."""
    app, ears = Redrive(), Ears()
    app.subscribe("*", name="ears", retry=SOON, timeout="10s")(ears)

    @app.step
    async def talk(texts: str) -> None:
        for text in texts.split():
            redrive.publish("said", text, key=None if text[0].isdigit() else text[0])

    @app.workflow
    async def say(texts: str) -> None:
        await talk(texts)

    return app, say, ears


async def bundles(e: Engine) -> list[tuple[int, bool]]:
    """Return the size of each bundle, and True if it is finished."""
    rows = await e.fetch("SELECT size, finished_at FROM bundles ORDER BY id")
    return [(row["size"], row["finished_at"] is not None) for row in rows]


async def delivered(app: Redrive) -> set[str]:
    return {one.payload for one in (await app.outbox.list(OutboxFilter(status="DELIVERED"))).items}


async def test_messages_without_a_key_are_delivered_and_recorded_as_one_bundle() -> None:
    app, say, ears = new_app()
    async with engine(app) as e:
        await e.run(say, "1 2 k1 3 k2")
        assert ears.heard == Counter(["1", "2", "3", "k1", "k2"])
        assert await bundles(e) == [(3, True)]
        assert len(await e.fetch("SELECT message FROM deliveries")) == 2
        assert await delivered(app) == set(ears.heard)
        await e.advance("1h")
        assert ears.heard.total() == 5


async def test_a_failed_message_is_repeated_without_the_rest_of_its_bundle() -> None:
    app, say, ears = new_app()
    ears.refuses = {"2"}
    async with engine(app) as e:
        await e.run(say, "1 2 3")
        assert await bundles(e) == []
        assert await delivered(app) == {"1", "3"}
        await e.advance("0.9s")
        assert ears.heard["2"] == 1
        ears.refuses = set()
        await e.advance("0.2s")
        assert ears.heard == Counter({"1": 1, "2": 2, "3": 1})
        assert await delivered(app) == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("call", "fault", "times"),
    [("apply", crash_after, 1), ("record_deliveries", crash_before, 2), ("record_deliveries", crash_after, 1)],
)
async def test_a_bundle_whose_process_died_is_delivered_by_another_after_its_lease(
    call: str, fault: Any, times: int
) -> None:
    """The process dies between commit and delivery, between delivery and its record, or right after that."""
    app, say, ears = new_app()
    died: list[str] = []

    def plan(asked: Call) -> Fault | None:
        if asked.name == call and not died:
            died.append(call)
            return fault(Crash())
        return None

    async with engine(app, plan=plan) as e:
        handle = await say.start("1 2 3")
        await e.finish(handle)
        assert died
        await e.advance("1m")
        assert ears.heard == Counter({"1": times, "2": times, "3": times})
        assert await delivered(app) == {"1", "2", "3"}


async def test_messages_at_the_end_of_a_slow_queue_are_released_to_other_processes() -> None:
    """The second bundle is split when a part of it is released; the first keeps its place."""
    app, say, ears = new_app()
    texts = [str(n) for n in range(1_400)]
    ears.slow = set(texts)
    async with engine(app) as e:
        ears.clock = app.runtime.clock
        for half in (texts[:700], texts[700:]):
            await e.run(say, " ".join(half))
        assert await bundles(e) == [(700, False), (700, False)]
        await e.advance("1.5s")
        assert await bundles(e) == [(700, False)]


async def test_delivered_messages_are_recorded_while_another_of_their_bundle_is_slow() -> None:
    app, say, ears = new_app()
    ears.slow = {"2"}
    async with engine(app) as e:
        ears.clock = app.runtime.clock
        await e.run(say, "1 2 3")
        assert await delivered(app) == set()
        await e.advance("1.5s")
        assert await delivered(app) == {"1", "3"}
        await e.crash()
        await e.advance("1m")
        assert ears.heard == Counter({"1": 1, "2": 2, "3": 1})
        assert await delivered(app) == {"1", "2", "3"}
