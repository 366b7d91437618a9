"""Passwords, hashed with argon2.

Hashing takes time and 64 MiB of memory on purpose. It has threads to itself, so that many sign-ins at once
delay each other and no other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from redrive.errors import InputError

__all__ = ["check_password", "hashed", "is_busy", "is_password"]

LEAST, MOST = 10, 1024
THREADS, WAITING = 2, 64
_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="redrive-password")
_waiting = 0

T = TypeVar("T")


def check_password(password: str) -> str:
    """The password, if it is one that may be chosen."""
    if not isinstance(password, str) or not LEAST <= len(password) <= MOST:
        raise InputError(f"a password has {LEAST} to {MOST:,} characters")
    return password


async def hashed(password: str) -> str:
    """What is stored of a password."""
    return await _in_thread(_hasher.hash, check_password(password).encode("utf-8", "surrogatepass"))


async def is_password(stored: str | None, password: str) -> bool:
    """True if it is the one that was stored. Takes as long when there is nothing to compare with."""
    return await _in_thread(_verify, stored, password)


def is_busy() -> bool:
    """Return True if so many calls wait for a thread that no more should be made."""
    return _waiting >= THREADS + WAITING


async def _in_thread(call: Callable[..., T], *arguments: Any) -> T:
    global _waiting
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)
    finally:
        _waiting -= 1


def _verify(stored: str | None, password: str) -> bool:
    try:
        _hasher.verify(stored or _decoy_hash(), password.encode("utf-8", "surrogatepass"))
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


@cache
def _decoy_hash() -> str:
    """Return the hash of a password that no user has: an unknown address takes as long as a known one."""
    return _hasher.hash("no user has this password")
