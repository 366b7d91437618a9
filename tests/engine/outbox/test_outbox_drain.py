"""A hundred thousand messages, drained in bounded memory although one key is blocked."""

from __future__ import annotations

from pathlib import Path

import pytest
from outbox_kit import sink
from store_kit import HandClock, Kit, entry, writes

from redrive import Message, NonRetryable
from redrive.chores import Relay
from redrive.chores.relay_deliveries import MAX_HELD_MESSAGES
from redrive.clock import SystemClock
from redrive.core.outbox import TopicPattern
from redrive.core.transitions import MessageWrite
from redrive.sinks import SinkDefinition
from redrive.store import open_store

COUNT = 100_000
BATCH = 1_000


class Slow:
    """A sink that counts messages, and how many it handles at once."""

    def __init__(self) -> None:
        self.got = 0
        self.relay: Relay
        self.most = 0

    async def deliver(self, message: Message) -> None:
        if message.text == '"dead"':
            raise NonRetryable("no")
        self.got += 1
        self.most = max(self.most, self.relay._in_hand.count)

    async def close(self) -> None: ...


@pytest.mark.slow
async def test_a_hundred_thousand_messages_are_drained_with_few_in_memory(tmp_path: Path) -> None:
    clock = SystemClock()
    store = open_store(f"sqlite:///{tmp_path}/box.db", clock)
    await store.open()
    try:
        kit = Kit(store=store, clock=HandClock(), beside=lambda: None, shared=True)
        await store.put_sinks([sink("s")])
        worker, run = await kit.held()

        def message(n: int) -> MessageWrite:
            key = "blocked" if n % 10 == 0 else None
            text = '"dead"' if n == 0 else str(n)
            return MessageWrite(public_id=f"m{n}", topic="t", payload=text, run_id="r", correlation_id="c", key=key)

        for start in range(0, COUNT, BATCH):
            messages = tuple(message(n) for n in range(start, start + BATCH))
            done = start // BATCH
            await store.apply([writes(run, entry(done, done=done), messages=messages)], worker=worker)
        slow = Slow()
        definition = SinkDefinition(name="s", kind="test", topics=(TopicPattern("", wild=True),), sink=slow)
        relay = slow.relay = Relay(store, clock, definition)
        assert await relay.run_once() == COUNT * 9 // 10
        await relay.stop()
        assert slow.got == COUNT * 9 // 10
        assert slow.most <= MAX_HELD_MESSAGES
        (blocked,) = await store.blocked_keys(limit=10)
        assert (blocked.message, blocked.waiting) == ("m0", 1000)
    finally:
        await store.close()
