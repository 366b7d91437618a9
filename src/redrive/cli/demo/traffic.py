"""Work that keeps arriving at the shop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

from redrive.app import RunHandle, Workflow
from redrive.cli.demo.people import MARKET, SHOP
from redrive.cli.demo.shop import (
    Order,
    ask_supplier,
    fulfil,
    import_catalogue,
    invoice,
    make_to_measure,
    remind,
    renew,
)

__all__ = ["STORIES", "keep_arriving"]

_AT_FIRST, _LATER = 0.8, 2.0  # seconds between two runs: in the first round, and from then on

Story = Callable[..., Coroutine[Any, Any, RunHandle[Any]]]


def _order(id: str, **other: str) -> Order:
    fields = {"product": "teapot", "card": "fine", "address": "12 Mill Lane"} | other
    return Order(id=id, price=Decimal("19.90"), **fields)


def _told(workflow: Workflow[..., Any, Any], about: str) -> Story:
    """A story about something that has a name."""

    def story(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        return workflow.start(about, idempotency_key=id, correlation_id=id, tenant=tenant)

    return story


def _ordered(workflow: Workflow[..., Any, Any], **fields: str) -> Story:
    """A story about an order."""

    def story(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        order = _order(id, **fields)
        return workflow.start(order, idempotency_key=id, correlation_id=id, tenant=tenant)

    return story


STORIES: dict[str, Story] = {
    "goes well": _ordered(fulfil),
    "retried until the line holds": _ordered(fulfil, card="flaky"),
    "wrong input": _ordered(fulfil, address="nowhere"),
    "told to come back later": _ordered(fulfil, card="busy"),
    "survives the death of its worker": _told(import_catalogue, "large.csv"),
    "the provider breaks, and comes back": _told(renew, "last straw"),
    "waits until the provider is back": _told(renew, "ann"),
    "rolled back": _ordered(make_to_measure, product="ebony table"),
    "timed out, then retried": _ordered(fulfil, card="slow"),
    "declined, and the workflow deals with it": _ordered(fulfil, card="declined"),
    "retries run out": _ordered(fulfil, card="down"),
    "cannot be rolled back": _ordered(make_to_measure, product="ebony chair", card="frozen"),
    "booked at the second try": _ordered(invoice, product="lamp"),
    "an error in the code": _ordered(invoice, product="gramophone"),
    "waits": _told(remind, "jo@example.org"),
    "mail that has to wait": _told(remind, "jo@busy.example"),
    "not answered in time": _told(ask_supplier, "lamp"),
    "kills its workers": _told(import_catalogue, "poison.csv"),
}
"""Everything that can happen, by what it shows. Each is started with an id."""

_QUIET = ("goes well", "booked at the second try", "waits until the provider is back", "waits", "goes well")


def _script() -> list[str]:
    """One round: every story once, with ordinary business between them."""
    ordinary = itertools.cycle(_QUIET)
    return [name for story in STORIES for name in (story, next(ordinary))]


async def keep_arriving(first: int) -> None:
    """Start one run after the other, for as long as the task lives; numbered from `first` on.

    Every third run is the market hall's, so that each tenant has everything before long.
    """
    script = _script()
    for count in itertools.count():
        number, name = first + count, script[count % len(script)]
        await STORIES[name](f"order-{number}", MARKET if number % 3 == 0 else SHOP)
        await asyncio.sleep(_AT_FIRST if count < len(script) else _LATER)
