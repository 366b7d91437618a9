"""Webhooks: signed POST requests to URLs that `redrive.http.ssrf` allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redrive.allowed import Allowed
from redrive.errors import NonRetryable
from redrive.http.client import HttpClient, HttpRequest, require_h11
from redrive.http.ssrf import check_url
from redrive.sinks.message import Message, cloud_event
from redrive.sinks.signature import signed_headers

__all__ = ["Webhook"]

_GONE = 410
_MOST_OF_ANSWER = 16 << 10


class Webhook:
    """Posts each message to one URL. 2xx is delivered, 410 is the end of it, the rest is tried again."""

    def __init__(
        self,
        url: str,
        keys: Sequence[bytes],
        *,
        allowed: Sequence[Allowed],
        timeout: float,
        connections: int,
        now: Callable[[], int],
    ) -> None:
        require_h11()
        self.url = url
        self._keys = tuple(keys)
        self._allowed = tuple(allowed)
        self._timeout = timeout
        self._connections = connections
        self._now = now
        self._origin = check_url(url, self._allowed).origin
        self._client: HttpClient | None = None

    async def deliver(self, message: Message) -> None:
        """Send it, and see what the receiver says."""
        if self._client is None:
            self._client = HttpClient(self._allowed, per_host=self._connections)
        body = cloud_event(message).encode()
        headers = signed_headers(self._keys, message.id, self._now(), body)
        headers["content-type"] = "application/cloudevents+json"
        if message.traceparent is not None:
            headers["traceparent"] = message.traceparent
        answer = await self._client.send(
            HttpRequest(
                url=self.url, headers=headers, body=body, timeout=self._timeout, max_body=_MOST_OF_ANSWER
            )
        )
        if answer.status_code == _GONE:
            raise NonRetryable(f"{self._origin} answered 410 Gone: it wants no more messages")
        answer.raise_for_status(self._origin)

    async def close(self) -> None:
        """Let go of the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)
