"""The conformance suite of the testing kit, on BullMQ and on Redis Streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import bullmq
import pytest
import redis.asyncio
import redis_server

from redrive.app.sources import Accept, Arrival, Source
from redrive.bridges.bullmq import BullMQ
from redrive.sinks import Sink
from redrive.sinks.redis import RedisStreams
from redrive.testing.bridges import check_sink, check_source

pytestmark = pytest.mark.heavy
QUEUE = "trial"


class OnRedis:
    """The part of a trial that stops and starts its Redis."""

    def __init__(self, server: redis_server.Server) -> None:
        self.server = server

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[bullmq.Queue]:
        async with redis.asyncio.Redis.from_url(self.server.url, decode_responses=True) as client:
            yield bullmq.Queue(QUEUE, {"connection": client})


class BullSource(OnRedis):
    def make_source(self) -> Source:
        options: Any = {"workflow": "execute", "complete": "accepted", "lock": "2s"}
        return BullMQ(self.server.url).consume(QUEUE, **options)

    async def send(self, id: str, number: int) -> None:
        async with self.queue() as queue:
            await queue.add("execute", {"number": number}, {"jobId": id, "removeOnComplete": False})

    async def outcome(self, id: str) -> str | None:
        async with self.queue() as queue:
            job = await bullmq.Job.fromId(queue, id)
            if job is None or not job.finishedOn:
                return None
            return job.failedReason or "accepted"


class BullSink(OnRedis):
    def make_sink(self) -> Sink:
        return BullMQ(self.server.url).jobs(QUEUE)

    async def arrived(self) -> Sequence[tuple[str, Any]]:
        async with self.queue() as queue:
            ids = await queue.client.lrange(f"bull:{QUEUE}:wait", 0, -1)
            return [(id, (await bullmq.Job.fromId(queue, id)).data) for id in reversed(ids)]


class StreamSink(OnRedis):
    def make_sink(self) -> Sink:
        return RedisStreams(self.server.url, stream=QUEUE)

    async def arrived(self) -> Sequence[tuple[str, Any]]:
        async with redis.asyncio.Redis.from_url(self.server.url, decode_responses=True) as client:
            return [(fields["id"], json.loads(fields["event"])["data"]) for _, fields in await client.xrange(QUEUE)]


async def test_the_source_of_bullmq_conforms() -> None:
    with redis_server.Server() as server:
        await check_source(BullSource(server))


@pytest.mark.parametrize("trial", [BullSink, StreamSink])
async def test_sinks_on_redis_conform(trial: type[BullSink] | type[StreamSink]) -> None:
    with redis_server.Server() as server:
        await check_sink(trial(server))


class Careless:
    """A source that acknowledges before it accepts."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.done: dict[str, str] = {}

    def make_source(self) -> Source:
        return self

    async def send(self, id: str, number: int) -> None:
        self.waiting.append(id)

    async def outcome(self, id: str) -> str | None:
        return self.done.get(id)

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        yield

    async def serve(self, accept: Accept) -> None:
        while True:
            while self.waiting:
                id = self.waiting.pop(0)
                self.done[id] = "accepted"
                (answer,) = await accept([Arrival(stream="s", id=id, workflow="w", input={})])
                self.done[id] = getattr(answer, "reason", "accepted")
            await asyncio.sleep(0.01)

    async def close(self) -> None: ...


async def test_a_source_that_acknowledges_too_early_does_not_conform() -> None:
    with pytest.raises(AssertionError, match="must not be acknowledged before"):
        await check_source(Careless())
