"""Work that keeps arriving at the shop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

from redrive.app import RunHandle
from redrive.cli.demo.shop import Order, ask_supplier, fulfil, import_catalogue, invoice, remind

__all__ = ["STORIES", "keep_arriving"]

_PAUSE = 0.8

Story = Callable[[str], Coroutine[Any, Any, RunHandle[Any]]]


def _order(id: str, **other: str) -> Order:
    fields = {"product": "teapot", "card": "fine", "address": "12 Mill Lane"} | other
    return Order(id=id, price=Decimal("19.90"), **fields)


def _fulfil(**fields: str) -> Story:
    return lambda id: fulfil.start(_order(id, **fields), idempotency_key=id, correlation_id=id)


def _invoice(**fields: str) -> Story:
    return lambda id: invoice.start(_order(id, **fields), idempotency_key=id, correlation_id=id)


STORIES: dict[str, Story] = {
    "goes well": _fulfil(),
    "retried until the line holds": _fulfil(card="flaky"),
    "wrong input": _fulfil(address="nowhere"),
    "told to come back later": _fulfil(card="busy"),
    "survives the death of its worker": lambda id: import_catalogue.start(
        "large.csv", idempotency_key=id, correlation_id=id
    ),
    "timed out, then retried": _fulfil(card="slow"),
    "declined, and the workflow deals with it": _fulfil(card="declined"),
    "retries run out": _fulfil(card="down"),
    "booked at the second try": _invoice(product="lamp"),
    "an error in the code": _invoice(product="gramophone"),
    "waits": lambda id: remind.start("jo@example.org", idempotency_key=id, correlation_id=id),
    "not answered in time": lambda id: ask_supplier.start("lamp", idempotency_key=id, correlation_id=id),
    "kills its workers": lambda id: import_catalogue.start(
        "poison.csv", idempotency_key=id, correlation_id=id
    ),
}
"""Everything that can happen, by what it shows. Each is started with an id."""

_QUIET = ("goes well", "booked at the second try", "goes well", "waits", "goes well")


def _script() -> list[str]:
    """One round: every story once, with ordinary business between them."""
    ordinary = itertools.cycle(_QUIET)
    return [name for story in STORIES for name in (story, next(ordinary))]


async def keep_arriving(first: int) -> None:
    """Start one run after the other, for as long as the task lives; numbered from `first` on."""
    for number, name in enumerate(itertools.cycle(_script()), first):
        await STORIES[name](f"order-{number}")
        await asyncio.sleep(_PAUSE)
