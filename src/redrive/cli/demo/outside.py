"""The world outside the shop, pretended: services that fail in the ways real ones do.

What happens is written on what is asked for, like the test cards of a payment provider, so that each
order tells one story however often it is told:

    card        "fine" | "flaky" | "busy" | "slow" | "declined" | "down"
    product     "gramophone" is in no ledger
    address     "nowhere" is no address
    catalogue   "large.csv" kills the process that reads it once, "poison.csv" each time

Services remember keys in files of the current folder, so that they outlive the workers that call them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from decimal import Decimal
from pathlib import Path

__all__ = [
    "CRASH",
    "CardDeclined",
    "HttpError",
    "book",
    "charge",
    "mail",
    "read_catalogue",
    "release",
    "reserve",
    "ship",
]

CRASH = 70
"""The exit code of a worker that a catalogue killed."""


class HttpError(Exception):
    """What an HTTP client raises; Redrive reads the status and the header, whatever the class is called."""

    def __init__(self, status_code: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class CardDeclined(HttpError):
    """The bank says no, and will say no again."""

    def __init__(self) -> None:
        super().__init__(402, "the card was declined")


async def reserve(product: str) -> str:
    await _takes(0.05)
    return f"shelf-{len(product)}"


async def release(reservation: str) -> None:
    await _takes(0.05)


async def charge(card: str, amount: Decimal, *, key: str) -> str:
    calls = _calls(key)
    await _takes(0.1)
    match card:
        case "flaky" if calls < 2:
            raise ConnectionResetError("the bank closed the connection")
        case "busy" if calls < 1:
            raise HttpError(429, "too many requests", retry_after=3)
        case "slow" if calls < 1:
            await _takes(60)
        case "declined":
            raise CardDeclined
        case "down":
            raise HttpError(503, "the bank is closed for maintenance")
    return f"pay-{_short(key)}"


async def ship(product: str, address: str) -> str:
    await _takes(0.1)
    if address == "nowhere":
        raise HttpError(422, f"{address!r} is no address")
    return f"parcel-{_short(product + address)}"


async def book(product: str, amount: Decimal, *, key: str) -> int:
    account = {"teapot": 4000, "lamp": 4010, "chair": 4020}[product]
    if _calls(key) < 1:
        raise HttpError(500, "somebody else has the books open")
    return account


async def mail(to: str, subject: str) -> None:
    await _takes(0.05)


def read_catalogue(path: str, *, key: str) -> int:
    if path == "poison.csv" or (path == "large.csv" and _calls(key) == 0):
        time.sleep(0.3)
        os._exit(CRASH)  # what a fault in a C library or the kernel's memory limit does
    return 1200


async def _takes(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _calls(key: str) -> int:
    """How often this key was here before, whichever process asked."""
    folder = Path("outside")
    folder.mkdir(exist_ok=True)
    with open(folder / _short(key), "ab") as file:
        before = file.tell()
        file.write(b".")
    return before


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
