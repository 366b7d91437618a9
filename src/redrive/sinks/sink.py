"""What a sink is: the one small interface behind webhooks, subscribers and brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from redrive.core.delivery import DEFAULT_RETRY
from redrive.core.topics import Pattern
from redrive.policy import RetryPolicy
from redrive.sinks.message import Message

__all__ = ["Sink", "SinkDefinition"]


@runtime_checkable
class Sink(Protocol):
    """Somewhere that messages go. `app.sink(name, topics, sink)` has them brought there."""

    async def deliver(self, message: Message) -> None:
        """Hand the message over. Returning means that it has arrived for good; raising, that it has not.

        It is tried again as the retry policy says, `RetryAfter` and `NonRetryable` are respected. The same
        message may come more than once, and several at once, but never two with the same key.
        """

    async def close(self) -> None:
        """Let go of connections; the sink may be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDefinition:
    """A sink as an app has it. At most `concurrency` messages are on their way at a time.

    `user_code`: delivering calls code of the user's, which may take the process with it.
    """

    name: str
    kind: str
    topics: tuple[Pattern, ...]
    sink: Sink
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: float = 30.0
    concurrency: int = 16
    user_code: bool = False
