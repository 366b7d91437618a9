"""Passwords, hashed with argon2. Hashing takes a while on purpose, so it is done in a thread."""

from __future__ import annotations

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from redrive.errors import InputError

__all__ = ["check_password", "hashed", "is_password"]

LEAST, MOST = 10, 1024
_hasher = PasswordHasher()


def check_password(password: str) -> str:
    """The password, if it is one that may be chosen."""
    if not isinstance(password, str) or not LEAST <= len(password) <= MOST:
        raise InputError(f"a password has {LEAST} to {MOST:,} characters")
    return password


async def hashed(password: str) -> str:
    """What is stored of a password."""
    return await asyncio.to_thread(_hasher.hash, check_password(password).encode("utf-8", "surrogatepass"))


async def is_password(stored: str | None, password: str) -> bool:
    """True if it is the one that was stored. Takes as long when there is nothing to compare with."""
    return await asyncio.to_thread(_verify, stored or _nobody(), password, stored is not None)


def _verify(stored: str, password: str, known: bool) -> bool:
    try:
        _hasher.verify(stored, password.encode("utf-8", "surrogatepass"))
    except (VerificationError, InvalidHashError):
        return False
    return known


_decoy: list[str] = []


def _nobody() -> str:
    """A hash that belongs to nobody, so that a stranger is refused no faster than a friend."""
    if not _decoy:
        _decoy.append(_hasher.hash("nobody has this password"))
    return _decoy[0]
