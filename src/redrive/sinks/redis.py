"""Redis Streams: each message is an entry, added with XADD.

    XADD orders.paid * id msg-... topic orders.paid key 4711 tenant acme event {"specversion": "1.0", ...}

`redrive[redis]` brings the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.errors import ConfigurationError
from redrive.sinks import Message, encode_cloud_event

if TYPE_CHECKING:
    from redis.asyncio import Redis


class RedisStreams:
    """Adds messages to streams: to the one called `stream`, or else to one for each topic.

    `prefix` goes before the name of every stream. `maxlen` lets a stream forget its oldest entries, about
    so many of them being kept.
    """

    def __init__(self, url: str, *, stream: str | None = None, prefix: str = "", maxlen: int | None = None) -> None:
        try:
            import redis.asyncio  # noqa: F401  # whether it is there is said now, not with the first message
        except ImportError:
            raise ConfigurationError("Redis Streams need a driver: pip install 'redrive[redis]'") from None
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("the URL of a Redis begins with redis://, rediss:// or unix://")
        self._url = url
        self._stream = stream
        self._prefix = prefix
        self._maxlen = maxlen
        self._client: Redis | None = None

    async def deliver(self, message: Message) -> None:
        """Add an entry; it has arrived when Redis says so."""
        if self._client is None:
            from redis.asyncio import Redis

            self._client = Redis.from_url(self._url)
        fields: dict[str | bytes, str | bytes] = {
            "id": message.id,
            "topic": message.topic,
            "tenant": message.tenant,
            "event": encode_cloud_event(message),
        }
        if message.key is not None:
            fields["key"] = message.key
        name = self._prefix + (self._stream or message.topic)
        await self._client.xadd(name, fields, maxlen=self._maxlen, approximate=True)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
