"""Simulated services of the shop, which fail in typical ways.

The arguments decide what happens, like the test cards of a payment provider, so that each order always has
the same result:

    card        "fine" | "flaky" | "busy" | "slow" | "declined" | "down"; "frozen" takes no money back
    product     "gramophone" is in no ledger, "ebony table" cannot be made
    address     "nowhere" is not an address; mail to "...@busy.example" has to wait
    member      "last straw" breaks the provider of standing payments for all members, for a few calls
    catalogue   "large.csv" kills the process that reads it once, "poison.csv" each time

The services count calls in files of the current folder, so that the counts survive a crash of the worker.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from decimal import Decimal
from pathlib import Path

CRASH_EXIT_CODE = 70
"""Exit code of a worker that a catalogue killed."""

_OUTAGE_CALLS = 6  # the circuit opens at the third call, so that two probes still fail
_KEPT_SECONDS = 7200


class HttpError(Exception):
    """An error as HTTP clients raise it; Redrive reads the status and the header of any class."""

    def __init__(self, status_code: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class CardDeclined(HttpError):
    """A refusal of the bank that a retry does not change."""

    def __init__(self) -> None:
        super().__init__(402, "the card was declined")


async def reserve(product: str) -> str:
    await _simulate_delay(0.05)
    return f"shelf-{len(product)}"


async def count_shelves() -> int:
    await _simulate_delay(0.05)
    return 1_204


async def release(reservation: str) -> None:
    await _simulate_delay(0.05)


async def charge(card: str, amount: Decimal, *, key: str) -> str:
    calls = _count_calls(key)
    await _simulate_delay(0.1)
    match card:
        case "flaky" if calls < 2:
            raise ConnectionResetError("the bank closed the connection")
        case "busy" if calls < 1:
            raise HttpError(429, "too many requests", retry_after=3)
        case "slow" if calls < 1:
            await _simulate_delay(60)
        case "declined":
            raise CardDeclined
        case "down":
            raise HttpError(503, "the bank is closed for maintenance")
    return f"pay-{_short_hash(key)}"


async def give_back(card: str) -> None:
    """Return money; fail for an account that is closed."""
    await _simulate_delay(0.2)
    if card == "frozen":
        raise HttpError(410, "the account was closed: the money cannot be returned")


async def collect(member: str) -> str:
    """Collect a standing payment. One member makes the provider refuse the next calls of all members."""
    await _simulate_delay(0.1)
    outage = _state_folder() / "outage"
    if member == "last straw" and not outage.exists():
        outage.write_bytes(b"." * _OUTAGE_CALLS)
    left = outage.read_bytes()[1:] if outage.exists() else b""
    if left:  # each call makes the outage shorter
        outage.write_bytes(left)
        raise HttpError(503, "the provider of standing payments is down")
    outage.unlink(missing_ok=True)
    return f"fee-{_short_hash(member)}"


async def order_wood(product: str) -> str:
    await _simulate_delay(0.2)
    if product.startswith("ebony"):
        raise HttpError(409, "ebony is protected: no workshop may sell it")
    return f"wood-{_short_hash(product)}"


async def ship(product: str, address: str) -> str:
    await _simulate_delay(0.1)
    if address == "nowhere":
        raise HttpError(422, f"{address!r} is not an address")
    return f"parcel-{_short_hash(product + address)}"


async def book(product: str, amount: Decimal, *, key: str) -> int:
    account = {"teapot": 4000, "lamp": 4010, "chair": 4020}[product]
    if _count_calls(key) < 1:
        raise HttpError(500, "the books are locked by another user")
    return account


async def mail(to: str, subject: str, *, key: str) -> None:
    await _simulate_delay(0.05)
    if to.endswith("@busy.example") and _count_calls(key) < 1:
        raise HttpError(429, "this mailbox receives too many messages", retry_after=4)


def read_catalogue(path: str, *, key: str) -> int:
    if path == "poison.csv" or (path == "large.csv" and _count_calls(key) == 0):
        time.sleep(0.3)
        os._exit(CRASH_EXIT_CODE)  # like a fault in a C library, or the memory limit of the kernel
    return 1200


async def _simulate_delay(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _count_calls(key: str) -> int:
    """Count the earlier calls with this key, of any process."""
    file = _state_folder() / _short_hash(key)
    # One key in sixteen removes old files: a demo that runs for days must not fill the disk.
    for old in file.parent.iterdir() if file.name.startswith("0") else ():
        if file.parent.stat().st_mtime - old.stat().st_mtime > _KEPT_SECONDS:
            old.unlink(missing_ok=True)
    with open(file, "ab") as calls:
        before = calls.tell()
        calls.write(b".")
    return before


def _state_folder() -> Path:
    folder = Path("outside")
    folder.mkdir(exist_ok=True)
    return folder


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
