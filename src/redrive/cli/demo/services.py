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

CRASH_EXIT_CODE = 70
"""The exit code of a worker that a catalogue killed."""

_OUTAGE_FILE = "outage"
_OUTAGE_CALLS = 6  # calls; the circuit opens at the third, so that two probes find it broken still
_KEPT_SECONDS = 7200  # seconds


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
    """Return money; an account that is closed takes none."""
    await _simulate_delay(0.2)
    if card == "frozen":
        raise HttpError(410, "the account was closed: the money cannot be returned")


async def collect(member: str) -> str:
    """A standing payment. Its provider breaks under one member and refuses everybody for some calls."""
    await _simulate_delay(0.1)
    outage = _state_folder() / _OUTAGE_FILE
    if member == "last straw" and not outage.exists():
        outage.write_bytes(b"." * _OUTAGE_CALLS)
    if _consume_outage(outage):
        raise HttpError(503, "the provider of standing payments is down")
    return f"fee-{_short_hash(member)}"


async def order_wood(product: str) -> str:
    await _simulate_delay(0.2)
    if product.startswith("ebony"):
        raise HttpError(409, "ebony is protected: no workshop may sell it")
    return f"wood-{_short_hash(product)}"


async def ship(product: str, address: str) -> str:
    await _simulate_delay(0.1)
    if address == "nowhere":
        raise HttpError(422, f"{address!r} is no address")
    return f"parcel-{_short_hash(product + address)}"


async def book(product: str, amount: Decimal, *, key: str) -> int:
    account = {"teapot": 4000, "lamp": 4010, "chair": 4020}[product]
    if _count_calls(key) < 1:
        raise HttpError(500, "somebody else has the books open")
    return account


async def mail(to: str, subject: str, *, key: str) -> None:
    await _simulate_delay(0.05)
    if to.endswith("@busy.example") and _count_calls(key) < 1:
        raise HttpError(429, "this mailbox has had enough letters for now", retry_after=4)


def read_catalogue(path: str, *, key: str) -> int:
    if path == "poison.csv" or (path == "large.csv" and _count_calls(key) == 0):
        time.sleep(0.3)
        os._exit(CRASH_EXIT_CODE)  # what a fault in a C library or the kernel's memory limit does
    return 1200


async def _simulate_delay(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _count_calls(key: str) -> int:
    """How often this key was here before, whichever process asked."""
    file = _state_folder() / _short_hash(key)
    if file.name.startswith("0"):  # one key in sixteen
        _remove_old_files(file.parent)
    with open(file, "ab") as calls:
        before = calls.tell()
        calls.write(b".")
    return before


def _consume_outage(outage: Path) -> bool:
    """True while an outage lasts; each call that asks makes it shorter."""
    left = outage.read_bytes()[1:] if outage.exists() else b""
    if left:
        outage.write_bytes(left)
    else:
        outage.unlink(missing_ok=True)
    return bool(left)


def _remove_old_files(folder: Path) -> None:
    """Keep a demo that runs for days from filling the disk."""
    newest = folder.stat().st_mtime
    for file in folder.iterdir():
        if newest - file.stat().st_mtime > _KEPT_SECONDS:
            file.unlink(missing_ok=True)


def _state_folder() -> Path:
    folder = Path("outside")
    folder.mkdir(exist_ok=True)
    return folder


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
