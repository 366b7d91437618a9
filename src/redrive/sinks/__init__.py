"""Sinks receive the messages of the outbox: webhooks, functions of this process, brokers.

The relay (`chores/relay.py`) delivers to them. Here are the message, the interface of a sink, and the
sink that calls a function; `webhook` and `redis` are the other sinks.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from redrive.core.outbox import DEFAULT_SINK_RETRY, TopicPattern
from redrive.errors import ConfigurationError
from redrive.policy import RetryPolicy
from redrive.store.encryption.keyring import Unreadable
from redrive.store.outbox import MessageRow
from redrive.time_values import to_datetime

__all__ = ["Message", "Sink", "SinkDefinition", "Subscriber", "encode_cloud_event", "read_message"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A published message. It may arrive more than once, always with the same `id`.

    `text` is the payload as JSON, `run_id` the run that published it, `committed_at` its time in microseconds
    since 1970, `traceparent` the trace it belongs to, if there is one.
    """

    id: str
    topic: str
    text: str
    key: str | None
    tenant: str
    committed_at: int
    run_id: str
    correlation_id: str
    traceparent: str | None = None

    @property
    def time(self) -> datetime:
        """Return the time of the commit."""
        return to_datetime(self.committed_at)

    @property
    def payload(self) -> Any:
        """Return the payload, decoded from JSON."""
        return json.loads(self.text)


def read_message(row: MessageRow) -> Message:
    """Return the message of a row; raise ConfigurationError if this process has no key to decrypt it."""
    if isinstance(row.payload, Unreadable):
        raise ConfigurationError(f"the message cannot be read: {row.payload.why}")
    return Message(
        id=row.public_id,
        topic=row.topic,
        text=row.payload,
        key=row.key,
        tenant=row.tenant,
        committed_at=row.created_at,
        run_id=row.run_id,
        correlation_id=row.correlation_id,
        traceparent=row.trace,
    )


def encode_cloud_event(message: Message) -> str:
    """Encode the message as a CloudEvent 1.0 in JSON. `source` and `id` together are unique."""
    head = {
        "specversion": "1.0",
        "id": message.id,
        "source": f"urn:redrive:{quote(message.tenant, safe='')}",
        "type": message.topic,
        "subject": message.run_id,
        "time": message.time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "correlationid": message.correlation_id,
    }
    if message.key is not None:
        head["partitionkey"] = message.key
    if message.traceparent is not None:
        head["traceparent"] = message.traceparent
    return f'{json.dumps(head)[:-1]}, "data": {message.text}}}'


@runtime_checkable
class Sink(Protocol):
    """A destination of messages, registered with `app.sink(name, topics, sink)`."""

    async def deliver(self, message: Message) -> None:
        """Deliver the message. Returning means that it has arrived for good; raising, that it has not.

        A failed delivery is retried by the retry policy; `RetryAfter` and `NonRetryable` are respected. The
        same message may come more than once, and several at once, but never two with the same key.
        """

    async def close(self) -> None:
        """Close connections; the sink may be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDefinition:
    """A registered sink. At most `concurrency` messages are delivered at a time.

    `user_code`: delivering calls the user's code, which may crash the process.
    """

    name: str
    kind: str
    topics: tuple[TopicPattern, ...]
    sink: Sink
    retry: RetryPolicy = DEFAULT_SINK_RETRY
    timeout: float = 30.0
    concurrency: int = 16
    user_code: bool = False


class Subscriber:
    """Calls a function with each message: on the loop if it is `async def`, else in a thread."""

    def __init__(self, fn: Callable[[Message], Any], threads: int) -> None:
        self._fn = fn
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
            getattr(fn, "__call__", None)  # noqa: B004  # whether it is async, not whether it can be called
        )
        self._pool: ThreadPoolExecutor | None = None

    async def deliver(self, message: Message) -> None:
        """Call the function."""
        if self._is_async:
            called: Awaitable[Any] = self._fn(message)
            await called
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="redrive-subscriber")
        await asyncio.get_running_loop().run_in_executor(self._pool, self._fn, message)

    async def close(self) -> None:
        """Start no further calls. Threads that are still busy end on their own."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
