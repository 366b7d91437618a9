"""Signatures of webhooks, as the Standard Webhooks specification has them.

    webhook-id          the message's id, the same however often it is sent
    webhook-timestamp   when this try was made, in seconds since 1970
    webhook-signature   v1,<base64 of HMAC-SHA256 over "id.timestamp.body">, once for each secret

A secret is `whsec_` and the base64 of 24 to 64 bytes. While one is being exchanged for another, both sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence

from redrive.errors import ConfigurationError

__all__ = ["read_secrets", "signed_headers"]

_PREFIX = "whsec_"


def read_secrets(given: str | Iterable[str], what: str) -> tuple[bytes, ...]:
    """The keys in the secrets. No message ever holds a secret, not even a bad one."""
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise ConfigurationError(f"{what} has no secret; `whsec_` and the base64 of 32 random bytes make one")
    return tuple(_key(text, number, what) for number, text in enumerate(texts, 1))


def _key(text: str, number: int, what: str) -> bytes:
    key = b""
    if isinstance(text, str) and text.startswith(_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if not 24 <= len(key) <= 64:
        raise ConfigurationError(
            f"secret {number} of {what} is not `{_PREFIX}` and the base64 of 24 to 64 bytes; "
            f'`echo "{_PREFIX}$(openssl rand -base64 32)"` makes one'
        )
    return key


def signed_headers(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers that let a receiver see that a body is ours, whole, and not old."""
    content = f"{id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
