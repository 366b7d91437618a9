"""Random secrets: API keys, sessions, codes. Only their hashes are stored, and compared in constant time.

    rdk_<id>_<43 random characters>      an API key: the id finds its row, the rest proves it

A secret of 256 random bits cannot be guessed from its SHA-256, so no slow hash is needed here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from redrive.frozen import dataclass

__all__ = ["Key", "hash_of", "is_secret", "new_code", "new_key", "new_secret", "read_key"]

_KEY = re.compile(r"rdk_([0-9a-z]{26})_([A-Za-z0-9_-]{43})", re.ASCII)
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key taken apart."""

    id: str
    secret: str


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def new_key(id: str) -> tuple[str, str]:
    """An API key for a token's row: what its owner is shown once, and what is stored."""
    secret = new_secret()
    return f"rdk_{id}_{secret}", hash_of(secret)


def new_code() -> str:
    """A code to be typed once: 120 random bits in groups of letters that are not mistaken for others."""
    letters = [secrets.choice(_LETTERS) for _ in range(25)]
    return "-".join("".join(letters[start : start + 5]) for start in range(0, 25, 5))


def read_key(text: str) -> Key | None:
    """The parts of an API key; None if it is none."""
    found = _KEY.fullmatch(text)
    return None if found is None else Key(found[1], found[2])


def hash_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def is_secret(stored: str, secret: str) -> bool:
    """True if the secret is the one that was stored; takes the same time whichever way it differs."""
    return hmac.compare_digest(stored, hash_of(secret))
