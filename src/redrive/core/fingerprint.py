"""Fingerprints of failures: a short text that is equal for failures with one cause and for no others.

It is made of what failed (workflow, step), how (category, exception type), where (the function of
the user's code) and the message without what differs from run to run. Line numbers, ids, amounts,
times and paths do not matter; the order of the masks below does, since each sees what the ones
before it left.

A message may quote secrets, and a plain hash of it would let every reader of fingerprints test guesses.
So secrets are masked first, and the hash has a key: one for each tenant, derived from a random secret of
the store that no reader sees. Only the default names and patterns are masked, so that all workers agree
whatever their settings are.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache

from redrive.core.failure import Failure
from redrive.core.keys import encode
from redrive.core.redact import MASK, Redactor

__all__ = ["derive_key", "fingerprint", "normalise"]

# Numbers and ids share one mask, since an id may happen to be all digits.
# Every pattern has bounded or unambiguous repetition: messages are foreign text, and time spent on
# them must grow with their length only.
_MASKS = (
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'\"<>]+"), "<url>"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<email>"),
    (re.compile(r"(?<!\w)(?:\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`)(?!\w)"), "<text>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<n>"),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?"
        ),
        "<time>",
    ),
    (re.compile(r"(?<![\w/\\.])(?:[a-zA-Z]:)?(?:\.{0,2}[/\\][\w.@~+-]+)+[/\\]?"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8,}\b"), "<n>"),
    (re.compile(r"[-+]?\b\d+(?:[.,:]\d+)*\b"), "<n>"),
    (re.compile(r"\b[^\W\d]*\d\w*"), "<n>"),
    (re.compile(r"(<[a-z]+>)(?:[\s,;]+\1)+"), r"\1"),
    (re.compile(r"\s+"), " "),
)


@lru_cache(1024)
def derive_key(secret: str, tenant: str) -> bytes:
    """Return the key of a tenant's fingerprints: equal failures of two tenants have different ones."""
    return hmac.digest(secret.encode(), tenant.encode("utf-8", "surrogatepass"), "sha256")


def fingerprint(failure: Failure, *, workflow: str, step: str | None, key: bytes) -> str:
    """Return 16 hexadecimal digits, the same for failures that look like one cause."""
    where = () if step is None else (step,)
    # A card number is masked and any other number becomes a placeholder: which of them must not matter.
    message = normalise(_redactor().text(failure.message).replace(MASK, "0"))
    text = encode(
        "fingerprint", failure.category, failure.error_type, message, failure.frame or "", workflow, *where
    )
    return hashlib.blake2b(text.encode(), key=key, digest_size=8).hexdigest()


@lru_cache(1)
def _redactor() -> Redactor:
    """Return the default redactor, made when the first failure needs it."""
    return Redactor()


def normalise(message: str) -> str:
    """The message with placeholders for what differs between two occurrences of one failure."""
    for pattern, placeholder in _MASKS:
        message = pattern.sub(placeholder, message)
    return message.strip()
