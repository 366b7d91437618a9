"""Scenarios of the demo: runs that succeed or fail in typical ways, and the traffic that they make."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from decimal import Decimal
from typing import Any

from redrive.app import RunHandle, Workflow
from redrive.cli.demo import shop
from redrive.cli.demo.shop import MARKET, SHOP, fulfil, import_catalogue, invoice, make_to_measure, remind, renew

_FIRST_INTERVAL, _LATER_INTERVAL = 0.8, 2.0  # seconds between two runs: in the first round, and after it
Scenario = Callable[..., Coroutine[Any, Any, RunHandle[Any]]]


def make_order(id: str, **fields: str) -> shop.Order:
    """Make an order that succeeds, unless a field makes it fail."""
    fields = {"product": "teapot", "card": "fine", "address": "12 Mill Lane"} | fields
    return shop.Order(id=id, price=Decimal("19.90"), **fields)


def _make_scenario(workflow: Workflow[..., Any, Any], subject: str | None = None, **fields: str) -> Scenario:
    """Make a scenario that starts the workflow with a subject, or with an order that has these fields."""

    def start(id: str, tenant: str = SHOP) -> Coroutine[Any, Any, RunHandle[Any]]:
        argument = subject or make_order(id, **fields)
        return workflow.start(argument, idempotency_key=id, correlation_id=id, tenant=tenant)

    return start


# All scenarios by name. Each is started with an id.
SCENARIOS: dict[str, Scenario] = {
    "goes well": _make_scenario(fulfil),
    "retried until the line holds": _make_scenario(fulfil, card="flaky"),
    "wrong input": _make_scenario(fulfil, address="nowhere"),
    "told to come back later": _make_scenario(fulfil, card="busy"),
    "survives the death of its worker": _make_scenario(import_catalogue, "large.csv"),
    "the provider breaks, and comes back": _make_scenario(renew, "last straw"),
    "waits until the provider is back": _make_scenario(renew, "ann"),
    "rolled back": _make_scenario(make_to_measure, product="ebony table"),
    "timed out, then retried": _make_scenario(fulfil, card="slow"),
    "declined, and the workflow deals with it": _make_scenario(fulfil, card="declined"),
    "retries run out": _make_scenario(fulfil, card="down"),
    "cannot be rolled back": _make_scenario(make_to_measure, product="ebony chair", card="frozen"),
    "booked at the second try": _make_scenario(invoice, product="lamp"),
    "an error in the code": _make_scenario(invoice, product="gramophone"),
    "waits": _make_scenario(remind, "jo@example.org"),
    "needs an approval": _make_scenario(shop.refund),
    "a child waits for a decision": _make_scenario(shop.gift, address="nowhere"),
    "mail that has to wait": _make_scenario(remind, "jo@busy.example"),
    "not answered in time": _make_scenario(shop.ask_supplier, "lamp"),
    "kills its workers": _make_scenario(import_catalogue, "poison.csv"),
}
_ORDINARY_NAMES = ("goes well", "booked at the second try", "waits until the provider is back", "waits", "goes well")


async def generate_traffic(first: int) -> None:
    """Start one run after the other until the task is cancelled; number them from `first`."""
    script = list_demo_round()
    for count in itertools.count():
        name, is_story = script[count % len(script)]
        # The first round gives the stories to the shop, the next one to the market hall, and so on.
        is_shop_round = count // len(script) % 2 == 0
        await SCENARIOS[name](f"order-{first + count}", SHOP if is_story is is_shop_round else MARKET)
        await asyncio.sleep(_FIRST_INTERVAL if count < len(script) else _LATER_INTERVAL)


def list_demo_round() -> list[tuple[str, bool]]:
    """List the runs of one round: each story (True) followed by an ordinary run (False) of the other tenant."""
    ordinary = itertools.cycle(_ORDINARY_NAMES)
    return [run for story in SCENARIOS for run in ((story, True), (next(ordinary), False))]
