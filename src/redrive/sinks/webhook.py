"""Webhooks: signed POST requests to URLs that `redrive.http.ssrf` allows.

They are signed as the Standard Webhooks specification says:

    webhook-id          the message's id, the same however often it is sent
    webhook-timestamp   the time of this attempt, in seconds since 1970
    webhook-signature   v1,<base64 of HMAC-SHA256 over "id.timestamp.body">, once for each secret

A secret is `whsec_` and the base64 of 24 to 64 bytes. While one secret replaces another, both sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

from redrive.errors import ConfigurationError, NonRetryable
from redrive.http.client import HttpClient, HttpRequest, require_h11
from redrive.http.ssrf import check_url
from redrive.settings import AllowedHost
from redrive.sinks import Message, encode_cloud_event

_SECRET_PREFIX = "whsec_"
_GONE = 410
_MAX_RESPONSE = 16 << 10


class Webhook:
    """Posts each message to one URL. 2xx is a delivery, 410 a final refusal; anything else is retried."""

    def __init__(
        self,
        url: str,
        keys: Sequence[bytes],
        *,
        allowed: Sequence[AllowedHost],
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
        """Post the message and check the answer."""
        if self._client is None:
            self._client = HttpClient(self._allowed, per_host=self._connections)
        body = encode_cloud_event(message).encode()
        headers = sign_headers(self._keys, message.id, self._now(), body)
        headers["content-type"] = "application/cloudevents+json"
        if message.traceparent is not None:
            headers["traceparent"] = message.traceparent
        answer = await self._client.send(
            HttpRequest(url=self.url, headers=headers, body=body, timeout=self._timeout, max_body=_MAX_RESPONSE)
        )
        if answer.status_code == _GONE:
            raise NonRetryable(f"{self._origin} answered 410 Gone: it wants no more messages")
        answer.raise_for_status(self._origin)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


def read_secrets(given: str | Iterable[str], what: str) -> tuple[bytes, ...]:
    """Decode the secrets into keys. Errors never contain a secret, not even an invalid one."""
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise ConfigurationError(f"{what} has no secret; `whsec_` and the base64 of 32 random bytes make one")
    return tuple(_decode_secret(text, number, what) for number, text in enumerate(texts, 1))


def _decode_secret(text: str, number: int, what: str) -> bytes:
    key = b""
    if isinstance(text, str) and text.startswith(_SECRET_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(_SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if not 24 <= len(key) <= 64:
        raise ConfigurationError(
            f"secret {number} of {what} is not `{_SECRET_PREFIX}` and the base64 of 24 to 64 bytes; "
            f'`echo "{_SECRET_PREFIX}$(openssl rand -base64 32)"` makes one'
        )
    return key


def sign_headers(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers with which a receiver checks sender, integrity and age of a body."""
    content = f"{id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
