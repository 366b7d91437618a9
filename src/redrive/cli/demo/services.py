"""The world outside the shop, pretended: services that fail in the ways real ones do.

What happens is written on what is asked for, like the test cards of a payment provider, so that each
order tells one story however often it is told:

    card        "fine" | "flaky" | "busy" | "slow" | "declined" | "down"; "frozen" takes no money back
    product     "gramophone" is in no ledger, "ebony table" cannot be made
    address     "nowhere" is no address; mail to "...@busy.example" has to wait
    member      "last straw" breaks the provider of standing payments for everybody, for a few calls
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
    "collect",
    "count_shelves",
    "give_back",
    "mail",
    "order_wood",
    "read_catalogue",
    "release",
    "reserve",
    "ship",
]


CRASH = 70
"""The exit code of a worker that a catalogue killed."""

_OUTAGE = "outage"
_OUTAGE_LASTS = 6  # calls; the circuit opens at the third, so that two probes find it broken still
_KEPT = 7200  # seconds


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


async def count_shelves() -> int:
    await _takes(0.05)
    return 1_204


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


async def give_back(card: str) -> None:
    """Return money; an account that is closed takes none."""
    await _takes(0.2)
    if card == "frozen":
        raise HttpError(410, "the account was closed: the money cannot be returned")


async def collect(member: str) -> str:
    """A standing payment. Its provider breaks under one member and refuses everybody for some calls."""
    await _takes(0.1)
    outage = _folder() / _OUTAGE
    if member == "last straw" and not outage.exists():
        outage.write_bytes(b"." * _OUTAGE_LASTS)
    if _one_less(outage):
        raise HttpError(503, "the provider of standing payments is down")
    return f"fee-{_short(member)}"


async def order_wood(product: str) -> str:
    await _takes(0.2)
    if product.startswith("ebony"):
        raise HttpError(409, "ebony is protected: no workshop may sell it")
    return f"wood-{_short(product)}"


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


async def mail(to: str, subject: str, *, key: str) -> None:
    await _takes(0.05)
    if to.endswith("@busy.example") and _calls(key) < 1:
        raise HttpError(429, "this mailbox has had enough letters for now", retry_after=4)


def read_catalogue(path: str, *, key: str) -> int:
    if path == "poison.csv" or (path == "large.csv" and _calls(key) == 0):
        time.sleep(0.3)
        os._exit(CRASH)  # what a fault in a C library or the kernel's memory limit does
    return 1200


async def _takes(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _calls(key: str) -> int:
    """How often this key was here before, whichever process asked."""
    file = _folder() / _short(key)
    if file.name.startswith("0"):  # one key in sixteen
        _forget_the_old(file.parent)
    with open(file, "ab") as calls:
        before = calls.tell()
        calls.write(b".")
    return before


def _one_less(outage: Path) -> bool:
    """True while an outage lasts; each call that asks makes it shorter."""
    left = outage.read_bytes()[1:] if outage.exists() else b""
    if left:
        outage.write_bytes(left)
    else:
        outage.unlink(missing_ok=True)
    return bool(left)


def _forget_the_old(folder: Path) -> None:
    """Keep a demo that runs for days from filling the disk."""
    newest = folder.stat().st_mtime
    for file in folder.iterdir():
        if newest - file.stat().st_mtime > _KEPT:
            file.unlink(missing_ok=True)


def _folder() -> Path:
    folder = Path("outside")
    folder.mkdir(exist_ok=True)
    return folder


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
