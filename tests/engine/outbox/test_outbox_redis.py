"""Redis Streams, with a real Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

import redrive
from redrive import OutboxFilter, Redrive, RetryPolicy, Sink
from redrive.errors import ConfigurationError
from redrive.sinks.redis import RedisStreams
from redrive.testing import engine


def streaming(sink: Sink) -> tuple[Redrive, Any]:
    app = Redrive()
    app.sink("stream", "orders.*", sink, retry=RetryPolicy(max_retries=2, base_delay="1s"))

    @app.workflow
    async def pay(orders: int) -> None:
        for n in range(orders):
            redrive.publish("orders.paid", {"n": n, "text": "żółć\0"}, key="k")

    return app, pay


async def test_messages_become_entries_of_a_stream_in_order(redis_url: str) -> None:
    app, pay = streaming(RedisStreams(redis_url, prefix="order-test:"))
    async with engine(app) as e:
        await e.run(pay, 300)
        assert (await app.outbox.list(OutboxFilter(status="PENDING"))).items == []
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        entries = client.xrange("order-test:orders.paid")
    events = [json.loads(fields["event"]) for _, fields in entries]
    assert [event["data"]["n"] for event in events] == list(range(300))
    assert events[0]["data"]["text"] == "żółć\0"
    first = entries[0][1]
    assert (first["topic"], first["key"], first["tenant"]) == ("orders.paid", "k", "default")
    assert first["id"] == events[0]["id"]


async def test_one_stream_may_take_all_topics_and_forget_old_entries(redis_url: str) -> None:
    app, pay = streaming(RedisStreams(redis_url, stream="one-stream", maxlen=100))
    async with engine(app) as e:
        await e.run(pay, 900)
    with redis.Redis.from_url(redis_url) as client:
        assert 100 <= client.xlen("one-stream") < 900


async def test_a_redis_outage_delays_delivery() -> None:
    app, pay = streaming(RedisStreams("redis://127.0.0.1:1/0"))
    async with engine(app) as e:
        await e.run(pay, 1)
        (message,) = (await app.outbox.list()).items
        assert (message.deliveries[0].status, message.deliveries[0].attempt) == ("PENDING", 1)
        assert "ConnectionError" in message.deliveries[0].error


async def test_a_redis_stream_can_be_registered_as_a_sink() -> None:
    assert isinstance(RedisStreams("redis://127.0.0.1:1/0"), Sink)
    with pytest.raises(ConfigurationError, match="begins with redis"):
        RedisStreams("http://example.org")
